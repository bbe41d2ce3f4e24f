"""The streams of a multistream Wikipedia dump, which workers decompress by themselves.

Wikimedia publishes each dump also as a row of bzip2 streams of a hundred pages. A stream begins at a whole byte, so one
process finds them and hands them out without decompressing anything.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files, xml_files

# A header and the mark of the first block.
_STREAM_START = re.compile(rb"BZh[1-9]1AY&SY")
_LONGEST_START = 10
_READ_BYTES = 1 << 20
# Small, because a decompressor keeps to itself what it has made of a part before the damage in it.
_PART_BYTES = 1 << 16
# Enough for the first stream, which names the wiki, and the first block of the second.
_HEAD_BYTES = 4 << 20


class Stream(NamedTuple):
    """A stream of a file, and the byte at which it begins."""

    path: Path
    start: int
    packed: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.packed)


def is_multistream(path: Path) -> bool:
    """Whether a file is UTF-8 XML in bzip2 streams of which the second begins with a page."""
    if path.suffix != ".bz2":
        return False
    with text_files.open_bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    second = _STREAM_START.search(head, 1)
    if second is None:
        return False
    try:
        first_text = b"".join(unpack(head[: second.start()]))
        text = bz2.BZ2Decompressor().decompress(head[second.start() :], 1 << 10)
    except (OSError, EOFError):
        return False
    return not xml_files.encoding_of(path, first_text) and text.lstrip().startswith(b"<page>")


def streams(path: Path, start: int) -> Iterator[Stream]:
    """The streams from the one that begins at byte `start` on, except for the last.

    Raises: UserError where a stream is larger than the largest document.
    """
    with text_files.open_bytes(path) as file:
        file.seek(start)
        held = b""
        while content := file.read(_READ_BYTES):
            searched = max(1, len(held) - _LONGEST_START)
            held += content
            while following := _STREAM_START.search(held, searched):
                yield Stream(path, start, held[: following.start()])
                start, held, searched = start + following.start(), held[following.start() :], 1
            if len(held) > text_files.LARGEST_DOCUMENT_BYTES:
                raise UserError(
                    f"{path}, byte {start:,}: a bzip2 stream of more than {text_files.LARGEST_DOCUMENT_BYTES:,} bytes, "
                    "though the file begins with small ones: unpack it with bzip2 -dk, and move the .bz2 away"
                )


def unpack(packed: bytes) -> Iterator[bytes]:
    """The text of a stream, or of several, in pieces.

    Raises: OSError or EOFError where it is damaged or cut off, after the text before that.
    """
    decompressor = bz2.BZ2Decompressor()
    for start in range(0, len(packed), _PART_BYTES):
        part = packed[start : start + _PART_BYTES]
        while part or not (decompressor.eof or decompressor.needs_input):
            if decompressor.eof:
                decompressor = bz2.BZ2Decompressor()
            yield decompressor.decompress(part, xml_files.BLOCK_BYTES)
            part = decompressor.unused_data
    if not decompressor.eof:
        raise EOFError("Compressed data ended before the end-of-stream marker was reached")
