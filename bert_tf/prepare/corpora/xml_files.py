"""XML files in pieces of UTF-8: compressed or not, in any encoding, from any place, up to the point of any damage.

expat itself reads only UTF-8, UTF-16 and single-byte encodings. Others (GB18030, Big5, Shift_JIS,
UTF-32 ...) are decoded here, so that readers always get UTF-8.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import bzip2, text_files

# As large as one of a .bz2 file.
BLOCK_BYTES = bzip2.LARGEST_TEXT_BYTES
_HEAD_BYTES = 1 << 10
# How UTF-16 and UTF-32 files begin: a byte-order mark, or "<". UTF-32 first, because UTF-16 files begin similarly.
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


class Block(NamedTuple):
    """XML, compressed or not; the byte of the file at which it ends; and where the next block begins (in bits for a
    .bz2 file, otherwise in bytes), or None if reading cannot begin there.
    """

    content: bytes | bzip2.Block
    end: int
    next: int | None

    def text(self) -> bytes:
        """Raises: OSError where it is damaged."""
        return self.content if isinstance(self.content, bytes) else self.content.text()


class Piece(NamedTuple):
    """Consecutive blocks of a file; the byte of the file at which they end; why the file cannot be read any further
    (empty if it can); and whether they are the last.
    """

    path: Path
    blocks: Sequence[Block]
    end: int
    fault: str = ""
    is_last: bool = False

    def next(self) -> int | None:
        """`next` of its last block."""
        return self.blocks[-1].next if self.blocks else None


class Text(NamedTuple):
    """The text of each block of a piece up to any damage, the byte of the file at which it ends, and the damage."""

    blocks: Sequence[bytes]
    end: int
    fault: str


def unpack(piece: Piece) -> Text:
    texts: list[bytes] = []
    for block in piece.blocks:
        try:
            texts.append(block.text())
        except OSError as error:
            assert isinstance(block.content, bzip2.Block)
            return Text(texts, block.content.bit // 8, str(error))
    return Text(texts, piece.end, piece.fault)


class Element(NamedTuple):
    tag: bytes
    xml: bytes


class CutState(NamedTuple):
    """Where a `Cutter` is.

    Attributes:
      waiting: text that may be the beginning of an element, or follows the end of one.
      tag: of the element that `waiting` begins; empty if it does not begin one.
      is_inside: whether an element has ended since the root began.
      is_closed: whether the root has ended, and nothing has begun since.
    """

    waiting: bytes = b""
    tag: bytes = b""
    is_inside: bool = False
    is_closed: bool = False

    def to_json(self) -> list[Any]:
        """For `from_json`, in a checkpoint."""
        return [self.waiting.decode("latin-1"), self.tag.decode("latin-1"), self.is_inside, self.is_closed]

    @classmethod
    def from_json(cls, content: Sequence[Any]) -> CutState:
        waiting, tag, *flags = content
        return cls(waiting.encode("latin-1"), tag.encode("latin-1"), *flags)


class Cutter:
    """Splits XML that arrives in parts into its elements with these tags, which must not be nested.

    An element without an end is cut where the next one begins or the root ends. Remains of damaged elements are
    returned as elements without a tag: text that has an end but no beginning, and text between two elements
    that is not blank.
    """

    def __init__(self, path: Path, tags: Sequence[str], root: str):
        self.state = CutState()
        self._path, self._root = path, root.encode()
        names = "|".join(tags)
        self._start = re.compile(f"<(?:{names})[\\s>]".encode())
        self._mark = re.compile(f"<({names}|{root})[\\s>]|</({names}|{root})>".encode())

    def find_start(self, text: bytes) -> int | None:
        """Where the first element begins, if one does."""
        match = self._start.search(text)
        return match.start() if match else None

    def cut(self, text: bytes) -> Iterator[Element]:
        """The elements that end in the next part of the XML.

        Raises: UserError where an element is larger than the largest document.
        """
        before, tag, is_inside, is_closed = self.state
        waiting, begin = before + text, 0
        # Text that was already waiting is searched again only for a tag at its end that the new text completes.
        for mark in self._mark.finditer(waiting, max(bool(tag), len(before) - _LONGEST_TAG)):
            opened, ended = mark[1], mark[2]
            is_of_root = self._root in (opened, ended)
            if ended == tag or (ended and not tag and not is_of_root):
                yield self._element(tag, waiting[begin : mark.end()])
                begin, tag, is_inside = mark.end(), b"", True
            elif opened or is_of_root:
                xml = waiting[begin : mark.start()]
                if tag or (is_inside and opened != self._root and xml.strip()):
                    yield self._element(tag, xml)
                begin, tag = mark.start(), b"" if is_of_root else opened
                is_inside, is_closed = is_inside and not is_of_root, not opened
        if tag or is_inside:
            waiting = self._element(tag, waiting[begin:]).xml
        else:
            waiting = waiting[max(begin, len(waiting) - _LONGEST_TAG) :]
        self.state = CutState(waiting, tag, is_inside, is_closed)

    def _element(self, tag: bytes, xml: bytes) -> Element:
        """Raises: UserError where it is larger than the largest document."""
        if len(xml) > text_files.LARGEST_DOCUMENT_BYTES:
            name = _NAME.search(xml)
            what = tag.decode() or "what stands between two elements"
            which = f"{what} {name[1].decode()!r}" if name else f"an element {what}" if tag else what
            raise text_files.document_too_large(f"{self._path}, {which}")
        return Element(tag, xml)


class XmlFile(contextlib.AbstractContextManager):
    """A file being read.

    Attributes:
      damage: why it could not be read to its end; empty if there has been no damage so far.
      num_file_bytes, num_xml_bytes: how much has been read, of the file and of its XML.
    """

    def __init__(self, path: Path):
        """Raises: UserError where it may not be read."""
        self.path = path
        self.damage = ""
        self.num_file_bytes = self.num_xml_bytes = 0
        self._raw = text_files.open_bytes(path)

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def note_damage(self, reason: str) -> None:
        """Records where and why the file cannot be read any further; only the first call counts."""
        self.damage = self.damage or (
            f"cut off or damaged at byte {self.num_file_bytes:,} of {self.path.stat().st_size:,} "
            f"({reason}; {self.num_xml_bytes:,} bytes of XML)"
        )

    def elements(self, tags: Sequence[str], root: str) -> Iterator[Element]:
        """The elements with these tags, of which none holds another. Notes damage where `root` has no end.

        Raises: UserError where an element is larger than the largest document, or as `pieces`.
        """
        cutter = Cutter(self.path, tags, root)
        for block in self.blocks():
            yield from cutter.cut(block)
        if not cutter.state.is_closed:
            self.note_damage("without its closing tag")

    def check_read(self, num_elements: int, tag: str, damages: list[str]) -> None:
        """To be called last: appends a sentence about damage to `damages`. Raises: UserError if there is no element."""
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
        """The text as UTF-8 up to the file's end or its damage. Raises: as `pieces`."""
        for piece in self.pieces(1):
            text = unpack(piece)
            self.num_file_bytes, self.num_xml_bytes = text.end, self.num_xml_bytes + sum(map(len, text.blocks))
            yield from text.blocks
            if text.fault:
                self.note_damage(text.fault)
                return

    def pieces(self, num_blocks: int, start: int | None = None) -> Iterator[Piece]:
        """The XML as UTF-8 in pieces of `num_blocks`, from a block's `next` on; .bz2 blocks are still compressed.

        Raises: UserError where the file declares an unknown encoding, or is not written in the one it declares.
        """
        held: list[Block] = []
        end, fault = 0, ""
        try:
            for block in self._utf8_blocks() if start is None else self._packed_blocks(start):
                held.append(block)
                end = block.end
                if len(held) == num_blocks:
                    yield Piece(self.path, held, end)
                    held = []
        except (EOFError, OSError, zlib.error) as error:
            if getattr(error, "errno", None) is not None:
                raise
            end, fault = self.path.stat().st_size if isinstance(error, EOFError) else end, str(error)
        yield Piece(self.path, held, end, fault, is_last=True)

    def _packed_blocks(self, start: int = 0) -> Iterator[Block]:
        if self.path.suffix == ".bz2":
            for block in bzip2.read_blocks(self._raw, start):
                yield Block(block, block.end // 8, block.end)
            return
        self._raw.seek(start)
        is_gzip = self.path.suffix == ".gz"
        # Not read(), which would discard the bytes before the damage.
        stream: Any = gzip.GzipFile(fileobj=self._raw) if is_gzip else self._raw
        while content := stream.read1(BLOCK_BYTES):
            start += len(content)
            yield Block(content, self._raw.tell(), None if is_gzip else start)

    def _utf8_blocks(self) -> Iterator[Block]:
        packed = self._packed_blocks()
        first = next(packed, None)
        if first is None:
            return
        encoding = self._encoding(first.text()[:_HEAD_BYTES])
        blocks = itertools.chain([first], packed)
        yield from self._decoded(blocks, encoding) if encoding else blocks

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

    def _decoded(self, blocks: Iterable[Block], encoding: str) -> Iterator[Block]:
        decoder = codecs.getincrementaldecoder(encoding)()
        num_decoded = 0
        for block in blocks:
            text = block.text()
            start = num_decoded - len(decoder.getstate()[0])
            try:
                # "replace", because a lone UTF-16 surrogate cannot be encoded.
                yield Block(decoder.decode(text).encode("utf-8", "replace"), block.end, None)
            except UnicodeDecodeError as error:
                raise self._wrong_encoding(encoding, f"byte {start + error.start:,} of its XML") from None
            num_decoded += len(text)
