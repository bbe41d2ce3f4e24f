"""Small TF1 checkpoints for tests, with the variables of Google's BERT releases."""

import numpy as np
import tensorflow as tf

from bert_tf.bert_config import BertConfig

HIDDEN, HEADS, INNER, VOCAB, POSITIONS = 8, 2, 12, 19, 16
CONFIG = BertConfig(VOCAB, HIDDEN, 2, HEADS, INNER, max_position_embeddings=POSITIONS)


def published_names(num_layers):
    """The variables of Google's BERT releases, as their checkpoints list them, with shapes."""
    layer = {
        **{f"attention/self/{part}/kernel": [HIDDEN, HIDDEN] for part in ("query", "key", "value")},
        **{f"attention/self/{part}/bias": [HIDDEN] for part in ("query", "key", "value")},
        "attention/output/dense/kernel": [HIDDEN, HIDDEN],
        "attention/output/dense/bias": [HIDDEN],
        "attention/output/LayerNorm/beta": [HIDDEN],
        "attention/output/LayerNorm/gamma": [HIDDEN],
        "intermediate/dense/kernel": [HIDDEN, INNER],
        "intermediate/dense/bias": [INNER],
        "output/dense/kernel": [INNER, HIDDEN],
        "output/dense/bias": [HIDDEN],
        "output/LayerNorm/beta": [HIDDEN],
        "output/LayerNorm/gamma": [HIDDEN],
    }
    return {
        "bert/embeddings/word_embeddings": [VOCAB, HIDDEN],
        "bert/embeddings/token_type_embeddings": [2, HIDDEN],
        "bert/embeddings/position_embeddings": [POSITIONS, HIDDEN],
        "bert/embeddings/LayerNorm/beta": [HIDDEN],
        "bert/embeddings/LayerNorm/gamma": [HIDDEN],
        **{f"bert/encoder/layer_{n}/{name}": shape for n in range(num_layers) for name, shape in layer.items()},
        "bert/pooler/dense/kernel": [HIDDEN, HIDDEN],
        "bert/pooler/dense/bias": [HIDDEN],
    }


HEADS_OF_PRETRAINING = {
    "cls/predictions/transform/dense/kernel": [HIDDEN, HIDDEN],
    "cls/predictions/transform/dense/bias": [HIDDEN],
    "cls/predictions/transform/LayerNorm/beta": [HIDDEN],
    "cls/predictions/transform/LayerNorm/gamma": [HIDDEN],
    "cls/predictions/output_bias": [VOCAB],
    "cls/seq_relationship/output_weights": [2, HIDDEN],
    "cls/seq_relationship/output_bias": [2],
}


def random_values(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def read_tensors(prefix):
    """All that a checkpoint holds, by name."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write_tensors(prefix, tensors):
    """A checkpoint of these tensors, whatever they are."""
    names, values = list(tensors), list(tensors.values())
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def write_tf1(folder, values, name="bert_model.ckpt"):
    """Writes a name-based checkpoint with TF1's Saver, and what Google puts beside it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(key, initializer=tf.constant(value)) for key, value in values.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(variables).save(session, str(folder / name), write_meta_graph=False)
    (folder / "bert_config.json").write_text(CONFIG.to_json())
    return folder


def write_encoder(folder, pieces, positions):
    """Weights of a small encoder as Google publishes them, with this vocabulary."""
    shapes = {**published_names(2), "bert/embeddings/word_embeddings": [len(pieces), HIDDEN]}
    shapes["bert/embeddings/position_embeddings"] = [positions, HIDDEN]
    write_tf1(folder, {name: value + name.endswith("gamma") for name, value in random_values(shapes).items()})
    config = BertConfig(len(pieces), HIDDEN, 2, HEADS, INNER, max_position_embeddings=positions)
    (folder / "bert_config.json").write_text(config.to_json())
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
