"""Wikipedias of any language: their names, and the namespaces that their dumps list."""

import bz2

import pytest

from bert_tf.prepare.corpora import registry, wiki
from bert_tf.prepare.corpora.documents import Dropped
from bert_tf.prepare.fetching.sources import source_of, wikipedia_of
from tests import preparation
from tests.prepare.reading import formatted
from tests.prepare.test_wiki import page
from tests.refusals import refused

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


def dump_of(code: str, *pages: str) -> bytes:
    names = "".join(f'<namespace key="{key}" case="x">{name}</namespace>' for key, name in NAMESPACES[code].items())
    head = f"<siteinfo><sitename>W</sitename><namespaces>{names}</namespaces></siteinfo>"
    root = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="{code}">'
    return f"{root}{head}{''.join(pages)}</mediawiki>".encode()


def article_of(code: str) -> str:
    names, text = NAMESPACES[code], ARTICLE.replace(" file ", f" {NAMESPACES[code][6].lower()} ")
    for key, word in ((-2, "MEDIA"), (4, "PROJECT"), (6, "FILE"), (10, "TEMPLATE"), (14, "CATEGORY")):
        text = text.replace(word, names[key])
    return text


@pytest.mark.parametrize("code", NAMESPACES)
def test_pictures_categories_and_templates_by_the_names_in_the_dump(tmp_path, code, capsys):
    wiki_name = code.replace("-", "_") + "wiki"
    content = dump_of(code, page("Ronaz", article_of(code)), page("B", "Second one.", ns="<ns>14</ns>"))
    path = tmp_path / f"download/wikicorpus_{code}/{wiki_name}-20240101-pages-articles.xml.bz2"
    preparation.write(path, bz2.compress(content))
    assert formatted(tmp_path, f"wikicorpus_{code}")[0] == [SHOWN]
    preparation.run(tmp_path, "sharding", "--n_training_shards", 1, *NO_TEST, dataset=f"wikicorpus_{code}")
    # Without a dataset, all are found.
    capsys.readouterr()
    for action in ("status", "verify"):
        options = preparation.bertPrep.parse(["--action", action])
        preparation.bertPrep.ACTIONS[action](options, preparation.Layout(tmp_path))
        assert f"wikicorpus_{code}" in capsys.readouterr().out
    google = "download/google_pretrained_weights/uncased_L-24_H-1024_A-16/vocab.txt"
    preparation.write(tmp_path / google, "[PAD]\n")
    make_tokens = (preparation.run, tmp_path, "create_token_files")
    refused("--action=create_vocab --dataset=wikicorpus_", *make_tokens, dataset=f"wikicorpus_{code}")


NO_TEST = ("--n_test_shards", 0, "--fraction_test_set", 0)


def test_a_picture_is_known_by_its_name_too(tmp_path):
    path = tmp_path / "dewiki.xml"
    path.write_bytes(dump_of("de"))
    text = "[[Bild:Blick von Süden.JPG|mini|Ein Blick. Er ist weit.]] Ein Ort. [[:Bild:Blick.jpg|Das Bild]] ist alt."
    found = wiki.clean(page("A", text).encode(), namespaces=wiki.read_namespaces(path))
    assert found.line == "Ein Ort. Das Bild ist alt."


def test_a_dump_that_lists_no_namespaces_says_so(tmp_path, capsys):
    path = tmp_path / "a.xml"
    path.write_text("<mediawiki>" + page("A", "[[File:a.jpg]] One. [[Datei:x|y]]") + "</mediawiki>")
    assert wiki.read_namespaces(path) == wiki.KNOWN_NAMESPACES
    assert f"note: {path} lists no namespaces" in capsys.readouterr().out


def test_the_wiki_of_a_language():
    for name, wiki_name in (("de", "dewiki"), ("zh-min-nan", "zh_min_nanwiki"), ("be-x-old", "be_x_oldwiki")):
        dataset = f"wikicorpus_{name}"
        assert wikipedia_of(dataset) == wiki_name
        assert source_of(dataset).url == f"https://dumps.wikimedia.org/{wiki_name}/"
        assert registry.corpora_of(dataset) == (dataset,)


def test_what_is_no_code_is_refused():
    for dataset in ("wikicorpus_", "wikicorpus_d", "wikicorpus_zh_min_nan", "wikicorpus_de2", "wiki_de"):
        arguments = ["--action", "sharding", "--dataset", dataset]
        message = rf"^--dataset={dataset}: must be one of .*, wikicorpus_<code>, all"
        refused(message, preparation.bertPrep.parse, arguments)


def test_the_main_slot_is_the_article():
    slot = "<content><role>mediainfo</role><model>wikibase-mediainfo</model><text>{}. No.</text></content>"
    two_slots = page("A", "The main slot. It is prose.").replace("</revision>", f"<sha1>x</sha1>{slot}</revision>")
    assert wiki.clean(two_slots.encode()).line == "The main slot. It is prose."
    empty = page("A", "").replace("</revision>", f"{slot}</revision>")
    assert wiki.clean(empty.encode()).line == ""
    style = page("S", ".a { color: red; } A style.").replace("<text", "<model>sanitized-css</model><text")
    assert wiki.clean(style.encode()) == Dropped("other_models")
