"""Dumps read as a stream, in one file or many; damage named."""

import bz2
import functools
import json
import random
import re

import pytest

from bert_tf.prepare.corpora import documents, text_files, wiki, xml_files
from bert_tf.prepare.corpora.documents import Dropped
from bert_tf.prepare.fetching.sources import source_of
from tests import preparation
from tests.preparation import assert_left_out, assert_resumable, cleaned, formatted, run, sorted_out, write
from tests.refusals import refused


def head(namespaces: dict[int, str]) -> str:
    names = "".join(f'<namespace key="{key}" case="x">{name}</namespace>' for key, name in namespaces.items())
    root = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="x">'
    return f"{root}<siteinfo><sitename>W</sitename><namespaces>{names}</namespaces></siteinfo>"


HEAD = head({0: "", 1: "Talk"})


def page(title: str, text: str, ns: str = "<ns>0</ns>", extra: str = "") -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"<page><title>{title}</title>{ns}<id>1</id>{extra}<revision><id>2</id>"
        f"<text xml:space='preserve'>{escaped}</text></revision></page>\n"
    )


def dump(*pages: str, head: str = HEAD) -> bytes:
    return f"{head}{''.join(pages)}</mediawiki>".encode()


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


def test_a_stream_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "wikicorpus_en.xml.bz2"
    path.write_bytes(multistream("".join(PAGES).encode(), page("Blank", " " * 5000).encode()))
    assert read(path)[0] == [*LINES, ""]
    monkeypatch.setattr(wiki, "_LARGEST_STREAM_BYTES", 5000)
    refused(r"en.xml.bz2, byte [\d,]+: a bzip2 stream of more than 5,000 bytes.*bzip2 -dk", read, path)


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


def test_a_foreign_file_and_a_page_over_the_limit_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "wikicorpus_en.xml", "<html><body></body></html>")
    refused("no <page> in it", read, path)
    monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", 1000)
    path.write_bytes(dump(*PAGES, page("Two", "x" * 1000)))
    refused("wikicorpus_en.xml, page 'Two': a document of more than 1,000 bytes.*: split it into several", read, path)


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


# Wikipedias of any language: their names, and the namespaces that their dumps list.

NAMESPACES = {
    "de": {-2: "Medium", 0: "", 4: "Wikipedia", 6: "Datei", 10: "Vorlage", 14: "Kategorie"},
    "fr": {-2: "Média", 0: "", 4: "Wikipédia", 6: "Fichier", 10: "Modèle", 14: "Catégorie"},
    "el": {-2: "Μέσο", 0: "", 4: "Βικιπαίδεια", 6: "Αρχείο", 10: "Πρότυπο", 14: "Κατηγορία"},
    "zh-min-nan": {-2: "Mûi-thé", 0: "", 4: "Wikipedia", 6: "Tóng-àn", 10: "Pang-bô͘", 14: "Lūi-pia̍t"},
}
# Text, and what of it is shown; MEDIA and so on stand for the names of namespaces.
ARTICLE = """[[FILE:Ronaz Blick|mini|Blick auf [[Ronaz]] vom Berg aus. Er ist steil.]]
[[ file : a_b|mini|Another caption. It is long.]] [[File:c|thumb|An English name. It works.]]
'''Ronaz''' is a town.<ref>A book.</ref> It lies {{TEMPLATE:nowrap|by the sea}}, see [[:CATEGORY:Towns|the others]].
[[CATEGORY:Towns in the north]][[Category:Towns]][[MEDIA:d]]

See [[PROJECT:Rules|the rules]] and [[Lumar: A history|its history]]. They are old.
"""
SHOWN = "Ronaz is a town. It lies by the sea, see the others.  See the rules and its history. They are old."


def article_of(code: str) -> str:
    names, text = NAMESPACES[code], ARTICLE.replace(" file ", f" {NAMESPACES[code][6].lower()} ")
    for key, word in ((-2, "MEDIA"), (4, "PROJECT"), (6, "FILE"), (10, "TEMPLATE"), (14, "CATEGORY")):
        text = text.replace(word, names[key])
    return text


