"""Text as instances are made of it, from lists of token ids."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bert_tf.records.token_file import TokenizedText


def tokenized(documents: Iterable[list[list[int]]]) -> TokenizedText:
    """From token ids by sentence by document; none of them is empty."""
    documents = list(documents)
    sentences = [sentence for document in documents for sentence in document]
    return TokenizedText(
        np.array([token for sentence in sentences for token in sentence], np.int32),
        np.cumsum([0, *map(len, sentences)]),
        np.cumsum([0, *map(len, documents)]),
    )
