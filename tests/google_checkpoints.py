"""Small TF1 checkpoints for tests, with the variables of Google's BERT releases."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.bert_config import BertConfig

HIDDEN, HEADS, INNER, VOCAB, POSITIONS = 8, 2, 12, 19, 16
CONFIG = BertConfig(VOCAB, HIDDEN, 2, HEADS, INNER, max_position_embeddings=POSITIONS)


def dense(name, inputs, outputs):
    """The shapes of a linear layer, by name; axes may be several."""
    return {f"{name}/kernel": [*inputs, *outputs], f"{name}/bias": [*outputs]}


def norm(name):
    return {f"{name}/{part}": [HIDDEN] for part in ("beta", "gamma")}


def published_names(num_layers):
    """The variables of Google's BERT releases, as their checkpoints list them, with shapes."""
    tables = {"word": VOCAB, "token_type": 2, "position": POSITIONS}
    shapes = {f"bert/embeddings/{name}_embeddings": [rows, HIDDEN] for name, rows in tables.items()}
    shapes |= norm("bert/embeddings/LayerNorm")
    for layer in (f"bert/encoder/layer_{n}" for n in range(num_layers)):
        for part in ("query", "key", "value"):
            shapes |= dense(f"{layer}/attention/self/{part}", [HIDDEN], [HIDDEN])
        shapes |= dense(f"{layer}/attention/output/dense", [HIDDEN], [HIDDEN])
        shapes |= norm(f"{layer}/attention/output/LayerNorm") | norm(f"{layer}/output/LayerNorm")
        shapes |= dense(f"{layer}/intermediate/dense", [HIDDEN], [INNER])
        shapes |= dense(f"{layer}/output/dense", [INNER], [HIDDEN])
    return shapes | dense("bert/pooler/dense", [HIDDEN], [HIDDEN])


HEADS_OF_PRETRAINING = {
    **dense("cls/predictions/transform/dense", [HIDDEN], [HIDDEN]),
    **norm("cls/predictions/transform/LayerNorm"),
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


def keras_model(with_heads, old, has_own_pooler=False):
    """The variables of NVIDIA's TF2 code (`old`) or of tf-models-official, as these name them, in a module.

    Args:
      has_own_pooler: whether the next-sentence head is that of tf-models-official's BertPretrainerV2.
    """
    width, heads = [HIDDEN], [HEADS, HIDDEN // HEADS]
    tables = {"word_embeddings": VOCAB, "position_embedding": POSITIONS, "type_embeddings": 2}
    shapes = {f"{name}/embeddings": [rows, HIDDEN] for name, rows in tables.items()}
    shapes |= norm("embeddings/layer_norm") | dense("pooler_transform", width, width)
    for layer in ("transformer/layer_0", "transformer/layer_1"):
        for part in ("query", "key", "value"):
            shapes |= dense(f"{layer}/self_attention/{part}", width, heads)
        output = "self_attention_output" if old else "self_attention/attention_output"
        shapes |= dense(f"{layer}/{output}", heads, width) | norm(f"{layer}/self_attention_layer_norm")
        shapes |= dense(f"{layer}/intermediate", width, [INNER]) | dense(f"{layer}/output", [INNER], width)
        shapes |= norm(f"{layer}/output_layer_norm")
    if with_heads:
        transform = "cls/predictions/transform"
        shapes |= dense(f"{transform}/dense", width, width) | norm(f"{transform}/LayerNorm")
        shapes |= {"not_ours/kernel": [HIDDEN, VOCAB], "cls/predictions/output_bias/bias": [VOCAB]}
        if has_own_pooler:
            shapes |= dense("bert/next_sentence/pooler_dense", width, width)
            shapes |= dense("bert/next_sentence/logits", width, [2]) | dense("bert/other_head/logits", width, [3])
        else:
            shapes |= dense("predictions/transform/logits", width, [2])
    module = tf.Module()
    module.all = [tf.Variable(value, name=name) for name, value in random_values(shapes).items()]
    return module


def values_of(module):
    return {variable.name.split(":")[0]: variable.numpy() for variable in module.variables}


def write_encoder(folder, pieces, positions, **heads):
    """Weights of a small encoder as Google publishes them, with this vocabulary, and `heads`, shapes by name."""
    shapes = {**published_names(2), **heads, "bert/embeddings/word_embeddings": [len(pieces), HIDDEN]}
    shapes["bert/embeddings/position_embeddings"] = [positions, HIDDEN]
    write_tf1(folder, {name: value + name.endswith("gamma") for name, value in random_values(shapes).items()})
    config = dataclasses.replace(CONFIG, vocab_size=len(pieces), max_position_embeddings=positions)
    (folder / "bert_config.json").write_text(config.to_json())
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
