"""Turns questions into the model's inputs: the question followed by one of the context's overlapping windows.

The rules are those of Google's run_squad.py: ``[CLS] question [SEP] window [SEP]``, windows that advance by
`doc_stride` tokens, and for each token the one window that gives it the most context. Unlike there, the answer's tokens
are found by position, not by text: they are those that stand for at least one of its characters. In text without spaces
a sentence is a single word for Google's code, and often holds the answer's text more than once.

Shapes: F windows, S tokens in a row, T tokens in a document.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.tasks.rows import model_inputs
from bert_tf.tasks.squad.examples import Example, answer_range
from bert_tf.tasks.squad.settings import FeatureSettings
from bert_tf.text.vocabulary import Tokenizer, TokenSpans


class Windows(NamedTuple):
    """All windows of a file, in the order of its questions, as arrays.

    `token_starts`, `token_ends` and `is_max_context` are needed to find the answer's text; in windows made for training
    they have width 0.
    """

    input_ids: np.ndarray  # int32 [F, S], 0 after the row's last token
    num_tokens: np.ndarray  # int32 [F], number of real tokens in the row
    num_query_tokens: np.ndarray  # int32 [F], how many of these are [CLS], the question and the first [SEP]
    example_index: np.ndarray  # int32 [F], number of the question
    start_positions: np.ndarray  # int32 [F], the answer's first token in the row; 0 ([CLS]): no answer in this window
    end_positions: np.ndarray  # int32 [F], the answer's last token
    token_starts: np.ndarray  # int32 [F, S or 0], where in the context the token's characters start
    token_ends: np.ndarray  # int32 [F, S or 0], where they end (exclusive); 0 outside the window
    is_max_context: np.ndarray  # bool [F, S or 0], whether this window gives the token the most context

    @property
    def tokens(self) -> np.ndarray:
        """The ids of all windows, without padding."""
        return self.input_ids[np.arange(self.input_ids.shape[1]) < self.num_tokens[:, None]]

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs and targets for the windows numbered `rows` (any shape [...]).

        Returns: int32 arrays input_ids, input_mask, segment_ids [..., S] and start_positions,
          end_positions [...].
        """
        return {
            **model_inputs(self.input_ids[rows], self.num_tokens[rows], self.num_query_tokens[rows]),
            "start_positions": self.start_positions[rows],
            "end_positions": self.end_positions[rows],
        }


def make_windows(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    settings: FeatureSettings,
    *,
    is_training: bool,
    show_progress: bool = False,
) -> Windows:
    """Splits every question's context into windows.

    Args:
      is_training: whether the windows hold the answers' positions (then every example needs its answers) instead of
        what is needed to find answers.

    Raises:
      UserError: an answer is not in its context, or consists only of characters that the tokenizer drops.
    """
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    num_kinds = 1 if is_training else 4  # arrays with a value for each position: ids, starts, ends, is_max_context
    per_position: list[np.ndarray] = []
    per_row: list[tuple[int, ...]] = []
    context = None
    for index, example in enumerate(
        Progress(examples, unit="questions", description="SQuAD features", disable=not show_progress)
    ):
        if example.context is not context:
            context, tokens = example.context, tokenizer.tokenize_with_spans(example.context)
            tokens_3xT = np.array(tokens, np.int32)
        head = [cls_id, *tokenizer.tokenize_to_ids(example.question)[: settings.max_query_length], sep_id]
        spans = window_spans(len(tokens.ids), settings.max_seq_length - len(head) - 1, settings.doc_stride)
        answer = _answer_tokens(example, tokens) if is_training else None
        best_T = None if is_training else best_windows(spans, len(tokens.ids))
        for window, (start, length) in enumerate(spans):
            inside, end = slice(start, start + length), len(head) + length
            row = np.zeros([num_kinds, settings.max_seq_length], np.int32)
            row[0, : len(head)], row[:3, len(head) : end], row[0, end] = head, tokens_3xT[:num_kinds, inside], sep_id
            if best_T is not None:
                row[3, len(head) : end] = best_T[inside] == window
            first = last = 0
            # An answer that is only partly in this window counts as no answer.
            if answer and start <= answer[0] and answer[1] < start + length:
                first, last = (token - start + len(head) for token in answer)
            per_position.append(row)
            per_row.append((end + 1, len(head), index, first, last))
    ids, *positions = np.stack(per_position, axis=1)
    starts, ends, is_max = positions or np.zeros([3, len(ids), 0], np.int32)
    num_tokens, num_query_tokens, numbers, first_tokens, last_tokens = np.array(per_row, np.int32).T
    return Windows(
        ids, num_tokens, num_query_tokens, numbers, first_tokens, last_tokens, starts, ends, is_max.astype(bool)
    )


def count_unreachable(examples: Sequence[Example], windows: Windows, max_answer_length: int) -> int:
    """The number of questions whose answers all have more than `max_answer_length` tokens.

    Args:
      examples: the windows' questions; not used for windows made for training, which hold the answers themselves.
    """
    if not windows.token_ends.size:
        lengths = windows.end_positions - windows.start_positions + 1
        return len(np.unique(windows.example_index[lengths > max_answer_length]))
    bounds = np.searchsorted(windows.example_index, np.arange(len(examples) + 1))
    number = 0
    for index, example in enumerate(examples):
        answers = (answer_range(example._replace(answers=(answer,))) for answer in example.answers or ())
        rows = slice(bounds[index], bounds[index + 1])
        starts, ends = windows.token_starts[rows], windows.token_ends[rows]
        # An answer's length is the number of its tokens in the window that holds most of them.
        lengths = [((starts < end) & (ends > start)).sum(axis=1).max() for start, end in filter(None, answers)]
        number += bool(lengths) and min(lengths) > max_answer_length
    return number


def window_spans(num_tokens: int, room: int, doc_stride: int) -> list[tuple[int, int]]:
    """(first token, number of tokens) of each window over a document; at least one."""
    spans, start = [], 0
    while True:
        length = min(room, num_tokens - start)
        spans.append((start, length))
        if start + length >= num_tokens:
            return spans
        # No token may fall between two windows, however large the stride.
        start += min(length, doc_stride)


def best_windows(spans: Sequence[tuple[int, int]], num_tokens: int) -> np.ndarray:
    """int64 [T]: for each token the window in which the smaller of its left and right contexts is largest.

    A window's length adds a hundredth per token to its score; if scores are equal, the earlier window wins.
    """
    best_T, scores_T = np.zeros(num_tokens, np.int64), np.full(num_tokens, -np.inf)
    for window, (start, length) in enumerate(spans):
        inside, positions = slice(start, start + length), np.arange(length)
        scores = np.minimum(positions, positions[::-1]) + 0.01 * length
        is_better = scores > scores_T[inside]
        best_T[inside][is_better] = window
        scores_T[inside][is_better] = scores[is_better]
    return best_T


def _answer_tokens(example: Example, tokens: TokenSpans) -> tuple[int, int] | None:
    """The first and the last token of the answer used for training; None: the question has no answer.

    Raises: UserError if the answer is not in the context, or no token stands for one of its characters.
    """
    if example.is_impossible:
        return None
    start, end = answer_range(example) or (0, 0)
    first, last = bisect.bisect_right(tokens.ends, start), bisect.bisect_left(tokens.starts, end) - 1
    if first > last:
        raise UserError(f"question {example.question_id!r}: the tokenizer leaves nothing of its answer; take it out")
    return first, last
