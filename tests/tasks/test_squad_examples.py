"""SQuAD's JSON: what is read from it, and how each mistake in it is named."""

from __future__ import annotations

import json

import pytest

from bert_tf.base.fields import UnreadFields
from bert_tf.tasks.squad.examples import Answer, answer_range, read_examples, sound_answers
from tests.refusals import refused


def read(tmp_path, qas, context="Rollo led  the Norse.", **options):
    """The questions of a file with one paragraph."""
    content = json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]})
    return read_text(tmp_path, content, **options)


def read_text(tmp_path, text, **options):
    (tmp_path / "squad.json").write_text(text)
    return read_examples(tmp_path / "squad.json", **options)


def question(id_="q", text="Who?", answers=(("Rollo", 0),), **more):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": text, **more, "answers": answers}


def with_answers(tmp_path, context, answers):
    """A question for each of the answers."""
    return read(tmp_path, [question(str(number), answers=(each,)) for number, each in enumerate(answers)], context)


def test_reads_questions_in_order_and_shares_the_paragraph(tmp_path):
    qas = [question(7), question("b", answers=(("Norse", 15), ("the Norse", 11)))]
    first, second = read(tmp_path, qas)
    assert (first.question_id, first.question, first.answers) == ("7", "Who?", (Answer("Rollo", 0),))
    assert second.answers == (Answer("Norse", 15), Answer("the Norse", 11))
    assert first.context is second.context
    assert (answer_range(first), answer_range(second)) == ((0, 5), (15, 20)), "the first answer counts"
    with_mark = "\ufeff" + (tmp_path / "squad.json").read_text()
    assert len(read_text(tmp_path, with_mark)) == 2


def test_questions_without_an_answer_are_of_version_2(tmp_path):
    """As the official scores count it: by the answers, whether or not the file has is_impossible."""
    plausible = [{"text": "Rollo", "answer_start": 0}]
    nones = [
        question("i", answers=(), is_impossible=True, plausible_answers=plausible),
        question("i", answers=()),
        question("i", answers=(("", -1),), is_impossible=True),  # as annotation tools and converters write it
    ]
    message = "'i' has no answer; pass --version_2_with_negative .* predicted has no field 'answers'"
    for none in nones:
        qas = [question("a", is_impossible=False), none]
        refused(message, read, tmp_path, qas)
        examples = read(tmp_path, qas, version_2_with_negative=True)
        assert [example.is_impossible for example in examples] == [False, True]
        assert sound_answers(examples, "train.json") == (examples, "")


@pytest.mark.parametrize(
    "answer, message",
    [
        (("Rolf", 0), "has the answer 'Rolf' at 0, where the context has 'Roll'"),
        (("Norse", 10**50), "has the answer 'Norse' at 10+, where the context has ''"),
        (("Rollo", -1), "has the answer 'Rollo' at -1"),
        (("N\u00f4rd", 24), "has the answer 'N\u00f4rd' in another Unicode form .NFC, NFD. than the context; bring"),
        (("  ", 9), "has the answer '  ' at 9"),
        (("\u200b\x01", 21), "has the answer .*, of which the tokenizer leaves nothing"),
    ],
)
def test_wrong_answers_are_left_out_and_named_up_to_half_of_a_file(tmp_path, answer, message):
    qas = [question("q0"), question("w", answers=(answer,)), question("q1"), question("e", text=" ")]
    examples = read(tmp_path, qas, "Rollo led  the Norse.\u200b\x01 No\u0302rd.")
    sound, note = sound_answers(examples, "train.json")
    assert [example.question_id for example in sound] == ["q0", "q1"]
    assert note.startswith("train.json: 2 question(s) left out: 'w' ") and note.endswith("; 'e' is empty")
    several = f"'w' {message}.*, more than half .*; correct the file; answer_start counts"
    refused(f"^train.json: 2 question.s. left out: {several}", sound_answers, examples[1:], "train.json")


@pytest.mark.parametrize(
    "text, start, found",
    [
        ("led", 6, (6, 9)),
        ("led the", 6, (6, 14)),  # white space may differ
        ("led", 5, (6, 9)),  # stands behind white space
        ("ed", 6, (7, 9)),  # inside the word at answer_start
        ("Rollo", 3, (0, 5)),
        ("the Norse", 8, (11, 20)),
        ("Norse", 13, (15, 20)),
        ("Norse", 8, None),  # the words of characters 8 to 12 are "led the"
        ("ana", 27, (26, 29)),  # of occurrences that overlap the one nearest to answer_start
        ("led", 60, None),
        ("led", -1, None),
        ("", 6, None),
        # U+202F splits words, other Unicode spaces do not; a character of white space belongs to the word before.
        ("b", 33, (31, 32)),
        ("b", 35, None),
        ("c", 34, (33, 34)),
    ],
)
def test_answers_are_found_as_googles_reader_finds_them(tmp_path, text, start, found):
    context = "Rollo led  the Norse an anana. b\u00a0c\u202fd c"
    [example] = read(tmp_path, [question(answers=((text, start),))], context)
    assert answer_range(example) == found


