"""The user's own text: a document is a file, a line, the lines between blank lines, a JSON line or a table row.

In the format "sentences" (Google's input for BERT), documents lie between blank lines and each line is a sentence,
which sharding keeps. In all other formats sharding finds the sentences.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Callable

from bert_tf.base.errors import UserError
from bert_tf.base.fields import UnreadFields
from bert_tf.base.files import check_file
from bert_tf.base.progress import print_beside_bars
from bert_tf.prepare.corpora import text_files
from bert_tf.prepare.corpora.data_files import describe_non_prose
from bert_tf.prepare.corpora.documents import (
    LONGEST_WRAPPED_LINE,
    BadRecord,
    Batch,
    Corpus,
    Document,
    Position,
    as_line,
    as_marked_line,
    json_text,
    read_files,
)
from bert_tf.prepare.corpora.words import has_sentence, has_words
from bert_tf.settings.preparation import PreparationOptions

_COMPRESSION_SUFFIXES = ("", ".gz", ".zst")


def _with_compressed(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"{suffix}{packed}" for suffix in suffixes for packed in _COMPRESSION_SUFFIXES)


# Suffixes by kind of file. `_MARKED_UP` files are read as running text only if --input_format names a format.
_TABLE, _TEXT = ".parquet", _with_compressed(".txt")
_ARROW = ".arrow"  # looked for before .json: it is refused with a remedy, and the .json beside it only describes it
_JSON, _JSON_LINES = _with_compressed(".json"), _with_compressed(".jsonl", ".ndjson")
_MARKED_UP = _with_compressed(".csv", ".tsv", ".xml", ".html", ".htm")

# Few rows of a table are decoded at once, because they may be large.
_ROWS_AT_ONCE = 8
_COLUMN_BUFFER_BYTES = 1 << 20
# The beginning of a text file, by which data is known.
_HEAD_LINES, _HEAD_CHARACTERS = 200, 1 << 18


ReadLines = Callable[[Path], Iterator[str]]


class Sentences(str):
    """A document with a sentence on each line."""


def find_inputs(names: Sequence[str]) -> list[Path]:
    """The files named, and the text, JSON-lines and Parquet files of the folders named, in the order given.

    Raises: UserError where nothing is named, a name is no file or folder, or a folder holds no such file.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            # Beside texts, .json files describe them; alone, as in C4, they hold the texts.
            kinds = (*_TEXT, *_JSON_LINES, _TABLE), (_ARROW,), _JSON
            inside = next(filter(None, (text_files.find_text_files(path, kind) for kind in kinds)), [])
            remedy = "name the files themselves by --input_files if they have other suffixes"
            files += text_files.require_files(inside, path, ".txt, .jsonl or .parquet file", remedy=remedy)
            text_files.note_unread_files(path, inside, "a file is if --input_files names it")
        else:
            check_file(
                path, "give --input_files files or folders, separated by commas, or a single one that holds a comma"
            )
            files.append(path)
    if not files:
        raise UserError(
            "input_files: name text files, or folders of .txt, .jsonl or .parquet files, separated by commas"
        )
    return list(dict.fromkeys(path.resolve() for path in files))


def choose_formats(input_format: str, paths: Sequence[Path], read_lines: ReadLines) -> dict[Path, str]:
    """Each file with its format: Parquet and JSON lines always by their suffixes, all others as `input_format` says.

    Where it is ``auto``, several text files are one document each; a single one is split into documents at its blank
    lines or, if it has none, at every line.

    Raises: UserError where it is ``auto`` and a file is by its suffix a table, or text with tags.
    """

    def by_suffix(path: Path) -> str:
        name = path.name.lower()
        if name.endswith(_TABLE):
            return "parquet"
        if input_format == "auto" and name.endswith(_MARKED_UP):
            raise UserError(
                f"{path}: a table or text with tags, whose text is only a part of it: write that to a .txt, .jsonl or "
                ".parquet file, or name the --input_format if the file is running text despite its name"
            )
        return "jsonl" if name.endswith((*_JSON_LINES, *_JSON)) else input_format

    formats = {path: by_suffix(path) for path in paths}
    texts = [path for path, name in formats.items() if name == "auto"]
    if len(texts) == 1:
        text_blocks = (is_text for is_text, _ in itertools.groupby(read_lines(texts[0]), bool) if is_text)
        is_separated = len(list(itertools.islice(text_blocks, 2))) == 2
        return {**formats, texts[0]: "paragraph" if is_separated else "line"}
    return {**formats, **dict.fromkeys(texts, "file")}


