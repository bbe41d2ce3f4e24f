"""The streams of multistream dumps, and what the pieces of a damaged one give."""

from __future__ import annotations

import bz2
import random

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files, xml_files

RNG = random.Random(0)
TEXT = bytes(RNG.choices(b"abcdefgh", k=450_000))


def unpacked(packed):
    """The text up to the damage, and the kind of error there."""
    text = b""
    try:
        for piece in xml_files.unpack(packed):
            text += piece
    except (OSError, EOFError) as error:
        return text, type(error)
    return text, None


@pytest.mark.parametrize("read_bytes", [7, 1 << 20])
def test_streams_from_any_of_them_on(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(xml_files, "_READ_BYTES", read_bytes)
    parts = [bz2.compress(part, 1) for part in (b"x", TEXT[:3000], b"y" * 200, TEXT[3000:5000])]
    path = tmp_path / "a.bz2"
    path.write_bytes(b"".join(parts))
    found = list(xml_files.streams(path, 0))
    assert [stream.packed for stream in found] == parts[:-1]
    for number, stream in enumerate(found):
        assert list(xml_files.streams(path, stream.start)) == found[number:]
    assert list(xml_files.streams(path, found[-1].end)) == []


@pytest.mark.parametrize(
    "parts,is_multistream",
    [
        ((b"<mediawiki>", b"  <page>x"), True),
        ((b"<mediawiki>" + TEXT, b"  <page>" + TEXT), True),
        ((b"<mediawiki>  <page>x",), False),
        ((b"<mediawiki><page>ab", b"cd</page>"), False),
        ((b'<?xml version="1.0" encoding="latin-1"?><mediawiki>', b"  <page>x"), False),
    ],
)
def test_multistream_dumps_are_known_by_their_second_stream(tmp_path, parts, is_multistream):
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(b"".join(map(bz2.compress, parts)))
    assert xml_files.is_multistream(path) == is_multistream


def test_a_stream_that_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", 1000)
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress(b"x") + bz2.compress(TEXT) + bz2.compress(b"x"))
    monkeypatch.setattr(xml_files, "_READ_BYTES", 1 << 12)
    with pytest.raises(UserError, match="a.xml.bz2, byte 37: a bzip2 stream of more than 1,000 bytes.*bzip2 -dk"):
        list(xml_files.streams(path, 0))


def test_damaged_and_cut_streams_give_what_stands_before():
    packed = bz2.compress(TEXT, 1)
    assert unpacked(packed + bz2.compress(b"more")) == (TEXT + b"more", None)
    for length in (3, 20, len(packed) // 2, len(packed) - 1):
        text, error = unpacked(packed[:length])
        assert error is EOFError and TEXT.startswith(text) and len(text) > length - 150_000
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 16
    text, error = unpacked(bytes(damaged))
    assert error is OSError and TEXT.startswith(text) and len(text) > 90_000
    assert unpacked(packed + b"garbage") == (TEXT, OSError)
