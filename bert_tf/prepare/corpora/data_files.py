"""Recognises files of which only a part is running text, by their content: JSON, tables, markup, web archives."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections.abc import Sequence

_JSON_LINE = re.compile(r'(?=\s*([\[\]{}"\d-]|true|false|null)).*[\[\]{}",\w]\s*')
_JSON_BEGINNING = re.compile(r'\s*(\{\s*"|\[\s*[\[{"]|[\[{]\s*$)')
_MARKUP_BEGINNING = re.compile(r"\s*<(\?xml|!doctype|!--|[a-z][\w:.-]*(\s[^<>]*)?/?>)", re.IGNORECASE)
_END_TAG = re.compile(r"</[A-Za-z][\w:.-]*>")
_DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}
_TREEBANK_TEXT = "# text = "
_FASTA_LINE = re.compile(r">\s*\S.*|[A-Za-z*-]+")  # the head of a sequence, or letters for its residues
_MIN_RECORDS = 3  # of a table; fewer lines of prose may have equally many commas by chance
WITH_TAGS = "text with tags: write what is between them to a .txt file"


def has_tags(lines: Sequence[str]) -> bool:
    """Whether a file with these first non-blank lines is marked up, as a web page is."""
    return bool(lines and _MARKUP_BEGINNING.match(lines[0])) and any(map(_END_TAG.search, lines))


def describe_non_prose(lines: Sequence[str], name: str) -> str:
    """What a file with these first non-blank lines is, and how to make text of it; "" if it may be running text."""
    if not lines:
        return ""
    if _JSON_BEGINNING.match(lines[0]) and all(map(_JSON_LINE.fullmatch, lines)):
        return "JSON: give --input_format=jsonl if each line is an object, or make such lines: jq -c '.[]' FILE > OUT"
    if has_tags(lines):
        return WITH_TAGS
    if lines[0].startswith("WARC/"):
        return "a web archive, with a head before each text: write the texts to a .jsonl file (warcio reads them)"
    if any(line.startswith(_TREEBANK_TEXT) for line in lines):
        command = f"sed -n 's/^# newdoc.*//p; s/^{_TREEBANK_TEXT}//p' {shlex.quote(name)} > OUT"
        return f"a treebank in CoNLL-U: {command} keeps its text, for --input_format=sentences"
    if lines[0].startswith(">") and lines[1:] and all(map(_FASTA_LINE.fullmatch, lines)):
        command = f'awk \'/^>/ {{print "\\n"; next}} {{gsub(/./, "& "); printf "%s", $0}}\' {shlex.quote(name)} > OUT'
        return f"sequences in FASTA: {command} makes each a document with a word for each residue"
    for delimiter, delimiter_name in _DELIMITERS.items():
        if columns := _columns(lines, delimiter):
            longest = max(range(len(columns)), key=lambda column: sum(map(len, columns[column]))) + 1
            example = f", for example: cut -f{longest} {shlex.quote(name)} > OUT" if delimiter == "\t" else ""
            kind = f"a table of {len(columns)} columns with {delimiter_name} between them"
            return f"{kind}: write the column with the text to a file{example}"
    return ""


def _columns(lines: Sequence[str], delimiter: str) -> list[tuple[str, ...]]:
    """The columns of a table; empty if the delimiters are punctuation, with a space or the line's end after them."""
    csv.field_size_limit(sys.maxsize)
    rows = list(csv.reader((f"{line}\n" for line in lines), delimiter=delimiter))
    rows = rows[:-1] if len(rows) > _MIN_RECORDS else rows  # the last may continue after `lines`
    if len(rows) < _MIN_RECORDS or len(rows[0]) < 2 or len({*map(len, rows)}) > 1:
        return []
    columns = list(zip(*rows))
    is_punctuation = not any(columns[-1]) or any(field.startswith(" ") for column in columns[1:] for field in column)
    return [] if is_punctuation else columns
