"""Sentences by rules: what ends one, what does not; and those that the user has given."""

import gzip
import json

import pytest

from bert_tf.prepare.corpora import wikitext, words
from bert_tf.prepare.instances import vocabulary
from bert_tf.prepare.sharding.sentences import split_by_rules
from tests import preparation
from tests.preparation import FORMATTED, SHARDS, token_files
from tests.refusals import refused


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith met Dr. J. R. R. Jones on Jan. 5.", "He left."],
        ["It cost $3.50 in all.", "Nobody paid."],
        ['"Stop!" he cried.', '"Why?"', "She ran."],
        ["(It rained.)", "He stayed (see Fig. 3) at home.", "Then he slept."],
        ["He was happy.”", "“Not me,” she said.", "“I am.”"],
        ["He works for Apple Inc.", "The firm is large."],
        ["The U.S. Army won.", "He lives in the U.S.", "It is large."],
        ["He said no.", "See No. 5 there."],
        ["1. First we go.", "Then we rest."],
        ["They left... and then...", "Gone."],
        ["What?!", "Yes!"],
        ["Taller than I.", "He takes vitamin C.", "It helps."],
        ["E. coli is small.", "It lives."],
        ["the game .", "Robert is an actor ."],
        ["It was founded in 1905.", "5 people came."],
        ["It ended, e.g. in Berlin, i.e. there, etc.", "The rest is known."],
        ["the end of version 2.0 is near"],
        ["Goethe wurde am 28. August 1749 geboren.", "Er starb im 19. Jahrhundert.", "Es waren 12.", "Dann kam er."],
        ["Mehmet 2. Dünya Savaşı'nda doğdu.", "Yıl 1940."],
        ["She was 21.", "In March she left."],
        ["M. Dupont est parti.", "« Oui. »", "Il dit : « Non ! »", "« Oui », dit-il.", "Fin."],
        ["Er sagte: „Ja.“", "Dann ging er.", "»Nein!«", "Sie blieb."],
    ],
)
def test_splits_exactly_there(sentences):
    assert split_by_rules(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "text,sentences",
    [
        ("A Title  The text. More", ["A Title", "The text.", "More"]),  # two spaces end a paragraph
        ("今天天气好。我们走吧！「好的。」", ["今天天气好。", "我们走吧！", "「好的。」"]),
        ("  ", []),
    ],
)
def test_with_two_spaces_or_none(text, sentences):
    assert split_by_rules(text) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Երևանը Հայաստանի մայրաքաղաքն է։", "Այն մեծ է։"],
        ["አዲስ አበባ ዋና ከተማ ናት።", "ትልቅ ናት፧"],
        ["ရန်ကုန်သည် မြို့ဖြစ်သည်။", "ကြီးသည်။"],
        ["ភ្នំពេញ ជារាជធានី។", "វាធំ៕"],
    ],
)
def test_stops_of_other_scripts(sentences):
    """Armenian, Amharic, Burmese, Khmer: with and without spaces; an article of theirs is prose, too."""
    assert split_by_rules(" ".join(sentences)) == split_by_rules("".join(sentences)) == sentences
    assert wikitext.paragraphs_of("\n\n".join(sentences), []) == sentences
    assert all(words.has_sentence(sentence) for sentence in sentences)


