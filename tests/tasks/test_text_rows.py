"""Rows of sentences and pairs, against the rules written out sentence by sentence."""

import numpy as np
import pytest

from bert_tf.tasks.rows import make_text_rows, truncated_pair
from bert_tf.text.wordpiece import FullTokenizer
from tests.glue_data import GOOD, VOCAB, write_model


def shortened(first, second, room):
    """Google's rule: the longer one loses its last token, the second if they are equal."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def test_truncation_of_pairs():
    sizes = np.array([(a, b) for a in range(14) for b in range(14)])
    for room in range(2, 15):
        kept = np.stack(truncated_pair(sizes[:, 0], sizes[:, 1], room), axis=1)
        expected = [[len(part) for part in shortened(range(a), range(b), room)] for a, b in sizes]
        np.testing.assert_array_equal(kept, expected)


SECOND = ("", "the dog\nran", "zebra", "they sat there and then she went home with a cat")


@pytest.mark.parametrize("max_seq_length", [5, 8, 16])
@pytest.mark.parametrize("is_pair", [False, True])
def test_rows(tmp_path, monkeypatch, max_seq_length, is_pair):
    monkeypatch.setattr("bert_tf.tasks.rows._BATCH", 3)  # several batches, one of them short
    tokenizer = FullTokenizer(write_model(tmp_path) / "vocab.txt")
    texts = (GOOD, SECOND) if is_pair else (SECOND,)
    features = make_text_rows(texts, np.arange(4, dtype=np.int32), tokenizer, max_seq_length)
    order = np.array([[2, 0], [1, 3]])
    batch = features.batch(order)
    assert {name: values.shape for name, values in batch.items()} == {
        "labels": (2, 2),
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (2, 2, max_seq_length)),
    }
    np.testing.assert_array_equal(batch["labels"], order)
    for place, row in np.ndenumerate(order):
        tokens = [tokenizer.tokenize_to_ids(sentences[row]) for sentences in texts]
        if is_pair:
            tokens = shortened(*tokens, max_seq_length - 3)
        ids, segments = [VOCAB.index("[CLS]")], [0]
        for number, part in enumerate(tokens):
            part = part[: max_seq_length - 2]
            ids += [*part, VOCAB.index("[SEP]")]
            segments += [number] * (len(part) + 1)
        padding = [0] * (max_seq_length - len(ids))
        assert batch["input_ids"][place].tolist() == ids + padding
        assert batch["segment_ids"][place].tolist() == segments + padding
        assert batch["input_mask"][place].tolist() == [1] * len(ids) + padding
