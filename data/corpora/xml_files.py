"""XML files as blocks of UTF-8: compressed or not, in any encoding, from any place, and up to where they are damaged.

expat itself reads only UTF-8, UTF-16 and single-byte encodings. Others (GB18030, Big5, Shift_JIS,
UTF-32 ...) are decoded here, so that readers always get UTF-8.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from data.corpora import bzip2, text_files

BLOCK_BYTES = 1 << 18
_HEAD_BYTES = 1 << 10
# How UTF-16 and UTF-32 files begin: a byte-order mark, or "<". UTF-32 first, because UTF-16's begin alike.
_WIDE = (
    *text_files.WIDE_BYTE_ORDER_MARKS,
    (b"<\0\0\0", "utf-32-le"),
    (b"\0\0\0<", "utf-32-be"),
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
_BEGINNING = "<?xml"
_DECLARED = re.compile(rb"<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)")
# Kept between two blocks, because a tag may span them.
_LONGEST_TAG = 32
_NAME = re.compile(rb"<(?:title|PMID)\b[^<>]*>([^<]*)<")


class Place(NamedTuple):
    """A place between two elements, by the block that holds it: where this begins in the file (in bits of a .bz2 file,
    in bytes of another) and in the XML, and how many of the block's bytes are before the place.
    """

    in_file: int
    in_xml: int
    in_block: int = 0


class Element(NamedTuple):
    """An element as it stands in the XML, and the byte of the XML at which it ends."""

    tag: bytes
    xml: bytes
    end: int


class XmlFile(contextlib.AbstractContextManager):
    """A file being read, a .bz2 file by several threads.

    Attributes:
      damage: why it could not be read to its end; empty if it could so far.
    """

    def __init__(self, path: Path, num_threads: int = 1):
        """Raises: UserError where it may not be read."""
        self.path = path
        self.damage = ""
        self._raw = text_files.open_bytes(path)
        self._num_threads = num_threads
        self._num_file_bytes = self._num_xml_bytes = 0
        # Of the blocks read, from the one that holds the byte asked for last; None where reading cannot begin inside.
        self._places: collections.deque[Place] | None = None if path.suffix == ".gz" else collections.deque()

    def position(self) -> int:
        """Bytes of the file up to the end of the block read last, before decompression."""
        return self._num_file_bytes

    def place_of(self, xml_byte: int) -> Place | None:
        """The place of a byte of the XML, a later one each time; None where it cannot be told."""
        if not self._places:
            return None
        while len(self._places) > 1 and self._places[1].in_xml <= xml_byte:
            self._places.popleft()
        block = self._places[0]
        return block._replace(in_block=xml_byte - block.in_xml)

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def note_damage(self, reason: str) -> None:
        """Records where and why the file cannot be read any further; only the first call counts."""
        self.damage = self.damage or (
            f"cut off or damaged at byte {self.position():,} of {self.path.stat().st_size:,} "
            f"({reason}; {self._num_xml_bytes:,} bytes of XML)"
        )

    def _blocks_from(self, place: Place) -> Iterator[bytes]:
        self._num_xml_bytes, passed_over = place.in_xml, place.in_block
        for block in self._unpacked(place.in_file):
            yield block[passed_over:]
            passed_over = max(0, passed_over - len(block))

    def elements(self, tags: Sequence[str], root: str, begin: Place | None = None) -> Iterator[Element]:
        """The elements with these tags, of which none holds another, from a place on that `place_of` told.

        Notes damage where the element `root` has no end.

        Raises: UserError where an element is larger than the largest document, or as `blocks`.
        """
        start = re.compile(f"<({'|'.join(tags)})[\\s>]".encode())
        is_closed = False
        waiting, waiting_at = b"", begin.in_xml + begin.in_block if begin else 0
        for block in self._blocks_from(begin) if begin else self.blocks():
            waiting += block
            done = 0
            while match := start.search(waiting, done):
                closing = waiting.find(b"</%s>" % match[1], match.end())
                end = closing + len(match[1]) + 3 if closing >= 0 else len(waiting)
                if end - match.start() > text_files.LARGEST_DOCUMENT_BYTES:
                    name = _NAME.search(waiting, match.start())
                    which = f"{match[1].decode()} {name[1].decode()!r}" if name else f"an element {match[1].decode()}"
                    raise text_files.document_too_large(f"{self.path}, {which}")
                if closing < 0:
                    break
                done = end
                yield Element(match[1], waiting[match.start() : end], waiting_at + end)
            is_closed = is_closed or waiting.find(f"</{root}>".encode(), done) >= 0
            kept = match.start() if match else max(done, len(waiting) - _LONGEST_TAG)
            waiting, waiting_at = waiting[kept:], waiting_at + kept
        if not is_closed:
            self.note_damage("without its closing tag")

    def check_read(self, num_elements: int, tag: str, damages: list[str]) -> None:
        """To be called at the end: appends a sentence about damage to `damages`. Raises: UserError for no element."""
        if not num_elements:
            raise UserError(
                f"{self.path}: no <{tag}> in it{self.damage and ', ' + self.damage}: another kind of file, or too "
                "little of one; fetch it again"
            )
        if self.damage:
            damages.append(
                f"{self.path.name}: {self.damage}: the {num_elements:,} <{tag}> elements up to there were kept; fetch "
                "the file again, compare its checksum and format it anew to have the rest"
            )

    def blocks(self) -> Iterator[bytes]:
        """The text as UTF-8 up to the file's end or its damage.

        Raises: UserError where the file declares an unknown encoding, or is not written in the one it declares.
        """
        blocks = self._unpacked(0)
        head = b""
        for block in blocks:
            head += block
            if len(head) >= _HEAD_BYTES:
                break
        encoding = self._encoding(head)
        blocks = itertools.chain([head], blocks)
        if encoding:
            self._places = None
            return self._decoded(blocks, encoding)
        return blocks

    def _unpacked(self, start: int) -> Iterator[bytes]:
        try:
            for in_file, end, block in self._packed_blocks(start):
                self._num_file_bytes = end
                if self._places is not None:
                    self._places.append(Place(in_file, self._num_xml_bytes))
                self._num_xml_bytes += len(block)
                yield block
        except (EOFError, OSError, zlib.error) as error:
            if getattr(error, "errno", None) is not None:
                raise
            if isinstance(error, EOFError):
                self._num_file_bytes = self._raw.tell()
            self.note_damage(str(error))

    def _packed_blocks(self, start: int) -> Iterator[tuple[int, int, bytes]]:
        """Each block's place in the file, its end in bytes, and its XML."""
        if self.path.suffix == ".bz2":
            for block in bzip2.read_blocks(self._raw, start, self._num_threads):
                yield block.bit, block.end // 8, block.text
            return
        self._raw.seek(start)
        # Not read(), which discards the bytes before the damage.
        stream: Any = gzip.GzipFile(fileobj=self._raw) if self.path.suffix == ".gz" else self._raw
        while content := stream.read1(BLOCK_BYTES):
            yield start, self._raw.tell(), content
            start += len(content)

    def _encoding(self, head: bytes) -> str:
        """The encoding to decode; empty for UTF-8."""
        for start, encoding in _WIDE:
            if head.startswith(start):
                return encoding
        declared = _DECLARED.match(head)
        name = declared[1].decode() if declared else "utf-8"
        try:
            is_right = head[: len(_BEGINNING)].decode(name) == _BEGINNING
        except LookupError:
            raise UserError(
                f"{self.path}: declares the encoding {name}, which is not known: write the right one into its "
                "first line, or convert the file to UTF-8"
            ) from None
        except ValueError:
            is_right = False
        if declared and not is_right:
            raise self._wrong_encoding(name, "its first line")
        return "" if codecs.lookup(name).name in ("utf-8", "ascii") else name

    def _wrong_encoding(self, name: str, place: str) -> UserError:
        return UserError(
            f"{self.path}: declares the encoding {name}, and {place} is not written in it: write the right one "
            "into its first line, convert the file to UTF-8, or fetch it again"
        )

    def _decoded(self, blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        num_decoded = 0
        for block in blocks:
            start = num_decoded - len(decoder.getstate()[0])
            try:
                # "replace", because a lone UTF-16 surrogate cannot be encoded.
                yield decoder.decode(block).encode("utf-8", "replace")
            except UnicodeDecodeError as error:
                raise self._wrong_encoding(encoding, f"byte {start + error.start:,} of its XML") from None
            num_decoded += len(block)
