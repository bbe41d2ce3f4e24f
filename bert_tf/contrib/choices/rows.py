"""Turns questions with choices into the model's inputs: ``[CLS] context [SEP] choice [SEP]`` for each choice.

A row is a question, so that a micro-batch holds whole questions. F questions, N choices each, S tokens of a sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.contrib.choices.read import Question
from bert_tf.tasks.rows import TextRows, make_text_rows
from bert_tf.text.vocabulary import Tokenizer


class ChoiceRows(NamedTuple):
    """All questions of a file, in its order."""

    sequences: TextRows  # of all choices, N in succession for each question
    num_choices: int
    labels_F: np.ndarray | None  # int32; None: some are not known

    @property
    def num_tokens(self) -> np.ndarray:
        """int64 [F]: the number of tokens of each question's longest sequence."""
        return self.sequences.num_tokens.reshape(-1, self.num_choices).max(axis=1)

    def first_alike_FxN(self) -> np.ndarray:
        """int64 [F, N]: for each choice the number of the first choice of its question with the same tokens, which may
        be itself."""
        ends = self.sequences.starts_F + self.sequences.num_tokens
        texts = [self.sequences.tokens[start:end].tobytes() for start, end in zip(self.sequences.starts_F, ends)]
        questions = (texts[start : start + self.num_choices] for start in range(0, len(texts), self.num_choices))
        return np.array([list(map(choices.index, choices)) for choices in questions], np.int64)

    @property
    def tokens(self) -> np.ndarray:
        return self.sequences.tokens

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs, and the right choices if known, for the questions numbered `rows` (any shape [...]).

        Returns: int32 arrays input_ids, input_mask, segment_ids [..., N, S], and labels [...].
        """
        targets = {} if self.labels_F is None else {"labels": self.labels_F[rows]}
        return {**self.sequences.batch(rows[..., None] * self.num_choices + np.arange(self.num_choices)), **targets}


def make_choice_rows(
    questions: Sequence[Question], tokenizer: Tokenizer, max_seq_length: int, *, show_progress: bool = False
) -> ChoiceRows:
    """Tokenises questions with equally many choices."""
    choices = list(itertools.chain.from_iterable(question.choices for question in questions))
    texts = ([question.context for question in questions], choices)
    sequences = make_text_rows(texts, None, tokenizer, max_seq_length, show_progress=show_progress)
    labels = [question.label for question in questions]
    return ChoiceRows(sequences, len(questions[0].choices), None if None in labels else np.array(labels, np.int32))
