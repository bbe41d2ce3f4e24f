"""XML in any encoding comes as UTF-8; what is not in the encoding that it declares is named."""

from __future__ import annotations

import bz2
import gzip

import pytest

from bert_tf.prepare.corpora import xml_files
from bert_tf.prepare.corpora.xml_files import XmlFile
from tests.refusals import refused

TEXT = "<a>é 北京 " + "x" * 3000 + "</a>"


def read(path):
    with XmlFile(path) as file:
        return b"".join(file.blocks()).decode(), file


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("block_bytes", [97, 1 << 18])
def test_unicode_with_and_without_a_mark_or_a_declaration(tmp_path, monkeypatch, encoding, block_bytes):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "a.xml"
    for head in ("", '<?xml version="1.0"?>', f'<?xml version="1.0" encoding="{encoding[:6]}"?>'):
        path.write_bytes((head + TEXT).encode(encoding))
        content, file = read(path)
        assert content.removeprefix("\ufeff") == head + TEXT
        assert not file.damage


@pytest.mark.parametrize("name,pack", [("a.xml", bytes), ("a.xml.gz", gzip.compress), ("a.xml.bz2", bz2.compress)])
def test_packed_and_declared(tmp_path, name, pack):
    text = "<?xml version='1.0' encoding = 'iso-8859-5' ?>" + TEXT.replace("é 北京", "Кафе")
    (tmp_path / name).write_bytes(pack(text.encode("iso-8859-5")))
    assert read(tmp_path / name)[0] == text


@pytest.mark.parametrize("encoding", ["GB18030", "Shift_JIS", "EUC-JP", "UTF-32"])
def test_other_encodings_that_python_knows(tmp_path, encoding):
    path, text = tmp_path / "a.xml", f'<?xml version="1.0" encoding="{encoding}"?><a>東京</a>'
    path.write_bytes(text.encode(encoding))
    assert read(path)[0] == text


@pytest.mark.parametrize(
    "encoding, message",
    [
        ("klingon", "Python does not know its encoding"),
        ("hex", "Python does not know"),
        ("UTF-16", "not utf-16, as its"),
    ],
)
def test_what_is_not_in_the_encoding_that_it_declares_is_refused(tmp_path, encoding, message):
    path = tmp_path / "a.xml"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?><a>'.encode())
    refused(f"a.xml: .*{message}", read, path)


def test_a_byte_that_is_not_in_the_declared_encoding_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 97)
    path = tmp_path / "a.xml"
    path.write_bytes(b'<?xml version="1.0" encoding="cp1252"?>' + b"x" * 2000 + b"\x81</a>")
    refused("a.xml: after 2,037 bytes of XML not cp1252, as its first line says", read, path)


def test_a_file_that_ends_inside_a_character_is_only_cut_off(tmp_path):
    path = tmp_path / "a.xml"
    path.write_bytes((TEXT + "京").encode("utf-16")[:-1])
    assert read(path)[0].endswith("</a>")


def test_damage_is_noted(tmp_path):
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress(b"<a>" * 1000)[:-9])
    _, file = read(path)
    assert file.damage.startswith(f"cut off or damaged at byte {path.stat().st_size} of {path.stat().st_size} (")
