"""Reads users' text files: folders, encodings, and documents inside a file.

A file is UTF-8, with or without a byte-order mark, or UTF-16/32 with one. Otherwise the encoding that
it states itself ("Character set encoding: ISO-8859-1" in Project Gutenberg's headers) is tried, then
the user's fallback encoding. No encoding is ever guessed.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import io
import itertools
import os
import re
import shlex
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, check_folder, naming_unreadable, open_file
from bert_tf.base.formats import HEAD_BYTES, describe_non_text, find_format
from bert_tf.base.progress import Progress, print_beside_bars
from bert_tf.settings.preparation import PreparationOptions, command

ENCODING_OPTIONS = ("fallback_encoding", "encoding_errors")

# UTF-32 before UTF-16, because its mark begins with UTF-16's.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}
_STATED_ENCODING = re.compile(rb"(?im)^character set encoding:\s*([\w.:-]+)")
_HEAD_BYTES = 20_000
_WITHOUT_NULS = "tr -d '\\0' <FILE >OUT takes stray ones out"
_BLOCK_BYTES = 1 << 20
# Documents are held in memory in several copies: this keeps a process well below 1 GiB.
LARGEST_DOCUMENT_BYTES = 32 << 20
# Formatting puts two spaces between paragraphs, which may make a document a little larger.
_LARGEST_LINE_BYTES = LARGEST_DOCUMENT_BYTES * 101 // 100
_UNREADABLE_REMEDY = "change its permissions, look at the disk that it lies on, or take it out of the input"


def find_text_files(folder: Path, suffixes: Sequence[str] = (".txt",)) -> list[Path]:
    """The files with these suffixes at any depth below `folder`, sorted, without hidden ones; [] if there is none.

    Follows links.

    Raises: UserError where a folder cannot be read, a link is broken, or a path is not what its name says, a file
      or a folder.
    """
    check_folder(folder, f"text files below {folder}", writes=False)
    files: list[Path] = []
    walked: set[str] = set()
    if not folder.is_dir():
        return files
    for parent, folders, names in os.walk(folder, onerror=_refuse_unreadable, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := os.path.realpath(parent)) in walked:
            folders.clear()  # a link to a parent folder would never end
            continue
        walked.add(real)
        files += [Path(parent, name) for name in names if name[0] != "." and name.lower().endswith(tuple(suffixes))]
    for path in files:
        check_file(path, "repair it, or take it out of the input")
    return sorted(files)


def require_files(paths: list[Path], folder: Path, kind: str, *, remedy: str) -> list[Path]:
    """The paths, those of the files of a kind in `folder`. Raises: UserError if there is none."""
    if not paths:
        raise UserError(f"{folder} holds no {kind}: {remedy}")
    return paths


def note_unread_files(folder: Path, inside: Sequence[Path], remedy: str) -> None:
    """Prints how many files in `folder` are not among `inside`, those that are read, by their suffixes."""
    names = (path.relative_to(folder) for path in {*folder.rglob("*")} - {*inside} if path.is_file())
    visible = (name for name in names if not any(part.startswith(".") for part in name.parts))
    if others := Counter(name.suffix.lower() or "without a suffix" for name in visible):
        counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(others.items()))
        print_beside_bars(f"{folder}: not read: {counts} ({remedy})")


def download_remedy(dataset: str) -> str:
    return f"{command('download', dataset)} fetches them"


def _refuse_unreadable(error: OSError) -> None:
    with naming_unreadable(error.filename, _UNREADABLE_REMEDY):
        raise error


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises: UserError where it cannot be read."""
    with naming_unreadable(path, _UNREADABLE_REMEDY):
        return open_file(path)


def import_pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet

        return pyarrow
    except ImportError as error:
        raise UserError(
            f"{path}: needs the package pyarrow ({error}): {sys.executable} -m pip install -r requirements/parquet.txt"
        ) from None


