"""Reads a sample of the prepared instances, decodes and measures them, and says what looks wrong."""

from __future__ import annotations

import functools
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
_NUM_BINS = 12
_NUM_PREDICTIONS_SHOWN = 20
_BAR_WIDTH = 50
_TEXT_WIDTH = 96
# Google's rules, and how far a share may be from them (besides chance) without a warning.
_FATES = {"masked": 0.8, "kept": 0.1, "replaced": 0.1}
_TOLERANCE = 0.02
# Half of the chunks, and all chunks of a single sentence: 50 to 60 % for books, encyclopedias or abstracts.
_RANDOM_NEXT_RANGE = (0.48, 0.65)
_MUCH_PADDING = 0.6
_MANY_UNKNOWN = 0.02


class Sample(NamedTuple):
    """Instances evenly spread over a split's shards."""

    instances: InstanceArrays
    places: list[tuple[str, int]]  # (file, record) of each
    num_total: int


class Shares(NamedTuple):
    """Measurements of a sample of instances."""

    lengths: np.ndarray  # [N] real tokens
    num_predictions: int
    fates: dict[str, float]  # shares among the predictions
    predicted: float  # share of the real tokens
    random_next: float
    padding: float
    unknown: float  # share of the real tokens before masking
    num_misplaced: int  # predictions at [CLS], [SEP] or padding
    num_outside: int  # ids outside the vocabulary


def read_sample(folder: Path, entries: Sequence[FileEntry]) -> Sample:
    """Reads up to `SAMPLE_INSTANCES` instances from the record files in a manifest's `entries`.

    Raises: UserError where a file is damaged.
    """
    ends = np.cumsum([entry.counts["num_instances"] for entry in entries])
    num_total = int(ends[-1])
    wanted = np.unique(np.linspace(0, num_total - 1, min(num_total, SAMPLE_INSTANCES)).astype(int))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in InstanceArrays._fields}
    places: list[tuple[str, int]] = []
    for number, entry in enumerate(entries):
        first = int(ends[number - 1]) if number else 0
        here = wanted[(wanted >= first) & (wanted < ends[number])] - first
        if not len(here):
            continue
        with RecordFile(folder / entry.file) as file:
            for record in here.tolist():
                features = ExampleReader(file.read(record))
                for name, column in columns.items():
                    column.append(features[name].astype(np.int32))
                places.append((entry.file, record))
    arrays = {name: np.stack(column) for name, column in columns.items()}
    arrays["next_sentence_labels"] = arrays["next_sentence_labels"][:, 0]
    return Sample(InstanceArrays(**arrays), places, num_total)


def read_token_sample(folder: Path, max_seq_length: int) -> Sample:
    """As `read_sample`, for the token files in `folder`: the first pass, masked as training does by default.

    Raises: UserError where a file is damaged.
    """
    default = MaskingRules()
    most = max(1, round(default.masked_lm_prob * max_seq_length))
    files = TokenSet(str(folder), "input_files", max_seq_length, MaskingRules(max_predictions_per_seq=most))
    num_total = files.num_instances
    wanted = np.unique(np.linspace(0, num_total - 1, min(num_total, SAMPLE_INSTANCES)).astype(int))
    ranges = [of_one for number in wanted.tolist() for of_one in files.ranges_in_file_order(number, 1)]
    features = files.features(ranges, files.random_seed)
    features["next_sentence_labels"] = features["next_sentence_labels"][:, 0]
    places = [(f"{folder.name}/{files.files[part.file].name}", part.first) for part in ranges]
    return Sample(InstanceArrays(**features), places, num_total)


def original_ids(instances: InstanceArrays) -> np.ndarray:
    """The tokens before masking, [N, S]."""
    ids = instances.input_ids.copy()
    rows, columns = np.nonzero(instances.masked_lm_weights)
    ids[rows, instances.masked_lm_positions[rows, columns]] = instances.masked_lm_ids[rows, columns]
    return ids


def measure(instances: InstanceArrays, ids: VocabularyIds, vocab_size: int) -> Shares:
    rows, columns = np.nonzero(instances.masked_lm_weights)
    positions = instances.masked_lm_positions[rows, columns]
    seen = instances.input_ids[rows, positions]
    is_real = instances.input_mask > 0
    before = original_ids(instances)
    at = before[rows, positions]
    is_masked = seen == ids.mask
    is_kept = (seen == at) & ~is_masked
    fates = {"masked": is_masked, "kept": is_kept, "replaced": ~is_masked & ~is_kept}
    return Shares(
        lengths=is_real.sum(axis=1),
        num_predictions=len(rows),
        fates={fate: found.sum() / max(len(rows), 1) for fate, found in fates.items()},
        predicted=len(rows) / is_real.sum(),
        random_next=float(instances.next_sentence_labels.mean()),
        padding=float(1 - is_real.mean()),
        unknown=float((before[is_real] == ids.unknown).mean()),
        num_misplaced=int(np.count_nonzero((at == ids.cls) | (at == ids.sep) | ~is_real[rows, positions])),
        num_outside=int(np.count_nonzero(before >= vocab_size)),
    )


