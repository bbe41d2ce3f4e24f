"""One's own text: a document a file, a line, between blank lines, or a JSON object a line."""
from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Sequence

from bert_tf.errors import UserError
from data import formatting, text_files
from data.formatting import Batch, Cleaned, as_line

INPUT_FORMATS = ("auto", "file", "line", "paragraph", "jsonl")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
# Text wrapped by an editor has shorter lines; a longer line is a paragraph by itself.
_LONGEST_WRAPPED_LINE = 120


def find_inputs(names: Sequence[str]) -> List[Path]:
    """The files named, and the .txt and .jsonl files of the folders named, in the order given.

    Raises:
      UserError: none is named, one does not exist, or a folder holds no text.
    """
    if not names:
        raise UserError("dataset=custom needs --input_files: text files or folders of .txt or .jsonl "
                        "files, separated by commas")
    found: List[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            inside = text_files.find_text_files(path, (".txt", *JSON_LINES_SUFFIXES))
            if not inside:
                raise UserError(f"input_files: the folder {path} holds no .txt file and no .jsonl "
                                "file; name the files themselves if they end otherwise")
            found.extend(inside)
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"input_files: {path} does not exist; give files or folders, "
                            "separated by commas")
    return list(dict.fromkeys(path.resolve() for path in found))


def choose_format(
    input_format: str, paths: Sequence[Path], *, fallback_encoding: Optional[str],
    encoding_errors: str,
) -> str:
    """Resolves ``auto``: JSON lines by their suffix; else a document a file where there are several
    files; in a single file documents are parted by blank lines where there are any, else each line
    is one.

    Raises:
      UserError: JSON lines and text in one run.
    """
    if input_format != "auto":
        return input_format
    of_json = [path for path in paths if path.suffix.lower() in JSON_LINES_SUFFIXES]
    if of_json and len(of_json) < len(paths):
        other = next(path for path in paths if path not in of_json)
        raise UserError(f"input_files: {of_json[0]} holds JSON lines, {other} does not: name files of "
                        "one kind, or say what they are by --input_format")
    if of_json:
        return "jsonl"
    if len(paths) > 1:
        return "file"
    path = paths[0]
    with text_files.open_text(path, fallback_encoding, encoding_errors) as file:
        blocks = text_files.blank_line_separated(path, text_files.read_lines(path, file))
        try:
            return "paragraph" if len(list(itertools.islice(blocks, 2))) > 1 else "line"
        except UserError:
            # A block that is larger than any document: lines.
            return "line"


def read_batches(
    paths: Iterable[Path], input_format: str, *, fallback_encoding: Optional[str],
    encoding_errors: str,
) -> Iterator[Batch]:
    """Batches of documents, each a text with its line breaks."""
    for path in paths:
        documents: List[str] = []
        num_characters = 0
        left_bytes = path.stat().st_size
        with text_files.open_text(path, fallback_encoding, encoding_errors) as file:
            for document in _documents(path, text_files.read_lines(path, file), input_format):
                documents.append(document)
                num_characters += len(document)
                if num_characters >= formatting.BATCH_CHARACTERS:
                    input_bytes = min(left_bytes, num_characters)
                    left_bytes -= input_bytes
                    yield Batch(documents, {}, input_bytes)
                    documents, num_characters = [], 0
        yield Batch(documents, {}, left_bytes)


def _documents(path: Path, lines: Iterable[str], input_format: str) -> Iterator[str]:
    if input_format == "line":
        yield from filter(None, lines)
    elif input_format == "jsonl":
        yield from _json_texts(path, lines)
    elif input_format == "paragraph":
        yield from map("\n".join, text_files.blank_line_separated(path, lines))
    else:
        text_files.require_document_size(path, path.stat().st_size)
        yield "\n".join(lines)


def _json_texts(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}): each line has to be an object "
                            'like {"text": "..."}') from None
        text = content.get("text") if isinstance(content, dict) else None
        if not isinstance(text, str):
            raise UserError(f'{path}, line {number}: no object with a "text" that is a string, like '
                            '{"text": "..."}; other fields do not matter')
        yield text


def _paragraphs(document: str) -> Iterator[str]:
    """Joins hard-wrapped lines; blank lines and lines too long to be wrapped part paragraphs."""
    paragraph: List[str] = []
    for line in document.split("\n"):
        is_long = len(line) > _LONGEST_WRAPPED_LINE
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
    return Cleaned(lines, batch.num_dropped, batch.input_bytes)
