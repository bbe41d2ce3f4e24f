"""The world of the sample encyclopedia: entities with facts that hold in every article."""
from __future__ import annotations

import random
from typing import Dict, List, Optional, Set, Union

from data import sample_phrases as phrases

COUNTS = {
    "region": 20, "city": 260, "person": 420, "river": 70, "mountain": 70, "lake": 40,
    "animal": 110, "plant": 70, "instrument": 60, "building": 130,
}
_ONSETS = "b br d dr f fl g gl h j k kr l m n p pl qu r s st t th tr v w z".split()
_VOWELS = "a e i o u ai ea ia oa".split()
_CODAS = "l m n nd r rk s sk st th x nt lm rn".split()
_NUM_FIRST_NAMES = 90


class Entity:
    """A thing of the world: `facts` maps an attribute to a text or to another entity."""

    def __init__(self, kind: str, name: str):
        self.kind = kind
        self.name = name
        self.facts: Dict[str, Union[str, Entity]] = {}

    def answer(self, attribute: str) -> str:
        value = self.facts[attribute]
        return value.name if isinstance(value, Entity) else value

    def related(self, attribute: str) -> Optional["Entity"]:
        value = self.facts[attribute]
        return value if isinstance(value, Entity) else None


World = Dict[str, List[Entity]]


class _Names:
    """Invented words, each given out once."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._used: Set[str] = set()

    def word(self, capital: bool) -> str:
        while True:
            num_syllables = self._rng.choice((1, 2, 2))
            word = "".join(
                self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) for _ in range(num_syllables)
            ) + self._rng.choice(_CODAS)
            if len(word) > 3 and word not in self._used:
                self._used.add(word)
                return word.capitalize() if capital else word


def make_world(rng: random.Random) -> World:
    """Draws all entities, then their facts, so that facts may point at any entity."""
    names = _Names(rng)
    first_names = [names.word(capital=True) for _ in range(_NUM_FIRST_NAMES)]
    world: World = {}
    for kind, count in COUNTS.items():
        world[kind] = []
        for _ in range(count):
            name = names.word(capital=kind not in ("animal", "plant", "instrument"))
            if kind == "person":
                name = f"{rng.choice(first_names)} {name}"
            elif kind == "building":
                name = f"{name} {rng.choice(phrases.BUILDINGS)}"
            world[kind].append(Entity(kind, name))
    languages = [names.word(capital=True) for _ in world["region"]]
    for region, language in zip(world["region"], languages):
        region.facts["language"] = language
    _add_facts(world, rng)
    return world


def _deed(world: World, rng: random.Random, doer: str, year: str) -> Dict[str, Union[str, Entity]]:
    """Who did something, and a year in which that person was alive and grown up."""
    person = rng.choice(world["person"])
    born = int(person.answer("born"))
    return {doer: person, year: str(rng.randrange(born + 20, int(person.answer("died"))))}


def _add_facts(world: World, rng: random.Random) -> None:
    def any_of(kind: str) -> Entity:
        return rng.choice(world[kind])

    for kind in ("lake", "mountain", "animal", "plant"):
        for entity in world[kind]:
            entity.facts["region"] = any_of("region")
    for river in world["river"]:
        river.facts.update(source=any_of("mountain"), mouth=any_of("lake"),
                           length=str(rng.randrange(20, 600)), fish=rng.choice(phrases.FISH))
    _add_people(world, rng)
    _add_cities(world, rng)
    for mountain in world["mountain"]:
        mountain.facts.update(
            height=f"{rng.randrange(20, 180)}00", stone=rng.choice(phrases.STONES),
            **_deed(world, rng, "climber", "climbed"))
    for lake in world["lake"]:
        lake.facts.update(depth=str(rng.randrange(20, 900)), bird=rng.choice(phrases.BIRDS))
    for animal in world["animal"]:
        animal.facts.update(
            food=rng.choice(phrases.FOODS), colour=rng.choice(phrases.COLOURS),
            lifespan=str(rng.randrange(3, 90)), describer=any_of("person"))
    for plant in world["plant"]:
        plant.facts.update(
            colour=rng.choice(phrases.COLOURS), month=rng.choice(phrases.MONTHS),
            use=rng.choice(phrases.USES), describer=any_of("person"))
    for instrument in world["instrument"]:
        instrument.facts.update(
            city=any_of("city"), material=rng.choice(phrases.MATERIALS),
            strings=str(rng.randrange(3, 40)), **_deed(world, rng, "inventor", "invented"))
    for building in world["building"]:
        building.facts.update(
            city=any_of("city"), height=str(rng.randrange(30, 400)),
            stone=rng.choice(phrases.STONES), **_deed(world, rng, "architect", "built"))


def _add_people(world: World, rng: random.Random) -> None:
    people = world["person"]
    birth_years = sorted(rng.randrange(1200, 1860) for _ in people)
    for person, born in zip(people, birth_years):
        person.facts.update(
            profession=rng.choice(phrases.PROFESSIONS), birthplace=rng.choice(world["city"]),
            born=str(born), residence=rng.choice(world["city"]),
            work=f"The {rng.choice(phrases.TITLE_FIRST)} {rng.choice(phrases.TITLE_SECOND)}",
            died=str(born + rng.randrange(30, 95)))
    # In the order of birth years: teachers are older (the oldest learn from each other), couples
    # of about the same age.
    for number, person in enumerate(people):
        older = [other for other in people[max(0, number - 60):max(number, 5)] if other is not person]
        person.facts["teacher"] = rng.choice(older)
    for one, other in zip(people[::2], people[1::2]):
        one.facts["spouse"], other.facts["spouse"] = other, one
    rng.shuffle(people)


def _add_cities(world: World, rng: random.Random) -> None:
    for number, city in enumerate(world["city"]):
        region = world["region"][number % len(world["region"])]
        city.facts.update(
            region=region, river=rng.choice(world["river"]), mayor=rng.choice(world["person"]),
            **_deed(world, rng, "founder", "founded"),
            population=f"{rng.randrange(2, 300)},{rng.randrange(10)}00",
            product=rng.choice(phrases.PRODUCTS))
        region.facts.setdefault("capital", city)
        region.facts.setdefault("animal", rng.choice(world["animal"]))
        region.facts.setdefault("flag", rng.choice(phrases.COLOURS))
    for city in world["city"]:
        region_cities = [c for c in world["city"]
                         if c is not city and c.facts["region"] is city.facts["region"]]
        city.facts["neighbour"] = rng.choice(region_cities)
