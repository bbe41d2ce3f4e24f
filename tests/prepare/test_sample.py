"""The sample encyclopedia: the same from a seed, readable, and with questions that can be answered."""

import re
from collections import Counter

import pytest

from bert_tf.prepare.corpora import sample as module
from bert_tf.prepare.corpora.sample import QUESTION_FILES, generate


@pytest.fixture(scope="module")
def sample():
    return generate(3)


def questions_of(file):
    for entry in file["data"]:
        for paragraph in entry["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question


def test_bytes_depend_on_the_seed_alone_size_and_lengths_do_not(sample):
    assert generate(3) == sample != generate(4)
    articles = sample[0].split("\n\n")
    assert len(articles) == 5000 and 4_000_000 < len(sample[0]) < 6_000_000
    assert sum(len(article.split()) > 400 for article in articles) > 500, "phase 2 needs long articles"
    assert not re.search(r"[{}]|\b[Aa] [aeiou]|  ", sample[0])


def test_towns_are_distinct_and_told_once(sample):
    openings = re.findall(r"^(?:In .* there is a town called (.+?)\.|(.+?) is an? (?:old )?town)", sample[0], re.M)
    names = Counter(first or second for first, second in openings)
    assert len(names) > 8000 and max(names.values()) == 1


def test_questions_have_their_answer_at_its_place(sample):
    for name, count in QUESTION_FILES.items():
        asked = list(questions_of(sample[1][name]))
        assert len(asked) == count == len({question["id"] for _, question in asked})
        for context, question in asked:
            (answer,) = question["answers"]
            start = answer["answer_start"]
            assert context[start : start + len(answer["text"])] == answer["text"]
            assert re.search(rf"\b{answer['text']}\b", context).start() == start


def test_question_files_share_nothing_and_articles_do_not_ask_them(sample):
    text, files = sample
    paragraphs, asked = set(text.split("\n")), set(re.findall(r"[^.?]+\?", text))
    contexts = [{context for context, _ in questions_of(file)} for file in files.values()]
    assert not contexts[0] & contexts[1]
    assert set.union(*contexts) <= paragraphs, "what is asked about is described in the encyclopedia"
    questions = {question["question"] for file in files.values() for _, question in questions_of(file)}
    assert len(asked) > 1000 and not questions & {question.strip() for question in asked}
    facts = {word for relation in module._RELATIONS.values() for word in relation["words"]}
    told = [facts & set(re.findall(r"\w+", " ".join(of_file))) for of_file in contexts]
    assert not told[0] & told[1] and all(len(half) > 0.45 * len(facts) for half in told)
