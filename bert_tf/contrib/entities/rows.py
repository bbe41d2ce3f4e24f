"""Turns sentences of tokens into the model's inputs: ``[CLS] pieces [SEP]``, with a label on each token's first piece.

A sentence that is too long is cut between its tokens into windows that overlap by half. Each token is labelled in one
of them, the one in which it has the most context on its shorter side.

Shapes: F rows, S positions of the longest, P pieces of all rows, W tokens of all sentences, K of these with a
piece, C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.tasks.rows import ByToken, TextRows, join_parts, ranges, tokenize_texts
from bert_tf.text.vocabulary import Tokenizer

NO_LABEL = -1


class EntityRows(NamedTuple):
    """The rows of all sentences, in their order."""

    sequences: TextRows
    labels_P: np.ndarray  # int32, the token's class at the piece where it is labelled, else NO_LABEL
    rows_W: np.ndarray  # int64, the row in which a token is labelled; -1: it has no piece
    positions_W: np.ndarray  # int64, the position of its first piece in that row

    @property
    def num_tokens(self) -> np.ndarray:
        return self.sequences.num_tokens

    @property
    def tokens(self) -> np.ndarray:
        return self.sequences.tokens

    @property
    def has_piece_W(self) -> np.ndarray:
        return self.rows_W >= 0

    def token_logits(self, logits_C: ByToken) -> np.ndarray:
        """[K, C]: the logits of the tokens that have a piece, at the first one."""
        return logits_C.at(self.rows_W[self.has_piece_W], self.positions_W[self.has_piece_W])

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs and targets for the rows numbered `rows` (any shape [...]).

        Returns: int32 arrays input_ids, input_mask, segment_ids and label_ids [..., S], and label_weights [..., S],
          float32, 1 where there is a label.
        """
        inputs = self.sequences.batch(rows)
        labels = np.where(inputs["input_mask"], self.labels_P[self.sequences.token_indices(rows)], NO_LABEL)
        return {**inputs, "label_ids": np.maximum(labels, 0), "label_weights": (labels != NO_LABEL).astype(np.float32)}


def make_entity_rows(
    sentences: Sequence[Sequence[str]],
    classes_W: np.ndarray | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    show_progress: bool = False,
) -> EntityRows:
    """Tokenises sentences and cuts them into rows; `classes_W`: int [W], the class of each token; None: not known."""
    room = max_seq_length - 2
    tokens = list(itertools.chain.from_iterable(sentences))
    # Each distinct token is split into pieces once: a text has far fewer distinct tokens than tokens.
    index_of_token = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    ids, sizes = tokenize_texts(list(index_of_token), tokenizer, show_progress=show_progress)
    index_W = np.fromiter(map(index_of_token.__getitem__, tokens), np.int64, len(tokens))
    kept_W = np.minimum(sizes[index_W], room)  # a token that is longer than a row keeps its beginning
    before = np.concatenate([[0], np.cumsum(kept_W)])  # pieces before each token
    ids = ids[ranges((np.cumsum(sizes) - sizes)[index_W], kept_W)]
    sentence_starts = np.cumsum([0, *map(len, sentences)])
    windows = np.array(list(_windows(before, sentence_starts, room)), np.int64).reshape(-1, 4)
    begins_F, ends_F, first_F, last_F = windows.T
    sequences = join_parts([(ids, before[begins_F], before[ends_F] - before[begins_F])], tokenizer, max_seq_length)
    row_W = np.repeat(np.arange(len(windows)), last_F - first_F)
    position_W = 1 + before[:-1] - before[begins_F][row_W]
    labels_P = np.full(len(sequences.tokens), NO_LABEL, np.int32)
    has_piece = kept_W > 0
    if classes_W is not None:
        labels_P[(sequences.starts_F[row_W] + position_W)[has_piece]] = classes_W[has_piece]
    return EntityRows(sequences, labels_P, np.where(has_piece, row_W, -1), position_W)


def _windows(before: np.ndarray, sentence_starts: np.ndarray, room: int) -> Iterator[tuple[int, int, int, int]]:
    """For each row its tokens begin..end, and of these first..last, which are labelled in it (all ends exclusive).

    Args:
      before: int [W + 1], the number of pieces before each token; no token has more than `room` pieces.
      sentence_starts: the number of the first token of each sentence, and W.
    """
    fits = before[sentence_starts[1:]] - before[sentence_starts[:-1]] <= room
    for start, stop, is_short in zip(sentence_starts[:-1].tolist(), sentence_starts[1:].tolist(), fits.tolist()):
        if is_short:
            yield start, stop, start, stop
            continue
        spans = list(_spans(before, start, stop, room))
        # Of the tokens in two windows, those before the middle of the overlap are labelled in the earlier one.
        cuts = [start]
        for (_, end), (begin, _) in zip(spans, spans[1:]):
            middle = (before[begin] + before[end]) // 2
            cuts.append(int(np.clip(np.searchsorted(before, middle), max(begin, cuts[-1]), end)))
        for (begin, end), first, last in zip(spans, cuts, [*cuts[1:], stop]):
            yield begin, end, first, last


def _spans(before: np.ndarray, start: int, stop: int, room: int) -> Iterator[tuple[int, int]]:
    """The tokens begin..end of each window over the tokens start..stop."""
    begin = start
    while True:
        end = int(np.searchsorted(before, before[begin] + room, "right")) - 1
        if end >= stop:
            yield begin, stop
            return
        yield begin, end
        begin = min(max(int(np.searchsorted(before, before[begin] + room // 2)), begin + 1), end)
