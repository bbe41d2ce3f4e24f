"""Dumps read as a stream, markup to text passages, damage named."""

from __future__ import annotations

import bz2
import functools
import json
import random
import re

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import documents, extracted, formatting, wiki, xml_files
from bert_tf.prepare.corpora.documents import BadRecord, Document, Dropped
from tests import preparation
from tests.refusals import refused

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


def read(paths, position=None):
    """Pages and batch of each batch, and what is damaged."""
    damages = []
    batches = wiki.read_batches(paths, damages, position or {})
    clean = functools.partial(wiki.clean_part, clean_page=wiki.clean)
    return [(formatting._clean_all(batch, clean=clean), batch._replace(documents=())) for batch in batches], damages


def cleaned(path, damages=None) -> tuple:
    damages = [] if damages is None else damages
    batches, found_damages = read([path])
    damages += found_damages
    found = [page for pages, _ in batches for page in pages]
    reasons = [one.reason for one in found if isinstance(one, Dropped)]
    return (
        [one.line for one in found if isinstance(one, Document)],
        {name: reasons.count(name) for name in ("redirects", "other_namespaces")},
    )


def multistream(*texts: bytes) -> bytes:
    """A dump as published: its head, then streams of whole pages, then the end."""
    return b"".join(map(bz2.compress, (HEAD.encode(), *texts, b"</mediawiki>")))


@pytest.mark.parametrize(
    "name",
    [
        "wikicorpus_en.xml",
        "wikicorpus_en.xml.bz2",
        "enwiki-20240101-pages-articles.xml.bz2",
        "enwiki-20240101-pages-articles1.xml-p1p41242.bz2",
        "enwiki-20240101-pages-articles-multistream.xml.bz2",
    ],
)
def test_articles_remain_and_the_rest_is_counted(tmp_path, name):
    data = dump(*PAGES)
    packed = bz2.compress(data[:500]) + bz2.compress(data[500:])
    if "multistream" in name:
        packed = multistream("".join(PAGES[:2]).encode(), "".join(PAGES[2:]).encode())
    (tmp_path / name).write_bytes(packed if name.endswith("bz2") else data)
    (found,) = wiki.find_dumps(tmp_path, "wikicorpus_en")
    assert cleaned(found) == (["The one is large.", "It is three & more."], {"redirects": 2, "other_namespaces": 1})


def test_of_a_damaged_file_what_stands_before_the_damage_is_kept(tmp_path):
    rng = random.Random(0)
    texts = ["It is " + "".join(rng.choices("abc", k=20_000)) + "." for _ in range(40)]
    content = bytearray(bz2.compress(dump(*(page(f"{n}", text) for n, text in enumerate(texts))), 1))
    whole, damaged = tmp_path / "b.xml.bz2", tmp_path / "a.xml.bz2"
    whole.write_bytes(bz2.compress(dump(*PAGES)))
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    batches, damages = read([damaged, whole])
    found = [found.line for pages, _ in batches for found in pages if isinstance(found, Document)]
    num_kept = len(found) - 2
    assert 10 < num_kept < 30 and found == [*texts[:num_kept], "The one is large.", "It is three & more."]
    (damage,) = damages
    byte = int(re.search(r"a.xml.bz2: cut off or damaged at byte ([\d,]+)", damage)[1].replace(",", ""))
    assert len(content) / 4 < byte <= len(content)


