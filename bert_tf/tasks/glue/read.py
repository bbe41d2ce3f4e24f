"""Reads sentences and labels: GLUE's files as they are distributed, and users' own CSV, TSV and JSON lines.

GLUE's files have one record per line and tabs between the columns; quotation marks are part of the text. The
header names the columns. CoLA has no header, and is distributed with four columns or two: there the label is
the column that contains labels, and the sentence is the longest of the other columns.

Users' own CSV and TSV files are read by Python's csv module, which handles quoting, and need a header.
"""

from __future__ import annotations

import collections
import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import decoded_lines
from bert_tf.base.values import parse_number
from bert_tf.tasks.glue.tasks import TextTask

# Columns are found by their content in this many of a file's first lines.
_SAMPLE = 1000
_INDEX_COLUMNS = ("index", "id")
_DELIMITERS = {".tsv": "\t", ".csv": ","}
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")


class Record(NamedTuple):
    line: int  # number of the record's first line, from 1
    fields: list[str]


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


def read_examples(path: Path, task: TextTask, *, wants_labels: bool, max_bad_records: int | None = None) -> Examples:
    """All records of a file.

    Args:
      wants_labels: whether the label column must be there; else it is ignored.
      max_bad_records: how many records with a wrong number of columns are skipped and counted; None: as many
        as the published file is known to have. Without labels none is skipped, as each must get a prediction.

    Raises:
      UserError: the file is empty, not UTF-8, lacks a column, or has too many bad records.
    """
    records = iter(_records(path, task, wants_labels))
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
    return _collect(path, records, layout, task.no_label, allowed)


