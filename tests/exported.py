"""Run folders with the weights of small models, for the tests of what is made of them."""

import functools
import json

import tensorflow as tf

from bert_tf.model.heads import ClassifierModel, TokenModel
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


@functools.cache
def make_model(kind, config=CONFIG, num_classes=3):
    """A model of a class, with biases that are not 0."""
    classes = [num_classes] if kind in (ClassifierModel, TokenModel) else []
    model = kind(config, *classes, seed=3)
    for number, variable in enumerate(model.variables):
        if variable.shape.rank == 1:
            variable.assign_add(tf.random.stateless_normal(variable.shape, [1, number], stddev=0.2))
    return model


def write_run(folder, variables, *, update=20, config=CONFIG, vocab=VOCAB, companions=()):
    """Writes a run folder with one checkpoint, and returns the checkpoint's folder."""
    texts = {"bert_config.json": config.to_json(), "vocab.txt": "\n".join(vocab) + "\n", **dict(companions)}
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=3, vocab_size=config.vocab_size, companions=texts)
    path = checkpoints.write(checkpoints.copy(update, variables, {}))
    data = {"dataset": "sample", "first_file": "/x/secret/f"}
    (folder / "config.json").write_text(json.dumps({"identity": {}, "data": data}), encoding="utf-8")
    return path
