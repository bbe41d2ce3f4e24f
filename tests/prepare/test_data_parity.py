"""Instances and records against those of Google's own tool, by figures and bytes that it gave.

The figures are of tf-models-official 2.15.0 (pip), `create_pretraining_data`: the text below, which
follows from a rule, 150 seeds, ten passes each, sequences of 32, 6 predictions, a share of 0.2. Each
is (mean, standard error of the mean). The record, with the newer names, is what its writer made of an
instance of 16 tokens.
"""

import base64

import numpy as np
import pytest

from bert_tf.batches.batches import evaluation_batches
from bert_tf.batches.data_sets import RecordSet
from bert_tf.batches.masking import MaskingRules
from bert_tf.prepare.instances.instances import RecordSettings, TokenSettings, create_instances
from bert_tf.records.pairs import PairSettings
from bert_tf.records.schema import RecordSchema
from bert_tf.records.shard import describe, load_index
from bert_tf.settings.training import BatchSplit
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.preparation import tokenized
from tests.pretraining_data import vocabulary_ids

WORDS = 40
VOCABULARY = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(WORDS)), *(f"##w{number}" for number in range(WORDS))]
VOCAB = {token: number for number, token in enumerate(VOCABULARY)}
IDS = vocabulary_ids(VOCABULARY)
NUM_PASSES = 10
RULES = {"tokens": {}, "words": {"whole_word_masking": True}}
FIGURES = {  # by the rules
    "instances_a_pass": {"tokens": (50.40400, 0.11051), "words": (50.12333, 0.10195)},
    "length": {"tokens": (25.95002, 0.03079), "words": (25.97796, 0.03002)},
    "length_squared": {"tokens": (729.07953, 1.43657), "words": (729.95495, 1.43157)},
    "full": {"tokens": (0.49642, 0.00214), "words": (0.49589, 0.00224)},
    "size_a": {"tokens": (10.14448, 0.01778), "words": (10.20018, 0.02008)},
    "size_b_if_random": {"tokens": (13.09196, 0.03854), "words": (13.05266, 0.03725)},
    "size_b_if_next": {"tokens": (12.34275, 0.03609), "words": (12.33758, 0.03577)},
    "random_next": {"tokens": (0.61992, 0.00173), "words": (0.61743, 0.00173)},
    "random_next_if_short": {"tokens": (0.62133, 0.00460), "words": (0.62182, 0.00520)},
    "first_is_cut": {"tokens": (0.04533, 0.00077), "words": (0.04703, 0.00080)},
    "predictions": {"tokens": (4.98178, 0.00543), "words": (4.98642, 0.00532)},
    "position": {"tokens": (0.48264, 0.00043), "words": (0.48310, 0.00048)},
    "masked": {"tokens": (0.80028, 0.00066), "words": (0.80000, 0.00085)},
    "kept": {"tokens": (0.10111, 0.00049), "words": (0.10108, 0.00063)},
    "going_on": {"tokens": (0.28858, 0.00068), "words": (0.25411, 0.00043)},
    "neighbours": {"tokens": (0.16564, 0.00058), "words": (0.36490, 0.00059)},
    "neighbours_alike": {"tokens": (0.68053, 0.00195), "words": (0.89856, 0.00081)},
}
RECORD = (
    "9wAAAAAAAADljG6wCvQBCiYKDmlucHV0X3dvcmRfaWRzEhQaEgoQAgQYQRoDEhMEFRYDAAAAAAoYCg1tYXNrZWRfbG1faWRzEgcaBQoDFzwACiYK"
    "DmlucHV0X3R5cGVfaWRzEhQaEgoQAAAAAAAAAQEBAQEBAAAAAAodChRuZXh0X3NlbnRlbmNlX2xhYmVscxIFGgMKAQEKHgoTbWFza2VkX2xtX3Bv"
    "c2l0aW9ucxIHGgUKAwEIAAoiCgppbnB1dF9tYXNrEhQaEgoQAQEBAQEBAQEBAQEBAAAAAAolChFtYXNrZWRfbG1fd2VpZ2h0cxIQEg4KDAAAgD8A"
    "AIA/AAAAAIOxruo="
)


