"""Dumps read as a stream, in one file or many; damage named."""

import bz2
import functools
import random
import re

import pytest

from bert_tf.prepare.corpora import documents, wiki, xml_files
from tests.preparation import write
from tests.prepare.reading import assert_left_out, assert_resumable, cleaned, sorted_out
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
    page("Three", "It is <b>three</b> &amp; more."),
)
LINES = ["The one is large.", "It is three & more."]


def read(*paths):
    return sorted_out(cleaned(wiki.read_batches(paths, {}), wiki.clean_part))


def multistream(*texts: bytes) -> bytes:
    """A dump as published: its head, then streams of whole pages, then the end."""
    return b"".join(map(bz2.compress, (HEAD.encode(), *texts, b"</mediawiki>")))


@pytest.mark.parametrize(
    "name",
    [
        "wikicorpus_en.xml",
        "wikicorpus_en.xml.bz2",
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
    assert read(found) == (LINES, {"redirects": 1, "other_namespaces": 1}, [], [])


def test_of_a_damaged_file_what_stands_before_the_damage_is_kept(tmp_path):
    rng = random.Random(0)
    texts = ["It is " + "".join(rng.choices("abc", k=20_000)) + "." for _ in range(40)]
    content = bytearray(bz2.compress(dump(*(page(f"{n}", text) for n, text in enumerate(texts))), 1))
    whole, damaged = tmp_path / "b.xml.bz2", tmp_path / "a.xml.bz2"
    whole.write_bytes(bz2.compress(dump(*PAGES)))
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    found, _, _, (damage,) = read(damaged, whole)
    num_kept = len(found) - 2
    assert 10 < num_kept < 30 and found == [*texts[:num_kept], *LINES]
    byte = int(re.search(r"a.xml.bz2: cut off or damaged at byte ([\d,]+)", damage)[1].replace(",", ""))
    assert len(content) / 4 < byte <= len(content)


def test_a_multistream_dump_loses_only_its_damaged_streams(tmp_path):
    streams = [page(f"{n}", f"It is {n}.").encode() for n in range(4)]
    streams[3] = streams[3].removesuffix(b"</page>\n")
    packed = multistream(*streams)
    path = tmp_path / "wikicorpus_en.xml.bz2"
    path.write_bytes(packed)
    lines, _, (fault,), _ = read(path)
    assert lines == ["It is 0.", "It is 1.", "It is 2."] and "page '3': XML" in fault
    start = packed.index(bz2.compress(streams[1]))
    for byte in (start + 20, start):
        damaged = bytearray(packed)
        damaged[byte] ^= 255
        path.write_bytes(damaged)
        lines, _, faults, damages = read(path)
        assert lines == ["It is 0.", "It is 2."] and not damages
        assert [fault[:4] for fault in faults] == ["the ", "page"]
    path.write_bytes(packed[:-20])
    lines, _, faults, (damage,) = read(path)
    assert len(lines + faults) == 4 and "cut off or damaged at byte" in damage


@pytest.mark.parametrize(
    "bad,message",
    [
        (page("Talk:Bad", "Text.", ns=""), "page 'Talk:Bad': XML: .* or without the number of its namespace, <ns>"),
        (page("Bad", "Text.").replace("<id>", "<&"), "page 'Bad': XML: not well-formed"),
    ],
)
def test_bad_pages_are_named_and_left_out_up_to_a_limit(tmp_path, bad, message):
    content = dump(*PAGES, bad, page("Six", "It is six."))
    write(tmp_path / "download/wikicorpus_en/wikicorpus_en.xml", content)
    assert_left_out(tmp_path, "wikicorpus_en", f"wikicorpus_en.xml, {message}", [*LINES, "It is six."])


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
    assert len(read(path)[0]) == 5
    path.write_bytes(whole.replace(before.encode(), after.encode()))
    lines, _, faults, _ = read(path)
    assert len(lines) == num_whole and len(faults) == 1


def test_many_pages_without_an_end_take_linear_time(tmp_path):
    """Each is cut where the next one begins, without a search for its end."""
    cutter = xml_files.Cutter(tmp_path, ("page",), "mediawiki")
    assert sum(1 for _ in cutter.cut(b"<page>" * 400_000)) == 399_999


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "wikicorpus_en.xml"
    path.write_text("<html><body></body></html>")
    refused("no <page> in it", read, path)


@pytest.mark.parametrize(
    "names",
    [
        ("enwiki-20200101-pages-articles.xml", "enwiki-20240101-pages-articles.xml.bz2"),
        ("enwiki-20240101-pages-articles.xml.bz2", "enwiki-20240101-pages-articles1.xml-p1p41242.bz2"),
        ("one.xml", "two.xml"),
    ],
)
def test_of_several_dumps_none_is_taken(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    refused(r"which of .*\.xml.*, .*\.xml.* is the dump", wiki.find_dumps, tmp_path, "wikicorpus_en")


@pytest.mark.parametrize("kind", ["xml", "bz2", "multistream"])
def test_reading_goes_on_after_any_batch(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(xml_files, "BLOCK_BYTES", 50_000)
    monkeypatch.setattr(xml_files, "_READ_BYTES", 7)
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
    assert len(read(*paths)[3]) == 2
    assert_resumable(functools.partial(wiki.read_batches, paths), paths, least=7)
    positions = [batch.next_position for batch in wiki.read_batches(paths, {})]
    assert any(position.get("byte") for position in positions) == (kind == "multistream")
