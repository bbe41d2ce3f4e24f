"""Precision, recall and F1 over entities, micro and by type: the scores of seqeval, the counts of conlleval."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence

from bert_tf.tasks.entities.schemes import Entity, read_entities, read_strictly
from bert_tf.tasks.scores import Counts

Labels = Sequence[Sequence[str]]  # of each token of each sentence


def count_entities(true: Labels, predicted: Labels, read: Callable[[Sequence[str]], list[Entity]]) -> dict[str, Counts]:
    """By type, and of all types as the first, ""; correct are those with the right type, first and last token."""
    counts: tuple[collections.Counter[str], ...] = tuple(collections.Counter() for _ in range(3))
    for pair in zip(true, predicted):
        ours, theirs = (set(read(labels)) for labels in pair)
        for counter, entities in zip(counts, (ours, theirs, ours & theirs)):
            counter.update(entity.type for entity in entities)
    by_type = {kind: Counts(*(counter[kind] for counter in counts)) for kind in sorted(counts[0] | counts[1])}
    return {"": Counts(*(sum(counter.values()) for counter in counts)), **{k: v for k, v in by_type.items() if k}}


def score(true: Labels, predicted: Labels, scheme: str) -> dict[str, float]:
    """ "accuracy" over the tokens, and "precision", "recall", "f1" of entities as seqeval counts them by default; with
    "strict_" in front, in its mode "strict"; with a type and "_" in front of the measure, of that type."""
    num_right = sum(sum(map(str.__eq__, *pair)) for pair in zip(true, predicted))
    scores = {"accuracy": num_right / max(sum(map(len, true)), 1)}
    for mode, read in (("", read_entities), ("strict_", functools.partial(read_strictly, scheme=scheme))):
        for kind, counts in count_entities(true, predicted, read).items():
            prefix = f"{mode}{kind}_" if kind else mode
            scores.update({f"{prefix}{name}": value for name, value in counts.scores().items()})
    return scores


def describe_counts(true: Labels, predicted: Labels) -> str:
    """The counts in the wording of the program conlleval, which scripts parse."""
    num_true, num_predicted, num_correct = count_entities(true, predicted, read_entities)[""]
    return (
        f"processed {sum(map(len, true))} tokens with {num_true} phrases; found: {num_predicted} phrases; correct: "
        f"{num_correct}."
    )
