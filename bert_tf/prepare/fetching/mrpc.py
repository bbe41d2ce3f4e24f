"""The Microsoft Research Paraphrase Corpus as GLUE has it: train.tsv, dev.tsv and test.tsv.

The corpus has a training and a test file but no development set. GLUE's authors published the list of
the training pairs that they use as the development set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file

MADE_FILES = ("train.tsv", "dev.tsv", "test.tsv")
_HEADER = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")


def _rows(path: Path, num_columns: int) -> list[list[str]]:
    # Not by the csv module, because quotes are part of the sentences.
    lines = path.read_text(encoding="utf-8-sig", errors="replace").rstrip("\n").split("\n")
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != num_columns:
            raise UserError(
                f"{path}, line {number}: {len(row)} columns instead of {num_columns}: "
                "not the published file; delete it and start the same command again"
            )
    return rows


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with atomic_file(path) as file:
        for row in rows:
            file.write("\t".join(row).encode() + b"\n")


def make_files(folder: Path, training: Path, test: Path, held_out: Path) -> None:
    """Writes `MADE_FILES` to `folder`; labels and ids are kept, test pairs get an index.

    Raises: UserError if an input file does not have the number of columns of the published one.
    """
    held_out_pairs = {tuple(row) for row in _rows(held_out, 2)}
    _, *pairs = _rows(training, len(_HEADER))
    split: dict[bool, list[list[str]]] = {False: [], True: []}
    for row in pairs:
        split[(row[1], row[2]) in held_out_pairs].append(row)
    _, *test_pairs = _rows(test, len(_HEADER))
    _write(folder / "train.tsv", [_HEADER, *split[False]])
    _write(folder / "dev.tsv", [_HEADER, *split[True]])
    _write(
        folder / "test.tsv",
        [("index", *_HEADER[1:]), *((str(index), *row[1:]) for index, row in enumerate(test_pairs))],
    )
