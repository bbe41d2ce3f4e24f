"""The blocks of docs/python.md run, one after the other, with a small model."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.bert_config import BertConfig
from tests.google_checkpoints import published_names, random_values, write_tf1

WORDS = "the a cat dog sat ran in park . ##s".split()


@pytest.mark.slow
def test_the_blocks_of_docs_python(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(len(pieces), 8, 2, 2, 12, max_position_embeddings=32)
    shapes = {**published_names(2), "bert/embeddings/word_embeddings": [len(pieces), 8]}
    shapes["bert/embeddings/position_embeddings"] = [32, 8]
    write_tf1(tmp_path, {name: value + name.endswith("gamma") for name, value in random_values(shapes).items()})
    (tmp_path / "bert_config.json").write_text(config.to_json())
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    document = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    names = {"folder": tmp_path}
    tf.keras.utils.set_random_seed(1)  # of the classifier's new layer: Keras draws it by Python's generator
    blocks = re.findall(r"^```python\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["sequence"].shape == (2, 16, 8) and len(names["layers"]) == 3
    np.testing.assert_allclose(np.diag(names["vectors"] @ names["vectors"].T), 1.0, rtol=1e-5)
    losses = names["history"].history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert len(names["classifier"].trainable_variables) == len(published_names(2)) + 2
    np.testing.assert_array_equal(names["query"].shape, [8, 8])
