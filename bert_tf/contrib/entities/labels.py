"""Labels of tokens, the entities that they mark, and scores over entities: those of seqeval, the counts of conlleval.

Parts of speech are labels of single tokens. A label of entities is O, outside of them, or a letter and the entity's
type, such as ``B-Disease``; where all entities are of one type, the type may be left out. The schemes differ in what
their letters mean:

    IOB1    I inside; B begins an entity right behind another of its type, and only there
    IOB2    B begins an entity, I goes on
    IOBES   B begins, I goes on (M in BMES), E ends an entity of several tokens; S is a single one
    BILOU   the same with L (last) for E and U (unit) for S; it is read as IOBES

Sequences that break their scheme are read in the two ways of the package seqeval: by default as by the program
conlleval, where a label that cannot continue an entity begins one; strictly, where only what follows the scheme counts.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from bert_tf.base.fields import fault_of_label
from bert_tf.tasks.scores import Counts, scores_of, total

OUTSIDE = "O"
UNLABELLED = "_"  # in CoNLL-U
_LETTERS = {"IOB2": "BIO", "IOB1": "BIO", "IOBES": "BIMOES", "BILOU": "BILOU"}
_AS_IOBES = {"L": "E", "U": "S", "M": "I"}


class Entity(NamedTuple):
    """Tokens start..end (exclusive) of a sentence."""

    type: str  # "" where the labels have none
    start: int
    end: int


class Scheme(NamedTuple):
    """The scheme of a file's labels."""

    name: str
    num_entities: int
    num_broken: int  # those that break the scheme: entities in the default reading only

    def __str__(self) -> str:
        broken = f", {self.num_broken:,} of them not by its rules, read as conlleval does" if self.num_broken else ""
        return f"{self.name} ({self.num_entities:,} entities{broken})"


def fault_of_token_label(label: str) -> str:
    """What is wrong with a label of single tokens; "" if nothing is."""
    fault = fault_of_label(label)
    return fault and f"the label is {label!r:.80}: {fault}"


def fault_of_entity_label(label: str) -> str:
    """What is wrong with a label of entities; "" if nothing is."""
    if label and (fault := fault_of_token_label(label)):
        return fault
    if label == OUTSIDE or (label[:1] in set("BIESLUM") and (len(label) == 1 or (label[1] == "-" and len(label) > 2))):
        return ""
    rule = (
        f"must be {OUTSIDE}, or B-TYPE, I-TYPE and so on (before a type alone write I-); parts of speech and other "
        "labels of single tokens need --task_name=pos"
    )
    if label.startswith(f"{OUTSIDE}-"):
        rule = f"{OUTSIDE} has no type"
    return f"the label is {label!r:.80}: {rule}"


@functools.lru_cache(maxsize=1 << 12)
def _split_label(label: str) -> tuple[str, str]:
    """The letter of a label, as in IOBES for those of BILOU and BMES, and its type."""
    return _AS_IOBES.get(label[0], label[0]), label[2:]


def read_entities(labels: Sequence[str]) -> list[Entity]:
    """The entities of a sentence as seqeval reads them by default, and conlleval: an I or E that cannot go on an entity
    of its type begins one."""
    entities = []
    start, previous = 0, _split_label(OUTSIDE)
    for position, (letter, kind) in enumerate(map(_split_label, [*labels, OUTSIDE])):
        if letter in "IE" and previous[0] in "BI" and kind == previous[1]:
            previous = letter, kind
            continue
        if previous[0] != OUTSIDE:
            entities.append(Entity(previous[1], start, position))
        start, previous = position, (letter, kind)
    return entities


def read_strictly(labels: Sequence[str], scheme: str) -> list[Entity]:
    """The entities of a sentence as seqeval reads them in mode "strict" with this scheme."""
    parts = [("O", ""), *map(_split_label, labels), ("O", "")]  # token i has index i + 1
    entities = []
    for entity in read_entities(labels):
        kind, start, end = entity
        before, (first, _), (last, _), after = parts[start], parts[start + 1], parts[end], parts[end + 1]
        if scheme == "IOB2":
            follows_scheme = first == "B"
        elif scheme != "IOB1":
            follows_scheme = first in "BS" and last in "ES"
        else:
            if first == "B" and (before[0] == OUTSIDE or before[1] != kind):
                start += 1  # this B means nothing, but an I behind it begins an entity
            follows_scheme = start < end and (after == ("B", kind) or not last == after[0] == "B")
        if follows_scheme:
            entities.append(Entity(kind, start, end))
    return entities


