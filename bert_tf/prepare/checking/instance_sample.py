"""Reads a sample of the prepared instances, decodes and measures them, and says what looks wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.batches.masking import MaskingRules, VocabularyIds
from bert_tf.batches.token_set import TokenSet
from bert_tf.records.example_proto import ExampleReader
from bert_tf.records.manifest import FileEntry
from bert_tf.records.reader import RecordFile
from bert_tf.records.schema import InstanceArrays

# Decoding takes 0.1 ms per instance. With this many, shares are accurate to half a percent.
SAMPLE_INSTANCES = 10_000
_NUM_BINS, _BAR_WIDTH, _TEXT_WIDTH, _NUM_PREDICTIONS_SHOWN = 12, 50, 96, 20
# Google's rules, and how far a share may be from them (besides chance) without a warning.
_FATES = {"masked": 0.8, "kept": 0.1, "replaced": 0.1}
_TOLERANCE = 0.02
# Half of the chunks, and all chunks of a single sentence: 50 to 60 % for books, encyclopedias or abstracts.
_RANDOM_NEXT_RANGE = (0.48, 0.65)
_MUCH_PADDING = 0.6
_MANY_UNKNOWN = 0.02


class Shares(NamedTuple):
    """Measurements of a sample of instances."""

    lengths: np.ndarray  # [N] real tokens
    num_predictions: int
    fates: dict[str, float]  # shares among the predictions
    random_next: float | None  # None if no instance has a second passage
    padding: float
    unknown: float  # share of the real tokens before masking


def _evenly_spread(num_total: int) -> np.ndarray:
    return np.unique(np.linspace(0, num_total - 1, min(num_total, SAMPLE_INSTANCES)).astype(int))


def _instances(features: dict[str, np.ndarray]) -> InstanceArrays:
    labels = features["next_sentence_labels"][:, 0]
    return InstanceArrays(**{**features, "next_sentence_labels": labels})


def read_sample(folder: Path, entries: Sequence[FileEntry]) -> InstanceArrays:
    """Up to `SAMPLE_INSTANCES` instances, evenly spread over the record files in a manifest's `entries`.

    Raises: UserError where a file is damaged.
    """
    ends = np.cumsum([entry.counts["num_instances"] for entry in entries])
    chosen = _evenly_spread(int(ends[-1]))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in InstanceArrays._fields}
    for entry, begin, end in zip(entries, [0, *ends[:-1]], ends):
        with RecordFile(folder / entry.file) as file:
            for record in (chosen[(chosen >= begin) & (chosen < end)] - begin).tolist():
                features = ExampleReader(file.read(record)[0])
                for name, column in columns.items():
                    column.append(features[name].astype(np.int32))
    return _instances({name: np.stack(column) for name, column in columns.items()})


def read_token_sample(folder: Path, sequence_length: int, single_segments: bool) -> InstanceArrays:
    """As `read_sample`, for the token files in `folder`: the first pass, masked as training does by default.

    Raises: UserError where a file is damaged.
    """
    most = max(1, round(MaskingRules().masked_lm_prob * sequence_length))
    rules = MaskingRules(max_predictions_per_seq=most)
    files = TokenSet(str(folder), "input_files", sequence_length, rules, single_segments)
    chosen = _evenly_spread(files.num_instances).tolist()
    ranges = [one for number in chosen for one in files.ranges_in_file_order(number, 1)]
    return _instances(files.features(ranges, files.random_seed))


def measure(instances: InstanceArrays, ids: VocabularyIds) -> Shares:
    rows, columns = np.nonzero(instances.masked_lm_weights)
    positions = instances.masked_lm_positions[rows, columns]
    is_real = instances.input_mask > 0
    shown, answers = instances.input_ids[rows, positions], instances.masked_lm_ids[rows, columns]
    unmasked = instances.input_ids.copy()
    unmasked[rows, positions] = answers
    is_masked = shown == ids.mask
    is_kept = (shown == answers) & ~is_masked
    fates = {"masked": is_masked, "kept": is_kept, "replaced": ~is_masked & ~is_kept}
    return Shares(
        lengths=is_real.sum(axis=1),
        num_predictions=len(rows),
        fates={fate: is_so.sum() / max(len(rows), 1) for fate, is_so in fates.items()},
        random_next=float(instances.next_sentence_labels.mean()) if instances.segment_ids.any() else None,
        padding=float(1 - is_real.mean()),
        unknown=float((unmasked[is_real] == ids.unknown).mean()),
    )


def judge(shares: Shares) -> Iterator[str]:
    """Warnings that say what looks wrong and what to do."""
    for fate, expected in _FATES.items():
        # Chance alone exceeds four standard deviations less than once in ten thousand times.
        by_chance = 4 * (expected * (1 - expected) / max(shares.num_predictions, 1)) ** 0.5
        if shares.num_predictions and abs(shares.fates[fate] - expected) > _TOLERANCE + by_chance:
            yield (
                f"{shares.fates[fate]:.1%} of the predictions are {fate}, where {expected:.0%} should be: the records "
                "were not made by the usual rules"
            )
    low, high = _RANDOM_NEXT_RANGE
    chance = 2 / len(shares.lengths) ** 0.5
    if shares.random_next is not None and not low - chance <= shares.random_next <= high + chance:
        yield (
            f"{shares.random_next:.0%} of the second passages are random, where 50 to 60 % are usual: if less, is the "
            "label inverted (1 is random, 0 is next)? If more, many documents have a single sentence: is each line "
            "taken for a document (--input_format), or text without stops for one sentence?"
        )
    if shares.padding > _MUCH_PADDING:
        yield f"{shares.padding:.0%} of the positions are padding: documents are short for this length"
    if shares.unknown > _MANY_UNKNOWN:
        yield f"{shares.unknown:.1%} of the tokens are [UNK]: the vocabulary fits not this language, script or case"


def describe_shares(shares: Shares, sequence_length: int) -> Iterator[str]:
    """The shares as lines of text, and a histogram of the lengths with one bar a line."""
    fates = ", ".join(f"{share:.1%} {fate}" for fate, share in shares.fates.items())
    yield f"{shares.num_predictions / shares.lengths.sum():.1%} of the tokens are to be predicted; of these {fates}"
    random_next = "" if shares.random_next is None else f"{shares.random_next:.1%} random next passages, "
    yield f"{random_next}{shares.padding:.1%} padding, {shares.unknown:.3%} [UNK]"
    yield "tokens, share of the instances"
    edges = np.unique(np.linspace(0, sequence_length, _NUM_BINS + 1).astype(int))
    counts, _ = np.histogram(shares.lengths, edges + 0.5)
    for low, high, count in zip(edges, edges[1:], counts):
        bar = "#" * round(_BAR_WIDTH * count / counts.max())
        yield f"{low + 1:5}-{high:<5}{count / len(shares.lengths):7.1%} {bar}"


def describe_instance(instances: InstanceArrays, number: int, tokens: Sequence[str]) -> Iterator[str]:
    """Lines of text: both passages with their [MASK]s, and the tokens to predict."""
    one = instances.rows(slice(number, number + 1))
    length = int(one.input_mask.sum())
    shown = [tokens[i] for i in one.input_ids[0, :length].tolist()]
    b_start = int(np.count_nonzero(one.segment_ids[0, :length] == 0))
    is_pair = b_start < length
    origin = "from elsewhere (label 1)" if one.next_sentence_labels[0] else "what follows A (label 0)"
    yield f"{length} of {one.input_ids.shape[1]} tokens; {f'B is {origin}' if is_pair else 'a single segment'}"
    columns = np.flatnonzero(one.masked_lm_weights[0])
    predictions = []
    for position, answer_id in zip(one.masked_lm_positions[0, columns], one.masked_lm_ids[0, columns]):
        answer = tokens[answer_id]
        how = {"[MASK]": "masked", answer: "kept"}.get(shown[position], f"shown as {shown[position]}")
        predictions.append(f"{position} {answer} ({how})")
    for line in (
        f"A  {' '.join(shown[1 : b_start - 1])}".replace(" ##", ""),
        *([f"B  {' '.join(shown[b_start : length - 1])}".replace(" ##", "")] if is_pair else []),
        f"   to predict: {', '.join(predictions[:_NUM_PREDICTIONS_SHOWN])}",
    ):
        yield from textwrap.wrap(line, _TEXT_WIDTH, subsequent_indent="   ", break_on_hyphens=False)
