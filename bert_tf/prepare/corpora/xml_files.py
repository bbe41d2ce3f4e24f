"""The elements of an XML file: compressed or not, up to the point of any damage.

Readers always get UTF-8; a file may be in any encoding that it declares. Wikimedia publishes each dump also as a
series of bzip2 streams of a hundred pages. A stream begins at a whole byte, so one process finds the streams and hands
them out to workers without decompressing anything.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files
from bert_tf.prepare.corpora.documents import Damage

# The header of a bzip2 stream and the mark of its first block.
_STREAM_START = re.compile(rb"BZh[1-9]1AY&SY")
_LONGEST_START = 10
_READ_BYTES = 1 << 20
# Enough for the first stream and the first block of the second.
_BZIP2_HEAD_BYTES = 4 << 20
BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 10
_DECLARED = re.compile(rb"<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)")
# Kept between two blocks, because a tag may span them.
_LONGEST_TAG = 32
_NAME = re.compile(rb"<(?:title|PMID)\b[^<>]*>([^<]*)<")


class Stream(NamedTuple):
    """A stream of a file, and the byte at which it begins."""

    path: Path
    start: int
    packed: bytes


def is_multistream(path: Path) -> bool:
    """Whether a file is XML in bzip2 streams of which the second begins with a page, as Wikipedia publishes it."""
    if path.suffix != ".bz2":
        return False
    with text_files.open_bytes(path) as file:
        head = file.read(_BZIP2_HEAD_BYTES)
    second = _STREAM_START.search(head, 1)
    with contextlib.suppress(OSError):  # of damaged streams
        text = bz2.BZ2Decompressor().decompress(head[second.start() :], _HEAD_BYTES) if second else b""
        return text.lstrip().startswith(b"<page>")
    return False


def streams(path: Path, start: int) -> Iterator[Stream]:
    """The streams from the one that begins at byte `start` on, except for the last.

    Raises: UserError where a stream is larger than the largest document.
    """
    with text_files.open_bytes(path) as file:
        file.seek(start)
        buffer = b""
        while content := file.read(_READ_BYTES):
            search_from = max(1, len(buffer) - _LONGEST_START)
            buffer += content
            while following := _STREAM_START.search(buffer, search_from):
                yield Stream(path, start, buffer[: following.start()])
                start, buffer, search_from = start + following.start(), buffer[following.start() :], 1
            if len(buffer) > text_files.LARGEST_DOCUMENT_BYTES:
                raise stream_too_large(path, start, f"{text_files.LARGEST_DOCUMENT_BYTES:,} bytes")


def stream_too_large(path: Path, start: int, limit: str) -> UserError:
    return UserError(
        f"{path}, byte {start:,}: a bzip2 stream of more than {limit}, though the file begins with small ones: "
        "unpack it with bzip2 -dk, and move the .bz2 away"
    )


def find_xml_encoding(path: Path, head: bytes) -> str:
    """The encoding of a file that begins with `head`, by its byte-order mark or declaration; empty for UTF-8.

    Raises: UserError where Python does not know it.
    """
    declared = _DECLARED.match(head)
    name = text_files.marked_encoding(head) or (declared[1].decode() if declared else "utf-8")
    codec = text_files.text_codec(name)
    if codec is None:
        raise UserError(
            f"{path}: Python does not know its encoding {name}: convert it, and let its first line say UTF-8"
        )
    return "" if codec in ("utf-8", "utf-8-sig", "ascii") else codec


class Element(NamedTuple):
    tag: bytes
    xml: bytes


class Cutter:
    """Splits XML that arrives in parts into its elements with these tags, which must not be nested.

    An element without an end is cut where the next one begins or the root ends. Remains of damaged elements are
    returned as elements without a tag: text that has an end but no beginning, and text between two elements
    that is not blank.

    Args:
      is_inside: whether the XML begins between two elements, not with the root.
    Attributes:
      is_closed: whether the root has ended, and nothing has begun since.
    """

    def __init__(self, path: Path, tags: Sequence[str], root: str, *, is_inside: bool = False):
        self.is_closed = False
        self._path, self._root, self._is_inside = path, root.encode(), is_inside
        # Text that begins an element with the tag `_tag` or, if that is empty, follows the end of an element.
        self._waiting, self._tag = b"", b""
        names = "|".join((*tags, root))
        self._mark = re.compile(f"<(/?)({names})[\\s>]".encode())

    def cut(self, text: bytes) -> Iterator[Element]:
        """The elements that end in the next part of the XML.

        Raises: UserError where an element is larger than the largest document.
        """
        # Text that was already waiting is searched again only for a tag at its end that the new text completes.
        search_from = max(bool(self._tag), len(self._waiting) - _LONGEST_TAG)
        text, begin = self._waiting + text, 0
        for mark in self._mark.finditer(text, search_from):
            is_end, name, is_root = bool(mark[1]), mark[2], mark[2] == self._root
            ends_element = is_end and not is_root
            xml = text[begin : mark.end() if ends_element else mark.start()]
            if self._tag or ends_element or (self._is_inside and xml.strip()):
                yield self._element(xml)
            begin += len(xml)
            self._tag = b"" if is_end or is_root else name
            self._is_inside, self.is_closed = not is_root, is_end and is_root
        self._waiting = self._element(text[begin:]).xml

    def incomplete_element(self) -> bytes:
        """What is left of an element that has no end, or no beginning."""
        return self._waiting if self._tag or self._is_inside else b""

    def _element(self, xml: bytes) -> Element:
        """Raises: UserError where it is larger than the largest document."""
        if len(xml) > text_files.LARGEST_DOCUMENT_BYTES:
            name = _NAME.search(xml)
            which = f" {name[1].decode()!r}" if name else ""
            kind = self._tag.decode() or "what stands outside of its elements (is it another kind of file?)"
            raise text_files.document_too_large(f"{self._path}, {kind}{which}")
        return Element(self._tag, xml)


class XmlFile(contextlib.AbstractContextManager):
    """A file being read from byte `start` on, where its text begins or one of its bzip2 streams.

    Attributes:
      damage: why it could not be read to its end; empty if there has been no damage so far.
    """

    def __init__(self, path: Path, start: int = 0):
        """Raises: UserError where it may not be read."""
        self.path = path
        self.damage = ""
        self._start = start
        self._raw = text_files.open_bytes(path)
        self._raw.seek(start)

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    @property
    def num_file_bytes(self) -> int:
        """How much of the file has been read."""
        return self._raw.tell()

    def elements(self, tags: Sequence[str], root: str) -> Iterator[Element | Damage]:
        """The elements with these tags, of which none holds another; it is damage if `root` has no end.

        Raises: UserError where an element is larger than the largest document, or there is none, or as `blocks`.
        """
        cutter = Cutter(self.path, tags, root, is_inside=self._start > 0)
        num_elements = 0
        for element in itertools.chain.from_iterable(map(cutter.cut, self.blocks())):
            num_elements += 1
            yield element
        if not cutter.is_closed:
            self.note_damage("without its closing tag")
        yield from self.damage_of_rest(num_elements, tags[0])

    def damage_of_rest(self, num_elements: int, tag: str) -> Iterator[Damage]:
        """What stands for the rest of the file, if it is damaged. Raises: UserError if there is no element."""
        if not num_elements and not self._start:
            raise UserError(
                f"{self.path}: no <{tag}> in it{self.damage and ', ' + self.damage}: another kind of file, or too "
                "little of one; fetch it again"
            )
        if self.damage:
            yield Damage(
                f"{self.path.name}: {self.damage}: the <{tag}> elements up to there were kept; fetch the file again, "
                "compare its checksum and format it anew to have the rest"
            )

    def blocks(self) -> Iterator[bytes]:
        """The text as UTF-8 up to the file's end or its damage.

        Raises: UserError where Python does not know the encoding, or the text is not in the encoding that it declares.
        """
        try:
            yield from self._decoded(self._unpacked())
        except (EOFError, OSError, zlib.error) as error:
            if getattr(error, "errno", None) is not None:
                raise
            self.note_damage(str(error))

    def note_damage(self, reason: str) -> None:
        """Sets `damage`, unless it is set already."""
        self.damage = self.damage or (
            f"cut off or damaged at byte {self.num_file_bytes:,} of {self.path.stat().st_size:,} ({reason})"
        )

    def _unpacked(self) -> Iterator[bytes]:
        openers: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".tgz": gzip.open}
        stream = openers.get(self.path.suffix, lambda raw: raw)(self._raw)
        # Not read(), which would discard the bytes before the damage.
        while content := stream.read1(BLOCK_BYTES):
            yield content

    def _decoded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        first = next(blocks, b"")
        encoding = "" if self._start else find_xml_encoding(self.path, first[:_HEAD_BYTES])
        blocks = itertools.chain([first], blocks)
        if not encoding:
            yield from blocks
            return
        try:
            for text in codecs.iterdecode(blocks, encoding):
                # "replace", because a lone UTF-16 surrogate cannot be encoded.
                yield text.encode("utf-8", "replace")
        except UnicodeError as error:
            raise UserError(
                f"{self.path}: before byte {self.num_file_bytes:,} not {encoding}, as its first line says ({error}): "
                "fetch it again, or write the right encoding into that line"
            ) from None
