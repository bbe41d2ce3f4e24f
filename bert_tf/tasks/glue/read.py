"""Reads sentences and labels: GLUE's files as they are distributed, and users' own CSV, TSV and JSON lines.

GLUE's files have one record per line and tabs between the columns; quotation marks are part of the text. The
header names the columns. CoLA has no header, and is distributed with four columns or two: there the label is
the column that contains labels, and the sentence is the longest of the other columns.

The STS benchmark's own files have no header either. Users' own CSV and TSV files have one, or --columns names theirs.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.command_line import parse_number
from bert_tf.base.errors import BadRecords, UserError, names_in_words
from bert_tf.base.fields import UnreadFields
from bert_tf.tasks.glue.tasks import CUSTOM, TextTask
from bert_tf.tasks.records import (
    CSV_QUOTING,
    DELIMITERS,
    JSON_SUFFIXES,
    Record,
    as_label,
    as_text,
    find_quoting,
    json_objects,
    read_csv,
    read_plain,
)

# The number of records at a file's beginning by whose content columns without a header are identified.
_SAMPLE = 1000
_INDEX_COLUMNS = ("index", "id", "idx")  # the last one in Hugging Face's data sets
_COLUMNS_ADVICE = (
    "for other names use --task_name=custom with --text_columns, --label_column and, without a header, --columns; a "
    ".csv has commas between its columns, a .tsv tabs; --quoting=csv takes quotation marks off"
)
_FLOAT32 = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


class Examples(NamedTuple):
    """The content of a file, in the file's order."""

    path: Path
    texts: tuple[list[str], ...]  # one or two lists of sentences
    labels: list[str] | None
    lines: list[int]  # line numbers in the file
    indices: list[str]  # the file's index column, or 0, 1, ...
    notes: list[str]  # about quoting, what was left out, and the number of rows; some are empty


def read_examples(
    path: Path, task: TextTask, *, wants_labels: bool, max_bad_records: int | None = None, quoting: str | None = None
) -> Examples:
    """All records of a file.

    Args:
      wants_labels: whether the label column must be there; else it is ignored.
      max_bad_records: how many records with a wrong number of columns, or without a field, may be left out; None: as
        many as the published file is known to have. Without labels none may be, as each must get a prediction.
      quoting: one of `QUOTINGS`; None: CSV's for .csv, none for GLUE's files, for other .tsv what the content shows.

    Raises:
      UserError: the file is empty, not UTF-8, lacks a column, or has too many bad records.
    """
    columns, unread = [*task.text_columns, *([task.label_column or ""] if wants_labels else [])], UnreadFields()
    if task.is_custom and path.suffix.lower() in JSON_SUFFIXES:
        if quoting or task.columns:
            raise UserError(f"{path} holds JSON, which has its own quotes and names; leave --quoting and --columns out")
        names, note = [*columns, *_INDEX_COLUMNS], ""
        records = _json_records(path, names, {*names, task.label_column or ""}, unread)
    else:
        records, note = _table(path, task, quoting)
        columns = [column.lower() for column in columns]
        names, records = _name_columns(path, records, task, columns)
    allowed = task.max_bad_records if max_bad_records is None else max_bad_records
    bad = BadRecords(allowed if wants_labels else None, "record", str(path))
    examples = _collect(path, records, names, columns, task=task, bad=bad)
    return examples._replace(notes=[note, unread.describe(), *examples.notes])


