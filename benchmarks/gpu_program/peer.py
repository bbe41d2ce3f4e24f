"""Lowers the step of tf-models-official, from which NVIDIA's TensorFlow 2 code descends, for this package's program.

    <python of an environment with tf-models-official==2.15.0> peer.py JSON FILE...

JSON: what is trained, as in `rows.Row`; one file for each of its numbers of layers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf
from official.nlp.modeling import models, networks

NUM_STEPS = 4


def lower(row: dict, num_layers: int) -> bytes:
    width, length, masked, size = row["hidden_size"], row["length"], row["predictions"], row["micro_batch_size"]
    encoder = networks.BertEncoder(
        vocab_size=30522,
        hidden_size=width,
        num_layers=num_layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        activation=lambda x: tf.keras.activations.gelu(x, approximate=True),
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
    )
    model = models.BertPretrainer(
        encoder, num_classes=2, num_token_predictions=masked, activation=tf.nn.gelu, output="logits"
    )

    def loss_of(features: dict) -> tf.Tensor:
        found = model(
            [features[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")],
            training=True,
        )
        words, following = (tf.cast(found[name], tf.float32) for name in ("masked_lm", "classification"))
        loss = tf.keras.losses.sparse_categorical_crossentropy
        weights = features["masked_lm_weights"]
        masked_loss = loss(features["masked_lm_ids"], words, from_logits=True) * weights
        first = tf.math.divide_no_nan(tf.reduce_sum(masked_loss), tf.reduce_sum(weights))
        return first + tf.reduce_mean(loss(features["next_sentence_labels"], following, from_logits=True))

    @tf.function(jit_compile=True, autograph=False)
    def accumulate(features: dict, scale: tf.Tensor) -> list[tf.Tensor]:
        variables = model.trainable_variables

        def add(number, *sums):
            with tf.GradientTape() as tape:
                loss = loss_of({name: tf.gather(values, number) for name, values in features.items()}) * scale
            gradients = tape.gradient(loss, variables)
            found = [total + tf.cast(tf.convert_to_tensor(new), tf.float32) for total, new in zip(sums, gradients)]
            return number + 1, *found

        start = [tf.zeros(variable.shape) for variable in variables]
        return tf.while_loop(
            lambda number, *_: number < NUM_STEPS, add, (tf.constant(0), *start), maximum_iterations=NUM_STEPS
        )[1:]

    def whole(*shape: int) -> tf.Tensor:
        return tf.zeros([NUM_STEPS, size, *shape], tf.int32)

    features = {
        **{name: whole(length) for name in ("input_ids", "input_mask", "segment_ids")},
        "masked_lm_positions": whole(masked),
        "masked_lm_ids": whole(masked),
        "masked_lm_weights": tf.ones([NUM_STEPS, size, masked]),
        "next_sentence_labels": whole(),
    }
    return accumulate.experimental_get_compiler_ir(features, tf.constant(1.0))(stage="hlo_serialized")


def main() -> None:
    row = json.loads(sys.argv[1])
    if row["precision"] in ("fp16", "bf16"):
        tf.keras.mixed_precision.set_global_policy(
            {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}[row["precision"]]
        )
    for num_layers, file in zip(row["layers"], sys.argv[2:]):
        Path(file).write_bytes(lower(row, num_layers))


if __name__ == "__main__":
    main()