@pytest.mark.parametrize("code", NAMESPACES)
def test_pictures_categories_and_templates_by_the_names_in_the_dump(tmp_path, code, capsys):
    wiki_name = code.replace("-", "_") + "wiki"
    assert source_of(f"wikicorpus_{code}").url == f"https://dumps.wikimedia.org/{wiki_name}/"
    pages = page("Ronaz", article_of(code)), page("B", "Second one.", ns="<ns>14</ns>")
    path = tmp_path / f"download/wikicorpus_{code}/{wiki_name}-20240101-pages-articles.xml.bz2"
    write(path, bz2.compress(dump(*pages, head=head(NAMESPACES[code]))))
    assert formatted(tmp_path, f"wikicorpus_{code}")[0] == [SHOWN]
    run(tmp_path, "sharding", "--n_training_shards", 1, *NO_TEST, dataset=f"wikicorpus_{code}")
    # Without a dataset, all are found.
    capsys.readouterr()
    for action in ("status", "verify"):
        options = preparation.bertPrep.parse(["--action", action])
        preparation.bertPrep.ACTIONS[action](options, preparation.Layout(tmp_path))
        assert f"wikicorpus_{code}" in capsys.readouterr().out
    google = "download/google_pretrained_weights/uncased_L-24_H-1024_A-16/vocab.txt"
    write(tmp_path / google, "[PAD]\n")
    make_tokens = (run, tmp_path, "create_token_files")
    refused("--action=create_vocab --dataset=wikicorpus_", *make_tokens, dataset=f"wikicorpus_{code}")


NO_TEST = ("--n_test_shards", 0, "--fraction_test_set", 0)


def test_a_picture_is_known_by_its_name_too(tmp_path):
    path = write(tmp_path / "dewiki.xml", dump(head=head(NAMESPACES["de"])))
    text = "[[Bild:Blick von Süden.JPG|mini|Ein Blick. Er ist weit.]] Ein Ort. [[:Bild:Blick.jpg|Das Bild]] ist alt."
    found = wiki.clean(page("A", text).encode(), namespaces=wiki.read_namespaces(path))
    assert found.line == "Ein Ort. Das Bild ist alt."


def test_a_dump_that_lists_no_namespaces_says_so(tmp_path, capsys):
    path = tmp_path / "a.xml"
    path.write_text("<mediawiki>" + page("A", "[[File:a.jpg]] One. [[Datei:x|y]]") + "</mediawiki>")
    assert wiki.read_namespaces(path) == wiki.KNOWN_NAMESPACES
    assert f"note: {path} lists no namespaces" in capsys.readouterr().out


@pytest.mark.parametrize("dataset", ["wikicorpus_d", "wikicorpus_zh_min_nan", "wikicorpus_de2", "wiki_de"])
def test_what_is_no_code_is_refused(dataset):
    message = rf"^--dataset={dataset}: must be one of .*, wikicorpus_<code>, all"
    refused(message, preparation.bertPrep.parse, ["--action", "sharding", "--dataset", dataset])


def test_the_main_slot_is_the_article():
    slot = "<content><role>mediainfo</role><model>wikibase-mediainfo</model><text>{}. No.</text></content>"
    two_slots = page("A", "The main slot. It is prose.").replace("</revision>", f"<sha1>x</sha1>{slot}</revision>")
    assert wiki.clean(two_slots.encode()).line == "The main slot. It is prose."
    empty = page("A", "").replace("</revision>", f"{slot}</revision>")
    assert wiki.clean(empty.encode()).line == ""
    style = page("S", ".a { color: red; } A style.").replace("<text", "<model>sanitized-css</model><text")
    assert wiki.clean(style.encode()) == Dropped("other_models")


