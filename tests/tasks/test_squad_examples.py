"""SQuAD's JSON: what is read from it, and how each mistake in it is named."""

from __future__ import annotations

import json

import pytest

from bert_tf.base.errors import UserError
from bert_tf.tasks.squad.examples import (
    Answer,
    Paragraph,
    answer_range,
    describe_empty_questions,
    read_examples,
    sound_answers,
)

ONE_QUESTION = '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "q", "question": "?", %s}]}]}]}'


def squad_file(tmp_path, qas, context="Rollo led  the Norse.", name="squad.json"):
    path = tmp_path / name
    path.write_text(
        json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]})
    )
    return path


def question(id_="q", text="Who?", answers=(("Rollo", 0),), **more):
    return {
        "id": id_,
        "question": text,
        **more,
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
    }


def test_reads_questions_in_order_and_shares_the_paragraph(tmp_path):
    path = squad_file(tmp_path, [question("a"), question("b", answers=(("Norse", 15), ("the Norse", 11)))])
    first, second = read_examples(path)
    assert (first.question_id, first.question, first.answers) == ("a", "Who?", (Answer("Rollo", 0),))
    assert second.answers == (Answer("Norse", 15), Answer("the Norse", 11))
    assert first.paragraph is second.paragraph
    assert first.paragraph.words == ["Rollo", "led", "the", "Norse."]
    assert answer_range(first) == (0, 5)
    assert answer_range(second) == (15, 20)  # the first answer counts


def test_words_split_at_googles_white_space_only():
    # U+202F splits, other Unicode spaces do not; a character of white space belongs to the word before.
    paragraph = Paragraph(" a\u202fb\u00a0c\u3000d\te")
    assert paragraph.words == ["a", "b\u00a0c\u3000d", "e"]
    assert [paragraph.word_at(i) for i in range(len(paragraph.context))] == [0, 0, 0, 1, 1, 1, 1, 1, 1, 2]


def test_version_2_unanswerable_questions(tmp_path):
    impossible = {
        "id": "i",
        "question": "Why?",
        "is_impossible": True,
        "answers": [],
        "plausible_answers": [{"text": "Rollo", "answer_start": 0}],
    }
    path = squad_file(tmp_path, [question("a", is_impossible=False), impossible])
    with pytest.raises(UserError, match="'i' has no answer; pass --version_2_with_negative"):
        read_examples(path)
    answerable, unanswerable = read_examples(path, version_2_with_negative=True)
    assert not answerable.is_impossible and unanswerable.is_impossible
    assert sound_answers([answerable, unanswerable], path) == ([answerable, unanswerable], "")


def test_a_file_without_answers_can_be_read_but_not_trained_on(tmp_path):
    path = squad_file(tmp_path, [{"id": 7, "question": "Who?"}])
    examples = read_examples(path)
    assert (examples[0].question_id, examples[0].answers, examples[0].is_impossible) == ("7", None, False)
    with pytest.raises(UserError, match="squad.json: question '7' has no field 'answers'"):
        sound_answers(examples, path)


@pytest.mark.parametrize(
    "answer, message",
    [
        (
            ("Rolf", 0),
            "has the answer 'Rolf' at 0, where the context has 'Roll'; answer_start counts characters from 0",
        ),
        (("Norse", 10**50), "has the answer 'Norse' at 10+, where the context has ''"),
        (("Rollo", -1), "has the answer 'Rollo' at -1"),
        (("  ", 9), "has the answer '  ' at 9"),
    ],
)
def test_an_answer_must_stand_at_its_place(tmp_path, answer, message):
    examples = read_examples(squad_file(tmp_path, [question(answers=(answer,))]))
    with pytest.raises(UserError, match=f"^train.json: 1 of 1 questions are .*: question 'q' {message}"):
        sound_answers(examples, "train.json")


