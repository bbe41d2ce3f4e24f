"""Precision, recall and F1 over entities, micro and by type: the scores of seqeval, the counts of conlleval."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bert_tf.tasks.entities.schemes import Entity, read_entities, read_strictly

Labels = Sequence[Sequence[str]]  # of each token of each sentence


class Counts(NamedTuple):
    """Numbers of entities."""

    num_true: int
    num_predicted: int
    num_correct: int  # with the right type, first and last token

    def scores(self) -> dict[str, float]:
        """From 0 to 1; 0 where nothing was predicted, or nothing is true."""
        precision, recall = (self.num_correct / max(num, 1) for num in (self.num_predicted, self.num_true))
        f1 = 2 * precision * recall / (precision + recall) if self.num_correct else 0.0
        return {"precision": precision, "recall": recall, "f1": f1}


def count_entities(true: Labels, predicted: Labels, read: Callable[[Sequence[str]], list[Entity]]) -> dict[str, Counts]:
    """By type, and of all types as the first, ""."""
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
    scores = {"accuracy": _accuracy(true, predicted)}
    for mode, read in (("", read_entities), ("strict_", functools.partial(read_strictly, scheme=scheme))):
        for kind, counts in count_entities(true, predicted, read).items():
            prefix = f"{mode}{kind}_" if kind else mode
            scores.update({f"{prefix}{name}": value for name, value in counts.scores().items()})
    return scores


def conlleval_lines(true: Labels, predicted: Labels) -> Iterator[str]:
    """The report of the program conlleval, in its wording, which scripts parse."""
    total, *_ = counts = count_entities(true, predicted, read_entities)
    for kind, numbers in counts.items():
        percent = {name: f"{name}: {100 * value:6.2f}%" for name, value in numbers.scores().items()}
        line = f"{percent['precision']}; {percent['recall']}; {percent['f1'].replace('f1', 'FB1').rstrip('%')}"
        if kind == total:
            num_tokens = sum(map(len, true))
            yield (
                f"processed {num_tokens} tokens with {numbers.num_true} phrases; found: {numbers.num_predicted} "
                f"phrases; correct: {numbers.num_correct}."
            )
            yield f"accuracy: {100 * _accuracy(true, predicted):6.2f}%; {line}"
        else:
            yield f"{kind:>17}: {line}  {numbers.num_predicted}"


def _accuracy(true: Labels, predicted: Labels) -> float:
    num_right = sum(sum(map(str.__eq__, *pair)) for pair in zip(true, predicted))
    return num_right / max(sum(map(len, true)), 1)
