"""Entities in sentences that are typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.ranks.workers import Workers
from bert_tf.tasks.entities.labels import read_entities
from bert_tf.tasks.entities.rows import make_rows
from bert_tf.tasks.entities.task import EntityTask
from bert_tf.tasks.job import FinetuningJob, run_task
from bert_tf.tasks.predict import Predictor, compute_rows
from bert_tf.tasks.prompt import check_one_process, typed_lines
from bert_tf.tasks.scores import probabilities
from bert_tf.text.basic_tokenizer import Casing, spans_of_words


def describe_entities(task: EntityTask, predictor: Predictor, text: str) -> list[str]:
    """A line for each entity in a text: the mean probability of its tokens' labels, its type, and its characters.

    The tokens are the text's words and signs, as BERT's tokenizer and those of most corpora part them.
    """
    spans = [(starts[0], ends[-1]) for _, starts, ends in spans_of_words(text, Casing(False, False))]
    if not spans:  # nothing but control characters
        return []
    rows = make_rows([[text[start:end] for start, end in spans]], None, predictor.tokenizer, task.max_seq_length)
    outputs = [
        compute_rows(predictor.compute, rows.batch, np.array([row]), task.max_seq_length)[0]
        for row in range(len(rows.num_tokens))
    ]
    logits_KxC = rows.token_logits(np.concatenate(outputs))
    sure_W = np.ones(len(spans))
    sure_W[rows.has_piece_W] = probabilities(logits_KxC).max(axis=1)
    unknown = predictor.tokenizer.count_unknown(rows.ids_P)
    return [
        *([unknown.describe("text")] if unknown.are_many else []),
        *(
            f"{sure_W[start:end].mean():7.3f}  {kind or 'entity'}: {text[spans[start][0] : spans[end - 1][1]]}"
            for kind, start, end in read_entities(task.labels_of(rows, logits_KxC))
        ),
    ]


def converse(job: FinetuningJob, task: EntityTask, workers: Workers, flags: Mapping[str, Any]) -> None:
    """Finds the entities in sentences from stdin, a line each, until an empty line."""
    check_one_process(workers)
    run_task(job, _Conversation(max_seq_length=task.max_seq_length), workers)


class _Conversation(EntityTask):
    """Finding entities in sentences that are typed."""

    def finish(self, predictor: Predictor) -> None:
        for text in typed_lines("\nSentence (an empty line ends): "):
            print("\n".join(describe_entities(self, predictor, text) or ["(no entity)"]), flush=True)
