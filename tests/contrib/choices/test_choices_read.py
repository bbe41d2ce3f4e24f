"""Files of questions with choices: the forms, what is left out, and what is refused with its line."""

import numpy as np
import pytest

from bert_tf.contrib.choices.read import read_questions
from bert_tf.contrib.choices.rows import make_choice_rows
from bert_tf.tasks.rows import make_text_rows
from bert_tf.text.wordpiece import FullTokenizer
from tests.choice_data import json_lines, make_questions, swag, write_model
from tests.preparation import write
from tests.refusals import refused

SWAG = list(make_questions(1, 3))
EXPECTED = [(context, [f"{start} {choice}" for choice in choices], label) for context, start, choices, label in SWAG]


def read(tmp_path, given, name="train.jsonl", **options):
    """What is read of a text, or of objects in JSON lines, and what is said of it."""
    text = given if isinstance(given, str) else json_lines(*given)
    return read_questions(write(tmp_path / name, text), **{"needs_labels": True, **options})


def content(*arguments, **options):
    return [tuple(question) for question in read(*arguments, **options)[0]]


@pytest.mark.parametrize("change", [str, lambda text: text.replace("\r\n", "\n"), lambda text: "\ufeff" + text])
def test_swags_csv(tmp_path, change):
    assert content(tmp_path, change(swag(SWAG)), "train.csv") == EXPECTED
    assert content(tmp_path, change(swag(SWAG)), "train.csv", limit=1) == EXPECTED[:1]
    questions, note = read(tmp_path, change(swag(SWAG, with_labels=False)), "test.csv", needs_labels=False)
    assert {question.label for question in questions} == {None}
    assert "test.csv: fields with text that are not read: 'video-id' (3), " in note
    assert "test.csv: 3 questions with 4" in note


def test_swags_full_files_have_the_right_one_first(tmp_path):
    text = "video-id,startphrase,gold-ending,distractor-0,distractor-1,distractor-2,distractor-3,sent1,sent2\n"
    text += 'a,b,gold,"d, 0",d1,d2,d3,first,second\nb,c,gold,d0,d1,d2,,first,second\n'
    second = ("first", ["second gold", "second d0", "second d1", "second d2"], 0)
    assert content(tmp_path, text, "train_full.csv")[1:] == [second]


LABELLED = [dict(label="1", text="c"), dict(label="2", text="d")]
FORMS = [
    (dict(sent1="a", sent2="b", ending0="c", ending1="d", ending2="e", ending3="f", label=3), "a", "bc bd be bf", 3),
    (dict(context="a", endings=["c", "d"], label="1"), "a", "c d", 1),
    (dict(ctx="x", ctx_a="a", ctx_b="b", endings=["c", "d", "e"], label="0"), "a", "bc bd be", 0),  # HellaSwag
    (dict(ctx_a="a", ctx_b="", endings=["c", "d"], label=1), "a", "c d", 1),
    (dict(article="a", question="b", options=["c", "d", "e", "f", "g"], answer="E"), "a", "bc bd be bf bg", 4),  # RACE
    (dict(context="a", question="b", answer0="c", answer1="d", label=0), "a", "bc bd", 0),  # CosmosQA
    (dict(question="a", choices=["c", "d"], answer=1, subject="x"), "a", "c d", 1),  # MMLU
    (dict(question="a", choices=LABELLED, answerKey="2"), "a", "c d", 1),
    (dict(question="a", choices=dict(text=["c", "d"], label=["A", "B"]), answerKey="B"), "a", "c d", 1),
    (dict(question_stem="a", choices=dict(text=["c", "d"], label=["A", "B"]), answerKey="A"), "a", "c d", 0),
]


@pytest.mark.parametrize("fields, context, choices, label", FORMS)
def test_fields_of_published_data_sets(tmp_path, fields, context, choices, label):
    assert content(tmp_path, [fields]) == [(context, [" ".join(choice) for choice in choices.split()], label)]


@pytest.mark.parametrize("name", ["text", "passage", "article", "paragraph", "story"])
def test_a_passage_is_the_context_whatever_its_usual_name(tmp_path, name):
    fields = {"id": 0, "answer": 1, name: "a", "question": "b", "options": ["c", "d"], "type": {"A": True}}
    questions, note = read(tmp_path, [fields])
    assert questions == [("a", ["b c", "b d"], 1)] and "not read" not in note


