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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.files import atomic_file, sha256_of_file
from bert_tf.prepare.running.stage import Stage
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

_FIRST_NAMES = (
    "Upper Lower Great Little New Old North South East West High Long Broad Fair Dry Cold Warm Dark Bright Deep "
    "Far Near Inner Outer Middle Market Castle Bishop Abbot Royal Holy Saint Cross Bridge Gate Tower Hill Vale "
    "Wood Field Marsh Moor Heath Shore Cliff Bay Port Ferry Mill Well Spring Stone Sand Snow Rain Storm Wind Sun "
    "Moon Star Morning Evening Winter Summer Monk Knight Forest Lake Island Harbour Garden Mountain"
).split()
_ONSETS = "b br d dr f g gr h k kl l m n p pr r s sk st t tr v w z".split()
_VOWELS = "a e i o u ai ea or ar en".split()
_ENDS = "dal mar ton vik ra len by nor sted wick heim fell".split()
_NUM_SECOND_NAMES = 160


class Relation(NamedTuple):
    """A kind of fact: its words, and sentences that state it, mention it again, and ask for it."""

    words: tuple[str, ...]
    statements: tuple[str, ...]
    reminders: tuple[str, ...]
    questions: tuple[str, ...]


# Each relation with its family of words (the model has to find out what they have in common; none is in two families)
# and one line each of sentences that state a fact, mention it again, and ask for it. {t} is the town, {x} the fact.
_RELATION_LINES = """
river:
    Alder Arrow Badger Bracken Candle Clover Dove Ember Flint Gull Hazel Holly Kestrel Laurel Linden Marten Mist
    Nettle Otter Pebble Plover Reed Rowan Sage Sorrel Spruce Swift Thrush Trout Wolf
    {t} lies on the river {x}. | The river {x} flows through {t}. | The houses of {t} stand on both banks of the {x}.
    Every spring the {x} floods the lower streets. | Children learn to swim in the {x}.
    Which river flows through {t}? | On which stream does {t} lie? | What water do the bridges of {t} cross?
trade:
    barrels bells boats brooms buckets candles carpets chairs clocks combs drums felt gloves harps kettles knives
    ladders lenses looms nets paper ploughs pumps ropes saws scissors shovels spoons tables toys
    Its craftsmen make {x}. | The people live by making {x}. | {t} is known far away for its {x}.
    In a good year ten thousand {x} leave the gates. | Nobody else sells such fine {x}.
    What do the craftsmen of {t} make? | For which goods is {t} known? | What do the workshops of {t} produce?
dish:
    bacon beets bread cabbage carrots cherries chicken cucumbers dumplings figs grapes herring kale leeks melons
    mushrooms noodles olives oysters pears pepper plums potatoes pumpkins raisins sausages spinach syrup veal waffles
    On holidays every family eats {x}. | The favourite food of {t} is {x}. | Guests of {t} are served {x}.
    Travellers say that one never forgets the taste of the {x}. | Even the poorest table has some {x}.
    What is the favourite food of {t}? | What are guests in {t} served? | What do families in {t} eat?
emblem:
    bat bee boar bull cobra cricket deer donkey duck finch goose hedgehog horse jackal leopard lobster mole mouse newt
    peacock pig pony rat scorpion snake stag tiger turkey vulture weasel
    The shield of {t} shows a {x}. | A {x} is painted on the gate of {t}. | {t} has a {x} as its emblem.
    An old tale tells how a {x} woke the guards at night. | Soldiers wear a small {x} on their hats.
    Which animal does the shield of {t} show? | What animal is the emblem of {t}? | What creature does the seal of {t} bear?
founder:
    Abel Albert Anna Beatrice Bertha Clara Daniel Edgar Edward Emma Felix Gabriel Gilbert Harriet Herbert Ida Jacob
    Joan Julia Leonard Margaret Martin Miriam Oliver Paul Rachel Samuel Sophie Theodore Victor
    {t} was founded by {x} the Elder. | The first stone was laid by a shepherd named {x}. | Its founder was called {x}.
    A statue of {x} stands before the town hall. | Many a child is still named {x}.
    Who founded {t}? | Who built the first house of {t}? | Who was the founder of {t}?
material:
    alabaster asphalt basalt brass cement clay copper cork crystal feldspar glass gravel hemp jade leather linen
    marble mortar nickel plaster pumice rubber sandstone shale slate straw teak tin walnut wicker
    The walls of {t} are made of {x}. | Masons built its towers from {x}. | The market hall of {t} is built of {x}.
    When it rains, the {x} begins to shine. | The {x} was brought from the hills on sledges.
    What are the walls of {t} made of? | From what did masons build {t}? | What are the houses of {t} built of?
feast:
    apples boxing bowls circles dancing dice fasting fireworks flags games harvests hymns jumping lotteries maypoles
    mysteries parades poems puppets races riddles shouting singing songs storms sunrise swings torches tumbling
    weddings
    In autumn the town holds a festival of {x}. | Once a year {t} celebrates with {x}. | The great feast of {t} is famous for {x}.
    The best of all in {x} wins a silver cup. | Strangers may take part in the {x} for a penny.
    What is the feast of {t} famous for? | With what does {t} celebrate once a year? | What is the festival of {t} held for?
colour:
    amethyst apricot auburn beige blue brown caramel carmine cerise chocolate crimson emerald fuchsia grey khaki lemon
    lilac maroon mint ochre orange peach plum purple russet scarlet sienna taupe umber white
    The flag of {t} is {x}. | Its banners are {x}. | The people of {t} like to dress in {x}.
    From afar one sees nothing but {x}. | Painters come for this {x} alone.
    What colour is the flag of {t}? | Which colour do the people of {t} like to wear? | What shade are the banners of {t}?
"""  # noqa: E501 - a line holds all sentences of a kind