@contextlib.contextmanager
def refusing_damage(
    path: str | Path, *errors: type[Exception], remedy: str = "fetch or make it again"
) -> Iterator[None]:
    """Turns `errors`, and what the standard library raises for damaged files, into a `UserError`.

    An `OSError` with an error number comes from the system, not from the file's content, and stays as it is; but for
    EINVAL, of a place before the file's beginning that its content names.
    """
    damage: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, *errors)
    try:
        yield
    except damage as error:
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: damaged, or not what its name says ({reason}): {remedy}") from None


@contextlib.contextmanager
def _open_unpacked(path: Path) -> Iterator[Any]:
    """Opens a file for reading, decompressed if its name ends in .gz or .zst.

    Raises: UserError where the file cannot be read, or is found damaged inside the `with` block.
    """
    suffix = path.suffix.lower()
    remedy = "fetch or make it again"
    if suffix == ".zst":  # pyarrow reads no window of more than 128 MB, as --long=28 and more have it
        remedy += (
            f"; if packed by zstd --long, pack it anew: zstd -dc --long=31 {shlex.quote(path.name)} | zstd > OUT.zst"
        )
    with naming_unreadable(path, _UNREADABLE_REMEDY), refusing_damage(path, remedy=remedy), open_file(path) as raw:
        if suffix == ".gz":
            yield gzip.GzipFile(fileobj=raw)
        elif suffix == ".zst":
            yield io.BufferedReader(import_pyarrow(path).CompressedInputStream(raw, "zstd"))
        else:
            yield raw


def encoding_options(options: PreparationOptions) -> dict[str, Any]:
    """Arguments of `read_lines`. Raises: UserError where Python does not know the encoding."""
    if options.fallback_encoding and not text_codec(options.fallback_encoding):
        raise UserError(
            f"fallback_encoding={options.fallback_encoding}: not a text encoding that Python knows, such as latin-1, "
            "cp1252 or koi8-r"
        )
    return {name: getattr(options, name) for name in ENCODING_OPTIONS}


def text_codec(name: str) -> str | None:
    """Python's name of a text encoding; None if it knows none of this name (base64 encodes bytes, not text)."""
    try:
        "<".encode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        return None


def marked_encoding(head: bytes) -> str:
    """The encoding of text that begins with a byte-order mark; "" if there is none."""
    return next((encoding for mark, encoding in _BYTE_ORDER_MARKS.items() if head.startswith(mark)), "")


def _first_fault(path: Path, encoding: str) -> str:
    """Describes the first byte that is invalid in `encoding`, or a NUL, which text never holds; "" if there is none."""
    invalid = f"not valid {encoding.upper()} at byte"
    decoder = codecs.getincrementaldecoder(encoding)()
    has_wide_units = encoding.startswith(("utf-16", "utf-32"))
    with _open_unpacked(path) as file:
        while True:
            block = file.read(_BLOCK_BYTES)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return f"{invalid} {file.tell() - len(error.object) + error.start}"
            except UnicodeError:  # some codecs do not say where
                return f"{invalid} {file.tell() - len(block)}"
            if not has_wide_units and b"\0" in block:
                return f"a NUL at byte {file.tell() - len(block) + block.index(0)} ({_WITHOUT_NULS})"
            if not block:
                return ""


def find_encoding(path: Path, fallback: str | None, errors: str) -> str:
    """The encoding of `path`; `fallback` is for files that do not state theirs.

    Raises: UserError where the file is not text; or where no encoding fits, except with ``errors="replace"``.
    """
    with _open_unpacked(path) as file:
        head = file.read(_HEAD_BYTES)
    marked = marked_encoding(head)
    encoding = marked or "utf-8"
    remedy = "or take it out of the input"
    other_kind = None if marked else describe_non_text(head[:HEAD_BYTES], path.name)
    if other_kind and find_format(head):
        raise UserError(f"{path}: {other_kind}; {remedy}")
    remedy += ", or name its encoding (such as gb18030, cp1252) with --fallback_encoding"
    if not marked and b"\0" in head:
        other_kind = other_kind or f"a binary file, not text (a NUL at byte {head.index(0)}; {_WITHOUT_NULS})"
    stated = [name.decode() for name in _STATED_ENCODING.findall(head)[:1]]
    for name in (*([] if other_kind else [encoding]), *stated, fallback or ""):
        codec = text_codec(name)
        if codec and not _first_fault(path, codec):
            return codec
    if other_kind:
        raise UserError(f"{path}: {other_kind}; {remedy}")
    if errors == "replace":
        return "utf-8-sig"
    others = f" and not {fallback} either" if fallback else ""
    raise UserError(
        f"{path}: {_first_fault(path, encoding)}{others}: "
        f"convert it; {remedy}, or put U+FFFD where bytes are wrong (--encoding_errors=replace)"
    )