# The files of wikiextractor: text with tags left in it, and JSON lines (--json).


def read_extracted(working_dir, *files: str) -> list[str]:
    for number, content in enumerate(files):
        write(working_dir / f"extracted/wikicorpus_en/AA/wiki_{number:02}", content)
    return formatted(working_dir, "wikicorpus_en", "--skip_wikiextractor")[0]


def test_json_lines_are_read_as_the_text_files_are(tmp_path):
    article = {"id": "1", "revid": "7", "url": "x", "title": "One", "text": "It is &lt;b&gt;one.\nHead line\nIt ends."}
    empty = {"id": "2", "title": "Two", "text": ""}
    lines = "".join(json.dumps(line) + "\n" for line in (article, empty))
    as_text = f'<doc id="1">\nTwo\n\n{article["text"].replace("one", "two")}\n\n</doc>\n'
    assert read_extracted(tmp_path, lines, as_text) == ["It is one.  It ends.", "It is two.  It ends."]


EXTRACTED = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="One">
One

The one is large.
It ends.

</doc>
<doc id="13" url="x" title="Empty">
Empty

</doc>
"""


@pytest.mark.parametrize(
    "content,message",
    [
        ('{"title": "A", "text": "On', "line 1 is not valid JSON.*--max_bad_records"),
        (
            '{"title": "A", "text": null}',
            "line 1: no text in the field 'text' .the line has 'title', 'text'.; run wikiextractor again.*--max_bad_re",
        ),
        ("One.", "line 1: not what wikiextractor writes, <doc .*: run wikiextractor again"),
        (EXTRACTED[:90], "line 1: not what"),
        (EXTRACTED.replace("</doc>", "</dob>", 1), "line 1: not what"),
    ],
)
def test_what_wikiextractor_has_not_written_is_refused(tmp_path, content, message):
    refused(f"wiki_00(, |: ){message}", read_extracted, tmp_path, content)


def test_without_its_files_it_says_what_to_do(tmp_path):
    words = "holds no file of wikiextractor, such as AA/wiki_00"
    refused(words, formatted, tmp_path, "wikicorpus_en", "--skip_wikiextractor")


@pytest.mark.parametrize(
    "text,shown",
    [
        ('Cold.&lt;ref name="x"&gt;A book.&lt;/ref&gt; It is.', "Cold. It is."),
        ("Long&lt;br /&gt;ago, H&lt;sub&gt;2&lt;/sub&gt;O.", "Long ago, H2O."),
        ('&lt;templatestyles src="a/b.css" /&gt;After it.', "After it."),
        ("Benzene, &lt;chem&gt;C6H6&lt;/chem&gt;, is there.", "Benzene, is there."),
        ("&lt;math display=block&gt;\na &lt; b\n&lt;/math&gt; One.", "One."),
        ("__NOTOC__ One. __KEIN_INHALTSVERZEICHNIS__", "One."),
        ('&lt;a href="Foo%20%28x%29"&gt;Foo&lt;/a&gt; and <a href="Bar">Bar</a> <abbr>x</abbr>.', "Foo and Bar x."),
        ("It says a &lt; b and &amp;amp; __init__.", "It says a < b and & __init__."),
        ("One.<ref>Lost. Here\nTwo is kept.", "One.  Two is kept."),  # it ends with its line
        ("A &lt;!-- b --&gt; mark, &lt;!--, is shown.\nIt stays.", "A mark, <!--, is shown.  It stays."),
        ("A ( b ) c , d.  It is .", "A ( b ) c , d. It is ."),
        ("They are: \nOne.", "They are:  One."),  # as in JSON lines
        # of versions before 3.0
        ("One.\nSection::::Life.\nBULLET::::- It is kept in here.\nBULLET::::2. A Book.", "One.  It is kept in here."),
    ],
)
def test_tags_are_taken_out_and_nothing_else(text, shown):
    assert wiki.clean_extracted(f"Title\n\n{text}").line == shown
