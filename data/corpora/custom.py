"""The user's own text: a document is a file, a line, the lines between blank lines, a JSON line or a table row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from data.corpora import formatting, text_files
from data.corpora.formatting import LONGEST_WRAPPED_LINE, BadRecord, Batch, Cleaned, as_line

INPUT_FORMATS = ("auto", "file", "line", "paragraph", "jsonl", "parquet")
_COMPRESSION_SUFFIXES = ("", ".gz", ".zst")
JSON_LINES_SUFFIXES = tuple(f"{kind}{packed}" for kind in (".jsonl", ".ndjson") for packed in _COMPRESSION_SUFFIXES)
TEXT_SUFFIXES = tuple(f".txt{packed}" for packed in _COMPRESSION_SUFFIXES)
_ROWS_AT_ONCE = 256


def find_inputs(names: Sequence[str]) -> list[Path]:
    """The files named, and the text, JSON-lines and Parquet files of the folders named, in the order given.

    Raises:
      UserError: nothing is named, a name is no file or folder, or a folder holds no such file.
    """
    if not names:
        raise UserError(
            "dataset=custom needs --input_files: text files or folders of .txt or .jsonl files, separated by commas"
        )
    found: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            inside = text_files.find_text_files(path, (*TEXT_SUFFIXES, *JSON_LINES_SUFFIXES, ".parquet"))
            if not inside:
                raise UserError(
                    f"input_files: the folder {path} holds no .txt file and no .jsonl "
                    "file; name the files themselves if they have other suffixes"
                )
            found.extend(inside)
        else:
            check_file(path, "give --input_files files or folders, separated by commas; one that holds a comma, alone")
            found.append(path)
    return list(dict.fromkeys(path.resolve() for path in found))


def choose_format(
    input_format: str, paths: Sequence[Path], *, fallback_encoding: str | None, encoding_errors: str
) -> str:
    """Resolves ``auto``: JSON lines and Parquet by their suffixes. Of text files, several are one document
    each; a single one is split into documents at its blank lines or, if it has none, at every line.

    Raises:
      UserError: files of different kinds.
    """
    if input_format != "auto":
        return input_format
    for kind, what, suffixes in (("jsonl", "JSON lines", JSON_LINES_SUFFIXES), ("parquet", "a table", (".parquet",))):
        of_kind = [path for path in paths if path.name.lower().endswith(suffixes)]
        if of_kind and len(of_kind) < len(paths):
            other = next(path for path in paths if path not in of_kind)
            raise UserError(
                f"input_files: {of_kind[0]} holds {what}, {other} does not: name files of "
                "one kind, or say what they are by --input_format"
            )
        if of_kind:
            return kind
    if len(paths) > 1:
        return "file"
    path = paths[0]
    with text_files.open_text(path, fallback_encoding, encoding_errors) as file:
        return "paragraph" if _has_blank_line_inside(text_files.read_lines(path, file)) else "line"


def _has_blank_line_inside(lines: Iterable[str]) -> bool:
    num_blocks = num_characters = 0
    for line in itertools.chain(lines, [""]):
        if line:
            num_characters += len(line) + 1
            if num_characters > text_files.LARGEST_DOCUMENT_BYTES:
                # Too large for a single document.
                return False
        elif num_characters:
            num_blocks, num_characters = num_blocks + 1, 0
            if num_blocks > 1:
                return True
    return False


def read_batches(
    paths: Iterable[Path],
    input_format: str,
    text_column: str = "text",
    *,
    fallback_encoding: str | None,
    encoding_errors: str,
) -> Iterator[Batch]:
    """Batches of documents, their line breaks kept."""
    for path in paths:
        if input_format == "parquet":
            yield from formatting.in_batches(_table_documents(path, text_column), path.stat().st_size)
            continue
        with text_files.open_text(path, fallback_encoding, encoding_errors) as file:
            documents = _documents(path, text_files.read_lines(path, file), input_format)
            yield from formatting.in_batches(documents, path.stat().st_size)


def _documents(path: Path, lines: Iterator[str], input_format: str) -> Iterator[str | BadRecord]:
    if input_format == "jsonl":
        yield from _json_documents(path, lines)
    elif input_format == "file":
        yield "\n".join(text_files.document_lines(path, lines))
    elif input_format == "paragraph":
        for line in filter(None, lines):
            paragraph = itertools.chain([line], itertools.takewhile(bool, lines))
            yield "\n".join(text_files.document_lines(path, paragraph))
    else:
        yield from filter(None, lines)


def _table_documents(path: Path, column: str) -> Iterator[str | BadRecord]:
    """The texts in a Parquet file's column.

    Raises:
      UserError: the file is not Parquet or has no such column, or a text is too large.
    """
    pyarrow = text_files.import_pyarrow(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            if column not in table.schema_arrow.names:
                raise UserError(
                    f"{path}: has no column {column!r} but {', '.join(table.schema_arrow.names)}: "
                    "name one by --text_column"
                )
            row = 0
            for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[column]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if not isinstance(text, str):
                        yield BadRecord(f"{path}, row {row:,}: no text in column {column!r}")
                    elif text_files.num_utf8_bytes(text) > text_files.LARGEST_DOCUMENT_BYTES:
                        raise text_files.document_too_large(f"{path}, row {row:,}")
                    else:
                        yield text
    except (pyarrow.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise UserError(f"{path}: not a Parquet file, or damaged ({error}): fetch or make it again") from None


def _json_documents(path: Path, lines: Iterator[str]) -> Iterator[str | BadRecord]:
    """The texts of the non-blank lines."""
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            content = json.loads(line)
            fault = 'no object with a "text" that is a string'
        except (ValueError, RecursionError) as error:
            content, fault = None, f"not JSON ({error})"
        text = content.get("text") if isinstance(content, dict) else None
        if isinstance(text, str):
            yield text
        else:
            what = 'each line has to be an object like {"text": "..."}; other fields do not matter'
            yield BadRecord(f"{path}, line {number}: {fault}: {what}")


def _paragraphs(document: str) -> Iterator[str]:
    """Joins hard-wrapped lines; a blank line ends a paragraph, and a line too long to be wrapped is one."""
    paragraph: list[str] = []
    for line in document.split("\n"):
        is_long = len(line) > LONGEST_WRAPPED_LINE
        if paragraph and (is_long or not line):
            yield " ".join(paragraph)
            paragraph = []
        if is_long:
            yield line
        elif line:
            paragraph.append(line)
    yield " ".join(paragraph)


def clean_batch(batch: Batch) -> Cleaned:
    lines = [as_line(_paragraphs(document)) for document in batch.documents]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes, batch.bad_records)
