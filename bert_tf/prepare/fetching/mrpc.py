"""The Microsoft Research Paraphrase Corpus as GLUE has it: train.tsv, dev.tsv and test.tsv.

The corpus has a training and a test file but no development set. GLUE's authors published the list of
the training pairs that they use as the development set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import write_text

MADE_FILES = ("train.tsv", "dev.tsv", "test.tsv")
_HEADER = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")


def _rows(path: Path, num_columns: int) -> list[list[str]]:
    # Not by the csv module, because quotes are part of the sentences.
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    rows = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    if any(len(row) != num_columns for row in rows):
        raise UserError(
            f"{path} has lines without {num_columns} columns: it is not the published file; delete it and start the "
            "same command again"
        )
    return rows


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    write_text(path, "".join("\t".join(row) + "\n" for row in (header, *rows)))


def make_files(folder: Path, training: Path, test: Path, held_out: Path) -> None:
    """Writes `MADE_FILES` to `folder`; ids are kept; test pairs have an index in place of the label.

    Raises: UserError if an input file does not have the number of columns of the published one.
    """
    held_out_pairs = set(map(tuple, _rows(held_out, 2)))
    pairs: dict[bool, list[list[str]]] = {False: [], True: []}  # by whether they are held out
    for row in _rows(training, len(_HEADER))[1:]:
        pairs[tuple(row[1:3]) in held_out_pairs].append(row)
    test_pairs = [[str(index), *row[1:]] for index, row in enumerate(_rows(test, len(_HEADER))[1:])]
    _write(folder / "train.tsv", _HEADER, pairs[False])
    _write(folder / "dev.tsv", _HEADER, pairs[True])
    _write(folder / "test.tsv", ("index", *_HEADER[1:]), test_pairs)
