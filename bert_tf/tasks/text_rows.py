"""Turns sentences and pairs of sentences into the model's inputs.

The rules are those of Google's run_classifier.py: ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``, segment 1
from b on; if a row is too long, tokens are removed at the end, in a pair from the longer sentence first.

Shapes: F rows, S tokens in a row, T tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.tasks.rows import model_inputs, tokenize_texts
from bert_tf.text.vocabulary import Tokenizer


class TextRows(NamedTuple):
    """All rows of a file, in its order, without padding."""

    ids_T: np.ndarray  # int32, of all rows, including [CLS] and [SEP]
    starts_F: np.ndarray  # int64, where each row begins
    num_tokens: np.ndarray  # int64, number of tokens in each row
    first_lengths_F: np.ndarray  # int64, those of [CLS], the first sentence and its [SEP]
    labels_F: np.ndarray | None  # int32 classes or float32 numbers
    max_seq_length: int

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs, and the targets if known, for the rows numbered `rows` (any shape [...]).

        Returns: int32 arrays input_ids, input_mask, segment_ids [..., S], and labels [...].
        """
        positions = self.starts_F[rows][..., None] + np.arange(self.max_seq_length)
        input_ids = self.ids_T[np.minimum(positions, len(self.ids_T) - 1)]
        targets = {} if self.labels_F is None else {"labels": self.labels_F[rows]}
        return {**model_inputs(input_ids, self.num_tokens[rows], self.first_lengths_F[rows]), **targets}


def make_rows(
    texts: Sequence[Sequence[str]],
    labels_F: np.ndarray | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    show_progress: bool = False,
) -> TextRows:
    """Tokenises one or two lists of sentences; one that is N times shorter has each of its in N rows in succession."""
    num_rows = max(map(len, texts))
    tokenized = []  # ids of a list's sentences; for each row where its sentence starts there, and how long it is
    for sentences in texts:
        ids, sizes = tokenize_texts(sentences, tokenizer, show_progress=show_progress)
        times = num_rows // len(sentences)
        tokenized.append((ids, np.repeat(np.cumsum(sizes) - sizes, times), np.repeat(sizes, times)))
    room = max_seq_length - 1 - len(texts)
    first, *second = (sizes_F for _, _, sizes_F in tokenized)
    kept = truncated_pair(first, second[0], room) if second else (np.minimum(first, room),)
    lengths_F = np.sum(kept, axis=0) + 1 + len(texts)
    starts_F = np.cumsum(lengths_F) - lengths_F
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    ids_T = np.full(int(lengths_F.sum()), sep_id, np.int32)
    ids_T[starts_F] = cls_id
    begins_F = starts_F + 1
    for (ids, sources_F, _), kept_F in zip(tokenized, kept):
        numbers = np.arange(kept_F.sum()) - np.repeat(np.cumsum(kept_F) - kept_F, kept_F)  # of a token in its sentence
        ids_T[np.repeat(begins_F, kept_F) + numbers] = ids[np.repeat(sources_F, kept_F) + numbers]
        begins_F = begins_F + kept_F + 1
    return TextRows(ids_T, starts_F, lengths_F, kept[0] + 2, labels_F, max_seq_length)


def truncated_pair(first_F: np.ndarray, second_F: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each sentence are kept if both together may have `room`.

    Equals removing tokens one by one from the longer sentence, or from the second if both are equal: a
    sentence that fits into its half is kept whole, and the other gets the rest.
    """
    half_second = room // 2
    half_first = room - half_second
    return (
        np.minimum(first_F, np.maximum(half_first, room - second_F)),
        np.minimum(second_F, np.maximum(half_second, room - first_F)),
    )