def _collect(
    path: Path,
    records: Iterable[Record],
    names: Sequence[str],
    columns: Sequence[str],
    *,
    task: TextTask,
    bad: BadRecords,
) -> Examples:
    """The content of records with the columns `names`, of which `columns` are read: the texts and perhaps the label."""
    num_texts = len(task.text_columns)
    parsers = [as_text] * num_texts + [as_label] * (len(columns) - num_texts)
    cells = list(zip(parsers, map(names.index, columns), columns))
    index_positions = [names.index(name) for name in _INDEX_COLUMNS if name in names and name not in columns]
    values, lines, indices = [list[str]() for _ in columns], list[int](), list[str]()
    num_unlabelled = num_multi_line = 0
    for line, fields, raw_lines in records:
        try:
            if len(fields) != len(names):
                raise ValueError(
                    f"{len(fields)} columns instead of {len(names)} (--quoting says what quotation marks are)"
                )
            row = [parse(fields[position], name) for parse, position, name in cells]
        except ValueError as error:
            for number in range(line, line + len(raw_lines)):  # a stray quotation mark may have joined whole records
                bad.add(f"line {number}: {error}")
            continue
        if task.no_label in row[num_texts:]:
            num_unlabelled += 1
            continue
        for column_values, value in zip(values, row):
            column_values.append(value)
        indices.append(str(next((fields[n] for n in index_positions if fields[n] is not None), len(lines))))
        lines.append(line)
        num_multi_line += len(raw_lines) > 1
    texts, labels = tuple(values[:num_texts]), values[num_texts] if len(columns) > num_texts else None
    counts = {
        f"labelled {task.no_label!r}, left out": num_unlabelled,
        "with line breaks between quotation marks, kept": num_multi_line,
        "with an empty text, kept": sum(not text.strip() for text in itertools.chain(*texts)),
    }
    notes = [*(f"{count:,} record(s) {state}" for state, count in counts.items() if count), bad.describe()]
    if not lines:
        raise UserError("; ".join([f"{path} holds no record that can be used", *filter(None, notes)]))
    commonest = [f"{label}: {count:,}" for label, count in collections.Counter(labels).most_common(9)]
    size = f"{len(lines):,} rows" + (f" ({names_in_words(commonest, 8)})" if labels else "")
    return Examples(path, texts, labels, lines, indices, [*notes, size])


def _json_records(path: Path, names: Sequence[str], known: Collection[str], unread: UnreadFields) -> Iterator[Record]:
    """Records of the fields `names`. `known`: also the label's, which prediction ignores."""
    for line, content in json_objects(path):
        unread.add(content, known)
        yield Record(line, [*map(content.get, names)])


def _table(path: Path, task: TextTask, quoting: str | None) -> tuple[Iterator[Record], str]:
    """The records of a table, including its header if it has one, and a note about its quotation marks."""
    suffix = path.suffix.lower()
    if not task.is_custom and (suffix in JSON_SUFFIXES or (suffix == ".csv" and not task.columns)):
        raise UserError(
            f"{path}: {task.name}'s files have tabs between the columns, and are called .tsv; read {suffix} with "
            f"--task_name={CUSTOM}, --text_columns and --label_column"
        )
    if task.is_custom and suffix not in DELIMITERS:
        raise UserError(
            f"{path}: the name must say its format: .tsv (tabs between the columns), .csv (commas), or "
            f"{', '.join(JSON_SUFFIXES)} (an object a line); rename it, or unpack or convert it"
        )
    delimiter, note = DELIMITERS[suffix] if task.is_custom else "\t", ""
    if quoting is None and task.may_be_quoted and delimiter == "\t":
        quoting, note = find_quoting(path, delimiter)
    if quoting == CSV_QUOTING or (quoting is None and delimiter == ","):
        return read_csv(path, delimiter, ", or are text with --quoting=none"), note
    return read_plain(path, delimiter), note


# --- Columns -------------------------------------------------------------------------------------