def total_size(paths: Iterable[Path]) -> int:
    """The bytes of all files."""
    return sum(path.stat().st_size for path in paths)


def num_utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def document_too_large(where: str, alternative: str = "") -> UserError:
    rule = f"a document of more than {LARGEST_DOCUMENT_BYTES:,} bytes, too large to be held in memory"
    return UserError(f"{where}: {rule}: split it into several{alternative}")


def formatted_lines(paths: Sequence[Path], description: str) -> Iterator[tuple[Path, int, bytes]]:
    """(file, byte offset, content) of each document of formatted text, a line that is not blank. Shows a progress bar.

    Raises: UserError where a document is too large.
    """
    with Progress(total=total_size(paths), unit="B", description=description) as bar:
        for path in paths:
            offset = 0
            with open_file(path) as file:
                while line := file.readline(_LARGEST_LINE_BYTES + 2):
                    content = line.rstrip(b"\r\n")
                    if len(content) > _LARGEST_LINE_BYTES:
                        raise document_too_large(f"{path}, the line at byte {offset:,}")
                    if content.strip():
                        yield path, offset, content
                    offset += len(line)
                    bar.update(len(line))


def decoded(content: bytes, path: str | Path, offset: int) -> str:
    """Decodes formatted or sharded text found at a byte offset in a file. Raises: UserError where it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 at byte {offset + error.start:,} (0x{content[error.start]:02x}): the file was changed "
            "or damaged since bertPrep.py made it, or made elsewhere; convert it, or delete it and make it again"
        ) from None


def read_lines(path: Path, fallback_encoding: str | None = None, encoding_errors: str = "strict") -> Iterator[str]:
    """The lines of a file, decompressed, decoded and stripped, without a byte-order mark.

    With ``encoding_errors="replace"`` a file of unknown encoding is UTF-8 with U+FFFD for each invalid sequence.

    Raises: UserError as `find_encoding`, or where a line is too large for a document, which is not read to its end.
    """
    encoding = find_encoding(path, fallback_encoding, encoding_errors)
    with _open_unpacked(path) as file, io.TextIOWrapper(file, encoding=encoding, errors=encoding_errors) as text:
        number = 0
        while line := text.readline(LARGEST_DOCUMENT_BYTES + 2):
            number += 1
            if len(line) > LARGEST_DOCUMENT_BYTES + 1 or num_utf8_bytes(line := line.strip()) > LARGEST_DOCUMENT_BYTES:
                raise document_too_large(f"{path}, line {number:,}")
            yield line


def document_lines(path: Path, lines: Iterable[str]) -> list[str]:
    """The lines of one document as a list. Raises: UserError where the document is too large."""
    document, num_bytes = [], 0
    for line in lines:
        document.append(line)
        num_bytes += num_utf8_bytes(line) + 1
        if num_bytes > LARGEST_DOCUMENT_BYTES + 1:
            ways = "at blank lines (--input_format=paragraph) or at every line (--input_format=line)"
            raise document_too_large(str(path), f"; or let --dataset=custom split it {ways}")
    return document


def blank_line_separated(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """Groups of consecutive non-blank lines: the paragraphs of hard-wrapped text, with their line breaks.

    Raises: UserError where one is too large for a document.
    """
    lines = iter(lines)
    for line in filter(None, lines):
        group = itertools.chain([line], itertools.takewhile(bool, lines))
        yield "\n".join(document_lines(path, group))
