"""Books: each .txt file of a folder to one line, without the distributor's header and footer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files
from bert_tf.prepare.corpora.data_files import WITH_TAGS, has_tags
from bert_tf.prepare.corpora.documents import Document, as_line

# "*** START OF THIS PROJECT GUTENBERG EBOOK X ***", or how the header ends in files from before 2004.
_START = re.compile(r"\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG|\*END[* ]+THE SMALL PRINT", re.IGNORECASE)
_END = re.compile(
    r"\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG|"
    r"END OF (THE |THIS )?PROJECT GUTENBERG(['’]S|'S)? ",
    re.IGNORECASE,
)
# A paragraph between the header and the book that credits the makers of the electronic text.
_CREDITS = re.compile(
    r"(this (e-?text|e-?book) (was|is) )?"
    r"(produced|prepared|transcribed|e-?text prepared|scanned|digitized|html version)\b.{0,40}\b(by|from)\b",
    re.IGNORECASE,
)
# Transcribers' marks for italics (also within a word: "21_st_"), and their notes on pictures and on
# their own work.
_EMPHASIS = re.compile(r"(?<![\w_])_([^_]{1,400}?)_(?!_)|(?<!_)_([^_]{1,400}?)_(?![\w_])")
_NOTE = re.compile(r"\[(?:Illustration|Transcriber['’]s Notes?|Project Gutenberg)\b[^\]]{0,500}\]", re.IGNORECASE)
# After a dash or hyphen a line break does not become a space ("summer-" / "cloud"), except in "summer-" / "and winter".
_UNSPACED_BREAK = re.compile(r"(?<=--)\n(?=\S)|(?<=[^\W\d_]-)\n(?!(?:and|or|to)\b)(?=[a-z])")
_DISTRIBUTOR = re.compile("project gutenberg", re.IGNORECASE)
_MAX_HEAD_LINES = 2_000
_CHAPTER = re.compile(r"^[ \t]*chapter +(?:[ivxlc]+|[0-9]+|one|two|three|four|five)\b", re.IGNORECASE | re.MULTILINE)
_HEAD_BYTES = 1 << 20
REMEDY = (
    "put your books there, one .txt file per book, in subfolders if you like; or prepare only Wikipedia "
    "(--dataset=wikicorpus_en in every stage)"
)


def is_book(path: Path) -> bool:
    """Whether a text file is one book rather than several documents, by its distributor's header or its chapters."""
    with text_files.open_bytes(path) as file:
        head = file.read(_HEAD_BYTES).replace(b"\0", b"").decode("latin-1")  # UTF-16 has NULs
    return bool(_START.search(head)) or len(set(_CHAPTER.findall(head))) >= 3


def clean(name: str | Path, read_lines: Callable[[Path], Iterable[str]] = text_files.read_lines) -> Document:
    """One book, given its file's name: two spaces between paragraphs, hard-wrapped lines joined.

    Without the distributor's header and footer and the credits below the header, if there are any.

    Raises: UserError where it is a web page.
    """
    path = Path(name)
    lines = text_files.document_lines(path, read_lines(path))
    if has_tags(list(filter(None, lines[:_MAX_HEAD_LINES]))):
        raise UserError(f"{path}: {WITH_TAGS}, or take it out of the input")
    first = next((number + 1 for number, line in enumerate(lines[:_MAX_HEAD_LINES]) if _START.search(line)), 0)
    if 0 < first < len(lines) and not lines[first - 1].endswith("*") and lines[first].endswith("***"):
        first += 1  # the mark of a long title takes two lines
    last = next((number for number in range(first, len(lines)) if _END.match(lines[number])), len(lines))
    paragraphs = list(text_files.blank_line_separated(path, lines[first:last]))
    if first and paragraphs and _CREDITS.match(paragraphs[0]):
        del paragraphs[0]
    if last - first < len(lines):
        paragraphs = [paragraph for paragraph in paragraphs if not _DISTRIBUTOR.search(paragraph)]
    return Document(as_line(map(_without_marks, paragraphs)))


def _without_marks(paragraph: str) -> str:
    text = _UNSPACED_BREAK.sub("", _NOTE.sub("", paragraph))
    return _EMPHASIS.sub(lambda match: match[1] or match[2], text)
