"""XML in any encoding comes as UTF-8, up to its damage; the streams of multistream dumps."""

import bz2
import gzip
import random

import pytest

from bert_tf.prepare.corpora import text_files, xml_files
from bert_tf.prepare.corpora.xml_files import XmlFile
from tests.refusals import refused

TEXT = "<a>é 北京 " + "x" * 3000 + "</a>"
LONG = bytes(random.Random(0).choices(b"abcdefgh", k=450_000))


def read(path):
    with XmlFile(path) as file:
        return b"".join(file.blocks()).decode(), file


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_unicode_with_and_without_a_mark_or_a_declaration(tmp_path, monkeypatch, encoding):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 97)
    for head in ("", '<?xml version="1.0"?>', f'<?xml version="1.0" encoding="{encoding[:6]}"?>'):
        (tmp_path / "a.xml").write_bytes((head + TEXT).encode(encoding))
        content, file = read(tmp_path / "a.xml")
        assert content.removeprefix("\ufeff") == head + TEXT and not file.damage


@pytest.mark.parametrize("name,pack", [("a.xml", bytes), ("a.xml.gz", gzip.compress), ("a.xml.bz2", bz2.compress)])
@pytest.mark.parametrize(
    "encoding,words", [("iso-8859-5", "Кафе"), ("GB18030", "東"), ("EUC-JP", "東"), ("UTF-32", "東")]
)
def test_packed_and_declared(tmp_path, name, pack, encoding, words):
    text = f"<?xml version='1.0' encoding = '{encoding}' ?>" + TEXT.replace("é 北京", words)
    (tmp_path / name).write_bytes(pack(text.encode(encoding)))
    assert read(tmp_path / name)[0] == text


@pytest.mark.parametrize(
    "encoding, message",
    [
        ("klingon", "Python does not know its encoding"),
        ("UTF-16", "not utf-16, as its"),
        ("cp1252", "before byte 2,0[0-9]+ not cp1252, as its first line says"),
    ],
)
def test_what_is_not_in_the_encoding_that_it_declares_is_refused(tmp_path, monkeypatch, encoding, message):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 97)
    path = tmp_path / "a.xml"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + b"x" * 2000 + b"\x81</a>")
    refused(f"a.xml: .*{message}", read, path)


@pytest.mark.parametrize(
    "parts,is_multistream",
    [
        ((b"<mediawiki>" + LONG, b"  <page>" + LONG), True),
        ((b"<mediawiki>  <page>x",), False),
        ((b"<mediawiki><page>ab", b"cd</page>"), False),
    ],
)
def test_multistream_dumps_are_known_by_their_second_stream(tmp_path, parts, is_multistream):
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(b"".join(map(bz2.compress, parts)))
    assert xml_files.is_multistream(path) == is_multistream


def test_a_stream_that_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(xml_files, "_READ_BYTES", 1 << 12)
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress(b"x") + bz2.compress(LONG) + bz2.compress(b"x"))
    message = "a.xml.bz2, byte 37: a bzip2 stream of more than 1,000 bytes.*bzip2 -dk"
    refused(message, lambda: list(xml_files.streams(path, 0)))