def test_wrong_answers_are_left_out_up_to_half_of_a_file(tmp_path):
    wrong, right = question("w", answers=(("Rolf", 0),)), [question("q0"), question("q1")]
    examples = read_examples(squad_file(tmp_path, [right[0], wrong, right[1], question("e", text=" ")]))
    sound, note = sound_answers(examples, "train.json")
    assert [example.question_id for example in sound] == ["q0", "q1"]
    assert note.startswith(
        "left out of training: train.json: 2 of 4 questions are empty or have a wrong answer: question 'w' has the"
    )
    assert note.endswith("; question 'e' is empty")
    assert describe_empty_questions(examples, "dev.json").startswith("dev.json: 1 empty question(s), answered")
    assert describe_empty_questions(sound, "dev.json") == ""
    with pytest.raises(UserError, match="^train.json: 2 of 3 questions .*question 'w'"):
        sound_answers(examples[1:], "train.json")


def test_an_answer_of_which_the_tokenizer_leaves_nothing_is_a_wrong_one(tmp_path):
    context = "Rollo led \u200b\x01 the Norse."
    nothing = question("w", answers=(("\u200b\x01", 10),))
    sound, note = sound_answers(read_examples(squad_file(tmp_path, [question(), nothing], context)), "train.json")
    assert len(sound) == 1 and "question 'w' has the answer" in note and note.endswith("leaves nothing")
    with pytest.raises(UserError, match="^train.json: .*question 'w' .*the tokenizer leaves nothing"):
        sound_answers(read_examples(squad_file(tmp_path, [nothing], context)), "train.json")


@pytest.mark.parametrize(
    "text, start, found",
    [
        ("led", 6, (6, 9)),
        ("led the", 6, (6, 14)),  # white space may differ
        (" led ", 5, (6, 9)),
        ("led", 5, (6, 9)),  # stands behind white space
        ("ed", 6, (7, 9)),  # inside the word at answer_start
        ("Rollo", 3, (0, 5)),
        ("the Norse", 8, (11, 20)),
        ("Norse", 13, (15, 20)),
        ("Norse", 8, None),  # the words of characters 8 to 12 are "led the"
        ("ana", 27, (26, 29)),  # of occurrences that overlap the one nearest to answer_start
        ("anana.", 26, (24, 30)),  # at the context's end; Google's reader ends with IndexError, transformers keeps it
        ("led", 60, None),
        ("led", -1, None),
        ("", 6, None),
    ],
)
def test_answers_are_found_as_googles_reader_finds_them(tmp_path, text, start, found):
    context = "Rollo led  the Norse an anana."
    [example] = read_examples(squad_file(tmp_path, [question(answers=((text, start),))], context))
    assert answer_range(example) == found


