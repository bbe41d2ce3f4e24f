"""XML in any encoding comes as UTF-8; what is not in the encoding that it declares is named."""

from __future__ import annotations

import bz2
import gzip

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import xml_files
from bert_tf.prepare.corpora.xml_files import XmlFile

TEXT = "<a>é 北京 " + "x" * 3000 + "</a>"


def read(path):
    with XmlFile(path) as file:
        return b"".join(file.blocks()).decode(), file


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
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
    text = "<?xml version='1.0' encoding = 'gb18030' ?>" + TEXT
    (tmp_path / name).write_bytes(pack(text.encode("gb18030")))
    assert read(tmp_path / name)[0] == text


@pytest.mark.parametrize(
    "content,message",
    [
        (
            b'<?xml version="1.0" encoding="klingon"?><a>',
            "a.xml: declares the encoding klingon, which is not known: write",
        ),
        (b'<?xml version="1.0" encoding="hex"?><a>', "a.xml: declares the encoding hex, which is not known: write"),
        (b'<?xml version="1.0" encoding="UTF-16"?><a>', "encoding UTF-16, and its first line is not written in it"),
        (b'<?xml version="1.0" encoding="cp037"?><a>', "encoding cp037, and its first line is not written in it"),
        (
            b'<?xml version="1.0" encoding="Shift_JIS"?>' + b"x" * 2000 + b"\xff</a>",
            "a.xml: declares the encoding Shift_JIS, and byte 2,042 of its XML is not written in it: .* UTF-8",
        ),
    ],
)
def test_wrong_and_unknown_encodings_name_the_file_and_the_way_out(tmp_path, monkeypatch, content, message):
    path = tmp_path / "a.xml"
    path.write_bytes(content)
    for block_bytes in (97, 1 << 18):
        monkeypatch.setattr(xml_files, "BLOCK_BYTES", block_bytes)
        with pytest.raises(UserError, match=message):
            read(path)


def test_a_file_that_ends_inside_a_character_is_only_cut_off(tmp_path):
    path = tmp_path / "a.xml"
    path.write_bytes(('<?xml version="1.0" encoding="GBK"?>' + TEXT + "京").encode("gbk")[:-1])
    assert read(path)[0].endswith("</a>")


def test_damage_is_noted_once(tmp_path):
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress(b"<a>" * 1000)[:-9])
    _, file = read(path)
    assert file.damage.startswith(f"cut off or damaged at byte {path.stat().st_size} of {path.stat().st_size} (")
    noted = file.damage
    file.note_damage("more")
    assert file.damage == noted
