"""BERT as one would write it with Keras' own layers, updated by tensorflow-addons' LAMB, float32."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
import tensorflow_addons as tfa

from benchmarks.variants.shared import LEARNING_RATE, random_batch
from benchmarks.variants.tensorflow_update import accumulated_update


def make_model(settings: dict[str, Any]) -> tf.keras.Model:
    config, batch, length = settings["bert_config"], settings["micro_batch_size"], settings["seq_length"]
    layers, rate, hidden_size = tf.keras.layers, config["hidden_dropout_prob"], config["hidden_size"]
    num_heads = config["num_attention_heads"]
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    inputs = {
        name: tf.keras.Input(
            [settings["predictions"] if "masked" in name else length], batch, dtype=tf.int32, name=name
        )
        for name in names
    }
    words = layers.Embedding(config["vocab_size"], hidden_size)
    x = words(inputs["input_ids"]) + layers.Embedding(2, hidden_size)(inputs["segment_ids"])
    x += layers.Embedding(config["max_position_embeddings"], hidden_size)(tf.range(length))
    x = layers.Dropout(rate)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(config["num_hidden_layers"]):
        attended = layers.MultiHeadAttention(num_heads, hidden_size // num_heads, dropout=rate)(
            x, x, attention_mask=inputs["input_mask"][:, tf.newaxis, :]
        )
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(rate)(attended))
        wide = layers.Dense(config["intermediate_size"], activation=lambda y: tf.nn.gelu(y, approximate=True))(x)
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(rate)(layers.Dense(hidden_size)(wide)))
    masked = tf.gather(x, inputs["masked_lm_positions"], batch_dims=1)
    masked = layers.Dense(hidden_size, activation=lambda y: tf.nn.gelu(y, approximate=True))(masked)
    masked = layers.LayerNormalization(epsilon=1e-12)(masked)
    nsp_logits = layers.Dense(2)(layers.Dense(hidden_size, activation="tanh")(x[:, 0]))
    model = tf.keras.Model(inputs, [masked, nsp_logits])
    model.word_layer = words
    return model


def update(settings: dict[str, Any]) -> Callable[[], float]:
    model = make_model(settings)
    output_bias = tf.Variable(tf.zeros([settings["bert_config"]["vocab_size"]]), name="output_bias")
    optimizer = tfa.optimizers.LAMB(
        LEARNING_RATE, weight_decay=0.01, exclude_from_weight_decay=["layer_normalization", "bias"]
    )

    def logits(features):
        hidden, nsp_logits = model({name: features[name] for name in model.input_names}, training=True)
        return tf.einsum("bph,vh->bpv", hidden, model.word_layer.embeddings) + output_bias, nsp_logits

    return accumulated_update(logits, [*model.trainable_variables, output_bias], optimizer, random_batch(settings))
