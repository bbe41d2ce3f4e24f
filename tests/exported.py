"""A small model with its run folder, for the tests of what is made for Hugging Face's libraries."""

import functools
import json

import tensorflow as tf

from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import ChoiceModel, MaskedWordModel, PretrainingModel, SpanModel, TokenModel
from bert_tf.run.checkpoint import CheckpointFolder
from tests.small_models import small_config

# Pieces of which English words, accents, kana and punctuation can be made, cased and not.
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIGNS = "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~ßσςд中文の0123456789"
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "river", "flows", "into", "sea", "cafe", "un", "##aff", "##able"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *SIGNS,
]
CASED_VOCAB = [*VOCAB, *LETTERS.upper(), "é", "##é"]
CONFIG = small_config(len(VOCAB), 16, positions=32, initializer_range=0.2)
ENCODER_ONLY, CLASSIFIER = "encoder", "classifier"


@functools.cache
def make_variables(kind, config=CONFIG, num_classes=3):
    """The variables of a model with the heads of `kind`: a model class, or one of the names above."""
    if kind in (PretrainingModel, MaskedWordModel, SpanModel, ChoiceModel):
        return kind(config, seed=3).variables
    if kind is TokenModel:
        return TokenModel(config, num_classes, seed=3).variables
    variables = BertEncoder(config, seed=3).variables
    if kind == CLASSIFIER:
        weights = tf.random.stateless_normal([num_classes, config.hidden_size], [1, 2])
        variables = [
            *variables,
            tf.Variable(weights, name="output_weights"),
            tf.Variable(weights[:, 0], name="output_bias"),
        ]
    return variables


def write_run(folder, variables, *, update=20, config=CONFIG, vocab=VOCAB, companions=(), **settings):
    """Writes a run folder with one checkpoint, and returns the checkpoint's folder."""
    texts = {"bert_config.json": config.to_json(), "vocab.txt": "\n".join(vocab) + "\n", **dict(companions)}
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=3, vocab_size=config.vocab_size, companions=texts)
    path = checkpoints.save(update, variables, {})
    data = {"dataset": "sample", "first_file": "/x/secret/f"}
    identity = {"seed": 12345, "max_seq_length": 128, **settings}
    (folder / "config.json").write_text(json.dumps({"identity": identity, "data": data}), encoding="utf-8")
    return path