def read_tokens(labels: Sequence[str]) -> list[Entity]:
    """The tokens of a sentence that have a label, each by itself."""
    return [Entity(label, start, start + 1) for start, label in enumerate(labels) if label != UNLABELLED]


def find_scheme(sentences: Collection[Sequence[str]], expected: str | None = None) -> Scheme | None:
    """The scheme that the fewest entities of these labels break; None: no scheme has all of their letters.

    Args:
      expected: the scheme to take where others fit equally well.
    """
    letters = {label[0] for label in all_labels(sentences)}
    candidates = [name for name in _LETTERS if letters <= set(_LETTERS[name])]
    labelled = [(labels, read_entities(labels)) for labels in sentences if any(label != OUTSIDE for label in labels)]
    num_entities = sum(len(entities) for _, entities in labelled)

    def num_broken(name: str) -> int:
        return num_entities - sum(len({*entities} & {*read_strictly(labels, name)}) for labels, entities in labelled)

    schemes = (
        Scheme(name, num_entities, num_broken(name)) for name in sorted(candidates, key=lambda name: name != expected)
    )
    return min(schemes, key=lambda scheme: scheme.num_broken, default=None)


def all_labels(sentences: Iterable[Sequence[str]]) -> set[str]:
    """The different labels."""
    return set().union(*sentences)


Labels = Sequence[Sequence[str]]  # of each token of each sentence


def count_entities(true: Labels, predicted: Labels, read: Callable[[Sequence[str]], list[Entity]]) -> dict[str, Counts]:
    """The counts by type; an entity is correct if its type, first and last token are right."""
    counts: tuple[collections.Counter[str], ...] = tuple(collections.Counter() for _ in range(3))
    for pair in zip(true, predicted):
        true_entities, predicted_entities = map(set, map(read, pair))
        for counter, entities in zip(counts, (true_entities, predicted_entities, true_entities & predicted_entities)):
            counter.update(entity.type for entity in entities)
    return {kind: Counts(*(counter[kind] for counter in counts)) for kind in sorted(counts[0] | counts[1])}


def score(true: Labels, predicted: Labels, scheme: str | None) -> dict[str, float]:
    """Scores by name: "accuracy" of the tokens; "precision", "recall" and "f1" of entities as seqeval counts them by
    default. The prefix "strict_" stands for its mode "strict"; a type and "_" before a measure, for that type.

    Without a scheme: "accuracy", and a label and "_f1" for the F1 of the tokens with this label.
    """
    num_right = sum(sum(map(str.__eq__, *pair)) for pair in zip(true, predicted))
    scores = {"accuracy": num_right / max(sum(map(len, true)), 1)}
    if scheme is None:
        by_label = count_entities(true, predicted, read_tokens)
        return {**scores, **{f"{label}_f1": counts.scores()["f1"] for label, counts in by_label.items()}}
    strict = scores_of(count_entities(true, predicted, functools.partial(read_strictly, scheme=scheme)))
    return {
        **scores,
        **scores_of(count_entities(true, predicted, read_entities)),
        **{f"strict_{name}": value for name, value in strict.items()},
    }


def describe_counts(true: Labels, predicted: Labels) -> str:
    """The counts in the wording of the program conlleval, which scripts parse."""
    num_true, num_predicted, num_correct = total(count_entities(true, predicted, read_entities).values())
    return (
        f"processed {sum(map(len, true))} tokens with {num_true} phrases; found: {num_predicted} phrases; "
        f"correct: {num_correct}."
    )


class LabelKind(NamedTuple):
    """What labels stand for."""

    fault_of: Callable[[str], str]  # what is wrong with a label; "" if nothing is
    read: Callable[[Sequence[str]], list[Entity]]  # what the labels of a sentence mark
    has_scheme: bool
    fields: Sequence[str]  # their names in JSON lines
    of_no_piece: str  # the label of a token of which the tokenizer leaves nothing
    main_score: str


KINDS = {  # by --task_name
    "ner": LabelKind(fault_of_entity_label, read_entities, True, ("ner_tags", "tags"), OUTSIDE, "f1"),
    "pos": LabelKind(fault_of_token_label, read_tokens, False, ("pos_tags", "upos", "tags"), UNLABELLED, "accuracy"),
}
