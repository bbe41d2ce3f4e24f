"""Reads sentences and labels: GLUE's files as they are distributed, and users' own CSV, TSV and JSON lines.

GLUE's files have one record per line and tabs between the columns; quotation marks are part of the text. The
header names the columns. CoLA has no header, and is distributed with four columns or two: there the label is
the column that contains labels, and the sentence is the longest of the other columns.

Users' own CSV and TSV files need a header.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.command_line import parse_number
from bert_tf.base.errors import UserError
from bert_tf.tasks.glue.tasks import TextTask
from bert_tf.tasks.records import (
    CSV_QUOTING,
    DELIMITERS,
    JSON_SUFFIXES,
    NO_QUOTING,
    Record,
    find_quoting,
    read_csv,
    read_json_lines,
    read_plain,
)

# Columns are found by their content in this many of a file's first lines.
_SAMPLE = 1000
_INDEX_COLUMNS = ("index", "id")
_NUM_NAMED = 20  # an error names so many labels


class Layout(NamedTuple):
    """Which column is which."""

    num_columns: int
    texts: tuple[int, ...]
    label: int | None
    number: int | None  # the column of the file's own record numbers


class Examples(NamedTuple):
    """The content of a file, in its order."""

    path: Path
    texts: tuple[list[str], ...]  # one or two lists of sentences
    labels: list[str] | None
    lines: list[int]  # line numbers in the file
    indices: list[str]  # the file's own numbers, or 0, 1, ...
    notes: list[str]  # what was left out


def read_examples(
    path: Path, task: TextTask, *, wants_labels: bool, max_bad_records: int | None = None, quoting: str | None = None
) -> Examples:
    """All records of a file.

    Args:
      wants_labels: whether the label column must be there; else it is ignored.
      max_bad_records: how many records with a wrong number of columns or wrong quoting are skipped and counted; None:
        as many as the published file is known to have. Without labels none is skipped, as each must get a prediction.
      quoting: one of `QUOTINGS`; None: CSV's for .csv, none for GLUE's files, and for .tsv what the content shows.

    Raises:
      UserError: the file is empty, not UTF-8, lacks a column, or has too many bad records.
    """
    records, note = _records(path, task, _column_names(task, wants_labels), quoting)
    first = next(records, None)
    if first is None:
        raise UserError(f"{path} is empty; it must hold a sentence or a pair of sentences in each line")
    layout = _layout_by_header(path, first, task, wants_labels)
    if layout is None:
        records = itertools.chain([first], records)
        sample = list(itertools.islice(records, _SAMPLE))
        layout = _layout_by_content(path, [record.fields for record in sample], task, wants_labels)
        records = itertools.chain(sample, records)
    allowed = 0 if not wants_labels else task.max_bad_records if max_bad_records is None else max_bad_records
    examples = _collect(path, records, layout, task.no_label, allowed)
    notes = [note] if note else []
    for column, sentences in zip(task.text_columns, examples.texts):
        if num_empty := sum(not sentence.strip() for sentence in sentences):
            notes.append(f"{path}: {num_empty:,} record(s) with an empty {column!r}, kept")
    return examples._replace(notes=[*notes, *examples.notes])


def _collect(
    path: Path, records: Iterator[Record], layout: Layout, no_label: str | None, max_bad_records: int
) -> Examples:
    texts: tuple[list[str], ...] = tuple([] for _ in layout.texts)
    labels: list[str] = []
    lines: list[int] = []
    indices: list[str] = []
    num_bad = num_unlabelled = num_broken = 0
    for line, fields, num_lines in records:
        if len(fields) != layout.num_columns:
            num_bad += 1
            if num_bad > max_bad_records or num_lines > 1:
                is_quoted = num_lines > 1 or '"' in "".join(fields)
                quoting = "; --quoting=none takes quotation marks as text, --quoting=csv as the enclosure of fields"
                raise UserError(
                    f"{path}, line {line}: {len(fields)} columns instead of {layout.num_columns}; correct the line, or "
                    "leave such lines out of training and evaluation with --max_bad_records"
                    + (quoting if is_quoted else "")
                )
            continue
        if layout.label is not None:
            label = fields[layout.label].strip()
            if label == no_label:
                num_unlabelled += 1
                continue
            labels.append(label)
        for sentences, column in zip(texts, layout.texts):
            sentences.append(fields[column])
        indices.append(str(len(lines)) if layout.number is None else fields[layout.number])
        lines.append(line)
        num_broken += num_lines > 1
    counts = {
        "with a wrong number of columns, left out": num_bad,
        f"labelled {no_label!r}, left out": num_unlabelled,
        "with line breaks between quotation marks, kept": num_broken,
    }
    notes = [f"{path}: {count:,} record(s) {state}" for state, count in counts.items() if count]
    if not lines:
        raise UserError("; ".join([*notes, f"{path} holds no record that can be used"]))
    return Examples(path, texts, None if layout.label is None else labels, lines, indices, notes)


# --- Formats -------------------------------------------------------------------------------------


def _records(path: Path, task: TextTask, columns: Sequence[str], quoting: str | None) -> tuple[Iterator[Record], str]:
    """The records of a file, the header among them, and a note about its quoting."""
    suffix = path.suffix.lower()
    if task.is_custom and suffix in JSON_SUFFIXES:
        if quoting:
            raise UserError(f"--quoting={quoting}: {path} holds JSON, which has its own quoting; leave the flag out")
        return read_json_lines(path, columns), ""
    if task.is_custom and suffix not in DELIMITERS:
        raise UserError(
            f"{path}: the name must say its format: .tsv (tabs between the columns), .csv (commas), or "
            f"{', '.join(JSON_SUFFIXES)} (a JSON object on each line); rename it, or unpack or convert it"
        )
    delimiter, note = DELIMITERS[suffix] if task.is_custom else "\t", ""
    if quoting is None:
        quoting = CSV_QUOTING if delimiter == "," else NO_QUOTING
        if task.may_be_quoted and delimiter == "\t":
            quoting, note = find_quoting(path, delimiter)
    if quoting == CSV_QUOTING:
        return read_csv(path, delimiter, ", or are text with --quoting=none"), note
    return read_plain(path, delimiter), note


# --- Columns -------------------------------------------------------------------------------------


def _layout_by_header(path: Path, first: Record, task: TextTask, wants_labels: bool) -> Layout | None:
    """The columns by their names, ignoring case; None if a file of single sentences has no header."""
    names = [field.strip().lower() for field in first.fields]
    columns = [column.lower() for column in _column_names(task, wants_labels)]
    missing = [name for name in columns if name not in names]
    may_have_none = not task.is_custom and len(task.text_columns) == 1
    if may_have_none and (task.text_columns[0] not in names or any(name in task.labels for name in names)):
        return None
    if missing:
        remedy = (
            "name the file's columns with --text_columns and --label_column, or write a header above its first line; "
            "a .csv has commas between the columns, a .tsv tabs, and --quoting=csv takes quotation marks off"
            if task.is_custom
            else f"{task.name}'s files have the columns {', '.join(_column_names(task, True))}: is it one of them?"
        )
        raise UserError(
            f"{path}, line {max(first.line, 1)}: no column {' or '.join(map(repr, missing))} in the header "
            f"{' | '.join(names)[:200]!r}; {remedy}"
        )
    if repeated := [name for name in columns if names.count(name) > 1]:
        raise UserError(f"{path}, line {first.line}: the column {repeated[0]!r} occurs twice; rename one of them")
    index = next((names.index(name) for name in _INDEX_COLUMNS if name in names and name not in columns), None)
    texts = tuple(names.index(name) for name in columns[: len(task.text_columns)])
    return Layout(len(names), texts, names.index(columns[-1]) if wants_labels else None, index)


def _column_names(task: TextTask, wants_labels: bool) -> list[str]:
    return [*task.text_columns, *([task.label_column or ""] if wants_labels else [])]


def _layout_by_content(path: Path, sample: list[list[str]], task: TextTask, wants_labels: bool) -> Layout:
    """The columns of a file of single sentences without a header.

    The label is the only column with a label in most lines, and the sentence the longest of the others.
    """
    num_columns = collections.Counter(map(len, sample)).most_common(1)[0][0]
    columns = list(zip(*(fields for fields in sample if len(fields) == num_columns)))
    labels = [
        number
        for number, column in enumerate(columns)
        if 2 * sum(field.strip() in task.labels for field in column) > len(column)
    ]
    others = [number for number in range(num_columns) if number not in labels]
    if not others or (len(labels) != 1 if wants_labels else len(labels) > 1):
        numbers = ", ".join(str(number + 1) for number in labels)
        content = f"column(s) {numbers} hold" if labels else "no column holds"
        raise UserError(
            f"{path} has no header, and {content} {' or '.join(task.labels)} in most lines, so its label and "
            f"sentence cannot be told; give it a header with {task.text_columns[0]} and {task.label_column}"
        )
    longest = max(others, key=lambda number: sum(map(len, columns[number])))
    return Layout(num_columns, (longest,), labels[0] if wants_labels else None, None)


# --- Labels --------------------------------------------------------------------------------------


_FLOAT32 = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


def find_labels(examples: Examples) -> tuple[str, ...]:
    """The labels in a user's own training file, sorted, with whole numbers sorted by value.

    Raises:
      UserError: a label is empty.
    """
    labels = examples.labels or []
    if "" in labels:
        raise UserError(f"{_place(examples, labels.index(''))}: the label is empty")

    def by_value(label: str) -> tuple[bool, int, str]:
        return (not label.isdecimal(), len(label.lstrip("0")) if label.isdecimal() else 0, label)

    return tuple(sorted(set(labels), key=by_value))


def targets(examples: Examples, task: TextTask) -> np.ndarray:
    """The labels as class numbers, int32 [F], or as numbers, float32 [F].

    Raises:
      UserError: a label is not among the task's, not a number or out of range; the message names file and line.
    """
    labels = examples.labels or []
    classes = {label: number for number, label in enumerate(task.labels)}
    values = [_number(label, task) if task.is_regression else classes.get(label) for label in labels]
    if None in values:
        row = values.index(None)
        raise UserError(f"{_place(examples, row)}: the label is {labels[row]!r:.80}: must be {_rule(task)}")
    return np.array(values, np.float32 if task.is_regression else np.int32)


def _number(label: str, task: TextTask) -> float | None:
    """None: it is no number, or not in the task's range."""
    low, high = task.range or _FLOAT32
    try:
        value = parse_number(label)
    except ValueError:
        return None
    return value if low <= value <= high else None


def _rule(task: TextTask) -> str:
    if task.is_regression:
        low, high = task.range or _FLOAT32
        return f"a number from {low:g} to {high:g}, with a decimal point"
    known = ", ".join(task.labels[:_NUM_NAMED]) + (", ..." if len(task.labels) > _NUM_NAMED else "")
    return f"one of {known}" + (", the labels that the model was trained with" if task.is_custom else "")


def check_variety(examples: Examples, labels_F: np.ndarray) -> None:
    """Raises `UserError` if all labels of a training file are the same, as numbers or as classes."""
    if (labels_F == labels_F[0]).all():
        label = (examples.labels or [""])[0]
        raise UserError(
            f"{examples.path}: all labels are {label!r:.80}, so there is nothing to learn; is it the right file and "
            "label column?"
        )


def _place(examples: Examples, row: int) -> str:
    return f"{examples.path}, line {examples.lines[row]}"
