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
from collections.abc import Iterable, Iterator
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


class Place(NamedTuple):
    """Where a block begins: in the file (in bits of a .bz2 file, in bytes of another) and in its XML (in bytes)."""

    in_file: int
    in_xml: int


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
        """The place of the block that holds a byte of the XML, a later one each time; None where it cannot be told."""
        if not self._places:
            return None
        while len(self._places) > 1 and self._places[1].in_xml <= xml_byte:
            self._places.popleft()
        return self._places[0]

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def note_damage(self, reason: str) -> None:
        """Records where and why the file cannot be read any further; only the first call counts."""
        self.damage = self.damage or (
            f"cut off or damaged at byte {self.position():,} of {self.path.stat().st_size:,} "
            f"({reason}; {self._num_xml_bytes:,} bytes of XML)"
        )

    def blocks_from(self, place: Place) -> Iterator[bytes]:
        """As `blocks`, from a place on that `place_of` told."""
        self._num_xml_bytes = place.in_xml
        return self._unpacked(place.in_file)

    def blocks(self) -> Iterator[bytes]:
        """The text as UTF-8 up to the file's end or its damage.

        Raises:
          UserError: the file declares an unknown encoding, or is not written in the one it declares.
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
