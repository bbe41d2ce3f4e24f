"""Reads text files of people's own: folders, encodings, and documents inside a file.

A file is UTF-8, with or without a byte-order mark, or UTF-16/32 with one. Where it is neither, the
encoding it states about itself ("Character set encoding: ISO-8859-1", as Project Gutenberg's heads
do) counts, then the one the user names for such files; no encoding is ever guessed.
"""
from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import IO, Iterable, Iterator, List, Optional

from bert_tf.errors import UserError

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    # UTF-32's mark begins with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_STATED_ENCODING = re.compile(rb"(?im)^character set encoding:\s*([\w.:-]+)")
_HEAD_BYTES = 20_000
_BLOCK_BYTES = 1 << 20
# Keeps a worker that holds a document and its pieces well under 1 GiB.
LARGEST_DOCUMENT_CHARACTERS = 32 << 20


def find_text_files(folder: Path) -> List[Path]:
    """The .txt files below `folder` at any depth, sorted; hidden ones left out."""
    return sorted(
        path for path in folder.rglob("*")
        if path.suffix.lower() == ".txt" and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def known_encoding(name: str) -> str:
    """Python's name of an encoding.

    Raises:
      UserError: Python does not know it.
    """
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise UserError(f"encoding {name}: not known; latin-1, cp1252 or koi8-r are") from None


def _first_invalid_byte(path: Path, encoding: str) -> Optional[int]:
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0
    with open(path, "rb") as file:
        while True:
            block = file.read(_BLOCK_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return offset - pending + error.start
            if not block:
                return None
            offset += len(block)


def _decodes(path: Path, encoding: str) -> bool:
    try:
        codecs.lookup(encoding)
    except LookupError:
        return False
    return _first_invalid_byte(path, encoding) is None


def encoding_of(path: Path, fallback: Optional[str]) -> str:
    """The encoding to read `path` with; `fallback` is for files that say nothing about theirs.

    Raises:
      UserError: neither UTF-8 nor anything stated; names the first offending byte.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    for mark, marked in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            encoding = marked
            break
    else:
        encoding = "utf-8"
    offset = _first_invalid_byte(path, encoding)
    if offset is None:
        return encoding
    stated = _STATED_ENCODING.search(head)
    for candidate in (stated and stated[1].decode(), fallback):
        if candidate and _decodes(path, candidate):
            return known_encoding(candidate)
    with open(path, "rb") as file:
        file.seek(offset)
        byte = file.read(1)
    raise UserError(
        f"{path}: not valid {encoding.upper()} at byte {offset} (0x{byte.hex()}): convert the file, "
        "or name the encoding of such files (--fallback_encoding=latin-1), or put U+FFFD where "
        "bytes are wrong (--encoding_errors=replace)"
    )


def open_text(path: Path, fallback: Optional[str] = None, errors: str = "strict") -> IO[str]:
    """Opens `path` decoded, line ends as ``\\n`` and without a byte-order mark.

    With ``errors="replace"`` a file of unknown encoding is read as UTF-8 with U+FFFD for each
    wrong sequence.
    """
    try:
        encoding = encoding_of(path, fallback)
    except UserError:
        if errors != "replace":
            raise
        encoding = "utf-8-sig"
    return open(path, encoding=encoding, errors=errors)


def read_lines(path: Path, file: IO[str]) -> Iterator[str]:
    """The lines of an open file, stripped; in memory is never more than one of them.

    Raises:
      UserError: a line is longer than the largest document.
    """
    while line := file.readline(LARGEST_DOCUMENT_CHARACTERS + 1):
        require_document_size(path, len(line))
        yield line.strip()


def require_document_size(path: Path, num_characters: int) -> None:
    if num_characters > LARGEST_DOCUMENT_CHARACTERS:
        raise UserError(
            f"{path}: a document of more than {LARGEST_DOCUMENT_CHARACTERS:,} characters; a "
            "document is held in memory: split it, or say how documents are separated "
            "(--dataset=custom --input_format=line or paragraph)"
        )


def blank_line_separated(path: Path, lines: Iterable[str]) -> Iterator[List[str]]:
    """Runs of lines that are not blank: documents, or paragraphs, of hard-wrapped text."""
    block: List[str] = []
    num_characters = 0
    for line in lines:
        if line:
            block.append(line)
            num_characters += len(line) + 1
            require_document_size(path, num_characters)
        elif block:
            yield block
            block, num_characters = [], 0
    if block:
        yield block