def documents() -> list[list[list[str]]]:
    """The text that both tools got."""
    return [
        [
            [
                ("##" if number and (document + sentence + number) % 3 == 0 else "")
                + f"w{(11 * document + 5 * sentence + number) % WORDS}"
                for number in range((7 * document + 5 * sentence) % 13 + 1)
            ]
            for sentence in range(3 * document % 11 + 1)
        ]
        for document in range(20)
    ]


def figures(rows) -> dict[str, float]:
    """What was measured of the other tool's instances, in the same way."""
    length, size_b = rows["input_mask"].sum(axis=1, dtype=int), rows["segment_ids"].sum(axis=1, dtype=int) - 1
    size_a, is_random = length - size_b - 3, rows["next_sentence_labels"][:, 0] == 1
    chosen, positions = rows["masked_lm_weights"] > 0, rows["masked_lm_positions"]
    tokens = np.take_along_axis(rows["input_ids"], positions, axis=1)
    is_mask = tokens == IDS.mask
    neighbours = chosen[:, 1:] & (np.diff(positions, axis=1) == 1)
    first = np.where(chosen[:, 0] & (positions[:, 0] == 1), rows["masked_lm_ids"][:, 0], rows["input_ids"][:, 1])
    num = chosen.sum()
    return {
        "instances_a_pass": len(length) / NUM_PASSES,
        "length": length.mean(),
        "length_squared": (length.astype(float) ** 2).mean(),
        "full": (length == 32).mean(),
        "size_a": size_a.mean(),
        "size_b_if_random": size_b[is_random].mean(),
        "size_b_if_next": size_b[~is_random].mean(),
        "random_next": is_random.mean(),
        "random_next_if_short": is_random[length < 16].mean(),
        "first_is_cut": IDS.continues_word[first].mean(),
        "predictions": num / len(length),
        "position": (positions / length[:, np.newaxis])[chosen].mean(),
        "masked": is_mask[chosen].mean(),
        "kept": (tokens == rows["masked_lm_ids"])[chosen].mean(),
        "going_on": IDS.continues_word[rows["masked_lm_ids"][chosen]].mean(),
        "neighbours": neighbours.sum() / num,
        "neighbours_alike": (is_mask[:, 1:] == is_mask[:, :-1])[neighbours].mean(),
    }


@pytest.mark.parametrize("name", RULES)
def test_instances_have_the_figures_of_googles_tool(name):
    text = tokenized([[VOCAB[token] for token in sentence] for sentence in document] for document in documents())
    pairs, rules = PairSettings(32, NUM_PASSES), MaskingRules(0.2, 6, **RULES[name])
    settings = RecordSettings(TokenSettings("vocab.txt", Casing.from_flags(True)), pairs, rules)
    found = [figures(rows) for seed in range(100) for rows in create_instances(text, settings, IDS, (seed,))]
    assert len(found) == 100
    for figure, by_rules in FIGURES.items():
        mean, error = by_rules[name]
        values = np.array([of_one[figure] for of_one in found])
        own_error = values.std(ddof=1) / len(values) ** 0.5
        assert abs(values.mean() - mean) < 4.5 * np.hypot(error, own_error), (figure, values.mean(), mean)


def test_records_of_googles_tool_are_read(tmp_path):
    path = tmp_path / "theirs.tfrecord"
    path.write_bytes(base64.b64decode(RECORD))
    assert describe(path) == RecordSchema(16, 3, has_v2_names=True)
    assert load_index(path).lengths().tolist() == [12]
    records = RecordSet(str(path), "eval_files")
    (batch,) = evaluation_batches(records, BatchSplit(1), 1, vocab_size=len(VOCABULARY))
    found = {name: value.numpy()[0] for name, value in batch.items()}
    tokens = "[CLS] [MASK] w19 ##w20 w21 [SEP] w13 w14 [MASK] w16 w17 [SEP] [PAD] [PAD] [PAD] [PAD]".split()
    assert [VOCABULARY[token] for token in found["input_ids"]] == tokens
    assert [VOCABULARY[token] for token in found["masked_lm_ids"]] == ["w18", "##w15", "[PAD]"]
    assert found["masked_lm_positions"].tolist() == [1, 8, 0] and found["masked_lm_weights"].tolist() == [1, 1, 0]
    assert found["segment_ids"].tolist() == [0] * 6 + [1] * 6 + [0] * 4
