"""What the rows of all tasks are made with: texts into tokens, tokens into the model's inputs.

Shapes: F texts, S positions of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_tf.base.progress import Progress
from bert_tf.text.vocabulary import Tokenizer

# Texts that are tokenised at once; progress is shown after each such batch.
_BATCH = 10_000


def tokenize_texts(
    texts: Sequence[str], tokenizer: Tokenizer, *, show_progress: bool, unit: str = "sentences"
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all tokens, int32, and the number of tokens in each text, int64 [F]."""
    tokenized = []
    with Progress(total=len(texts), unit=unit, description="tokenising", disable=not show_progress) as shown:
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            tokenized.append(tokenizer.encode_lines(batch))
            shown.update(len(batch))
    ids, sizes_F = map(np.concatenate, zip(*tokenized))
    return ids, sizes_F


def model_inputs(input_ids: np.ndarray, num_tokens: np.ndarray, num_first: np.ndarray) -> dict[str, np.ndarray]:
    """The model's inputs for rows of one text or two: int32 arrays input_ids, input_mask, segment_ids [..., S].

    Args:
      input_ids: [..., S]; what stands behind a row's tokens is padding, whatever it is.
      num_tokens: [...], of each row; `num_first`: [...], of these the first text's, with its [CLS] and [SEP].
    """
    columns = np.arange(input_ids.shape[-1])
    is_token = columns < num_tokens[..., None]
    is_second = is_token & (columns >= num_first[..., None])
    return {
        "input_ids": np.where(is_token, input_ids, 0),
        "input_mask": is_token.astype(np.int32),
        "segment_ids": is_second.astype(np.int32),
    }
