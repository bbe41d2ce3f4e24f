"""Reads sentences and labels: GLUE's files as they are distributed, and users' own CSV, TSV and JSON lines.

GLUE's files have one record per line and tabs between the columns; quotation marks are part of the text. The
header names the columns. CoLA has no header, and is distributed with four columns or two: there the label is
the column that contains labels, and the sentence is the longest of the other columns.

The STS benchmark's own files have no header either, and users' own CSV and TSV files one, or its names in --columns.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.command_line import parse_number
from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.fields import UnreadFields
from bert_tf.tasks.glue.tasks import TextTask
from bert_tf.tasks.records import (
    CSV_QUOTING,
    DELIMITERS,
    JSON_SUFFIXES,
    NO_QUOTING,
    Record,
    as_label,
    as_text,
    find_quoting,
    json_objects,
    read_csv,
    read_plain,
)

# Columns are found by their content in this many of a file's first lines.
_SAMPLE = 1000
_INDEX_COLUMNS = ("index", "id")
_NUM_NAMED = 20  # an error names so many labels
_QUOTING = " (--quoting=none takes quotation marks as text, --quoting=csv as the enclosure of fields)"
_DELIMITED = "; a .csv has commas between the columns, a .tsv tabs"
_NAME_COLUMNS = (
    "name the file's columns with --text_columns and --label_column and, if it has no header, all with --columns; "
    f"{_DELIMITED[2:]}, and --quoting=csv takes quotation marks off"
)
_NUM_COUNTED = 8  # and a line about a file the numbers of so many


class Examples(NamedTuple):
    """The content of a file, in its order."""

    path: Path
    texts: tuple[list[str], ...]  # one or two lists of sentences
    labels: list[str] | None
    lines: list[int]  # line numbers in the file
    indices: list[str]  # the file's own numbers, or 0, 1, ...
    notes: list[str]  # what was left out
    targets_F: np.ndarray | None = None  # what `targets` makes of the labels

    def describe(self) -> str:
        """One line: the number of rows, and of each label."""
        counts = collections.Counter(self.labels or ()).most_common(_NUM_COUNTED + 1)
        shown = ", ".join(f"{label}: {count:,}" for label, count in counts[:_NUM_COUNTED])
        more = ", ..." if len(counts) > _NUM_COUNTED else ""
        return f"{self.path}: {len(self.lines):,} rows" + (f" ({shown}{more})" if shown else "")


def read_examples(
    path: Path, task: TextTask, *, wants_labels: bool, max_bad_records: int | None = None, quoting: str | None = None
) -> Examples:
    """All records of a file.

    Args:
      wants_labels: whether the label column must be there; else it is ignored.
      max_bad_records: how many records with a wrong number of columns, or without a field, are left out; None: as many
        as the published file is known to have. Without labels it is none, as each must get a prediction.
      quoting: one of `QUOTINGS`; None: CSV's for .csv, none for GLUE's files, and for .tsv what the content shows.

    Raises:
      UserError: the file is empty, not UTF-8, lacks a column, or has too many bad records.
    """
    columns = [*task.text_columns, *([task.label_column or ""] if wants_labels else [])]
    unread = UnreadFields()
    records, note = _records(path, task, columns, quoting, unread)
    first = next(records, None)
    if first is None:
        raise UserError(f"{path} is empty; it must hold a sentence or a pair of sentences in each line")
    names = [str(field).strip().lower() for field in first.fields]
    may_lack_header = not task.is_custom and len(task.text_columns) == 1
    if may_lack_header and (task.text_columns[0] not in names or any(name in task.labels for name in names)):
        sample = [first, *itertools.islice(records, _SAMPLE)]
        names = _names_by_content(path, [record.fields for record in sample], task, wants_labels)
        records = itertools.chain(sample, records)
    _check_names(f"{path}, line {first.line}", names, columns, task=task)
    allowed = 0 if not wants_labels else task.max_bad_records if max_bad_records is None else max_bad_records
    bad = BadRecords(allowed, "record", str(path))
    examples = _collect(path, records, names, columns=columns, task=task, bad=bad)
    way_out = (named := unread.describe()) and f"{path}: {named}; --text_columns names those that are"
    return examples._replace(notes=[*filter(None, [note]), *examples.notes, *filter(None, [way_out])])


def _collect(
    path: Path,
    records: Iterator[Record],
    names: Sequence[str],
    *,
    columns: Sequence[str],
    task: TextTask,
    bad: BadRecords,
) -> Examples:
    """The records with the columns `names`, of which `columns` are read."""
    places = [names.index(column.lower()) for column in columns]
    index = next((names.index(name) for name in _INDEX_COLUMNS if name in names), None)
    texts: tuple[list[str], ...] = tuple([] for _ in task.text_columns)
    labels, lines, indices = list[str](), list[int](), list[str]()
    num_unlabelled = num_broken = 0
    for line, fields, num_lines in records:
        if len(fields) != len(names) and num_lines > 1:  # its quotation marks may have swallowed other records
            fault = f"{len(fields)} columns instead of {len(names)}{_QUOTING}"
            raise UserError(f"{path}, line {line}: {fault}; correct the line")
        try:
            if len(fields) != len(names):
                hint = _QUOTING if '"' in "".join(fields) else _DELIMITED if len(fields) == 1 else ""
                raise ValueError(f"{len(fields)} columns instead of {len(names)}{hint}")
            values = [as_text(fields[place], names[place]) for place in places[: len(texts)]]
            label = [as_label(fields[place], names[place]) for place in places[len(texts) :]]
        except ValueError as error:
            bad.add(f"line {line}: {error}")
            continue
        if task.no_label in label:
            num_unlabelled += 1
            continue
        for sentences, text in zip(texts, values):
            sentences.append(text)
        labels += label
        indices.append(str(len(lines)) if index is None or index in places else fields[index])
        lines.append(line)
        num_broken += num_lines > 1
    counts = {
        f"labelled {task.no_label!r}, left out": num_unlabelled,
        "with line breaks between quotation marks, kept": num_broken,
        **{
            f"with an empty {column!r}, kept": sum(not sentence.strip() for sentence in sentences)
            for column, sentences in zip(task.text_columns, texts)
        },
    }
    notes = [f"{path}: {count:,} record(s) {state}" for state, count in counts.items() if count]
    notes += [f"{path}: {bad.describe()}"] if bad.num else []
    if not lines:
        raise UserError("; ".join([*notes, f"{path} holds no record that can be used"]))
    return Examples(path, texts, labels or None, lines, indices, notes)


def _records(
    path: Path, task: TextTask, columns: Sequence[str], quoting: str | None, unread: UnreadFields
) -> tuple[Iterator[Record], str]:
    """The records of a file, the header among them, and a note about its quoting; of JSON, `unread` counts the rest."""
    suffix = path.suffix.lower()
    if task.is_custom and suffix in JSON_SUFFIXES:
        if quoting or task.columns:
            flag = f"--quoting={quoting}" if quoting else f"--columns={','.join(task.columns)}"
            raise UserError(f"{flag}: {path} holds JSON, which has its own quotes and names; leave the flag out")
        return itertools.chain([Record(1, list(columns))], _json_records(path, task, columns, unread)), ""
    if task.is_custom and suffix not in DELIMITERS:
        known = f".tsv (tabs between the columns), .csv (commas), or {', '.join(JSON_SUFFIXES)} (an object a line)"
        raise UserError(f"{path}: the name must say its format: {known}; rename it, or unpack or convert it")
    delimiter, note = DELIMITERS[suffix] if task.is_custom else "\t", ""
    if quoting is None:
        quoting = CSV_QUOTING if delimiter == "," else NO_QUOTING
        if task.may_be_quoted and delimiter == "\t":
            quoting, note = find_quoting(path, delimiter)
    is_quoted = quoting == CSV_QUOTING
    way_out = ", or are text with --quoting=none"
    records = read_csv(path, delimiter, way_out) if is_quoted else read_plain(path, delimiter)
    return _behind_names(path, records, task, columns) if task.columns else records, note


def _json_records(path: Path, task: TextTask, columns: Sequence[str], unread: UnreadFields) -> Iterator[Record]:
    for line, content in json_objects(path):
        unread.add(content, {*columns, task.label_column or ""})  # labels are not read to predict, and are no text
        yield Record(line, [content.get(column) for column in columns])


# --- Columns -------------------------------------------------------------------------------------


def _behind_names(path: Path, records: Iterator[Record], task: TextTask, columns: Sequence[str]) -> Iterator[Record]:
    """The records of a file behind a header: its own or, if it has none, the names that the task knows.

    Raises: UserError where --columns gives names to a file that has a header.
    """
    for first in itertools.islice(records, 1):
        has_header = {column.lower() for column in columns} <= {field.strip().lower() for field in first.fields}
        if has_header and task.is_custom:
            raise UserError(f"{path}, line {first.line} names the columns itself; leave --columns out")
        score = dict(zip(task.columns, first.fields)).get(str(task.label_column), "")
        records = itertools.chain([first], records)
        if task.is_custom:
            yield Record(first.line, list(task.columns))
        elif not has_header and _number(score, *(task.range or _FLOAT32)) is not None:
            yield Record(first.line, list(task.columns))  # some lines of the STS benchmark end with two sources
            records = (each._replace(fields=each.fields[:7]) if len(each.fields) == 9 else each for each in records)
    yield from records


def _check_names(place: str, names: Sequence[str], columns: Sequence[str], *, task: TextTask) -> None:
    """Raises `UserError` if a column that is read is not there, or twice; case does not count."""
    if missing := [name for name in map(str.lower, columns) if name not in names]:
        remedy = f"{task.name}'s files have {', '.join(task.text_columns)} and {task.label_column}: is it one of them?"
        lacking, header = " or ".join(map(repr, missing)), repr(" | ".join(names)[:200])
        way_out = _NAME_COLUMNS if task.is_custom else remedy
        raise UserError(f"{place}: no column {lacking} in the header {header}; {way_out}")
    if repeated := [name for name in map(str.lower, columns) if names.count(name) > 1]:
        raise UserError(f"{place}: the column {repeated[0]!r} occurs twice; rename one of them")


def _names_by_content(path: Path, sample: Sequence[Sequence[str]], task: TextTask, wants_labels: bool) -> list[str]:
    """The names of the columns of a file of single sentences without a header, "" where it does not matter.

    The label is the only column with a label in most lines, and the sentence the longest of the others.
    """
    num_columns = collections.Counter(map(len, sample)).most_common(1)[0][0]
    columns = list(zip(*(fields for fields in sample if len(fields) == num_columns)))
    num_labels = [sum(field.strip() in task.labels for field in column) for column in columns]
    labels = [number for number, column in enumerate(columns) if 2 * num_labels[number] > len(column)]
    others = [number for number in range(num_columns) if number not in labels]
    if not others or (len(labels) != 1 if wants_labels else len(labels) > 1):
        numbers = ", ".join(str(number + 1) for number in labels)
        content = f"column(s) {numbers} hold" if labels else "no column holds"
        way_out = f"give it a header with {task.text_columns[0]} and {task.label_column}"
        raise UserError(f"{path} has no header, and {content} {' or '.join(task.labels)} in most lines; {way_out}")
    names = [""] * num_columns
    for number in labels:
        names[number] = str(task.label_column)
    names[max(others, key=lambda number: sum(map(len, columns[number])))] = task.text_columns[0]
    return names


# --- Labels --------------------------------------------------------------------------------------


_FLOAT32 = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


def find_labels(examples: Examples) -> tuple[str, ...]:
    """The labels in a user's own training file, sorted, with whole numbers sorted by value."""

    def by_value(label: str) -> tuple[bool, int, str]:
        return (not label.isdecimal(), len(label.lstrip("0")) if label.isdecimal() else 0, label)

    return tuple(sorted(set(examples.labels or ()), key=by_value))