def _collect(
    path: Path, records: Iterator[Record], layout: Layout, no_label: str | None, max_bad_records: int
) -> Examples:
    texts: tuple[list[str], ...] = tuple([] for _ in layout.texts)
    labels: list[str] = []
    lines: list[int] = []
    indices: list[str] = []
    num_bad = num_unlabelled = 0
    for line, fields in records:
        if len(fields) != layout.num_columns:
            num_bad += 1
            if num_bad > max_bad_records:
                raise UserError(
                    f"{path}, line {line}: {len(fields)} columns instead of {layout.num_columns}"
                    + (f", after {max_bad_records} other such lines" if max_bad_records else "")
                    + "; correct the line, or leave such lines out of training and evaluation with --max_bad_records"
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
    if not lines:
        raise UserError(f"{path} holds no record beside its header; it must hold at least one")
    notes = [
        f"{path}: {count} line(s) {what}, left out"
        for count, what in ((num_bad, "with a wrong number of columns"), (num_unlabelled, f"labelled {no_label!r}"))
        if count
    ]
    return Examples(path, texts, None if layout.label is None else labels, lines, indices, notes)


# --- Formats -------------------------------------------------------------------------------------


def _records(path: Path, task: TextTask, wants_labels: bool) -> Iterator[Record]:
    if not task.is_custom:
        return _read_plain(path)
    if path.suffix.lower() in JSON_SUFFIXES:
        return _read_json_lines(path, _wanted(task, wants_labels))
    if path.suffix.lower() in _DELIMITERS:
        return _read_csv(path, _DELIMITERS[path.suffix.lower()])
    raise UserError(f"{path}: the name must end in {', '.join([*_DELIMITERS, *JSON_SUFFIXES])}, which says its format")


def _read_plain(path: Path) -> Iterator[Record]:
    """Lines with tabs between the columns and without quoting. Blank lines are skipped."""
    for number, line in decoded_lines(path):
        if line.strip():
            yield Record(number, line.rstrip("\r\n").split("\t"))


def _read_csv(path: Path, delimiter: str) -> Iterator[Record]:
    reader = csv.reader((line for _, line in decoded_lines(path)), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {line}: {error}; a field that begins with a quotation mark must end with one, and "
                "quotation marks inside it are doubled"
            ) from None
        if fields is None:
            return
        if fields:
            yield Record(line, fields)


def _read_json_lines(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The wanted fields of one JSON object per line, preceded by a header with their names."""
    yield Record(0, list(columns))
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not valid JSON ({error}); each line must hold an object") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}, line {number}: no JSON object, but {str(content)[:40]!r}")
        yield Record(number, [_json_field(path, number, content, column) for column in columns])


def _json_field(path: Path, number: int, content: dict, column: str) -> str:
    value = content.get(column)
    if value is None or isinstance(value, (list, dict)):
        problem = (
            f"no field {column!r}" if column not in content else f"the field {column!r} is {json.dumps(value)[:40]}"
        )
        raise UserError(f"{path}, line {number}: {problem}; it must be a text or a number")
    return value if isinstance(value, str) else json.dumps(value)


# --- Columns -------------------------------------------------------------------------------------


def _layout_by_header(path: Path, first: Record, task: TextTask, wants_labels: bool) -> Layout | None:
    """The columns by their names, ignoring case; None if a file of single sentences has no header."""
    names = [field.strip().lower() for field in first.fields]
    wanted = [column.lower() for column in _wanted(task, wants_labels)]
    missing = [name for name in wanted if name not in names]
    may_have_none = not task.is_custom and len(task.text_columns) == 1
    if may_have_none and (task.text_columns[0] not in names or any(name in task.labels for name in names)):
        return None
    if missing:
        way_out = (
            "name the file's columns with --text_columns and --label_column"
            if task.is_custom
            else f"{task.name}'s files have the columns {', '.join(_wanted(task, True))}: is it a file of that task?"
        )
        raise UserError(
            f"{path}, line {max(first.line, 1)}: no column {' or '.join(map(repr, missing))} in the header "
            f"{' | '.join(names)[:200]!r}; {way_out}"
        )
    if repeated := [name for name in wanted if names.count(name) > 1]:
        raise UserError(f"{path}, line {first.line}: the column {repeated[0]!r} occurs twice; rename one of them")
    index = next((names.index(name) for name in _INDEX_COLUMNS if name in names and name not in wanted), None)
    texts = tuple(names.index(name) for name in wanted[: len(task.text_columns)])
    return Layout(len(names), texts, names.index(wanted[-1]) if wants_labels else None, index)


def _wanted(task: TextTask, wants_labels: bool) -> list[str]:
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
        found = f"column(s) {numbers} hold" if labels else "no column holds"
        raise UserError(
            f"{path} has no header, and {found} {' or '.join(task.labels)} in most lines, so its label and "
            f"sentence cannot be told; give it a header with {task.text_columns[0]} and {task.label_column}"
        )
    longest = max(others, key=lambda number: sum(map(len, columns[number])))
    return Layout(num_columns, (longest,), labels[0] if wants_labels else None, None)


# --- Labels --------------------------------------------------------------------------------------


# Numbers with more digits are sorted as text.
_LONGEST_NUMBER = 18
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def find_labels(examples: Examples) -> tuple[str, ...]:
    """The labels in a user's own training file, sorted, with numbers sorted by value.

    Raises:
      UserError: a label is empty, or there are fewer than two.
    """
    labels = set(examples.labels or ())
    if "" in labels:
        raise UserError(f"{_place(examples, (examples.labels or []).index(''))}: the label is empty")
    if len(labels) < 2:
        raise UserError(
            f"{examples.path}: all labels are {', '.join(labels)!r}, so there is nothing to learn; is it the right "
            "--label_column?"
        )

    def by_value(label: str) -> tuple[int, int, str]:
        is_number = label.isdecimal() and len(label) <= _LONGEST_NUMBER
        return (0, int(label), "") if is_number else (1, 0, label)

    return tuple(sorted(labels, key=by_value))


def targets(examples: Examples, task: TextTask) -> np.ndarray:
    """The labels as class numbers, int32 [F], or as numbers, float32 [F].

    Raises:
      UserError: a label is not among the task's, not a number or out of range; the message names file and line.
    """
    labels = examples.labels or []
    if task.is_regression:
        return np.array([_number(examples, row, task) for row in range(len(labels))], np.float32)
    classes = {label: number for number, label in enumerate(task.labels)}
    for row, label in enumerate(labels):
        if label not in classes:
            known = ", ".join(task.labels[:20]) + (", ..." if len(task.labels) > 20 else "")
            why = ", the labels that the model was trained with" if task.is_custom else ""
            raise UserError(f"{_place(examples, row)}: the label is {label!r:.80}: must be one of {known}{why}")
    return np.array([classes[label] for label in labels], np.int32)


def _number(examples: Examples, row: int, task: TextTask) -> float:
    label = (examples.labels or [])[row]
    low, high = task.range or (-_LARGEST_FLOAT32, _LARGEST_FLOAT32)
    try:
        if low <= (number := parse_number(label)) <= high:
            return number
    except ValueError:
        pass
    allowed = f" from {low:g} to {high:g}" if task.range else ""
    raise UserError(f"{_place(examples, row)}: the label is {label!r:.80}: must be a number{allowed}")


def _place(examples: Examples, row: int) -> str:
    return f"{examples.path}, line {examples.lines[row]}"