def test_no_text_is_passed_over_in_silence(tmp_path):
    """What stands under names that nobody knows is named, in the choices too."""
    choices = [dict(text="c", label="A", why="e"), dict(text="d", label="B", why="2")]
    fields = dict(background="f", question="a", choices=choices, answerKey="A", notes=["3", {"by": "g"}], size="4")
    questions, note = read(tmp_path, [fields, dict(fields, notes=None)])
    assert questions == [("a", ["c", "d"], 0)] * 2
    assert "not read: 'why' (2), 'background' (2), 'notes' (1)" in note


def test_a_question_that_is_a_number_is_a_text(tmp_path):
    assert content(tmp_path, [dict(GOOD, question=0)]) == [("a", ["0 c", "0 d", "0 e"], 2)]


@pytest.mark.parametrize("label", [-1, "", None])
def test_labels_that_are_not_published(tmp_path, label):
    questions = [dict(context="a", endings=["c", "d"], label=label)]
    assert content(tmp_path, questions, needs_labels=False) == [("a", ["c", "d"], None)]
    said = "l, line 1: the right choice is missing; training and .* need it; name .*--fields"
    refused(said, read, tmp_path, questions)


COPA = dict(premise="a", choice1="c", choice2="d", question="b", label=1)
GOOD = dict(context="a", endings=["c", "d", "e"], label=2)


def named(labels, answer="A"):
    return dict(question="a", choices=dict(text=["c", "d"], label=labels), answerKey=answer)


LETTERED = [dict(label=n, text=n) for n in "ABC"]
FULL = {"context": "a", "gold-ending": "b", **{f"distractor-{n}": "c" for n in range(3)}, "label": 1}
FAULTS = [
    (dict(GOOD, endings=["c", "d"], label=0), "2 choices, but 3 in the questions before"),
    (dict(GOOD, label=3), "the right choice is 3, but the choices are 0, 1, 2, A, B, C; name"),
    (dict(GOOD, label=["A"]), r"the right choice is \['A'\], but"),
    (dict(GOOD, endings=["c"]), "the context is 'a', and there are 1 choices; the fields are 'context', .*--fields"),
    (dict(GOOD, endings=["c", "d", " "]), r"one of the choices is empty: \['c', 'd', ' '\]"),
    (dict(GOOD, endings=["c", ["d"], "e"]), r"a text is \[.d.\], or missing; it must be a text or a number"),
    (dict(GOOD, endings="cde"), "the choices are 'cde': must be a list of texts"),
    (dict(GOOD, endings=dict(text=["c", "d"], label="AB")), r"a text is \[.c., .d.\], or missing"),
    (COPA, "the context is 'b', and there are 0 choices; the fields are 'premise', 'choice1'"),
    # More than one field for one thing, with other content in each.
    (dict(GOOD, answer=1), "'label' is 2 and 'answer' is 1, but only one can be read; name .*--fields"),
    (dict(GOOD, passage="b" * 500), "'context' is 'a' and 'passage' is 'b{199}[.]{3}, but only one"),
    (dict(GOOD, options=["f", "g", "h"]), "'endings' is .* and 'options' is .*, but only one"),
    (dict(GOOD, ending0="f", ending1="g"), "'endings' is .* and 'ending0, ...' is .'f', 'g'., but only one"),
    (dict(context="a", ending0="f", ending1="g", answer0="h", answer1="i"), "'ending0, .*'answer0, ...' is .*only one"),
    (FULL, "'label' is 1 and 'number of gold-ending' is 0, but only"),
    # Numbers and labels that do not fit together.
    (dict(context="a", ending0="f", ending2="g", label=0), "the choices are ending0, ending2: they must count from 0"),
    (named(["A"]), "2 choices have the labels A: each must have its own"),
    (named(["A", "A"]), "2 choices have the labels A, A: each must"),
    (named(["", "A"]), "a choice's label is ''"),
    (named(["\ud800", "A"]), "a choice's label is .*half of a UTF-16 pair"),
    (dict(question="a", choices=[dict(text="c"), LABELLED[0]], answerKey="A"), "a choice's label is null"),
    (dict(question="a", choices=LETTERED, answerKey="E"), "the right choice is 'E', .* are A, B, C;"),
    # The publishers' own files of RACE, and of ARC and CommonsenseQA.
    (dict(article="a", questions=["q"], options=[["c"]], answers=["A"]), ".* are in a list 'questions' .RACE."),
    (dict(question=dict(stem="a", choices=LETTERED)), ".* an object 'question' .*docs/fine_tuning.md says"),
    ({}, "no fields"),
]