def _differs(share: float, expected: float, num: int) -> bool:
    # Chance alone exceeds four standard deviations less than once in ten thousand times.
    return abs(share - expected) > _TOLERANCE + 4 * (expected * (1 - expected) / max(num, 1)) ** 0.5


def judge(shares: Shares, max_seq_length: int) -> Iterator[str]:
    """Warnings that say what looks wrong and what to do."""
    if shares.num_outside:
        yield (
            f"{shares.num_outside:,} ids are not in the vocabulary: the records were made with another one; make "
            "them again"
        )
    if shares.num_misplaced:
        yield (
            f"{shares.num_misplaced:,} predictions are of [CLS], [SEP] or padding: the records break the rules of "
            "the format; make them again"
        )
    for fate, expected in _FATES.items():
        if shares.num_predictions and _differs(shares.fates[fate], expected, shares.num_predictions):
            yield (
                f"{shares.fates[fate]:.1%} of the predictions are {fate}, where {expected:.0%} should be: the records "
                "were not made by the usual rules"
            )
    low, high = _RANDOM_NEXT_RANGE
    chance = 2 / len(shares.lengths) ** 0.5
    usual = f"{shares.random_next:.0%} of the second passages are random, where 50 to 60 % are usual"
    if shares.random_next < low - chance:
        yield f"only {usual}: is the label inverted? 1 is random, 0 is next"
    if shares.random_next > high + chance:
        yield (
            f"{usual}: many documents have a single sentence; is each line of a longer text taken for a document "
            "(--input_format), or text without stops for one sentence?"
        )
    if shares.padding > _MUCH_PADDING:
        yield (
            f"{shares.padding:.0%} of the positions are padding: documents are short for --max_seq_length "
            f"{max_seq_length}; {(shares.lengths <= max_seq_length // 2).mean():.0%} of the instances fit "
            f"{max_seq_length // 2}"
        )
    if shares.unknown > _MANY_UNKNOWN:
        yield (
            f"{shares.unknown:.1%} of the tokens are [UNK]: the vocabulary does not fit the text's language, script "
            "or case"
        )


def describe_shares(shares: Shares) -> Iterator[str]:
    """The shares as lines of text."""
    if shares.num_predictions:
        yield (
            f"{shares.predicted:.1%} of the tokens are to be predicted; of these "
            + ", ".join(f"{share:.1%} {fate}" for fate, share in shares.fates.items())
        )
    yield (f"{shares.random_next:.1%} random next passages, {shares.padding:.1%} padding, {shares.unknown:.3%} [UNK]")


def length_histogram(lengths: np.ndarray, longest: int) -> Iterator[str]:
    """A histogram of the lengths, one bar per line."""
    edges = np.unique(np.linspace(0, longest, _NUM_BINS + 1).astype(int))
    counts, _ = np.histogram(lengths, edges + 0.5)
    for low, high, count in zip(edges, edges[1:], counts):
        bar = "#" * round(_BAR_WIDTH * count / counts.max())
        yield f"{low + 1:5}-{high:<5}{count / len(lengths):7.1%} {bar}"


def describe_instance(sample: Sample, number: int, tokens: Sequence[str]) -> Iterator[str]:
    """Lines of text: both passages with their [MASK]s, and the tokens to predict."""
    one = sample.instances.rows(slice(number, number + 1))
    file, record = sample.places[number]
    length = int(one.input_mask.sum())
    seen = [tokens[i] if i < len(tokens) else f"[id {i}]" for i in one.input_ids[0, :length].tolist()]
    b_start = int(np.count_nonzero(one.segment_ids[0, :length] == 0))
    label = int(one.next_sentence_labels[0])
    yield (
        f"record {record:,} of {file}: {length} of {one.input_ids.shape[1]} tokens; B is "
        + ("from elsewhere (label 1)" if label else "what follows A (label 0)")
    )
    wrap = functools.partial(textwrap.wrap, width=_TEXT_WIDTH, subsequent_indent="   ", break_on_hyphens=False)
    for name, passage in (("A", seen[1 : b_start - 1]), ("B", seen[b_start : length - 1])):
        yield from wrap(f"{name}  {' '.join(passage)}".replace(" ##", ""))
    predictions = []
    for column in np.flatnonzero(one.masked_lm_weights[0]).tolist():
        position = int(one.masked_lm_positions[0, column])
        wanted, there = tokens[int(one.masked_lm_ids[0, column])], seen[position]
        how = {"[MASK]": "masked", wanted: "kept"}.get(there, f"shown as {there}")
        predictions.append(f"{position} {wanted} ({how})")
    num_more = len(predictions) - _NUM_PREDICTIONS_SHOWN
    if num_more > 0:
        predictions[_NUM_PREDICTIONS_SHOWN:] = [f"and {num_more} more"]
    yield from wrap("   to predict: " + ", ".join(predictions))
