"""Finds the prepared data for pre-training phases, records or token files, by the manifests that bertPrep writes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.records.manifest import MANIFEST_NAME, read_manifest

Lengths = tuple[int, int]  # max_seq_length, max_predictions_per_seq
# Values of DATA_FORMAT -> folder below the working directory, suffix of the shards, and the action that makes them.
FORMATS = {
    "records": ("tfrecord", ".tfrecord", "create_tfrecord_files"),
    "tokens": ("tokens", ".tokens", "create_token_files"),
}


@dataclasses.dataclass(frozen=True)
class PreparedData:
    """A folder ``tfrecord/<parameters>/<dataset>`` or ``tokens/...`` whose shards are complete."""

    folder: Path
    dataset: str
    data_format: str  # one of FORMATS
    lengths: Lengths | None  # None: token files, which serve all lengths
    is_cased: bool
    vocabulary: str  # sha256 of vocab.txt and casing; equal for both phases of a run
    text: str  # the beginning of the sha256 of the text that the data were made from

    @property
    def manifest_sha256(self) -> str:
        """The hash by which a run's config.json names the data that it was trained on."""
        return sha256_of_file(self.folder / MANIFEST_NAME)

    @property
    def has_test(self) -> bool:
        return any(self.folder.glob(f"test/*{FORMATS[self.data_format][1]}"))

    @property
    def shown_lengths(self) -> str:
        return "/".join(map(str, self.lengths)) if self.lengths else "all lengths"

    @property
    def kind(self) -> tuple[str, str, Path | None]:
        """What all phases of a run must have in common; the same token files serve all of them."""
        return self.dataset, self.vocabulary, None if self.lengths else self.folder


def find_data(data_dir: Path) -> tuple[list[PreparedData], list[Path]]:
    """All complete datasets below `data_dir`, and the folders that have no manifest (yet)."""
    complete: list[PreparedData] = []
    unfinished: list[Path] = []
    for data_format, (root, _, stage) in FORMATS.items():
        for folder in sorted((data_dir / root).glob("*/*")):
            if not (folder / "training").is_dir():
                continue
            manifest = None
            with contextlib.suppress(UserError):
                manifest = read_manifest(folder / MANIFEST_NAME, stage)
            if manifest is None or manifest.vocab is None:
                unfinished.append(folder)
                continue
            arguments, lengths = manifest.arguments, None
            if data_format == "records":
                lengths = int(arguments["max_seq_length"]), int(arguments["max_predictions_per_seq"])
            prepared = PreparedData(
                folder,
                folder.name,
                data_format,
                lengths,
                is_cased=not arguments["do_lower_case"],
                vocabulary=f"{manifest.vocab.sha256} {arguments['do_lower_case']} {arguments['strip_accents']}",
                text=hashlib.sha256(" ".join(entry.sha256 for entry in manifest.inputs).encode()).hexdigest()[:16],
            )
            complete.append(prepared)
    return complete, unfinished


def choose_data(
    data_dir: Path,
    dataset: str | None,
    phases: Sequence[Lengths],
    data_format: str | None = None,
    is_cased: bool | None = None,
) -> list[PreparedData]:
    """The data for each of `phases`: from `dataset`, or from the only dataset that is prepared for all phases.

    Args:
      data_format: one of FORMATS; None: any.
      is_cased: whether the vocabulary must be cased; None: either.

    Raises:
      UserError: no dataset fits, or more than one; the message lists what exists.
    """
    complete, unfinished = find_data(data_dir)
    allowed = [
        item
        for item in complete
        if (dataset is None or item.dataset.lower() == dataset.lower())
        and data_format in (None, item.data_format)
        and is_cased in (None, item.is_cased)
    ]
    candidates = ([item for item in allowed if item.lengths in (None, lengths)] for lengths in phases)
    choices = [choice for choice in itertools.product(*candidates) if len({item.kind for item in choice}) == 1]
    if len(choices) == 1:
        return list(choices[0])
    needed = [f"max_seq_length {length} with max_predictions_per_seq {num}" for length, num in phases]
    conditions = {"DATASET": dataset, "DATA_FORMAT": data_format, "cased": is_cased}
    needed += [f"{name}={value}" for name, value in conditions.items() if value is not None]
    listed = [f"{item.folder.relative_to(data_dir)} ({item.shown_lengths})" for item in complete]
    listed += [
        f"{folder.relative_to(data_dir)} (no manifest.json: unfinished, or not made by bertPrep.py)"
        for folder in unfinished
    ]
    fault = (
        f"{len(choices) or 'no'} sets of data, with one vocabulary, are prepared for {', '.join(needed)}; "
        f"found below {data_dir}: {', '.join(listed) or 'nothing'}"
    )
    if choices:
        remedies = []
        if len({choice[0].dataset.lower() for choice in choices}) > 1:
            remedies.append("choose by DATASET=<name>")
        if len({choice[0].data_format for choice in choices}) > 1:
            remedies.append(f"choose by DATA_FORMAT={'|'.join(FORMATS)}")
        raise UserError(f"{fault}; {', or '.join([*remedies, 'move the folders that are not wanted elsewhere'])}")
    raise MissingError(
        f"{fault}; make them with data/bertPrep.py --action create_token_files (or create_tfrecord_files), or set "
        "DATA_DIR to the working directory that holds them"
    )
