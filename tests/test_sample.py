"""The sample encyclopedia: the same from a seed, consistent, and answerable."""
from __future__ import annotations

import hashlib
import json
import random
import re

import pytest

from data.sample import QUESTION_FILES, generate
from data.sample_phrases import RELATIONS
from data.sample_world import make_world


@pytest.fixture(scope="module")
def sample():
    return generate(3)


def questions_of(file):
    for entry in file["data"]:
        for paragraph in entry["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question


def test_bytes_depend_on_the_seed_alone(sample):
    def digest(result):
        return hashlib.sha256(json.dumps(result).encode()).hexdigest()

    assert digest(generate(3)) == digest(sample) != digest(generate(4))


def test_size_and_lengths(sample):
    articles = sample[0].split("\n\n")
    assert len(articles) > 2000 and 1_500_000 < len(sample[0]) < 4_000_000
    assert sum(len(article.split()) > 512 for article in articles) > 20
    assert not re.search(r"[\[\]{}|]|\ba [aeiou]", sample[0])


def test_questions_have_one_answer_in_an_article(sample):
    text, files = sample
    lines = set(text.split("\n"))
    identifiers = set()
    for name, number in QUESTION_FILES.items():
        questions = list(questions_of(files[name]))
        assert len(questions) == number and files[name]["version"] == "1.1"
        for context, question in questions:
            (answer,) = question["answers"]
            assert context in lines
            assert context.count(answer["text"]) == 1
            assert context[answer["answer_start"]:].startswith(answer["text"])
            identifiers.add(question["id"])
    assert len(identifiers) == sum(QUESTION_FILES.values())


def test_question_files_share_no_paragraph_and_articles_do_not_ask_them(sample):
    text, files = sample
    contexts = [{context for context, _ in questions_of(file)} for file in files.values()]
    assert not contexts[0] & contexts[1]
    asked = set(re.findall(r"[^.?\n]*\?", text))
    for file in files.values():
        assert not any(question["question"] in asked for _, question in questions_of(file))


def test_every_fact_of_the_world_can_be_said_and_asked():
    world = make_world(random.Random(0))
    for kind, entities in world.items():
        for entity in entities:
            assert set(entity.facts) == set(RELATIONS[kind]), entity.name
    names = [entity.name for entities in world.values() for entity in entities]
    assert len(set(names)) == len(names)


def test_facts_do_not_contradict_each_other():
    world = make_world(random.Random(0))
    for person in world["person"]:
        assert person.facts["spouse"].facts["spouse"] is person
        assert int(person.answer("born")) + 30 <= int(person.answer("died"))
    for kind, doer, year in (("city", "founder", "founded"), ("building", "architect", "built"),
                             ("mountain", "climber", "climbed")):
        for entity in world[kind]:
            person = entity.facts[doer]
            assert int(person.answer("born")) < int(entity.answer(year)) < int(person.answer("died"))
