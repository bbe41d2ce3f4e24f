"""Choosing among what is typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.ranks.workers import Workers
from bert_tf.tasks.choices.read import Question
from bert_tf.tasks.choices.rows import make_choice_rows
from bert_tf.tasks.choices.task import ChoiceTask
from bert_tf.tasks.job import FinetuningJob, run_task
from bert_tf.tasks.predict import Predictor, compute_rows
from bert_tf.tasks.prompt import check_one_process, typed_lines
from bert_tf.tasks.scores import probabilities


def converse(job: FinetuningJob, task: ChoiceTask, workers: Workers, flags: Mapping[str, Any]) -> None:
    """Reads contexts from stdin, each with its choices in the lines after it, until an empty one."""
    check_one_process(workers)
    run_task(job, _Conversation(max_seq_length=task.max_seq_length), workers)


class _Conversation(ChoiceTask):
    def finish(self, predictor: Predictor) -> None:
        for context in typed_lines("\nContext (an empty line ends): "):
            if not (choices := list(typed_lines("Choice (an empty line ends them): "))):
                continue
            rows = make_choice_rows([Question(context, choices, None)], predictor.tokenizer, self.max_seq_length)
            unknown = predictor.tokenizer.count_unknown(rows.sequences.ids_T)
            lines = [unknown.describe("text")] if unknown.are_many else []
            [scores_1xN] = compute_rows(predictor.compute, rows.batch, np.array([0]), self.max_seq_length)
            ordered = sorted(zip(-probabilities(scores_1xN)[0], choices))
            print("\n".join([*lines, *(f"{-value:7.3f}  {choice}" for value, choice in ordered)]), flush=True)
