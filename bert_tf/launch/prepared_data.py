"""Finds the prepared records of a pre-training phase by the manifests that bertPrep writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object

Lengths = tuple[int, int]  # max_seq_length, max_predictions_per_seq


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A folder ``tfrecord/<parameters>/<dataset>`` whose records are complete."""

    folder: Path
    dataset: str
    lengths: Lengths
    vocabulary: str  # sha256 of vocab.txt and casing; equal for both phases of a run

    @property
    def training(self) -> Path:
        return self.folder / "training"

    @property
    def test(self) -> Path:
        return self.folder / "test"

    @property
    def has_test(self) -> bool:
        return any(self.test.glob("*.tfrecord"))


def find_prepared(data_dir: Path) -> tuple[list[Prepared], list[Path]]:
    """All complete datasets below `data_dir`, and the folders that have no manifest (yet)."""
    complete: list[Prepared] = []
    unfinished: list[Path] = []
    for folder in sorted((data_dir / "tfrecord").glob("*/*")):
        if not (folder / "training").is_dir():
            continue
        try:
            manifest = read_json_object(folder / "manifest.json", "")
            arguments = manifest["arguments"]
            lengths = (int(arguments["max_seq_length"]), int(arguments["max_predictions_per_seq"]))
            vocabulary = f"{manifest['vocab']['sha256']} {arguments['do_lower_case']}"
        except (UserError, KeyError, TypeError, ValueError):
            unfinished.append(folder)
            continue
        complete.append(Prepared(folder, folder.name, lengths, vocabulary))
    return complete, unfinished


def choose_prepared(data_dir: Path, dataset: str | None, phases: Sequence[Lengths]) -> list[Prepared]:
    """The records for each of `phases`: of `dataset`, or of the only dataset that has them all.

    Raises:
      UserError: there is none, or more than one; says what was found.
    """
    complete, unfinished = find_prepared(data_dir)
    choices: list[list[Prepared]] = [[]]
    for lengths in phases:
        choices = [
            [*chosen, candidate]
            for chosen in choices
            for candidate in complete
            if candidate.lengths == lengths
            and (dataset is None or candidate.dataset.lower() == dataset.lower())
            and all((candidate.dataset, candidate.vocabulary) == (other.dataset, other.vocabulary) for other in chosen)
        ]
    if len(choices) == 1:
        return choices[0]
    wanted = " and ".join(f"max_seq_length {length} with max_predictions_per_seq {num}" for length, num in phases)
    found = _listing(data_dir, complete, unfinished)
    if not choices:
        whose = f"DATASET={dataset}" if dataset else "no dataset"
        raise UserError(
            f"{whose} {'is not' if dataset else 'is'} prepared for {wanted} with one vocabulary; {found}; "
            "make them with data/bertPrep.py --action create_tfrecord_files, or set DATA_DIR to the "
            "working directory that holds them"
        )
    names = sorted({chosen[0].dataset for chosen in choices})
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} are prepared for {wanted}; choose one by DATASET=<name>; {found}")
    raise UserError(
        f"{names[0]} is prepared more than once for {wanted}; move the folders that are not wanted out "
        f"of {data_dir / 'tfrecord'}; {found}"
    )


def _listing(data_dir: Path, complete: Sequence[Prepared], unfinished: Sequence[Path]) -> str:
    root = data_dir / "tfrecord"
    lines = [f"{item.folder.relative_to(root)} ({item.lengths[0]}/{item.lengths[1]})" for item in complete]
    lines += [
        f"{folder.relative_to(root)} (no manifest.json: unfinished, or not made by bertPrep.py)"
        for folder in unfinished
    ]
    return f"found below {root}: {', '.join(lines) if lines else 'nothing'}"
