"""Sentences by rules: what ends one, what does not."""

import pytest

from bert_tf.prepare.corpora import documents, wikitext
from bert_tf.prepare.sharding.sentences import split_by_rules


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
    ],
)
def test_splits_exactly_there(sentences):
    assert split_by_rules(" ".join(sentences)) == sentences


def test_two_spaces_end_a_paragraph():
    assert split_by_rules("A Title  The text. More") == ["A Title", "The text.", "More"]


def test_stops_of_scripts_without_spaces():
    assert split_by_rules("今天天气好。我们走吧！「好的。」") == ["今天天气好。", "我们走吧！", "「好的。」"]


def test_no_character_is_lost():
    text = "A. b! C? (D.) “E.” F... 1. G i.e. H  J  . K"
    assert "".join(split_by_rules(text)).replace(" ", "") == text.replace(" ", "")
    assert split_by_rules("  ") == []


# None would come to its end if its time grew with the square of the length.
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
    assert all(documents.has_sentence(sentence) for sentence in sentences)


@pytest.mark.parametrize("token", [".", "?!", "Aa. ", "a.b. ", "“", ". “", "。", "x。 ", "  "])
def test_any_text_takes_linear_time(token):
    text = token * (1_000_000 // len(token)) + "x The end."
    assert split_by_rules(text)[-1].endswith("The end.")