def make_corpus(paths: Sequence[Path], input_format: str, options: PreparationOptions) -> Corpus:
    """The corpus of these files. When it has been read, JSON fields that hold text but were not read are named.

    Raises: UserError where an option on encodings is wrong, --text_column has no effect, or as `choose_formats`.
    """
    encoding, column = text_files.encoding_options(options), options.text_column
    read_lines: ReadLines = functools.partial(text_files.read_lines, **encoding)
    format_of = choose_formats(input_format, paths, read_lines)
    formats = sorted(set(format_of.values()))
    if column != "text" and not {"jsonl", "parquet"} & {*formats}:
        raise UserError(
            f"text_column={column}: has no effect, because no input file is read as jsonl or parquet, but "
            f"{' and '.join(formats)}: leave it out, or give --input_format=jsonl if the lines are JSON objects"
        )
    unread = UnreadFields()

    def documents_of(path: Path) -> Iterable[str | BadRecord]:
        if format_of[path] == "parquet":
            return _table_documents(path, column)
        if format_of[path] == "jsonl":
            return _json_documents(read_lines(path), column, unread)
        lines = _checked(path, read_lines(path), is_chosen=input_format != "auto")
        return _text_documents(path, lines, format_of[path])

    def batches(position: Position) -> Iterator[Batch]:
        yield from read_files(paths, position, documents_of)
        if unread_fields := unread.describe():
            print_beside_bars(f"{unread_fields}; --text_column names the one that is read")

    arguments = {**encoding, "input_format": "+".join(formats)}
    # Omitted where it does not apply and, at its default, for JSON lines: in early versions it did not apply to them.
    if "parquet" in formats or column != "text":
        arguments["text_column"] = column
    # Text between blank lines may be a title; in other formats the user knows what a document is.
    return Corpus(paths, batches, clean, arguments, has_sentence if "paragraph" in formats else has_words)


def _checked(path: Path, lines: Iterator[str], *, is_chosen: bool) -> Iterator[str]:
    """The lines of a text file. Prints a note if it holds data instead, and the user chose its format (`is_chosen`).

    Raises: UserError if it holds data, and the user did not.
    """
    head: list[str] = []
    for line in lines:
        head.append(line)
        if sum(map(len, head)) > _HEAD_CHARACTERS or len(head) == _HEAD_LINES:
            break
    if kind := describe_non_prose(list(filter(None, head)), path.name):
        if not is_chosen:
            raise UserError(f"{path}: {kind}; or name the --input_format if it is running text nevertheless")
        print_beside_bars(f"{path}: read as text, though it is {kind}")
    return itertools.chain(head, lines)


def _text_documents(path: Path, lines: Iterator[str], input_format: str) -> Iterable[str]:
    """The documents in a file of text, their line breaks kept. Raises: UserError where one is too large."""
    if input_format == "line":
        return filter(None, lines)
    if input_format == "file":
        return ["\n".join(text_files.document_lines(path, lines))]
    documents = text_files.blank_line_separated(path, lines)
    return map(Sentences, documents) if input_format == "sentences" else documents


def _table_documents(path: Path, column: str) -> Iterator[str | BadRecord]:
    """The texts in a Parquet file's column, which may be of bytes: some programs do not mark them as text.

    Raises: UserError where the file is not Parquet, is damaged or has no such column, or a text is too large.
    """
    pyarrow = text_files.import_pyarrow(path)
    # With a buffer a column is read piece by piece, not one whole row group at a time.
    options = {"buffer_size": _COLUMN_BUFFER_BYTES, "page_checksum_verification": True}
    with (
        text_files.refusing_damage(path, pyarrow.ArrowException),
        pyarrow.parquet.ParquetFile(path, **options) as table,
    ):
        names = table.schema_arrow.names
        if names.count(column) != 1:
            raise UserError(f"{path}: has no column {column!r}, or several: name one of {names} by --text_column")
        kind = table.schema_arrow.field(column).type
        # With threads, each of pyarrow's threads would keep what it has read in memory.
        batches = table.iter_batches(_ROWS_AT_ONCE, columns=[column], use_threads=False)
        cells = (cell for batch in batches for cell in batch.column(0))
        for row, cell in enumerate(cells, 1):
            text = None
            with contextlib.suppress(UnicodeDecodeError):
                text = cell.as_py()
                text = text.decode() if isinstance(text, bytes) else text
            if not isinstance(text, str):
                yield BadRecord(f"row {row:,}: no text in UTF-8 in column {column!r}, of type {kind}")
            elif text_files.num_utf8_bytes(text) > text_files.LARGEST_DOCUMENT_BYTES:
                raise text_files.document_too_large(f"{path}, row {row:,}")
            else:
                yield text


def _json_documents(lines: Iterator[str], field: str, unread: UnreadFields) -> Iterator[str | BadRecord]:
    """The texts of the non-blank lines."""
    remedy = (
        f'name the field with the text by --text_column; a line has to be like {{"{field}": "..."}} (of a list, jq -c '
        "'.[]' FILE > OUT makes such lines)"
    )
    for number, line in enumerate(lines, 1):
        if line:
            yield json_text(number, line, field, remedy=remedy, unread=unread)


def _paragraphs(document: str) -> Iterator[str]:
    """Joins hard-wrapped lines; a blank line ends a paragraph, and a line too long to be wrapped is a paragraph."""
    lines = map(str.strip, io.StringIO(document, newline=None))  # line ends as in text files
    for is_long, group in itertools.groupby(lines, lambda line: len(line) > LONGEST_WRAPPED_LINE if line else None):
        if is_long:
            yield from group
        else:
            yield "\n".join(group)


def clean(document: str) -> Document:
    is_marked = isinstance(document, Sentences)
    return Document(as_marked_line(document.split("\n")) if is_marked else as_line(_paragraphs(document)))
