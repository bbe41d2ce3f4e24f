"""SQuAD's scores against values worked out by hand from the official rules, and by brute force."""

from __future__ import annotations

import random

import pytest

from bert_tf.tasks.squad import metrics
from bert_tf.tasks.squad.examples import Answer, Example


def example(id_, answers):
    return Example(id_, "?", "c", tuple(Answer(text, 0) for text in answers))


def scores_version_2(examples, predictions):
    """Of predictions whose odds do not matter."""
    return metrics.score_version_2(examples, predictions, dict.fromkeys(predictions, 0.0))


@pytest.mark.parametrize(
    "text, normalized",
    [
        ("The  Normans", "normans"),
        ("a cat, an ape and THE dog.", "cat ape and dog"),
        ("theatre Ana a1", "theatre ana a1"),  # articles only as whole words
        ("the-cat", "thecat"),  # punctuation goes before articles, and leaves no space
        ("U.S.A.", "usa"),
        ("$5.2\tmillion\n", "52 million"),
        ("“a” – ‘the’", "“ ” – ‘ ’"),  # only ASCII punctuation goes
        ("A", ""),
        ("!?", ""),
    ],
)
def test_normalize_answer(text, normalized):
    assert metrics.normalize_answer(text) == normalized


@pytest.mark.parametrize(
    "truths, prediction, exact, f1",
    [
        (["rollo."], "Rollo", 1, 1),
        (["a black cat"], "the black cat sat", 0, 0.8),  # precision 2/3, recall 1
        (["dog"], "dog dog", 0, 2 / 3),  # each word counts as often as it occurs: precision 1/2, recall 1
        (["dog cat"], "cat dog", 0, 1),  # order does not count
        (["London"], "Paris", 0, 0),
        (["London"], "", 0, 0),
        (["in the 10th century", "10th century"], "10th century", 1, 1),  # the best of several
        (["x y", "y z w"], "y z", 0, 0.8),
    ],
)
def test_scores_are_means_over_the_questions(truths, prediction, exact, f1):
    examples, predictions = [example("a", truths), example("b", ["c"])], {"a": prediction, "b": "c"}
    expected = pytest.approx([50 * (exact + 1), 50 * (f1 + 1)])
    assert list(metrics.score(examples, predictions).values()) == expected
    found = scores_version_2([*examples, example("none", [])], {**predictions, "none": ""})
    assert [found["HasAns_exact"], found["HasAns_f1"]] == expected


def test_answers_of_nothing_but_articles_agree_in_version_2_only():
    words = metrics.WORDS
    assert (words.exact_match("the", "a"), metrics.f1("the", "a"), words.f1_version_2("the", "a")) == (1, 0, 1)


def test_version_2_scores_by_hand():
    examples = [example("has1", ["Rollo"]), example("has2", ["King Charles"]), example("no1", []), example("no2", [])]
    predictions = {"has1": "Rollo", "has2": "Charles", "no1": "", "no2": "wrong"}
    result = scores_version_2(examples, predictions)
    expected = dict(total=4, HasAns_total=2, NoAns_total=2, exact_match=50.0, HasAns_exact=50.0, NoAns_exact=50.0)
    expected |= dict(f1=100 * (1 + 2 / 3 + 1) / 4, HasAns_f1=100 * (1 + 2 / 3) / 2, NoAns_f1=50.0)
    assert {name: result[name] for name in result if not name.startswith("best_")} == pytest.approx(expected)


def test_version_2_no_answer_is_right_only_where_there_is_none():
    assert scores_version_2([example("a", ["x"])], {"a": ""})["f1"] == 0
    assert scores_version_2([example("a", [])], {"a": "x"})["f1"] == 0
    assert scores_version_2([example("a", [])], {"a": ""})["f1"] == 100
    # An answer that normalises to nothing does not count as one, but the question has an answer.
    result = scores_version_2([example("a", ["the"])], {"a": ""})
    assert (result["exact_match"], result["HasAns_total"]) == (100, 1)
    assert scores_version_2([example("a", ["the", "x"])], {"a": ""})["exact_match"] == 0


def test_a_threshold_that_nothing_beats_is_0():
    """Predicting no answer everywhere is best where the only question has none."""
    worst = metrics.score_version_2([example("n1", [])], {"n1": "w"}, {"n1": -1.0})
    assert (worst["best_exact"], worst["best_exact_thresh"]) == (100.0, 0.0)


def test_best_threshold_against_trying_every_threshold():
    generator = random.Random(1)
    for _ in range(50):
        examples = [example(str(i), ["x y"] if generator.random() < 0.5 else []) for i in range(20)]
        predictions = {str(i): generator.choice(["x y", "x", "w"]) for i in range(20)}
        odds = {str(i): generator.uniform(-5, 5) for i in range(20)}
        result = metrics.score_version_2(examples, predictions, odds)

        def at(threshold, predictions=predictions, odds=odds, examples=examples):
            chosen = {i: "" if odds[i] > threshold else text for i, text in predictions.items()}
            return scores_version_2(examples, chosen)

        for name, key in (("exact", "exact_match"), ("f1", "f1")):
            everywhere = [at(threshold)[key] for threshold in [-6.0, *odds.values()]]
            assert result[f"best_{name}"] == pytest.approx(max(everywhere))
            if result[f"best_{name}_thresh"]:
                assert at(result[f"best_{name}_thresh"])[key] == pytest.approx(max(everywhere))


@pytest.mark.parametrize(
    "prediction, truth, exact, f1",
    [
        ("北", "北山", 0, 2 / 3),
        ("每天在河", "每天在河邊", 0, 8 / 9),
        ("《北山》。", "北山", 1, 1),
        ("山北", "北山", 0, 1 / 2),  # order counts: a run of one
        ("1997年", "在1997年", 0, 4 / 5),  # a number is one unit
        ("Windows XP系統", "windows xp", 0, 2 / 3),
        ("Mr. A—山", "山", 0, 2 / 5),  # NLTK's words: mr. a —
        ("Co.山", "山", 0, 1 / 2),  # a last point is one of its own
        ("天", "河", 0, 0),
        ("", "河", 0, 0),
    ],
)
def test_characters_count_in_text_without_spaces(prediction, truth, exact, f1):
    examples = [example("a", [truth, "春夏秋冬" * 4])]
    result = metrics.score(examples, {"a": prediction})
    assert result == {"exact_match": 100 * exact, "f1": pytest.approx(100 * f1)}
    result = scores_version_2([*examples, example("none", [])], {"a": prediction, "none": ""})
    found = [result[name] for name in ("HasAns_exact", "HasAns_f1", "NoAns_f1")]
    assert found == pytest.approx([100 * exact, 100 * f1, 100])
    assert "counts characters" in metrics.choose_scoring(examples).note


@pytest.mark.parametrize(
    "answers, characters",
    [(["かわ", "river"], False), (["かわのみず", "แม่น้ำ"], True), (["강은 북쪽에"], False), ([], False)],
)
def test_the_answers_script_says_what_is_counted(answers, characters):
    assert bool(metrics.choose_scoring([example("a", answers)]).note) == characters