def test_numbered_choices_count_by_their_numbers(tmp_path):
    """Wherever they stand, eleven too; one that is null is not there, and the same twice is no contradiction."""
    many = {f"ending{n}": f"e{n}" for n in (1, 10, 0, *range(2, 10))}
    question = dict(context="a", **many, ending11=None, label=10, answer="10")
    assert content(tmp_path, [question]) == [("a", [f"e{n}" for n in range(11)], 10)]
    rows = "sent1,sent2,ending1,ending0,label\na,b,one,zero,1\n"
    assert content(tmp_path, rows, "train.csv") == [("a", ["b zero", "b one"], 1)]
    rows = rows.replace("ending1", "ending0")
    refused("twice.csv, line 1: the column 'ending0' occurs twice", read, tmp_path, rows, "twice.csv")


BC = ["b c", "b d"]
SOCIAL_IQA = dict(context="a", question="b", answerA="c", answerB="d", answerC="e", label="3")  # which counts from 1
MEDQA = dict(question="a", answer="d", options=dict(A="c", B="d"), answer_idx="B")
ENDINGS = dict(context="a", endings=["c", "d"], label=0)
NAMED = [
    ("context=premise,0=choice1,1=choice2", COPA, ("a", BC, 1)),
    ("1=answerA,2=answerB,3=answerC", SOCIAL_IQA, ("a", [*BC, "b e"], 2)),
    ("1=answerA,2=answerB,3=answerC", {**SOCIAL_IQA, "label": "1\n"}, ("a", [*BC, "b e"], 0)),
    ("label=answer_idx", MEDQA, ("a", ["c", "d"], 1)),
    ("choices=answers", dict(context="a", question="b", answers=["c", "d"], label=0), ("a", BC, 0)),
    ("label=answer", dict(ENDINGS, answer="B"), ("a", ["c", "d"], 1)),
    ("choices=endings,start=ending0", dict(ENDINGS, ending0="b"), ("a", BC, 0)),
    ("context=question", dict(question="a", endings=["c", "d"], label=0), ("a", ["c", "d"], 0)),
]


@pytest.mark.parametrize("option, fields, question", NAMED)
def test_fields_are_what_the_option_says(tmp_path, option, fields, question):
    assert content(tmp_path, [fields], fields=option) == [question]
    lacking = {name: value for name, value in fields.items() if f"={name}" not in option}
    said = "line 1: (no field '.*', which --fields names; the fields are|the right choice is missing)"
    refused(said, read, tmp_path, [lacking], fields=option)


@pytest.mark.parametrize("option", "x =a a= label=a,label=b 0=a 0=a,1=a choices=a,0=b,1=c label=a,".split())
def test_what_the_option_cannot_say(tmp_path, option):
    message = f"--fields={option}: must be context, start, choices, label, or for choices"
    refused(message, read, tmp_path, [GOOD], fields=option)


@pytest.mark.parametrize("fields, message", FAULTS)
def test_a_question_with_a_fault_is_named_or_left_out(tmp_path, fields, message):
    given = [GOOD, GOOD, fields, GOOD]
    refused(f"train.jsonl, line 3: {message}", read, tmp_path, given)
    questions, note = read(tmp_path, given, max_bad_records=1)
    assert len(questions) == 3 and "train.jsonl: 1 question(s) left out: line 3: " in note


def test_other_faults_of_files(tmp_path):
    refused("no field.*not as many as in the header", read, tmp_path, swag(SWAG) + "1,2,3\n", "a.csv")
    refused("its name says nothing about its form; name a .csv", read, tmp_path, "a", "train.txt")
    refused("holds no question that can be used", read, tmp_path, swag([]), "b.csv")
    refused("does not exist; name a .csv", read_questions, tmp_path / "none.csv", needs_labels=True)


@pytest.mark.parametrize("max_seq_length", [6, 30])
def test_rows_are_pairs_of_context_and_choice(tmp_path, max_seq_length):
    """Of a question's choices in their order, each as `make_text_rows` makes them."""
    tokenizer = FullTokenizer(write_model(tmp_path) / "vocab.txt", True)
    rows = make_choice_rows(read(tmp_path, swag(SWAG), "train.csv")[0], tokenizer, max_seq_length)
    batch = rows.batch(np.array([[2, 0], [1, 1]]))
    assert batch["input_ids"].shape == (2, 2, 4, max_seq_length)
    assert batch["labels"].tolist() == [[SWAG[2][3], SWAG[0][3]], [SWAG[1][3]] * 2]
    for number, place in ((2, (0, 0)), (0, (0, 1)), (1, (1, 0))):
        context, choices, _ = EXPECTED[number]
        pairs = make_text_rows(([context] * 4, choices), None, tokenizer, max_seq_length)
        for name, values in pairs.batch(np.arange(4)).items():
            np.testing.assert_array_equal(batch[name][place], values)
        assert rows.num_tokens[number] == pairs.num_tokens.max()
