"""Books: a folder of .txt files to one line each, without what the distributor has put before and after the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_tf.base.errors import UserError
from data.corpora import text_files
from data.corpora.formatting import Batch, Cleaned, as_line

# "*** START OF THIS PROJECT GUTENBERG EBOOK X ***"; files before 2004 end their head otherwise.
_START = re.compile(r"\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG|\*END[* ]+THE SMALL PRINT", re.IGNORECASE)
_END = re.compile(
    r"\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG|"
    r"END OF (THE |THIS )?PROJECT GUTENBERG(['’]S|'S)? ",
    re.IGNORECASE,
)
# Between the distributor's head and the book: who made the electronic text.
_CREDITS = re.compile(
    r"(produced|transcribed|e-?text prepared|scanned|digitized|html version)\b.{0,40}\b(by|from)\b", re.IGNORECASE
)
# Transcribers' marks for italics (also of a part of a word: "21_st_"), and their notes on pictures and on
# their work.
_EMPHASIS = re.compile(r"(?<![\w_])_([^_]{1,400}?)_(?!_)|(?<!_)_([^_]{1,400}?)_(?![\w_])")
_NOTE = re.compile(r"\[(?:Illustration|Transcriber['’]s Note|Project Gutenberg)\b[^\]]{0,500}\]", re.IGNORECASE)
# A line break after a dash or a hyphen stands for no space ("summer-" / "cloud"), but for "summer-" / "and winter".
_UNSPACED_BREAK = re.compile(r"(?<=--)\n(?=\S)|(?<=[^\W\d_]-)\n(?!(?:and|or|to)\b)(?=[a-z])")
_DISTRIBUTOR = re.compile("project gutenberg", re.IGNORECASE)
_MAX_HEAD_LINES = 2_000


def placed_books(folder: Path) -> list[Path]:
    """The books below `folder`; there may be none."""
    return text_files.find_text_files(folder) if folder.is_dir() else []


def no_books(folder: Path) -> str:
    """The message for a folder without books: what is missing, and the two ways out."""
    return (
        f"{folder} holds no .txt file: put your books there, a file each, in folders as you "
        "like; or prepare Wikipedia alone (--dataset=wikicorpus_en in every stage)"
    )


def find_books(folder: Path) -> list[Path]:
    """The books below `folder`.

    Raises:
      UserError: there is none; says where they go and what to do without.
    """
    books = placed_books(folder)
    if not books:
        raise UserError(no_books(folder))
    return books


def read_batches(books: Iterable[Path]) -> Iterator[Batch]:
    """One batch a book: the file's name travels to the worker, not its text."""
    for book in books:
        yield Batch([str(book)], {}, book.stat().st_size)


def without_distributor(lines: list[str]) -> list[str]:
    """The lines of the book itself, without the distributor's head and tail and the credits below the head.

    A book in which neither is found stays as it is.
    """
    first = 0
    for number, line in enumerate(lines[:_MAX_HEAD_LINES]):
        if _START.search(line):
            first = number + 1
            break
    last = len(lines)
    for number in range(first, len(lines)):
        if _END.match(lines[number]):
            last = number
            break
    while first < last and not lines[first]:
        first += 1
    if first and first < last and _CREDITS.match(lines[first]):
        while first < last and lines[first]:
            first += 1
    return lines[first:last]


def book_line(path: Path, fallback_encoding: str | None, encoding_errors: str) -> str:
    """One book as one line; paragraphs are parted by two spaces, hard line breaks joined."""
    with text_files.open_text(path, fallback_encoding, encoding_errors) as file:
        lines = text_files.document_lines(path, text_files.read_lines(path, file))
    own = without_distributor(lines)
    paragraphs: Iterable[str] = map("\n".join, text_files.blank_line_separated(own))
    if len(own) < len(lines):
        paragraphs = (paragraph for paragraph in paragraphs if not _DISTRIBUTOR.search(paragraph))
    return as_line(map(_without_marks, paragraphs))


def _without_marks(paragraph: str) -> str:
    text = _UNSPACED_BREAK.sub("", _NOTE.sub("", paragraph))
    return _EMPHASIS.sub(lambda match: match[1] or match[2], text)


def clean_batch(batch: Batch, *, fallback_encoding: str | None, encoding_errors: str) -> Cleaned:
    lines = [book_line(Path(name), fallback_encoding, encoding_errors) for name in batch.documents]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes)
