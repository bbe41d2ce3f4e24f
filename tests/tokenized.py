"""Text as instances are made of it, from lists of token ids."""
from __future__ import annotations

from typing import List

import numpy as np

from data.pretraining_examples import TokenizedText


def tokenized(documents: List[List[List[int]]]) -> TokenizedText:
    """From token ids by sentence by document."""
    sentences = [sentence for document in documents for sentence in document]
    starts = np.cumsum([0, *map(len, sentences)])
    return TokenizedText(
        np.array([token for sentence in sentences for token in sentence], np.int32), starts,
        np.cumsum([0, *map(len, documents)]))