@pytest.mark.parametrize("unit, width", [("utf-32-le", 4), ("utf-16-le", 2), ("utf-8", 1)])
def test_places_that_are_counted_in_code_units(tmp_path, unit, width):
    """Each text occurs more than once, so that the unit decides which occurrence is meant."""
    context, places = (
        "\U0001f600\U0001f600哈哈哈哈哈是大大大的笑声",
        [("哈哈", 3), ("哈", 2), ("大", 9), ("\U0001f600", 1)],
    )
    answers = [(text, len(context[:place].encode(unit)) // width) for text, place in places]
    questions = [question(str(number), answers=(answer,)) for number, answer in enumerate(answers)]
    questions += [question("wrong", answers=(("无", 3),)), question("negative", answers=(("大", -1),))]
    sound, note = sound_answers(read_examples(squad_file(tmp_path, questions, context)), "train.json")
    assert [answer_range(example) for example in sound] == [(at, at + len(text)) for text, at in places]
    counted, _, left_out = note.rpartition("\n")
    assert left_out.startswith("left out of training: train.json: 2 of 6 questions")
    names = {"utf-16-le": "UTF-16 code units", "utf-8": "bytes of UTF-8"}
    assert counted.startswith(f"train.json: answer_start is taken to count {names[unit]}" if width < 4 else "")
    assert bool(counted) == (width < 4)


def test_one_answer_does_not_decide_about_the_unit(tmp_path):
    """All are one character too far, of which one would be right in bytes."""
    context = "The café by the old mill stands by the river."
    answers = [("The", 1), ("café", 5), ("stands", 26)]
    questions = [question(str(number), answers=(answer,)) for number, answer in enumerate(answers)]
    sound, note = sound_answers(read_examples(squad_file(tmp_path, questions, context)), "train.json")
    assert note == "" and [answer_range(example) for example in sound] == [(0, 3), (4, 8), (25, 31)]


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"data": [', "is not valid JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "field 'data' is missing"),
        ('{"data": 3}', "field 'data' must be list, not int"),
        ('{"data": []}', "holds no question"),
        ('{"data": [{"title": "t"}]}', r"data\[0\]: field 'paragraphs' is missing"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"data\[0\].paragraphs\[0\]: field 'context' is missing"),
        ('{"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}', "'context' is empty"),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "q"}]}]}]}',
            r"paragraphs\[0\].qas\[0\]: field 'question' is missing",
        ),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "?"}]}]}]}', "field 'id' is missing"),
        (ONE_QUESTION % '"answers": [{"text": "c"}]', r"qas\[0\].answers\[0\]: field 'answer_start' is missing"),
        (ONE_QUESTION % '"answers": [{"text": "c", "answer_start": "0"}]', "'answer_start' must be int, not str"),
        (
            ONE_QUESTION % '"is_impossible": true, "answers": [{"text": "c", "answer_start": 0}]',
            "is_impossible is True, but it has 1 answers",
        ),
    ],
)
def test_mistakes_in_the_file_are_named_with_their_place(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_examples(path)
    assert str(path) in str(error.value)


def test_no_answer_in_version_2(tmp_path):
    """As the official scores count it: by the answers, whether or not the file has is_impossible."""
    path = squad_file(tmp_path, [question(answers=())])
    [example] = read_examples(path, version_2_with_negative=True)
    assert example.is_impossible
    with pytest.raises(
        UserError, match="pass --version_2_with_negative .* only to be predicted has no field 'answers'"
    ):
        read_examples(path)
    for said in (False, "false", [1]):
        path = squad_file(tmp_path, [question(answers=(), is_impossible=said)])
        with pytest.raises(UserError, match=r"qas\[0\]: is_impossible is .*, but it has 0 answers"):
            read_examples(path, version_2_with_negative=True)


def test_an_answer_without_text_is_none_where_the_file_says_that_there_is_none(tmp_path):
    """As annotation tools and converters write it."""
    none = question(answers=(("", -1),), is_impossible=True)
    [example] = read_examples(squad_file(tmp_path, [none]), version_2_with_negative=True)
    assert example.is_impossible
    with pytest.raises(UserError, match=r"qas\[0\]: is_impossible is True, but it has 1 answers"):
        both = question(answers=(("", -1), ("Rollo", 0)), is_impossible=True)
        read_examples(squad_file(tmp_path, [both]), version_2_with_negative=True)


def test_rows_of_hugging_faces_are_refused_by_name(tmp_path):
    row = {"id": "q", "title": "t", "context": "c", "question": "?", "answers": {"text": [], "answer_start": []}}
    path = tmp_path / "rows.json"
    for content in (json.dumps({"data": [row]}), json.dumps([row]), f"{json.dumps(row)}\n{json.dumps(row)}\n"):
        path.write_text(content)
        with pytest.raises(UserError, match="rows.json.*how to convert rows with a question each, as Hugging Face's"):
            read_examples(path, version_2_with_negative=True)


def test_ids_must_differ(tmp_path):
    with pytest.raises(UserError, match=r"qas\[1\]: id 'q' is already used at .*qas\[0\]"):
        read_examples(squad_file(tmp_path, [question("q"), question("q")]))


def test_byte_order_mark_is_accepted(tmp_path):
    path = squad_file(tmp_path, [question()])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_examples(path)) == 1
