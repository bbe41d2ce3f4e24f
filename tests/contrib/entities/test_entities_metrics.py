"""Schemes of labels, the entities that they mark, and scores, beside those of seqeval (golden/seqeval.json)."""

import json
import math
from pathlib import Path

import pytest

from bert_tf.contrib.entities.labels import describe_counts, find_scheme, read_entities, read_strictly, score

CASES = json.loads((Path(__file__).parents[2] / "golden/seqeval.json").read_text())


def as_seqeval(entities):
    return [[kind or "_", start, end] for kind, start, end in entities]


@pytest.mark.parametrize("case", CASES, ids=[f"{case['scheme']}{number}" for number, case in enumerate(CASES)])
def test_entities_and_scores_are_seqevals(case):
    name, true, predicted = case["scheme"], case["true"], case["predicted"]
    assert [as_seqeval(read_entities(labels)) for labels in true] == case["entities"]
    assert [as_seqeval(read_strictly(labels, name)) for labels in true] == case["strict_entities"]
    scores = score(true, predicted, name)
    assert scores["accuracy"] == pytest.approx(case["accuracy"])
    for mode, expected in (("", case["scores"]), ("strict_", case["strict_scores"])):
        for kind, values in expected.items():
            prefix = mode if kind == "_" else f"{mode}{kind}_"
            assert [scores[f"{prefix}{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(values)


@pytest.mark.parametrize(
    "labels, name, num_broken",
    [
        ("B-X I-X O B-X B-X", "IOB2", 0),
        ("I-X I-X B-X O I-Y I-X", "IOB1", 0),
        ("I-X I-X O I-Y", "IOB1", 0),  # IO: without neighbours of one type
        ("B-X E-X O S-X", "IOBES", 0),
        ("B-X I-X L-X U-Y", "BILOU", 0),
        ("O O", "IOB2", 0),
        ("B I O B", "IOB2", 0),
        ("B-X I-X O B-X O I-X", "IOB2", 1),
        ("S-X B-X O E-X", "IOBES", 2),
    ],
)
def test_the_scheme_is_found_by_content(labels, name, num_broken):
    scheme = find_scheme([labels.split()])
    assert (scheme.name, scheme.num_broken) == (name, num_broken)


def test_what_fits_two_schemes_is_taken_for_the_expected_one():
    assert find_scheme([["O"]], "BILOU").name == "BILOU"
    assert find_scheme([["B-X", "I-X"]], "IOB1").name == "IOB2"


def test_the_counts_are_in_conllevals_words():
    true, predicted = ["B-A I-A O B-B".split()], ["B-A I-A O B-A".split()]
    expected = "processed 4 tokens with 2 phrases; found: 2 phrases; correct: 1."
    assert describe_counts(true, predicted) == expected


def test_scores_of_single_tokens():
    scores = score([["A", "B", "B", "B"]], [["A", "B", "A", "_"]], None)
    assert scores == pytest.approx({"accuracy": 1 / 2, "A_f1": 2 / 3, "B_f1": 1 / 2})


def test_nothing_true_and_nothing_predicted_scores_0():
    scores = score([["O", "O"]], [["O", "O"]], "IOB2")
    assert (scores["accuracy"], scores["f1"], scores["precision"]) == (1, 0, 0)
    assert not any(map(math.isnan, scores.values()))
    of_no_type = score([["B", "O"]], [["B", "O"]], "IOB2")
    assert len(of_no_type) == 7 and of_no_type["f1"] == of_no_type["strict_f1"] == 1
