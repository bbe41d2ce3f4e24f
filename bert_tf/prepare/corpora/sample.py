"""Writes the sample corpus: a small encyclopedia of an invented country, and questions about it.

All of it is generated, so everything can be tried without a network. Towns and their facts (river,
trade, dish, ...) are drawn from a seed; a grammar states each fact in one of several ways, mentions
some again in other words, and asks about others and answers. In minutes a small model learns what
the questions need: which words are rivers, dishes or trades, and how to find where a fact was stated.

The question files are in SQuAD's format. The encyclopedia describes their towns but never asks about
them. The two files share no town and no answer: half of the words of each family belong to the
training questions, the other half to the development questions. So only pre-training can teach a
model which of two words that it never saw in fine-tuning is a river.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.files import sha256_of_file, write_text
from bert_tf.prepare.running.stage import StageResult
from bert_tf.records.manifest import FileEntry

ARTICLES_FILE = "articles.txt"
QUESTION_FILES = {"train-v1.1.json": 1200, "dev-v1.1.json": 300}
SEED = 12345

_NUM_ARTICLES = 5000
_LONG_ARTICLE_EVERY = 4
_TOWNS_IN_LONG_ARTICLE = (4, 7)
_FACTS_PER_TOWN = 5
# A town of a question file has one fact of one of these relations, which is asked for, and one of another relation.
_ASKED_RELATIONS = ("river", "dish", "founder", "material")

_NUM_SECOND_NAMES = 160


# Parts of names, sentences and words.
_TEXT = json.loads(Path(__file__).with_name("sample.json").read_bytes())
# Kinds of facts: each a family of `words`, none in two families, and sentences that state a fact (`statements`),
# mention it again (`reminders`) and ask for it (`questions`), in which {t} is the town and {x} the fact. The model
# has to find out what the words of a family have in common.
_RELATIONS: dict[str, dict[str, list[str]]] = _TEXT["relations"]


class Town(NamedTuple):
    """A town's name, its facts by relation, and its paragraph."""

    name: str
    facts: dict[str, str]
    text: str


def _names(rng: random.Random) -> Iterator[str]:
    """Distinct names of two words."""
    second: dict[str, None] = {}
    while len(second) < _NUM_SECOND_NAMES:
        syllables = (rng.choice(_TEXT[kind]) for kind in ("onsets", "vowels", "onsets", "vowels", "ends"))
        onset, vowel, second_onset, second_vowel, end = syllables
        second[f"{onset}{vowel}{second_onset[0]}{second_vowel[0]}{end}".capitalize()] = None
    names = [f"{first} {last}" for first, last in itertools.product(_TEXT["first_names"], second)]
    yield from rng.sample(names, len(names))


def _make_town(
    rng: random.Random, name: str, relations: Sequence[str], words: Mapping[str, Sequence[str]], *, asks: bool
) -> Town:
    """States facts; then, in the same order, mentions about half of them again and, if `asks`, asks for the others."""
    facts = {relation: rng.choice(words[relation]) for relation in relations}
    statements = [rng.choice(_TEXT["openings"]).format(t=name, region=rng.choice(_TEXT["regions"]))]
    sequel = []
    for relation, fact in facts.items():
        statements.append(rng.choice(_RELATIONS[relation]["statements"]).format(t=name, x=fact))
        if rng.random() < 0.5:
            sequel.append(rng.choice(_RELATIONS[relation]["reminders"]).format(x=fact))
        elif asks:
            question = rng.choice(_RELATIONS[relation]["questions"]).format(t=name)
            sequel.append(f"{question} {fact[0].upper()}{fact[1:]}.")
    return Town(name, facts, " ".join(statements + sequel))


def _relations_to_ask(rng: random.Random) -> list[str]:
    """A relation that is asked for and one that is not, in random order."""
    unasked = [relation for relation in sorted(_RELATIONS) if relation not in _ASKED_RELATIONS]
    relations = [rng.choice(_ASKED_RELATIONS), rng.choice(unasked)]
    rng.shuffle(relations)
    return relations


def _squad_questions(rng: random.Random, towns: Sequence[Town], prefix: str) -> dict[str, Any]:
    """Questions about the towns, in the format of SQuAD 1.1."""
    data = []
    for number, town in enumerate(towns):
        relation, answer = next(fact for fact in town.facts.items() if fact[0] in _ASKED_RELATIONS)
        answer_span = re.search(rf"\b{answer}\b", town.text)
        assert answer_span, (answer, town.text)
        question = {
            "id": f"{prefix}-{number}",
            "question": rng.choice(_RELATIONS[relation]["questions"]).format(t=town.name),
            "answers": [{"text": answer, "answer_start": answer_span.start()}],
        }
        data.append({"title": town.name, "paragraphs": [{"context": town.text, "qas": [question]}]})
    return {"version": "1.1", "data": data}


def generate(seed: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """The articles (one paragraph per line, a blank line between articles) and the question files."""
    rng = random.Random(seed)
    names = _names(rng)
    articles: list[list[Town]] = []
    questions = {}
    words = {name: relation["words"] for name, relation in _RELATIONS.items()}
    shuffled = {name: rng.sample(family, len(family)) for name, family in words.items()}
    # Words for the training questions, and for the development questions.
    halves = (
        {name: family[: len(family) // 2] for name, family in shuffled.items()},
        {name: family[len(family) // 2 :] for name, family in shuffled.items()},
    )
    for (name, count), half in zip(QUESTION_FILES.items(), halves):
        towns = [_make_town(rng, next(names), _relations_to_ask(rng), half, asks=False) for _ in range(count)]
        articles += [[town] for town in towns]
        questions[name] = _squad_questions(rng, towns, name.split("-")[0])
    for number in range(_NUM_ARTICLES - len(articles)):
        size = 1 if number % _LONG_ARTICLE_EVERY else rng.randint(*_TOWNS_IN_LONG_ARTICLE)
        articles.append(
            [
                _make_town(rng, next(names), rng.sample(sorted(_RELATIONS), _FACTS_PER_TOWN), words, asks=True)
                for _ in range(size)
            ]
        )
    rng.shuffle(articles)
    return "\n".join("".join(town.text + "\n" for town in article) for article in articles), questions


def write_sample(folder: Path, seed: int) -> StageResult:
    """Writes articles and question files to `folder`; returns their counts and entries."""
    text, questions = generate(seed)
    contents = {ARTICLES_FILE: text, **{name: json.dumps(file, indent=1) + "\n" for name, file in questions.items()}}
    entries = []
    for name, content in contents.items():
        path = folder / name
        write_text(path, content)
        entries.append(FileEntry(name, path.stat().st_size, sha256_of_file(path)))
    counts = {"num_articles": text.count("\n\n") + 1}
    counts.update({f"num_questions_{name.split('-')[0]}": count for name, count in QUESTION_FILES.items()})
    return counts, {"sample": entries}
