"""Writes the sample corpus: a small encyclopedia of an invented world, and questions about it.

Everything comes from a seed: a world of entities and facts (`sample_world`), articles that state
the facts in many wordings (`sample_phrases`), and questions in SQuAD's format whose answers are
spans of paragraphs of these articles. A fact is the same in every article, names return all
through an article, and some articles put a question and its answer below a paragraph, so a small
model can learn from the text what it needs to find answers: which words mean the same, and which
name goes with which. Subjects that the question files ask about are never asked about in an article.
"""
from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from data import sample_phrases as phrases
from data.manifest import Stage, atomic_file, sha256_of_file
from data.sample_world import Entity, World, make_world

ARTICLES_FILE = "articles.txt"
QUESTION_FILES = {"train-v1.1.json": 600, "dev-v1.1.json": 200}
SEED = 12345

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
# Shares: of subjects kept for the question files, of paragraphs with a question below, of
# sentences that call the subject by another word, of facts followed by one about their object.
_HELD_OUT_SHARE = 0.4
_QUESTIONED_SHARE = 0.6
_REFERENCE_SHARE = 0.3
_FOLLOW_UP_SHARE = 0.35
_ASIDE_SHARE = 0.25
_VOWELS = tuple("aeiou")
_MAX_QUESTIONS_PER_PARAGRAPH = 3


class Fact(NamedTuple):
    subject: Entity
    attribute: str

    @property
    def answer(self) -> str:
        return self.subject.answer(self.attribute)


class Paragraph(NamedTuple):
    """A paragraph and the facts it states."""

    text: str
    facts: Tuple[Fact, ...]


class Article(NamedTuple):
    title: str
    paragraphs: Tuple[Paragraph, ...]


