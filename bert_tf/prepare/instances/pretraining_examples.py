"""Pre-training instances from the tokens of a shard: pairs, assembled and masked.

Every choice is a function of (seed, split, shard): the same text gives the same bytes, whichever
process makes a shard, and every shard has its own random stream.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.prepare.instances.tokens import TokenSettings, count_text, entry_of, read_text
from bert_tf.records.manifest import FileEntry
from bert_tf.records.pairs import Draws, PairSettings, shuffled_pairs, with_two_documents
from bert_tf.records.schema import NUM_MARKERS, InstanceArrays
from bert_tf.records.token_file import TOKENS_SUFFIX, Shard, TokenFile, TokenizedText
from bert_tf.records.writer import write_records
from bert_tf.settings.preparation import PreparationOptions
from bert_tf.text.basic_tokenizer import Casing


@dataclasses.dataclass(frozen=True)
class ExampleSettings:
    """Settings of `create_tfrecord_files`.

    Raises: UserError for a value out of range.
    """

    vocab_file: str
    max_seq_length: int = 128
    max_predictions_per_seq: int = PreparationOptions.max_predictions_per_seq
    do_lower_case: bool = True
    strip_accents: bool | None = None  # None: as do_lower_case
    masked_lm_prob: float = PreparationOptions.masked_lm_prob
    dupe_factor: int = 5
    random_seed: int = PreparationOptions.random_seed
    whole_word_masking: bool = False
    short_seq_prob: float = 0.1

    def __post_init__(self) -> None:
        self.pair_settings.check()
        most = self.max_seq_length - NUM_MARKERS
        if self.max_predictions_per_seq > most:
            given = f"--max_predictions_per_seq={self.max_predictions_per_seq}"
            raise UserError(f"{given} is out of range; give a value from 1 to {most}")
        self.masking_rules  # noqa: B018 - MaskingRules checks the other values

    @property
    def masking_rules(self) -> MaskingRules:
        return MaskingRules(self.masked_lm_prob, self.max_predictions_per_seq, self.whole_word_masking)

    @property
    def pair_settings(self) -> PairSettings:
        return PairSettings(self.max_seq_length, self.dupe_factor, self.random_seed, self.short_seq_prob)

    @property
    def token_settings(self) -> TokenSettings:
        return TokenSettings(self.vocab_file, Casing.of(self.do_lower_case, self.strip_accents))


def create_instances(
    text: TokenizedText, settings: ExampleSettings, ids: VocabularyIds, seed: Iterable[int]
) -> Iterator[InstanceArrays]:
    """All instances of a shard, shuffled, in blocks; `text` must have at least two documents.

    `seed`: non-negative integers, which determine all choices.
    """
    draws = Draws.of(seed)
    masker = Masker(settings.masking_rules, ids)
    first = 0
    for pairs in shuffled_pairs(text, settings.pair_settings, draws):
        num = len(pairs.a_start)
        features = masker.instances(
            text.token_ids, pairs, settings.max_seq_length, seed=draws.mask_key, ranges=np.array([[0, first, num]])
        )
        features["next_sentence_labels"] = features["next_sentence_labels"][:, 0]
        yield InstanceArrays(**features)
        first += num


def make_shard(source: Path, output_path: Path, settings: ExampleSettings, shard: Shard) -> FileEntry:
    """Turns a sharded text file, or the token file made from it, into a record file and its index.

    Args:
      shard: it and `settings.random_seed` are the seed.
    Returns: with counts for `total_counts`.
    Raises: UserError where the source cannot be read or holds too little, or the disk cannot be written.
    """
    tokenizer = settings.token_settings.tokenizer
    ids = VocabularyIds.of_tokenizer(tokenizer)
    if source.suffix == TOKENS_SUFFIX:
        whole = TokenFile(source).text()
    else:
        whole = read_text(source, tokenizer, settings.pair_settings)
    try:
        text = with_two_documents(whole)
    except UserError as error:
        raise UserError(f"sharded text {source} {error}") from None
    counts = Counter(count_text(whole, ids.unknown))
    counts["num_documents_cut_in_two"] = text.num_documents - whole.num_documents

    def counted_blocks() -> Iterator[InstanceArrays]:
        for block in create_instances(text, settings, ids, (settings.random_seed, *shard)):
            num_real = int(np.count_nonzero(block.input_mask))
            counts.update(
                num_instances=block.num_instances,
                num_random_next=int(block.next_sentence_labels.sum()),
                num_masked_tokens=int(np.count_nonzero(block.masked_lm_weights)),
                num_instance_tokens=num_real,
                num_padding_tokens=block.input_mask.size - num_real,
            )
            yield block

    sha256 = write_records(output_path, counted_blocks())
    return entry_of(output_path, sha256, dict(counts), num_instances=counts["num_instances"])


def total_counts(shards: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """The sums of counts of `make_shard`, and the shares computed from them."""
    total: Counter[str] = Counter()
    for counts in shards:
        total.update(counts)
    if not total:
        return {}
    positions = total["num_instance_tokens"] + total["num_padding_tokens"]
    return {
        **total,
        "random_next_share": total["num_random_next"] / total["num_instances"],
        "padding_share": total["num_padding_tokens"] / positions,
        "unknown_share": total["num_unknown_tokens"] / total["num_tokens"],
    }
