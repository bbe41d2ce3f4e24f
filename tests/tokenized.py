"""Text as instances are made of it, from lists of token ids."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from bert_tf.records.token_file import TokenizedText


def numbered_documents(count: int, longest_sentence: int = 20) -> list[list[list[int]]]:
    """Documents of sentences of token ids, which count on through all of them: so each tells where it comes from."""
    rng, token, documents = random.Random(0), 1000, []
    for _ in range(count):
        documents.append([])
        for _ in range(rng.randint(1, 25)):
            size = rng.randint(1, longest_sentence)
            documents[-1].append(list(range(token, token + size)))
            token += size
    return documents


def tokenized(documents: Iterable[list[list[int]]]) -> TokenizedText:
    """From token ids by sentence by document; none of them is empty."""
    documents = list(documents)
    sentences = [sentence for document in documents for sentence in document]
    return TokenizedText(
        np.array([token for sentence in sentences for token in sentence], np.int32),
        np.cumsum([0, *map(len, sentences)]),
        np.cumsum([0, *map(len, documents)]),
    )
