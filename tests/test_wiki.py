"""Dumps read as a stream, markup to text passages, damage named."""

from __future__ import annotations

import bz2
import json
import random

import pytest

from bert_tf.base.errors import UserError
from data.corpora import formatting, wiki, xml_files

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/"><siteinfo><namespaces>'
    '<namespace key="0" /><namespace key="1">Talk</namespace></namespaces></siteinfo>'
)


def page(title: str, text: str, ns: str = "<ns>0</ns>", extra: str = "") -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"<page><title>{title}</title>{ns}<id>1</id>{extra}<revision><id>2</id>"
        f"<text xml:space='preserve'>{escaped}</text></revision></page>\n"
    )


def dump(*pages: str) -> bytes:
    return (HEAD + "".join(pages) + "</mediawiki>").encode()


PAGES = (
    page("One", "The '''one''' is [[big|large]]."),
    page("Talk:One", "Talk.", ns="<ns>1</ns>"),
    page("Uno", "#REDIRECT [[One]]", extra='<redirect title="One" />'),
    page("Two", "#redirect [[One]]"),
    page("Three", "It is <b>three</b> &amp; more."),
)


def cleaned(path, damages=None) -> tuple:
    damages = [] if damages is None else damages
    results = [wiki.clean_batch(batch) for batch in wiki.read_batches([path], damages, {})]
    return (
        [line for result in results for line in result.lines],
        {name: sum(r.num_dropped.get(name, 0) for r in results) for name in ("redirects", "other_namespaces")},
    )


@pytest.mark.parametrize(
    "name",
    [
        "wikicorpus_en.xml",
        "wikicorpus_en.xml.bz2",
        "enwiki-20240101-pages-articles.xml.bz2",
        "enwiki-20240101-pages-articles1.xml-p1p41242.bz2",
    ],
)
def test_articles_remain_and_the_rest_is_counted(tmp_path, name):
    data = dump(*PAGES)
    # A dump for parallel reading is several bz2 streams, one after the other.
    packed = bz2.compress(data[:500]) + bz2.compress(data[500:])
    (tmp_path / name).write_bytes(packed if name.endswith("bz2") else data)
    (found,) = wiki.find_dumps(tmp_path, "wikicorpus_en")
    assert cleaned(found) == (["The one is large.", "It is three & more."], {"redirects": 2, "other_namespaces": 1})


@pytest.mark.parametrize(
    "encoding,text",
    [
        ("ISO-8859-1", "Café."),
        ("UTF-16", "Café."),
        ("GB18030", "北京很大，𠀀。"),
        ("GBK", "北京很大。"),
        ("Big5", "北京很大。"),
        ("Shift_JIS", "東京は大きい。"),
        ("EUC-JP", "東京は大きい。"),
        ("UTF-32", "北京很大。"),
    ],
)
@pytest.mark.parametrize("block_bytes", [7, 1 << 18])
def test_encoding_that_the_xml_declares(tmp_path, monkeypatch, encoding, text, block_bytes):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "wikicorpus_zh.xml"
    declared = f'<?xml version="1.0" encoding="{encoding}"?>' + dump(page("A", text * 9)).decode()
    path.write_bytes(declared.encode(encoding))
    damages = []
    assert cleaned(path, damages)[0] == [text * 9] and not damages


def test_report_of_pages_and_pieces_with_their_titles(tmp_path):
    path = tmp_path / "wikicorpus_en.xml"
    path.write_bytes(dump(*PAGES, page("Four", "Text.\n* An\titem")))
    (batch,) = wiki.read_batches([path], [], {})
    result = wiki.clean_batch(batch, keep_report=True)
    assert result.titles == ["One", "Three", "Four"]
    assert result.num_removed == {"list_items": 1}
    assert result.report == [
        "other_namespaces\tTalk:One\t",
        "redirects\tUno\t",
        "redirects\tTwo\t",
        "list_items\tFour\tAn item",
    ]
    assert wiki.clean_batch(next(wiki.read_batches([path], [], {}))).report == []


def test_namespace_from_the_title_where_old_dumps_say_nothing(tmp_path):
    path = tmp_path / "wikicorpus_en.xml"
    path.write_bytes(dump(page("Talk:One", "Talk.", ns=""), page("Star: Two", "Text.", ns="")))
    assert cleaned(path) == (["Text."], {"redirects": 0, "other_namespaces": 1})


@pytest.mark.parametrize("name", ["wikicorpus_en.xml", "wikicorpus_en.xml.bz2"])
def test_cut_off_dump_keeps_its_articles_and_names_file_and_byte(tmp_path, name):
    head, tail = (HEAD + "".join(PAGES[:3])).encode(), (PAGES[4] + "</mediawiki>").encode()
    path = tmp_path / name
    packed = [bz2.compress(head), bz2.compress(tail)] if name.endswith("bz2") else [head, tail]
    path.write_bytes(packed[0] + packed[1][:60])
    damages = []
    assert cleaned(path, damages)[0] == ["The one is large."]
    (damage,) = damages
    size = path.stat().st_size
    assert damage.startswith(f"{name}: cut off or damaged at byte {size:,} of {size:,}")
    assert "the 3 pages up to there were kept" in damage
    path.write_bytes(b"".join(packed))
    assert cleaned(path, damages)[0] == ["The one is large.", "It is three & more."]
    assert len(damages) == 1


