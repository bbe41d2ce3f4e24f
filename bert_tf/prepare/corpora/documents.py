"""Documents on their way from files to lines: what a corpus reads, and what becomes of it.

A corpus module reads its files into `Batch`es in a fixed order, and cleans each document into a line (in a worker
process). `formatting` writes the lines in that order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

from bert_tf.base.errors import UserError
from bert_tf.base.fields import UnreadFields, read_object
from bert_tf.prepare.corpora.words import has_sentence, has_words, unwrap
from bert_tf.prepare.sharding.sentences import PARAGRAPH_SEPARATOR, SENTENCE_END

# Size of a batch: a tenth of a second of cleaning for a worker.
BATCH_CHARACTERS = 1 << 19

# Hard-wrapped text has shorter lines; a longer line is a paragraph by itself.
LONGEST_WRAPPED_LINE = 120


class BadRecord(NamedTuple):
    """A document that cannot be read; `fault` says where in the file it is, and why."""

    fault: str


class Dropped(NamedTuple):
    """A document that is left out."""

    reason: str


class Damage(NamedTuple):
    """Stands for the rest of a damaged file, after its last document; `sentence` says what is wrong."""

    sentence: str


class Document(NamedTuple):
    """A document as a line, perhaps empty, without its end; and how many pieces were removed from it, by reason."""

    line: str
    num_removed: Mapping[str, int] = {}


# What becomes of a document.
Cleaned = Union[Document, Dropped, BadRecord, Damage]
# Where reading continues, for JSON: in the file of number "file", "num_documents" documents after "byte" (0 except in
# multistream dumps); "bytes" of that file have been read. Empty: at the start.
Position = Mapping[str, Any]


class Batch(NamedTuple):
    """Documents as read, or what stands for them (`BadRecord`, `Dropped`, `Damage`); later, `Cleaned` ones."""

    documents: Sequence[Any]
    path: Path
    input_bytes: int  # that the documents take in the file
    next_position: Position  # after these documents
    size: int  # bytes in memory, roughly


class Corpus(NamedTuple):
    """How to read a corpus: `batches` yields its files' content in a fixed order, from a position on; `clean` runs in a
    worker process, and makes a line of a document, or a list of lines if it is given several documents in one.

    `arguments` holds the options that change the result. `is_document` tells which lines are kept. Of a damaged
    file `batches` keeps what stands before the damage; it raises `UserError` where a file is of another kind or
    encoding, or a document in it is too large.
    """

    paths: Sequence[Path]
    batches: Callable[[Position], Iterable[Batch]]
    clean: Callable[[Any], Cleaned | list[Cleaned]]
    arguments: dict[str, Any]
    is_document: Callable[[str], bool] = has_sentence


def as_line(paragraphs: Iterable[str]) -> str:
    """Joins paragraphs, unwrapped and with single spaces, by two spaces.

    Paragraphs without a word (rows of asterisks) are left out.
    """
    return PARAGRAPH_SEPARATOR.join(map(unwrap, filter(has_words, paragraphs)))


def as_marked_line(sentences: Iterable[str]) -> str:
    """Joins sentences that sharding is to keep, with a mark after each; white space within one as in `as_line`."""
    normal = (" ".join(sentence.split()) for sentence in sentences)
    return "".join(sentence + SENTENCE_END for sentence in normal if sentence)


def json_text(
    number: int, line: str, field: str, *, remedy: str, unread: UnreadFields | None = None
) -> str | BadRecord:
    """The text in a field of `line`, a JSON object in the file's line `number`; `unread` counts its other fields."""
    try:
        content = read_object(line, f"line {number}", remedy)
    except UserError as error:
        return BadRecord(str(error))
    if unread:
        unread.add(content, [field])
    text = content.get(field)
    if isinstance(text, str):
        return text
    names = f"the line has {', '.join(map(repr, content))}" if content else "the line has none"
    return BadRecord(f"line {number}: no text in the field {field!r} ({names:.200}); {remedy}")


def remaining_files(paths: Sequence[Path], position: Position) -> Iterator[tuple[Path, Position]]:
    """The files that are still to be read from a position on, each with the position inside it."""
    for number in range(position.get("file", 0), len(paths)):
        start = {"file": number, "byte": 0, "num_documents": 0, "bytes": 0}
        yield paths[number], {**start, **position} if number == position.get("file") else start


def batch_documents(
    documents: Iterable[Any], path: Path, start: Position, *, count_read_bytes: Callable[[], int] | None = None
) -> Iterator[Batch]:
    """Batches of about equal size of a file's documents, without those before the position `start`.

    Args:
      count_read_bytes: tells how many bytes of the file have been read; default: as many as there are characters.
    """
    total_bytes = path.stat().st_size
    pending: list[Any] = []
    size = 0
    for document in itertools.islice(documents, start["num_documents"], None):
        pending.append(document)
        size += len(document)
        if size >= BATCH_CHARACTERS:
            read_bytes = count_read_bytes() if count_read_bytes else min(total_bytes, start["bytes"] + size)
            position = {**start, "num_documents": start["num_documents"] + len(pending), "bytes": read_bytes}
            yield Batch(pending, path, read_bytes - start["bytes"], position, size)
            start, pending, size = position, [], 0
    yield Batch(pending, path, total_bytes - start["bytes"], {"file": start["file"] + 1}, size)


def read_files(
    paths: Sequence[Path], position: Position, documents_of: Callable[[Path], Iterable[Any]]
) -> Iterator[Batch]:
    """Batches of the documents in each file; where reading resumes inside a file, earlier documents are skipped."""
    for path, start in remaining_files(paths, position):
        yield from batch_documents(documents_of(path), path, start)
