"""--action inspect: shows samples of the prepared data, measures them, and warns of what looks wrong.

The text is checked for being sentences; documents are compared; a sample of the instances is decoded and measured.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.batches.masking import MaskingRules, VocabularyIds
from bert_tf.batches.token_set import TokenSet
from bert_tf.prepare.layout import Layout, make_task_pool
from bert_tf.prepare.running.stage import PreparedStage, counts_in_words
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.prepare.sharding.sentences import OTHER_STOPS
from bert_tf.prepare.sharding.sharding import long_sentence_warnings, sample_sentences
from bert_tf.prepare.stages import find_prepared
from bert_tf.records.manifest import FileEntry
from bert_tf.records.pair_file import drawn_pair_settings
from bert_tf.records.pairs import PairSettings
from bert_tf.records.schema import ExampleReader, Features, RecordSchema
from bert_tf.records.shard import RecordFile
from bert_tf.records.token_file import SPLITS
from bert_tf.settings.preparation import PreparationOptions, command
from bert_tf.text.tokenizer import open_tokenizer
from bert_tf.text.vocabulary import Tokenizer

# A stop, perhaps followed by closing quotation marks and brackets.
_ENDS_WITH_STOP = re.compile(rf"[.!?:;…{OTHER_STOPS}]\W{{0,3}}$")
# A sentence has some 100 characters, in Chinese 30.
_SHORT_SENTENCE, _MANY_WITHOUT_STOP = 40, 0.5


def inspect_sentences(paths: Sequence[Path]) -> Iterator[str]:
    """Prints measurements of a sample of sharded text; yields warnings if it looks wrong."""
    sentences = sample_sentences(paths)
    num = max(len(sentences), 1)
    mean_characters = sum(map(len, sentences)) / num
    without_stop = sum(not _ENDS_WITH_STOP.search(sentence) for sentence in sentences) / num
    shares = f"{mean_characters:.0f} characters on average, {without_stop:.1%} without a stop"
    print(f"\nSentences\n  {len(sentences):,} looked at: {shares}", flush=True)
    yield from long_sentence_warnings(sentences)
    if without_stop > _MANY_WITHOUT_STOP and mean_characters < _SHORT_SENTENCE:
        yield (
            f"sentences have {shares}: these are headings, titles or lists, from which a model learns no sentences "
            "(unless the script has no stops); is it the right column or field of the source (--text_column)?"
        )


# Decoding takes 0.1 ms per instance. With this many, shares are accurate to half a percent.
SAMPLE_INSTANCES = 10_000
_NUM_BINS, _BAR_WIDTH = 12, 50
_BY_RULE = "of the predictions are {}, where {} should be: the records were not made by the usual rules"
# Share -> the range that needs no warning (chance aside), and the warning. A second passage is random for half of the
# chunks and for all chunks of a single sentence: 50 to 60 % in books, encyclopedias or abstracts.
_USUAL = {
    "masked": (0.78, 0.82, _BY_RULE.format("masked", "80%")),
    "kept": (0.08, 0.12, _BY_RULE.format("kept", "10%")),
    "replaced": (0.08, 0.12, _BY_RULE.format("replaced", "10%")),
    "random next passages": (
        0.48,
        0.65,
        "of the second passages are random, where 50 to 60 % are usual: if less, is the label inverted (1 is random, 0 "
        "is next)? If more, many documents have a single sentence: is each line taken for a document (--input_format), "
        "or text without stops for one sentence?",
    ),
    "padding": (0, 0.6, "of the positions are padding: documents are short for this length"),
    "[UNK]": (0, 0.02, "of the tokens are [UNK]: the vocabulary does not fit this language, script or case"),
}


class Sample(NamedTuple):
    """Measurements of a sample of instances.

    Attributes:
      lengths: [N], real tokens.
      flags: for each share in `_USUAL`, 1 where it applies: of all predictions, instances (if any has two passages),
        positions, or real tokens before masking.
    """

    lengths: np.ndarray
    flags: dict[str, np.ndarray]

    def share(self, name: str) -> float:
        return float(self.flags[name].sum() / max(self.flags[name].size, 1))


def _evenly_spread(num_total: int) -> np.ndarray:
    return np.unique(np.linspace(0, num_total - 1, min(num_total, SAMPLE_INSTANCES)).astype(int))


def read_sample(folder: Path, entries: Sequence[FileEntry]) -> Features:
    """Up to `SAMPLE_INSTANCES` instances, evenly spread over the record files in a manifest's `entries`.

    Raises: UserError where a file is damaged.
    """
    firsts = np.cumsum([0, *(entry.counts["num_instances"] for entry in entries)])
    chosen = _evenly_spread(int(firsts[-1]))
    records = []
    for entry, first, numbers in zip(entries, firsts, np.split(chosen, np.searchsorted(chosen, firsts[1:-1]))):
        file = RecordFile(folder / entry.file)
        records += [ExampleReader(file.read(number)[0]) for number in (numbers - first).tolist()]
    names = [name for name, _, _ in RecordSchema(0, 0).fields]
    return {name: np.stack([record[name].astype(np.int32) for record in records]) for name in names}


def read_token_sample(folder: Path, settings: PairSettings) -> Features:
    """As `read_sample`, for the token files in `folder`: the first pass, masked as training does by default.

    Raises: UserError where a file is damaged.
    """
    max_predictions = max(1, round(MaskingRules().masked_lm_prob * settings.max_seq_length))
    rules = MaskingRules(max_predictions_per_seq=max_predictions)
    files = TokenSet(str(folder), "input_files", settings.max_seq_length, rules, settings.single_segments)
    chosen = _evenly_spread(files.num_instances).tolist()
    ranges = [span for number in chosen for span in files.ranges_in_file_order(number, 1)]
    return files.features(ranges, files.random_seed)


def measure(instances: Features, ids: VocabularyIds) -> Sample:
    rows, columns = np.nonzero(instances["masked_lm_weights"])
    positions = instances["masked_lm_positions"][rows, columns]
    is_real = instances["input_mask"] > 0
    inputs, answers = instances["input_ids"][rows, positions], instances["masked_lm_ids"][rows, columns]
    unmasked = instances["input_ids"].copy()
    unmasked[rows, positions] = answers
    is_masked = inputs == ids.mask
    is_kept = (inputs == answers) & ~is_masked
    flags = {"masked": is_masked, "kept": is_kept, "replaced": ~is_masked & ~is_kept}
    if instances["segment_ids"].any():
        flags["random next passages"] = instances["next_sentence_labels"]
    flags.update({"padding": ~is_real, "[UNK]": unmasked[is_real] == ids.unknown})
    return Sample(is_real.sum(axis=1), flags)


def judge(sample: Sample) -> Iterator[str]:
    """Warnings that say what looks wrong and what to do."""
    for name, flags in sample.flags.items():
        low, high, warning = _USUAL[name]
        # Chance alone exceeds four standard deviations less than once in ten thousand times.
        by_chance = 4 * (high * (1 - high) / max(flags.size, 1)) ** 0.5
        if not low - by_chance <= sample.share(name) <= high + by_chance:
            yield f"{sample.share(name):.1%} {warning}"


def describe_shares(sample: Sample) -> Iterator[str]:
    """The shares as lines of text, and a histogram of the lengths with one bar a line."""
    shares = [f"{sample.share(name):.2%} {name}" for name in sample.flags]
    predicted = sample.flags["masked"].size / sample.lengths.sum()
    yield f"{predicted:.1%} of the tokens are to be predicted; of these {', '.join(shares[:3])}"
    yield ", ".join(shares[3:])
    yield "tokens, share of the instances"
    sequence_length = sample.flags["padding"].shape[1]
    edges = np.unique(np.linspace(0, sequence_length, _NUM_BINS + 1).astype(int))
    counts, _ = np.histogram(sample.lengths, edges + 0.5)
    for low, high, share in zip(edges, edges[1:], counts / counts.sum()):
        yield f"{low + 1:5}-{high:<5}{share:7.1%} {'#' * round(_BAR_WIDTH * share)}"


def describe_instance(instances: Features, number: int, tokens: Sequence[str]) -> Iterator[str]:
    """Lines of text: both passages with their [MASK]s, and the tokens to predict."""
    instance = {name: values[number].tolist() for name, values in instances.items()}
    ids, length = instance["input_ids"], sum(instance["input_mask"])
    row_tokens = [tokens[i] for i in ids[:length]]
    b_start = instance["segment_ids"][:length].count(0)
    origin = "from elsewhere (label 1)" if instance["next_sentence_labels"][0] else "what follows A (label 0)"
    yield f"{length} of {len(ids)} tokens; {f'B is {origin}' if b_start < length else 'a single segment'}"
    for name, pieces in (("A", row_tokens[1 : b_start - 1]), ("B", row_tokens[b_start : length - 1])):
        if pieces:
            yield f"{name}  {' '.join(pieces)}".replace(" ##", "")
    predicted = zip(instance["masked_lm_positions"], instance["masked_lm_ids"])
    # Unused predictions have position 0.
    predictions = [
        f"{position} {tokens[answer]} ({row_tokens[position]})" for position, answer in predicted if position
    ]
    yield f"   to predict (and what stands there): {', '.join(predictions)}"


# The hashes of so many documents take half a gigabyte while they are compared.
MOST_DOCUMENTS = 32_000_000


def document_hashes(path: Path) -> np.ndarray:
    """A hash of each document of a sharded text file, regardless of case: uint64 [n]."""
    hashes: list[int] = []
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        for line in file:
            if line != b"\n":
                digest.update(line.lower())
                continue
            hashes.append(int.from_bytes(digest.digest(), "little"))
            digest = hashlib.blake2b(digest_size=8)
    return np.array(hashes, np.uint64)


def _inspect_documents(sharded: PreparedStage, task_pool: TaskPool) -> Iterator[str]:
    """Prints how many documents are compared; yields warnings about repeated ones and those in both splits."""
    num_documents = sum(entry.counts["num_documents"] for entry in sharded.entries)
    one_in = np.uint64(max(1, -(-num_documents // MOST_DOCUMENTS)))
    hashes_of_split: dict[str, list[np.ndarray]] = {split: [np.zeros(0, np.uint64)] for split in SPLITS}
    paths = [sharded.folder / entry.file for entry in sharded.entries]
    with Progress(total=sharded.num_bytes, unit="B", description="comparing documents") as bar:
        for hashes, entry in zip(task_pool.map_in_order(document_hashes, paths), sharded.entries):
            hashes_of_split[entry.file.partition("/")[0]].append(hashes[hashes % one_in == 0])
            bar.update(entry.num_bytes)
    training, test = map(np.concatenate, hashes_of_split.values())
    num_compared = len(training) + len(test)
    print(f"\nDocuments below {sharded.folder}\n  {num_compared:,} of {num_documents:,} compared", flush=True)
    num_leaks = int(np.isin(test, training).sum())
    num_repeated = num_compared - len(np.union1d(training, test)) - num_leaks
    remedy = "format the text again without --keep_duplicates, and shard it again"
    if num_leaks:
        leaks = f"{num_leaks:,} of {len(test):,} test documents are in the training split too"
        yield f"{leaks}: the test's figures would be better than they are; {remedy}"
    if num_repeated:
        repetitions = f"{num_repeated:,} of {num_compared:,} documents repeat an earlier one"
        yield f"{repetitions}: repeated text can hold pre-training at a loss of 7, and is learned by heart; {remedy}"


def _inspect_encoded(stage: PreparedStage) -> Iterator[str]:
    """Prints the settings of records or token files, and a sample (of token files one for each kind of pairs).

    Yields warnings. Raises: UserError where the vocabulary or a file is missing or damaged.
    """
    assert stage.manifest and stage.manifest.vocab
    arguments, vocab_file = stage.header.arguments, stage.find_vocab()
    settings = ", ".join(f"{name} {value}" for name, value in arguments.items())
    if not vocab_file:
        remedy = command("verify", stage.dataset, repair=True)
        raise UserError(f"{stage.folder} lacks the vocabulary that its files were made with: run {remedy}")
    tokenizer = open_tokenizer(vocab_file, arguments["do_lower_case"], arguments["strip_accents"])
    print(
        f"\n{stage.stage} below {stage.folder}\n  {settings}\n"
        f"  vocabulary of {stage.manifest.vocab.size:,} pieces; {counts_in_words(stage.manifest.counts)}",
        flush=True,
    )
    if stage.stage == "create_tfrecord_files":
        yield from _inspect_instances(read_sample(stage.folder, stage.manifest.shards["training"]), tokenizer)
        return
    pair_settings = drawn_pair_settings(stage.folder)
    if not pair_settings:
        remedy = command("create_pairs", stage.dataset, max_seq_length=128)
        print(f"  no pairs yet: {remedy} makes instances to look at")
    for pairs in pair_settings:
        print(f"\n  {pairs.kind.capitalize()}, masked as training does by default:")
        yield from _inspect_instances(read_token_sample(stage.folder / "training", pairs), tokenizer)


def _inspect_instances(instances: Features, tokenizer: Tokenizer) -> Iterator[str]:
    """Prints some instances and shares of a sample; yields warnings."""
    labels = instances["next_sentence_labels"]
    # One instance of each label, and one from the middle.
    chosen = [*(int(np.argmax(labels == label)) for label in (0, 1)), len(labels) // 2]
    for number in dict.fromkeys(chosen):
        print("", *describe_instance(instances, number, tokenizer.inv_vocab), sep="\n  ")
    sample = measure(instances, VocabularyIds.from_tokenizer(tokenizer))
    print(f"\n  Of {len(labels):,} training instances, evenly spread over the shards:")
    print(*(f"    {line}" for line in describe_shares(sample)), sep="\n", flush=True)
    for warning in judge(sample):
        yield f"max_seq_length {instances['input_ids'].shape[1]}: {warning}"


def run_inspect(options: PreparationOptions, layout: Layout) -> None:
    """Prints instances, text and documents of one dataset, and warnings about them.

    Raises: UserError where the dataset has neither sharded text, token files nor records, or they are damaged.
    """
    stages = find_prepared(layout, options.dataset)
    warnings = [stage.fault for stage in stages if stage.fault]
    complete = [stage for stage in stages if stage.manifest and (stage.manifest.vocab or stage.stage == "sharding")]
    if not complete:
        nothing = f"neither sharded text, token files nor records of {options.dataset} are below {layout.root}"
        raise UserError(f"{'; '.join(warnings) or nothing}: run {command('sharding', options.dataset)} first")
    for stage in sorted(complete, key=lambda stage: stage.stage == "sharding"):
        assert stage.manifest
        stage.manifest.require_whole(stage.folder, command("verify", stage.dataset, repair=True))
        if stage.stage == "sharding":
            warnings += inspect_sentences([stage.folder / entry.file for entry in stage.manifest.shards["training"]])
            warnings += _inspect_documents(stage, make_task_pool(options, layout))
        else:
            warnings += _inspect_encoded(stage)
    print("".join(f"\nlooks wrong: {warning}" for warning in warnings) or "\nnothing looks wrong")