class ArticleWriter:
    """Draws articles about the entities of a world."""

    def __init__(self, world: World, rng: random.Random):
        self._world = world
        self._rng = rng
        entities = [entity for kind in world.values() for entity in kind]
        self.held_out = set(rng.sample(entities, int(_HELD_OUT_SHARE * len(entities))))
        self._concerning: Dict[Entity, List[Fact]] = {}
        for entity in entities:
            for attribute in entity.facts:
                other = entity.related(attribute)
                if other is not None:
                    self._concerning.setdefault(other, []).append(Fact(entity, attribute))

    def articles(self) -> Iterator[Article]:
        """All articles, in a drawn order: some on each entity, long ones on each region."""
        drafts = [(entity, draft) for kind in self._world.values() for entity in kind
                  for draft in (self._description, self._comparison)]
        drafts += [(region, draft) for region in self._world["region"]
                   for draft in (self._cities, self._people)]
        self._rng.shuffle(drafts)
        for entity, draft in drafts:
            yield Article(entity.name, tuple(draft(entity)))

    def question(self, fact: Fact) -> str:
        relation = phrases.RELATIONS[fact.subject.kind][fact.attribute]
        return self._sentence(self._rng.choice(relation.questions), fact.subject.name)

    def _description(self, entity: Entity) -> Iterator[Paragraph]:
        yield from self._portrait(entity)
        yield from self._surroundings(entity)
        yield from self._notes(entity)

    def _comparison(self, entity: Entity) -> Iterator[Paragraph]:
        yield from self._notes(entity)
        yield from self._surroundings(entity)
        yield from self._surroundings(entity)

    def _portrait(self, entity: Entity) -> Iterator[Paragraph]:
        """All facts in the usual order, then what else concerns the entity."""
        facts = [Fact(entity, attribute) for attribute in phrases.RELATIONS[entity.kind]]
        half = -(-len(facts) // 2) if len(facts) > 5 else len(facts)
        yield from self._finished(self._about(entity, facts[:half], opening=True))
        if facts[half:]:
            yield from self._finished(self._about(entity, facts[half:], opening=False))
        concerning = self._concerning.get(entity, [])
        for first in range(0, min(len(concerning), 40), 5):
            yield from self._finished(self._mixed(concerning[first:first + 5]))

    def _notes(self, entity: Entity) -> Iterator[Paragraph]:
        """Some facts in a drawn order."""
        facts = [Fact(entity, attribute) for attribute in phrases.RELATIONS[entity.kind]]
        chosen = self._rng.sample(facts, min(len(facts), 5))
        yield from self._finished(self._about(entity, chosen, opening=True))

    def _surroundings(self, entity: Entity) -> Iterator[Paragraph]:
        """The entity beside two of its kind, so that only the name tells whose fact it is."""
        others = [other for other in self._world[entity.kind] if other is not entity]
        group = [entity, *self._rng.sample(others, 2)]
        attributes = self._rng.sample(list(phrases.RELATIONS[entity.kind]), 2)
        facts = [Fact(member, attribute) for attribute in attributes for member in group]
        if self._rng.random() < 0.5:
            facts.sort(key=lambda fact: group.index(fact.subject))
        yield from self._finished(self._mixed(facts))

    def _cities(self, region: Entity) -> Iterator[Paragraph]:
        """All cities of a region, one after the other."""
        yield from self._survey(region, [
            city for city in self._world["city"] if city.related("region") is region])

    def _people(self, region: Entity) -> Iterator[Paragraph]:
        """Those who were born in a region."""
        born_here = [fact.subject for city in self._world["city"]
                     if city.related("region") is region
                     for fact in self._concerning.get(city, []) if fact.attribute == "birthplace"]
        yield from self._survey(region, born_here)

    def _survey(self, region: Entity, members: Sequence[Entity]) -> Iterator[Paragraph]:
        facts = [Fact(region, attribute) for attribute in phrases.RELATIONS["region"]]
        yield from self._finished(self._about(region, facts, opening=True))
        for member in members:
            facts = [Fact(member, attribute) for attribute in phrases.RELATIONS[member.kind]]
            chosen = sorted(self._rng.sample(range(len(facts)), 4))
            yield from self._finished(self._about(member, [facts[i] for i in chosen], opening=True))

    def _about(self, entity: Entity, facts: Sequence[Fact], opening: bool) -> Paragraph:
        sentences: List[str] = []
        stated: List[Fact] = []
        if opening:
            sentences.append(self._sentence(
                self._rng.choice(phrases.OPENINGS[entity.kind]) + ".", entity.name))
        may_refer = opening
        for fact in facts:
            sentences.append(self._statement(fact, may_refer))
            stated.append(fact)
            may_refer = True
            other = entity.related(fact.attribute)
            if other is not None and self._rng.random() < _FOLLOW_UP_SHARE:
                more = Fact(other, self._rng.choice(list(phrases.RELATIONS[other.kind])))
                sentences.append(self._statement(more, may_refer=False))
                stated.append(more)
                may_refer = False
        if self._rng.random() < _ASIDE_SHARE:
            sentences.append(self._expand(self._rng.choice(phrases.ASIDES[entity.kind])))
        return Paragraph(" ".join(sentences), tuple(stated))

    def _mixed(self, facts: Sequence[Fact]) -> Paragraph:
        return Paragraph(
            " ".join(self._statement(fact, may_refer=False) for fact in facts), tuple(facts))

    def _finished(self, paragraph: Paragraph) -> Iterator[Paragraph]:
        """The paragraph, and often questions about it with their answers."""
        yield paragraph
        askable = [fact for fact in paragraph.facts if fact.subject not in self.held_out
                   and is_answerable(paragraph, fact)]
        if askable and self._rng.random() < _QUESTIONED_SHARE:
            asked = self._rng.sample(askable, min(len(askable), 2))
            text = " ".join(f"{self.question(fact)} {_capital(fact.answer)}." for fact in asked)
            yield Paragraph(text, ())

    def _statement(self, fact: Fact, may_refer: bool) -> str:
        relation = phrases.RELATIONS[fact.subject.kind][fact.attribute]
        template = self._rng.choice(relation.statements) + "."
        kind = fact.subject.kind
        name = phrases.ARTICLES[kind] + "{s}"
        references = phrases.REFERENCES[kind]
        if may_refer and references and self._rng.random() < _REFERENCE_SHARE:
            if not template.startswith(name):
                references = [reference for reference in references if reference != "it"]
            template = template.replace(name, self._rng.choice(references))
        return self._sentence(template, fact.subject.name, fact.answer)

    def _sentence(self, template: str, subject: str, answer: str = "") -> str:
        if answer[:1].lower() in _VOWELS:
            template = template.replace(" a {a}", " an {a}")
        return _capital(self._expand(template).replace("{s}", subject).replace("{a}", answer))

    def _expand(self, template: str) -> str:
        return _CHOICE.sub(lambda match: self._rng.choice(match[1].split("|")), template)


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def is_answerable(paragraph: Paragraph, fact: Fact) -> bool:
    """Whether the paragraph names the subject and has the answer exactly once, as a whole word."""
    text, answer = paragraph.text, fact.answer
    start = text.find(answer)
    if start < 0 or text.find(answer, start + 1) >= 0 or fact.subject.name not in text:
        return False
    before, after = text[start - 1:start], text[start + len(answer):start + len(answer) + 2]
    # "400" stands in "2,400" too, but is not the answer there.
    return not (before.isalnum() or before == "," or after[:1].isalnum()
                or (after[:1] == "," and after[1:].isdigit()))


def _questions(
    writer: ArticleWriter, articles: Sequence[Article], rng: random.Random
) -> Dict[str, Dict[str, Any]]:
    """The question files: about held-out subjects, each paragraph in one file only."""
    paragraphs = [
        (article.title, paragraph) for article in articles for paragraph in article.paragraphs
        if len(paragraph.facts) >= 4
    ]
    rng.shuffle(paragraphs)
    source = iter(paragraphs)
    files = {}
    for name, num_questions in QUESTION_FILES.items():
        entries: List[Dict[str, Any]] = []
        number = 0
        while number < num_questions:
            title, paragraph = next(source)
            facts = [fact for fact in paragraph.facts
                     if fact.subject in writer.held_out and is_answerable(paragraph, fact)]
            room = min(_MAX_QUESTIONS_PER_PARAGRAPH, num_questions - number, len(facts))
            if not room:
                continue
            questions = [
                _question_entry(f"{name.split('-')[0]}-{number + place}", writer, paragraph, fact)
                for place, fact in enumerate(rng.sample(facts, room))
            ]
            number += room
            entries.append({"title": title, "paragraphs": [
                {"context": paragraph.text, "qas": questions}]})
        files[name] = {"version": "1.1", "data": entries}
    return files


def _question_entry(
    identifier: str, writer: ArticleWriter, paragraph: Paragraph, fact: Fact
) -> Dict[str, Any]:
    return {
        "id": identifier, "question": writer.question(fact),
        "answers": [{"text": fact.answer, "answer_start": paragraph.text.index(fact.answer)}],
    }


def generate(seed: int) -> Tuple[str, Dict[str, Dict[str, Any]]]:
    """The articles (a paragraph a line, a blank line between articles) and the question files."""
    world = make_world(random.Random(f"{seed} world"))
    writer = ArticleWriter(world, random.Random(f"{seed} articles"))
    articles = list(writer.articles())
    text = "\n".join(
        "".join(paragraph.text + "\n" for paragraph in article.paragraphs) for article in articles)
    return text, _questions(writer, articles, random.Random(f"{seed} questions"))


def write_sample(stage: Stage, folder: Path, seed: int) -> Dict[str, int]:
    """Writes articles and question files to `folder` and completes `stage`; returns the counts."""
    text, questions = generate(seed)
    contents: Dict[str, str] = {ARTICLES_FILE: text}
    contents.update({name: json.dumps(file, indent=1) + "\n" for name, file in questions.items()})
    entries = []
    for name, content in contents.items():
        with atomic_file(folder / name) as file:
            file.write(content.encode())
        path = folder / name
        entries.append(
            {"file": name, "bytes": path.stat().st_size, "sha256": sha256_of_file(path)})
    counts = {"num_articles": text.count("\n\n") + 1}
    counts.update({f"num_questions_{name.split('-')[0]}": QUESTION_FILES[name]
                   for name in questions})
    stage.complete(counts, {"sample": entries})
    return counts
