"""Records of a file: tabs or commas between the columns, with or without quoting; or a JSON object in each line.

Without quoting a record is a line, and quotation marks are part of the text. By CSV's rules (RFC 4180) a field may be
enclosed in quotation marks, and then hold the delimiter, line breaks and, doubled, quotation marks.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import decoded_lines, parse_json

DELIMITERS = {".tsv": "\t", ".csv": ","}
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
NO_QUOTING, CSV_QUOTING = "none", "csv"
QUOTINGS = (NO_QUOTING, CSV_QUOTING)
_ONE_A_LINE = (
    "each line must hold an object; jq -c '.[]' FILE > OUT makes such lines of a list, jq -c . of objects that go over "
    "several lines"
)


class Record(NamedTuple):
    line: int  # number of the record's first line, from 1
    fields: list[str]


def read_plain(path: Path, delimiter: str) -> Iterator[Record]:
    """Lines without quoting. Blank lines are skipped."""
    for number, line in decoded_lines(path):
        if line.strip(" \r\n"):
            yield Record(number, line.rstrip("\r\n").split(delimiter))


def read_csv(path: Path, delimiter: str) -> Iterator[Record]:
    """Records by CSV's rules. Blank lines are skipped. Raises `UserError` for a quotation mark against these rules."""
    csv.field_size_limit(sys.maxsize)
    # A carriage return inside a line is white space, and a NUL nothing, as they are to BERT's tokenizer; the csv
    # module refuses the one, and in Python 3.10 the other.
    lines = (line.rstrip("\r\n").replace("\r", " ").replace("\0", "") + "\n" for _, line in decoded_lines(path))
    reader, first_line = csv.reader(lines, delimiter=delimiter, strict=True), 1
    try:
        for fields in reader:
            if fields:
                yield Record(first_line, fields)
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {first_line}: {error}; a field that begins with a quotation mark must end with one, and "
            "quotation marks inside it are doubled; --quoting=none takes them as text"
        ) from None


def read_json_lines(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The wanted fields of one JSON object per line, preceded by a header with their names."""
    yield Record(0, list(columns))
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        try:
            content = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON ({error}); {_ONE_A_LINE}") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}, line {number}: no JSON object, but {str(content)[:40]!r}; {_ONE_A_LINE}")
        yield Record(number, [_json_field(path, number, content, column) for column in columns])


def _json_field(path: Path, number: int, content: dict, column: str) -> str:
    value = content.get(column)
    is_infinite = isinstance(value, float) and not math.isfinite(value)  # NaN, too
    if value is None or isinstance(value, (list, dict)) or is_infinite:
        problem = (
            f"no field {column!r}" if column not in content else f"the field {column!r} is {json.dumps(value)[:40]}"
        )
        raise UserError(f"{path}, line {number}: {problem}; it must be a text or a number")
    return value if isinstance(value, str) else json.dumps(value)