def targets(examples: Examples, task: TextTask) -> np.ndarray:
    """The labels as class numbers, int32 [F], or as numbers, float32 [F].

    Raises:
      UserError: a label is not among the task's, not a number or out of range; the message names file and line.
    """
    labels = examples.labels or []
    low, high = task.range or _FLOAT32
    if task.is_regression:
        values = [_number(label, low, high) for label in labels]
        rule = f"a number from {low:g} to {high:g}, with a decimal point"
    else:
        values = list(map({label: number for number, label in enumerate(task.labels)}.get, labels))
        rule = f"one of {', '.join(task.labels[:_NUM_NAMED])}{', ...' if len(task.labels) > _NUM_NAMED else ''}"
        rule += ", the labels that the model was trained with" if task.is_custom else ""
    if None in values:
        row = values.index(None)
        raise UserError(f"{_place(examples, row)}: the label is {labels[row]!r:.80}: must be {rule}")
    return np.array(values, np.float32 if task.is_regression else np.int32)


def _number(label: str, low: float, high: float) -> float | None:
    """None: it is no number, or not in the range."""
    try:
        value = parse_number(label)
    except ValueError:
        return None
    return value if low <= value <= high else None


def check_variety(examples: Examples, targets_F: np.ndarray) -> None:
    """Raises `UserError` if all targets of a training file are the same."""
    if (targets_F == targets_F[0]).all():
        label = (examples.labels or [""])[0]
        raise UserError(f"{examples.path}: all labels are {label!r:.80}: nothing to learn; is it the right column?")


def _place(examples: Examples, row: int) -> str:
    return f"{examples.path}, line {examples.lines[row]}"