@pytest.mark.parametrize("unit, width", [("utf-32-le", 4), ("utf-16-le", 2), ("utf-8", 1)])
def test_places_that_are_counted_in_code_units(tmp_path, unit, width):
    """Each text occurs more than once, so that the unit decides which occurrence is meant."""
    context = "\U0001f600\U0001f600哈哈哈哈哈是大大大的笑声"
    places = [("哈哈", 3), ("哈", 2), ("大", 9), ("\U0001f600", 1)]
    answers = [(text, len(context[:place].encode(unit)) // width) for text, place in places]
    examples = with_answers(tmp_path, context, [*answers, ("无", 3), ("大", -1)])
    if width < 4:
        name = {2: "UTF-16 code units", 1: "bytes of UTF-8"}[width]
        message = f"train.json: 6 question.s. .* has an answer_start in {name}, of which .*; answer_start counts "
        refused(message, sound_answers, examples, "train.json")
        return
    sound, note = sound_answers(examples, "train.json")
    assert [answer_range(example) for example in sound] == [(at, at + len(text)) for text, at in places]
    assert note.startswith("train.json: 2 question(s) left out: ")


def test_few_answers_that_depend_on_the_unit_are_left_out(tmp_path):
    """As in CMRC 2018: the file counts UTF-16 code units, and a few contexts hold a character of two."""
    answers = [("河", 0), ("山", 2), ("前", 3), ("山", 8), ("河", 11)]  # the last two by code units
    sound, note = sound_answers(with_answers(tmp_path, "河在山前。\U0001f600山山山在河前。", answers), "train.json")
    assert [answer_range(example) for example in sound] == [(0, 1), (2, 3), (3, 4)]
    assert note.startswith("train.json: 2 question(s) left out: '3' has an answer_start in")


def test_one_answer_does_not_decide_about_the_unit(tmp_path):
    """All are one character too far, of which one would be right in bytes."""
    context, answers = "The café by the old mill stands by the river.", [("The", 1), ("café", 5), ("stands", 26)]
    sound, note = sound_answers(with_answers(tmp_path, context, answers), "train.json")
    assert note == "" and [answer_range(example) for example in sound] == [(0, 3), (4, 8), (25, 31)]


def one(fields, paragraph='"context": "c"'):
    """A file with one question."""
    return f'{{"data": [{{"paragraphs": [{{{paragraph}, "qas": [{{"question": "?", {fields}}}]}}]}}]}}'


ID = '"id": "q"'
ANSWER = '{"text": "c", "answer_start": 0}'
ROW = {"id": "q", "title": "t", "context": "c", "question": "?", "answers": {"text": [], "answer_start": []}}
NO_ROWS = "how to convert rows with a question each, as Hugging Face's"


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"data": [', "is not valid JSON"),
        ("[]", "holds no JSON object"),
        ('{"data": [], "data": []}', "the field 'data' occurs twice in an object"),
        ("{}", "the field 'data' must be a list, not None; SQuAD's format is"),
        ('{"data": 3}', "the field 'data' must be a list, not 3"),
        ('{"data": []}', "holds no question"),
        ('{"data": [{"title": "t"}]}', r"data\[0\]: the field 'paragraphs' must be a list"),
        (one(ID, '"context": " "'), "'context' is empty"),
        (one('"x": 0'), r"paragraphs\[0\].qas\[0\]: the field 'id' must be a text or a whole number"),
        (one(f'{ID}}}, {{"question": "?", {ID}'), r"qas\[1\]: id 'q' is already used at .*qas\[0\]"),
        (one(f'{ID}, "answers": [{{"text": "c"}}]'), r"qas\[0\].answers\[0\]: the field 'answer_start' must be"),
        (one(f'{ID}, "answers": [{{"text": "c", "answer_start": "0"}}]'), "must be a whole number, not '0'"),
        (one(f'{ID}, "answers": [{{"text": "c", "answer_start": false}}]'), "must be a whole number, not False"),
        (one(f'{ID}, "is_impossible": true, "answers": [{ANSWER}]'), "is_impossible is True, but it has 1 answers"),
        (one(f'{ID}, "is_impossible": false, "answers": []'), "is_impossible is False, but it has 0 answers"),
        (json.dumps({"data": [ROW]}), NO_ROWS),
        (json.dumps([ROW]), NO_ROWS),
        (f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n", NO_ROWS),
    ],
)
def test_mistakes_in_the_file_are_named_with_their_place(tmp_path, text, message):
    refused(f"squad.json.*{message}", read_text, tmp_path, text, version_2_with_negative=True)


def test_text_under_other_names_than_squads_is_counted(tmp_path):
    unread = UnreadFields()
    plausible = dict(is_impossible=False, plausible_answers=[{"text": "Norse", "answer_start": 0}])
    told = {"text": "Norse", "answer_start": 0, "why": "it says so"}
    others = question("b", passage="More text.", page="7"), dict(question("c"), answers=[told])
    read(tmp_path, [question("a", **plausible), *others], unread=unread)
    assert unread.describe() == "fields with text that are not read: 'passage' (1), 'why' (1)"