def test_a_multistream_dump_loses_only_its_damaged_streams(tmp_path):
    streams = [page(f"{n}", f"It is {n}.").encode() for n in range(4)]
    streams[3] = streams[3].removesuffix(b"</page>\n")
    packed = multistream(*streams)
    path = tmp_path / "wikicorpus_en.xml.bz2"
    path.write_bytes(packed)
    found = [one for pages, _ in read([path])[0] for one in pages]
    assert [one.line for one in found[:3]] == ["It is 0.", "It is 1.", "It is 2."]
    assert "page '3': XML" in found[3].fault and len(found) == 4
    start = packed.index(bz2.compress(streams[1]))
    for byte, kept in ((start + 20, ["It is 0.", "It is 2."]), (start, ["It is 0.", "It is 2."])):
        damaged = bytearray(packed)
        damaged[byte] ^= 255
        path.write_bytes(damaged)
        batches, damages = read([path])
        found = [one for pages, _ in batches for one in pages]
        assert [one.line for one in found if isinstance(one, Document)] == kept and not damages
        assert [one.fault[:4] for one in found if isinstance(one, BadRecord)] == ["the ", "page"]
    path.write_bytes(packed[:-20])
    batches, damages = read([path])
    assert len([one for pages, _ in batches for one in pages]) == 4 and "cut off or damaged at byte" in damages[0]


@pytest.mark.parametrize(
    "bad,message",
    [
        (page("Bad", "Text.", ns="<ns>zero</ns>"), "page 'Bad': XML: <ns>, its namespace"),
        (page("Talk:Bad", "Text.", ns=""), "page 'Talk:Bad': XML: <ns>, its namespace, is missing.* is of before 2011"),
        (page("Bad", "Text.").replace("<id>", "<&"), "page 'Bad': XML: not well-formed"),
        (page("Bad", "\0" * 99), "page 'Bad': XML: not well-formed"),
    ],
)
def test_bad_pages_are_named_and_left_out_up_to_a_limit(tmp_path, bad, message):
    folder = tmp_path / "download" / "wikicorpus_en"
    folder.mkdir(parents=True)
    (folder / "wikicorpus_en.xml").write_bytes(dump(*PAGES, bad, page("Six", "It is six.")))
    with pytest.raises(UserError, match=f"wikicorpus_en.xml, {message}.*larger --max_bad_records"):
        preparation.run(tmp_path, "text_formatting", dataset="wikicorpus_en")
    preparation.run(tmp_path, "text_formatting", "--max_bad_records", 1, dataset="wikicorpus_en")
    (text,) = (tmp_path / "formatted_one_article_per_line").glob("*.txt")
    assert text.read_text() == "The one is large.\nIt is three & more.\nIt is six.\n"


@pytest.mark.parametrize(
    "before, after, num_whole",
    [
        ("<page><title>One<", "<pagf><title>One<", 4),
        ("<page><title>Three<", "<pagf><title>Three<", 4),
        ("<page><title>Six<", "<\0age><title>Six<", 4),
        ("</page>\n</mediawiki>", "</pagf>\n</mediawiki>", 4),
        ("</page>\n</mediawiki>", "</page>\nx</mediawiki>", 5),
    ],
)
def test_no_page_is_lost_in_silence_where_a_tag_is_damaged(tmp_path, monkeypatch, before, after, num_whole):
    """Of five articles `num_whole` are read, and a bad record tells of what is left of another, or of what is none."""
    path = tmp_path / "wikicorpus_en.xml"
    whole = dump(*(page(title, f"It is {title}.") for title in ("One", "Two", "Three", "Four", "Six")))
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 7)
    path.write_bytes(whole)
    assert [type(one) for pages, _ in read([path])[0] for one in pages].count(Document) == 5
    path.write_bytes(whole.replace(before.encode(), after.encode()))
    batches, _ = read([path])
    kinds = [type(one) for pages, _ in batches for one in pages]
    assert kinds.count(Document) == num_whole and kinds.count(BadRecord) == 1


def test_many_pages_without_an_end_take_linear_time(tmp_path):
    """Each is cut where the next one begins, without a search for its end."""
    cutter = xml_files.Cutter(tmp_path, ("page",), "mediawiki")
    assert sum(1 for _ in cutter.cut(b"<page>" * 400_000)) == 399_999