def test_damage_inside_keeps_what_stands_before_it(tmp_path):
    first, second = bz2.compress(dump(*PAGES)[: -len("</mediawiki>")]), bz2.compress(b"x" * 5000)
    damaged = bytearray(second)
    damaged[20] ^= 255
    path = tmp_path / "wikicorpus_en.xml.bz2"
    path.write_bytes(first + bytes(damaged))
    damages = []
    assert cleaned(path, damages)[0] == ["The one is large.", "It is three & more."]
    assert "cut off or damaged" in damages[0] and "the 5 pages" in damages[0]


def test_a_namespace_that_is_no_number_is_damage(tmp_path):
    path = tmp_path / "wikicorpus_en.xml"
    path.write_bytes(dump(*PAGES, page("Bad", "Text.", ns="<ns>zero</ns>"), page("Six", "Six.")))
    damages = []
    assert cleaned(path, damages)[0] == ["The one is large.", "It is three & more."]
    assert "invalid literal" in damages[0] and "the 5 pages" in damages[0]


def test_dump_without_a_whole_page_is_an_error(tmp_path):
    path = tmp_path / "wikicorpus_en.xml.bz2"
    for content in (bz2.compress(dump(*PAGES))[:100], b"", b"not bz2"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="no <page> in it"):
            cleaned(path)


def test_missing_or_foreign_file_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="put wikicorpus_en.xml.bz2.*dumps.wikimedia.org/enwiki"):
        wiki.find_dumps(tmp_path, "wikicorpus_en")
    with pytest.raises(UserError, match="put wikicorpus_zh.xml.bz2.*dumps.wikimedia.org/zhwiki"):
        wiki.find_dumps(tmp_path, "wikicorpus_zh")
    path = tmp_path / "wikicorpus_en.xml"
    path.write_text("<html><body></body></html>")
    with pytest.raises(UserError, match="no <page> in it"):
        cleaned(path)


EXTRACTED = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="One">
One

The one is large &lt;or not&gt;.
Section heading
It ends.

</doc>
<doc id="13" url="x" title="Empty">
Empty

</doc>
"""


def test_what_wikiextractor_has_written_is_read(tmp_path):
    with pytest.raises(UserError, match="holds no file like AA/wiki_00"):
        wiki.find_extracted(tmp_path)
    (tmp_path / "AA").mkdir()
    path = tmp_path / "AA/wiki_00"
    path.write_text(EXTRACTED)
    assert wiki.find_extracted(tmp_path) == [path]
    results = [wiki.clean_extracted(batch) for batch in wiki.read_extracted([path], {})]
    assert [line for result in results for line in result.lines] == ["The one is large <or not>.  It ends.", ""]
    assert sum(result.input_bytes for result in results) == path.stat().st_size
    assert results[0].titles == ["One", "Empty"] and results[0].num_removed == {"fragments": 1}
    (batch,) = wiki.read_extracted([path], {})
    assert wiki.clean_extracted(batch, keep_report=True).report == ["fragments\tOne\tSection heading"]


@pytest.mark.parametrize(
    "content,message",
    [
        ('{"id": "12", "text": "One."}', "wiki_00, line 1: no <doc ...>.*--input_format=jsonl"),
        (EXTRACTED[:150], "ends inside an article"),
    ],
)
def test_what_wikiextractor_has_not_written_is_refused(tmp_path, content, message):
    path = tmp_path / "wiki_00"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(wiki.read_extracted([path], {}))


@pytest.mark.parametrize("name", ["a.xml", "a.xml.bz2"])
@pytest.mark.parametrize("damage", [None, "cut", "xml"])
def test_reading_begins_at_any_batch(tmp_path, monkeypatch, name, damage):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 50_000)
    monkeypatch.setattr(formatting, "BATCH_CHARACTERS", 30_000)
    rng = random.Random(0)
    paths = [tmp_path / f"{number}{name}" for number in range(3)]
    for path in paths:
        texts = ("".join(rng.choices("abé京 ", k=rng.randrange(9_000))) for _ in range(40))
        pages = [page(f"Talk:{n}" if n % 7 == 0 else f"{n}", text, ns="") for n, text in enumerate(texts)]
        content = dump(*pages)
        if damage == "xml" and path == paths[1]:
            content = content[:-5000] + b"<&" + content[-5000:]
        content = bz2.compress(content, 1) if name.endswith("bz2") else content
        path.write_bytes(content[:-9000] if damage == "cut" and path != paths[2] else content)

    def read(place, num_threads=1):
        damages = []
        batches = [
            batch._replace(input_bytes=0) for batch in wiki.read_batches(paths, damages, place, num_threads=num_threads)
        ]
        return batches, damages

    batches, damages = read({})
    assert len(batches) > 12 and len(damages) == {None: 0, "cut": 2, "xml": 1}[damage]
    assert read({}, num_threads=3) == (batches, damages)
    for number, batch in enumerate(batches):
        assert read(json.loads(json.dumps(batch.begins_at))) == (batches[number:], damages)
    assert any(batch.begins_at["block"].in_xml > 0 for batch in batches if "block" in batch.begins_at)