def _name_columns(
    path: Path, records: Iterator[Record], task: TextTask, columns: Sequence[str]
) -> tuple[list[str], Iterator[Record]]:
    """The names of a table's columns, in lower case, and its records without the header.

    The names are those in the header. Without a header they are the task's `columns`, or are found by the content.

    Raises: UserError if one of `columns` is missing or occurs twice, or if --columns is given for a file with a header.
    """
    first = next(records, None)
    if first is None:
        raise UserError(f"{path} is empty; it must hold a sentence or a pair of sentences in each line")
    if len(first.fields) == 1:
        records = _with_empty_texts(first, records)
    location, header = f"{path}, line {first.line}", [field.strip().lower() for field in first.fields]
    names, after_header, records = header, records, itertools.chain([first], records)
    if {*columns} <= {*header}:
        if task.is_custom and task.columns:
            raise UserError(f"{location} names the columns itself; leave --columns out")
        records = after_header
    elif task.columns and (task.is_custom or _begins_with_score(first, task)):
        names = [column.lower() for column in task.columns]
        if not task.is_custom:  # some lines of the STS benchmark end with two sources
            records = (line._replace(fields=line.fields[:7]) if len(line.fields) == 9 else line for line in records)
    elif not task.is_custom and len(task.text_columns) == 1 and task.text_columns[0] not in header:
        sample = [*itertools.islice(records, _SAMPLE)]
        lines = [record.fields for record in sample]
        if not _has_header(lines, task):
            names = _names_by_content(path, lines, task, wants_labels=len(columns) > 1)
        records = itertools.chain(sample, records)
    for column in columns:
        if names.count(column) != 1:
            fault = f"the column {column!r} occurs twice" if column in names else f"no column {column!r}"
            raise UserError(
                f"{location}: {fault} in {' | '.join(names)[:200]!r}; {task.name} reads {', '.join(columns)}; "
                f"{_COLUMNS_ADVICE}"
            )
    return names, records


def _with_empty_texts(first: Record, others: Iterable[Record]) -> Iterator[Record]:
    """The `others` of a table with one column: a blank line between two records, which readers skip, is an empty text.

    So each line between the first and the last record gets a prediction.
    """
    next_line = first.line + len(first.lines)
    for record in others:
        yield from (Record(line, [""]) for line in range(next_line, record.line))
        yield record
        next_line = record.line + len(record.lines)


def _begins_with_score(first: Record, task: TextTask) -> bool:
    """Whether the first record of a file with the task's `columns` has a score, which a header has not."""
    return _number(dict(zip(task.columns, first.fields)).get(str(task.label_column), ""), task) is not None


def _has_header(lines: Sequence[Sequence[str]], task: TextTask) -> bool:
    """Whether the first line has no label, and a column holds whole numbers, such as indices, in all other lines."""
    is_number = [[field.strip().isdecimal() for field in column] for column in zip(*lines)]
    has_label = any(field.strip() in task.labels for field in lines[0])
    return len(lines) > 1 and not has_label and any(not first and all(others) for first, *others in is_number)


def _names_by_content(path: Path, sample: Sequence[Sequence[str]], task: TextTask, *, wants_labels: bool) -> list[str]:
    """The names of the columns of a file of single sentences without a header; "" for those that are not read.

    The label is the only column with a label in most lines, and the sentence the longest of the others.
    """
    [(num_columns, _)] = collections.Counter(map(len, sample)).most_common(1)
    columns = list(zip(*(fields for fields in sample if len(fields) == num_columns)))
    labels = [2 * sum(field.strip() in task.labels for field in column) > len(column) for column in columns]
    if all(labels) or sum(labels) > 1 or (wants_labels and not any(labels)):
        raise UserError(
            f"{path} has no header, and {sum(labels)} of its {len(columns)} columns hold {' or '.join(task.labels)} in "
            f"most lines; give it a header with {task.text_columns[0]} and {task.label_column}"
        )
    sizes = [0 if is_label else 1 + sum(map(len, column)) for is_label, column in zip(labels, columns)]
    names = [str(task.label_column) if is_label else "" for is_label in labels]
    names[int(np.argmax(sizes))] = task.text_columns[0]
    return names


# --- Labels --------------------------------------------------------------------------------------


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
    if task.is_regression:
        values = [_number(label, task) for label in labels]
        rule = "a number from {:g} to {:g}, with a decimal point".format(*task.range or _FLOAT32)
    else:
        values = list(map({label: number for number, label in enumerate(task.labels)}.get, labels))
        rule = f"one of {names_in_words(task.labels)}"
    if None in values:
        row = values.index(None)
        raise UserError(
            f"{examples.path}, line {examples.lines[row]}: the label is {labels[row]!r:.80}: must be {rule}"
        )
    return np.array(values, np.float32 if task.is_regression else np.int32)


def _number(label: str, task: TextTask) -> float | None:
    """The label as a number; None: it is no number, or not in the task's range."""
    low, high = task.range or _FLOAT32
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