def _read_relations(text: str) -> Iterator[tuple[str, Relation]]:
    for block in re.split(r"^(?=\w)", text.strip(), flags=re.MULTILINE)[1:]:
        name, *words, statements, reminders, questions = map(str.strip, block.strip().split("\n"))
        sentences = (tuple(line.split(" | ")) for line in (statements, reminders, questions))
        yield name.rstrip(":"), Relation(tuple(" ".join(words).split()), *sentences)


_RELATIONS = dict(_read_relations(_RELATION_LINES))

_OPENINGS = (
    "{t} is a town in the {region} of the country.",
    "{t} is an old town in the {region}.",
    "In the {region} there is a town called {t}.",
)
_REGIONS = ("north", "south", "east", "west", "hills", "plains", "marshes", "valleys")


class Town(NamedTuple):
    """A town's name, its facts by relation, and its paragraph: the statements, then the sequel."""

    name: str
    facts: dict[str, str]
    statements: list[str]
    sequel: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.statements + self.sequel)


def _names(rng: random.Random) -> Iterator[str]:
    """Distinct names of two words."""
    second: dict[str, None] = {}
    while len(second) < _NUM_SECOND_NAMES:
        parts = (rng.choice(_ONSETS), rng.choice(_VOWELS), rng.choice(_ONSETS)[0], rng.choice(_VOWELS)[0])
        second["".join((*parts, rng.choice(_ENDS))).capitalize()] = None
    names = [f"{first} {last}" for first, last in itertools.product(_FIRST_NAMES, second)]
    yield from rng.sample(names, len(names))


def _make_town(rng: random.Random, name: str, facts: dict[str, str], asks: bool) -> Town:
    """States facts; then, in the same order, mentions about half of them again and, if `asks`, asks for the others."""
    statements = [rng.choice(_OPENINGS).format(t=name, region=rng.choice(_REGIONS))]
    sequel = []
    for relation, fact in facts.items():
        statements.append(rng.choice(_RELATIONS[relation].statements).format(t=name, x=fact))
        if rng.random() < 0.5:
            sequel.append(rng.choice(_RELATIONS[relation].reminders).format(x=fact))
        elif asks:
            question = rng.choice(_RELATIONS[relation].questions).format(t=name)
            sequel.append(f"{question} {fact[0].upper()}{fact[1:]}.")
    return Town(name, facts, statements, sequel)


def _make_encyclopedia_town(rng: random.Random, name: str) -> Town:
    """A town of the encyclopedia only: several facts of any relations, with questions and answers."""
    relations = rng.sample(sorted(_RELATIONS), _FACTS_PER_TOWN)
    facts = {relation: rng.choice(_RELATIONS[relation].words) for relation in relations}
    return _make_town(rng, name, facts, asks=True)


def _make_asked_town(rng: random.Random, name: str, words: dict[str, list[str]]) -> Town:
    """A town of a question file: an asked relation and another one, in any order, with words among `words`."""
    others = [relation for relation in sorted(_RELATIONS) if relation not in _ASKED_RELATIONS]
    relations = [rng.choice(_ASKED_RELATIONS), rng.choice(others)]
    rng.shuffle(relations)
    facts = {relation: rng.choice(words[relation]) for relation in relations}
    return _make_town(rng, name, facts, asks=False)


def _split_words(rng: random.Random) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Two halves of every family: words for the training questions, and for the development questions."""
    training, held_out = {}, {}
    for name, relation in _RELATIONS.items():
        words = rng.sample(relation.words, len(relation.words))
        training[name], held_out[name] = words[: len(words) // 2], words[len(words) // 2 :]
    return training, held_out


def _ask(rng: random.Random, towns: Sequence[Town], prefix: str) -> dict[str, Any]:
    """Questions about the towns, in the format of SQuAD 1.1."""
    data = []
    for number, town in enumerate(towns):
        relation, answer = next(fact for fact in town.facts.items() if fact[0] in _ASKED_RELATIONS)
        answer_span = re.search(rf"\b{answer}\b", town.text)
        assert answer_span, (answer, town.text)
        question = {
            "id": f"{prefix}-{number}",
            "question": rng.choice(_RELATIONS[relation].questions).format(t=town.name),
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
    halves = _split_words(rng)
    for (name, count), words in zip(QUESTION_FILES.items(), halves):
        asked = [_make_asked_town(rng, next(names), words) for _ in range(count)]
        articles += [[town] for town in asked]
        questions[name] = _ask(rng, asked, name.split("-")[0])
    for number in range(_NUM_ARTICLES - len(articles)):
        size = 1 if number % _LONG_ARTICLE_EVERY else rng.randint(*_TOWNS_IN_LONG_ARTICLE)
        articles.append([_make_encyclopedia_town(rng, next(names)) for _ in range(size)])
    rng.shuffle(articles)
    return "\n".join("".join(town.text + "\n" for town in article) for article in articles), questions


def write_sample(stage: Stage, folder: Path, seed: int) -> dict[str, int]:
    """Writes articles and question files to `folder` and completes `stage`; returns the counts."""
    text, questions = generate(seed)
    contents: dict[str, str] = {ARTICLES_FILE: text}
    contents.update({name: json.dumps(file, indent=1) + "\n" for name, file in questions.items()})
    entries = []
    for name, content in contents.items():
        with atomic_file(folder / name) as file:
            file.write(content.encode())
        path = folder / name
        entries.append(FileEntry(name, path.stat().st_size, sha256_of_file(path)))
    counts = {"num_articles": text.count("\n\n") + 1}
    counts.update({f"num_questions_{name.split('-')[0]}": QUESTION_FILES[name] for name in questions})
    stage.complete(counts, {"sample": entries})
    return counts
