"""Reads a file's records: with tabs or commas between columns, with or without quoting; or a JSON object per line.

Without quoting a record is a line, and quotation marks are part of the text. By CSV's rules (RFC 4180) a field may be
enclosed in quotation marks, and then hold the delimiter, line breaks and, doubled, quotation marks.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.fields import fault_of_label, read_object
from bert_tf.base.files import decoded_lines

DELIMITERS = {".tsv": "\t", ".csv": ","}
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
NO_QUOTING, CSV_QUOTING = "none", "csv"
QUOTINGS = (NO_QUOTING, CSV_QUOTING)
_JSON_LINES_RULE = (
    "each line must hold an object; jq -c '.[]' FILE > OUT makes such lines of a list, jq -c . of objects that go over "
    "several lines"
)


class Record(NamedTuple):
    line: int  # number of the record's first line, from 1
    fields: list[Any]  # texts; from JSON any value
    lines: Sequence[str] = ("",)  # the record's lines as in the file


def read_plain(path: Path, delimiter: str) -> Iterator[Record]:
    """Records without quoting, one per line. Blank lines are skipped."""
    for number, line in decoded_lines(path):
        if line.strip(" \r\n"):
            yield Record(number, line.rstrip("\r\n").split(delimiter), (line,))


def read_csv(path: Path, delimiter: str, remedy: str = "") -> Iterator[Record]:
    """Records by CSV's rules. Blank lines are skipped.

    Raises: UserError for a quotation mark in the wrong position; its message ends with `remedy`.
    """
    csv.field_size_limit(sys.maxsize)
    first, record_lines = 1, list[str]()  # the number of the current record's first line, and its lines

    def csv_lines() -> Iterator[str]:
        # A carriage return inside a line becomes a space, and NULs are dropped, as by BERT's tokenizer. The csv module
        # would refuse carriage returns, and in Python 3.10 also NULs.
        for _, line in decoded_lines(path):
            record_lines.append(line)
            yield line.rstrip("\r\n").replace("\r", " ").replace("\0", "") + "\n"

    try:
        for fields in csv.reader(csv_lines(), delimiter=delimiter, strict=True):
            if fields:
                yield Record(first, fields, record_lines.copy())
            first += len(record_lines)
            record_lines.clear()
    except csv.Error as error:
        raise UserError(
            f"{path}, line {first}: {error}; quotation marks must enclose whole fields, and be doubled inside "
            f"them{remedy}"
        ) from None


def find_quoting(path: Path, delimiter: str) -> tuple[str, str]:
    """The quoting that a file's content shows, one of `QUOTINGS`, and a note about it ("" if CSV's is ruled out).

    It is CSV's if each field with quotation marks is valid by CSV's rules, if all records have the same number of
    columns, and if some quotation mark can have no other meaning: it is in the header, or encloses a delimiter, a line
    break or another quotation mark. What looks like a field with both a line break and a delimiter is taken for two
    lines with a plain quotation mark in each, which speaks against CSV's quoting.
    """
    if not any('"' in line for _, line in decoded_lines(path)):
        return NO_QUOTING, ""
    field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{delimiter}]*)'
    record = re.compile(rf"{field}(?:{delimiter}{field})*\r?\n?")
    num_columns, is_certain, is_doubtful = 0, False, False
    try:
        for _, fields, lines in read_csv(path, delimiter):
            text = "".join(lines)
            is_certain = is_certain or (not num_columns and '"' in text)
            num_columns = num_columns or len(fields)
            if len(fields) != num_columns or not record.fullmatch(text):
                return NO_QUOTING, ""
            for value in fields:
                is_doubtful = is_doubtful or ("\n" in value and (delimiter in value or num_columns == 1))
                is_certain = is_certain or any(character in value for character in (delimiter, '"', "\n"))
    except UserError:
        return NO_QUOTING, ""
    if is_certain and not is_doubtful:
        return CSV_QUOTING, "its quotation marks follow CSV's rules; --quoting=none takes them as text"
    return NO_QUOTING, "its quotation marks are taken as text; --quoting=csv reads them by CSV's rules"


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and JSON object; blank lines are skipped."""
    for number, line in decoded_lines(path):
        if line.strip():
            yield number, read_object(line, f"{path}, line {number}", _JSON_LINES_RULE)


def as_text(value: Any, name: str) -> str:
    """A JSON text or number as a text. Raises: ValueError for anything else."""
    if isinstance(value, str):
        # Half of a UTF-16 surrogate pair is no character, and becomes U+FFFD.
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    raise ValueError(f"{name} is {json.dumps(value):.40}, or missing; it must be a text or a number")


def as_label(value: Any, name: str) -> str:
    """A text or number as a label, without white space around it.

    Raises: ValueError for anything else, and where `fault_of_label` finds a fault.
    """
    label = (value if isinstance(value, str) else as_text(value, name)).strip()
    if fault := fault_of_label(label):
        raise ValueError(f"{name} is {label!r:.80}: {fault}")
    return label


def notes_on_file(path: Path, *notes: str) -> str:
    """The notes about a file, one a line with the path in front; empty notes are left out."""
    return "\n".join(f"{path}: {note}" for note in notes if note)