# None would come to its end if its time grew with the square of the length.
@pytest.mark.parametrize("token", [".", "?!", "Aa. ", "a.b. ", "“", ". “", "。", "x。 ", "  "])
def test_any_text_takes_linear_time(token):
    text = token * (1_000_000 // len(token)) + "x The end."
    assert split_by_rules(text)[-1].endswith("The end.")


# Nothing in these lines ends a sentence by the rules, or all of it does; Google's format says where sentences end.
GIVEN = [
    ["แม่น้ำสายนี้อยู่ทางเหนือของเมือง", "ชาวบ้านจับปลาทุกวัน ตั้งแต่เช้าจนเย็น"],
    ["the river has a name", "it is e.g. Mr. X. Nobody knows. Or so", "***", "a  b\tc"],
    ["One. Two. Three."],
    ["ถนนสายใหม่"],
]
KEPT = [[" ".join(sentence.split()) for sentence in document] for document in GIVEN]


def as_text(documents) -> str:
    return "\n\n\n".join("\r\n".join(document) for document in documents) + "\n"


def sharded(working_dir) -> list[list[str]]:
    texts = [path.read_text(encoding="utf-8") for path in (working_dir / "sharded/custom").rglob("*.txt")]
    return sorted(document.split("\n") for text in texts for document in text.split("\n\n") if document)


def test_the_users_sentences_are_kept(tmp_path, capsys):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    paths[0].write_text(as_text(GIVEN[:2]), encoding="utf-8")
    paths[1].write_bytes(gzip.compress(as_text(GIVEN[2:]).encode()))
    files = ",".join(map(str, paths))
    preparation.run(tmp_path, "text_formatting", "--input_files", files, "--input_format", "sentences")
    manifest = json.loads((tmp_path / f"{FORMATTED}.manifest.json").read_text())
    assert manifest["arguments"]["input_format"] == "sentences" and manifest["counts"]["num_documents"] == 4
    preparation.run(tmp_path, "sharding", *SHARDS)
    assert sharded(tmp_path) == sorted(KEPT)
    assert json.loads((tmp_path / "sharded/custom/manifest.json").read_text())["counts"]["num_sentences"] == 8
    assert "warning" not in capsys.readouterr().err
    # The marks between sentences are no part of the vocabulary, and join no words.
    texts = vocabulary._sampled_lines([tmp_path / f"{FORMATTED}.txt"], "", 1 << 20)
    assert [text for text in texts if text] == [sentence for document in KEPT for sentence in document]
    preparation.run(tmp_path, "create_vocab", "--vocab_size", 98)
    preparation.run(tmp_path, "create_token_files")
    assert token_files(tmp_path)[1]["counts"]["num_sentences"] == 8


def test_a_separator_in_a_text_file_is_white_space(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{word} two\x1ethree. Four.\x1e"}) + "\n" for word in "ABC"))
    preparation.run(tmp_path, "text_formatting", "--input_files", path)
    preparation.run(tmp_path, "sharding", *SHARDS)
    assert sharded(tmp_path) == [[f"{word} two three.", "Four."] for word in "ABC"]


@pytest.mark.parametrize(
    "sentence,is_warned",
    [("อากาศเย็นมากและมีหมอก", True), ("the net of the town is near the mill", True), ("The mill is old.", False)],
)
def test_text_without_sentence_ends_is_a_warning_while_sharding(tmp_path, capsys, sentence, is_warned):
    texts = [f"{number} " + " ".join([sentence] * 40) for number in range(5)]
    preparation.shard(tmp_path, texts, *SHARDS)
    warnings = [line for line in capsys.readouterr().err.split("\n") if line.startswith("warning: ")]
    assert len(warnings) == is_warned
    assert all("sentence ends" in warning and "--input_format=sentences" in warning for warning in warnings)


@pytest.mark.parametrize("sentences,is_warned", [("The mill is old.", True), ("The mill is old. It stands.", False)])
def test_documents_of_a_single_sentence_are_a_warning_while_sharding(tmp_path, capsys, sentences, is_warned):
    preparation.shard(tmp_path, [f"{number} {sentences}" for number in range(5)], *SHARDS)
    assert ("5 documents have 5 sentences: " in capsys.readouterr().err) == is_warned


def test_a_splitter_has_no_effect_on_given_sentences(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text(as_text(GIVEN), encoding="utf-8")
    preparation.run(tmp_path, "text_formatting", "--input_files", path, "--input_format", "sentences")
    monkeypatch.setattr("bert_tf.prepare.sharding.sentences._nltk_splitter", lambda: str.split)
    words = "^segmentation_method=nltk: has no effect on text that was formatted with"
    refused(words, preparation.run, tmp_path, "sharding", *SHARDS, "--segmentation_method", "nltk")