def test_missing_or_foreign_file_says_what_to_do(tmp_path):
    refused("put wikicorpus_en.xml.bz2.*dumps.wikimedia.org/enwiki", wiki.find_dumps, tmp_path, "wikicorpus_en")
    refused("put wikicorpus_zh.xml.bz2.*dumps.wikimedia.org/zhwiki", wiki.find_dumps, tmp_path, "wikicorpus_zh")
    path = tmp_path / "wikicorpus_en.xml"
    path.write_text("<html><body></body></html>")
    refused("no <page> in it", cleaned, path)


@pytest.mark.parametrize(
    "names",
    [
        ("enwiki-20200101-pages-articles.xml", "enwiki-20240101-pages-articles.xml"),
        ("enwiki-20240101-pages-articles.xml", "enwiki-20240101-pages-articles.xml.bz2"),
        ("enwiki-20240101-pages-articles.xml.bz2", "enwiki-20240101-pages-articles-multistream.xml.bz2"),
        ("enwiki-20240101-pages-articles.xml.bz2", "enwiki-20240101-pages-articles1.xml-p1p41242.bz2"),
        ("one.xml", "two.xml"),
    ],
)
def test_of_several_dumps_none_is_taken(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    refused(r"which of .*\.xml.*, .*\.xml.* is the dump", wiki.find_dumps, tmp_path, "wikicorpus_en")


def test_a_published_dump_in_several_files_is_one(tmp_path):
    names = [f"enwiki-20240101-pages-articles{part}" for part in ("1.xml-p1p9.bz2", "2.xml-p10p99.bz2", "12.xml.bz2")]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert sorted(path.name for path in wiki.find_dumps(tmp_path, "wikicorpus_en")) == sorted(names)


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
    refused("holds no file like AA/wiki_00", extracted.find_files, tmp_path)
    (tmp_path / "AA").mkdir()
    path = tmp_path / "AA/wiki_00"
    path.write_text(EXTRACTED)
    assert extracted.find_files(tmp_path) == [path]
    (batch,) = extracted.read_batches([path], {})
    assert batch.input_bytes == path.stat().st_size
    one, empty = map(extracted.clean, batch.documents)
    assert one == ("The one is large <or not>.  It ends.", {"fragments": 1}) and empty.line == ""


@pytest.mark.parametrize(
    "content,message",
    [
        ("One.", "wiki_00, line 1: not what wikiextractor writes, <doc .*: run wikiextractor again"),
        (EXTRACTED[:150], "ends inside an article"),
        (EXTRACTED.replace("</doc>", "</dob>", 1), "wiki_00, line 9: not what"),
    ],
)
def test_what_wikiextractor_has_not_written_is_refused(tmp_path, content, message):
    path = tmp_path / "wiki_00"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(extracted.read_batches([path], {}))


@pytest.mark.parametrize("kind", ["xml", "bz2", "multistream"])
def test_reading_goes_on_after_any_batch(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 50_000)
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 20_000)
    rng = random.Random(0)
    paths = [tmp_path / f"{number}.{kind}".replace("multistream", "bz2") for number in range(3)]
    for path in paths:
        pages = [page(f"{n}", "".join(rng.choices("abé京 ", k=rng.randrange(9_000)))) for n in range(40)]
        content = dump(*pages)
        if kind == "bz2":
            content = bz2.compress(content, 1)
        elif kind == "multistream":
            content = multistream(*("".join(pages[n : n + 10]).encode() for n in range(0, 40, 10)))
        path.write_bytes(content[:-9000] if path != paths[2] else content)

    batches, damages = read(paths)
    assert len(batches) > 6 and len(damages) == 2
    found = [found for pages, _ in batches for found in pages]
    num_found, num_bytes = 0, 0
    for pages, batch in batches:
        num_found += len(pages)
        num_bytes += batch.input_bytes
        later, same_damages = read(paths, json.loads(json.dumps(batch.next_position)))
        assert [found for pages, _ in later for found in pages] == found[num_found:]
        assert same_damages == damages
        assert num_bytes + sum(batch.input_bytes for _, batch in later) == formatting.total_size(paths)
    assert any(batch.next_position.get("byte") for _, batch in batches) == (kind == "multistream")
