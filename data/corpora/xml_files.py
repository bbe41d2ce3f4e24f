"""XML files as blocks of UTF-8: compressed or not, in any encoding, and up to where they are damaged.

expat itself reads only UTF-8, UTF-16 and single-byte encodings. Others (GB18030, Big5, Shift_JIS,
UTF-32 ...) are decoded here, so that readers always get UTF-8.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from data.corpora import text_files

BLOCK_BYTES = 1 << 18
_HEAD_BYTES = 1 << 10
_OPENERS: dict[str, Any] = {".bz2": bz2.BZ2File, ".gz": lambda file: gzip.GzipFile(fileobj=file)}
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


class XmlFile(contextlib.AbstractContextManager):
    """A file being read.

    Attributes:
      damage: why it could not be read to its end; empty if it could so far.
    """

    def __init__(self, path: Path):
        """Raises: UserError where it may not be read."""
        self.path = path
        self.damage = ""
        self._raw = text_files.open_bytes(path)
        self._num_xml_bytes = 0

    def position(self) -> int:
        """Bytes read from the file, before decompression."""
        return self._raw.tell()

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def note_damage(self, reason: str) -> None:
        """Records where and why the file cannot be read any further; only the first call counts."""
        self.damage = self.damage or (
            f"cut off or damaged at byte {self.position():,} of {self.path.stat().st_size:,} "
            f"({reason}; {self._num_xml_bytes:,} bytes of XML)"
        )

    def blocks(self) -> Iterator[bytes]:
        """The text as UTF-8 up to the file's end or its damage.

        Raises:
          UserError: the file declares an unknown encoding, or is not written in the one it declares.
        """
        blocks = self._unpacked()
        head = b""
        for block in blocks:
            head += block
            if len(head) >= _HEAD_BYTES:
                break
        encoding = self._encoding(head)
        blocks = itertools.chain([head], blocks)
        return self._decoded(blocks, encoding) if encoding else blocks

    def _unpacked(self) -> Iterator[bytes]:
        unpack = _OPENERS.get(self.path.suffix)
        stream: Any = unpack(self._raw) if unpack else self._raw
        try:
            # Not read(), which discards the bytes before the damage.
            while block := stream.read1(BLOCK_BYTES):
                self._num_xml_bytes += len(block)
                yield block
        except (EOFError, OSError, zlib.error) as error:
            if getattr(error, "errno", None) is not None:
                raise
            self.note_damage(str(error))

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
