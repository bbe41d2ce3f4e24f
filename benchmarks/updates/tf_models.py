"""tf-models-official's encoder, masked-LM head and LAMB, float32. NVIDIA's TF2 model is its descendant."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Callable

import tensorflow as tf
from official.modeling.optimization.lamb import LAMB
from official.nlp.modeling import layers, models, networks
from protocol import LEARNING_RATE, random_batch, serve
from tensorflow_update import accumulated_update


def make_update(settings: dict[str, Any]) -> Callable[[], float]:
    config = settings["bert_config"]
    initializer = tf.keras.initializers.TruncatedNormal(stddev=config["initializer_range"])
    encoder = networks.BertEncoder(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        max_sequence_length=config["max_position_embeddings"],
        type_vocab_size=config["type_vocab_size"],
        inner_dim=config["intermediate_size"],
        output_dropout=config["hidden_dropout_prob"],
        attention_dropout=config["attention_probs_dropout_prob"],
        initializer=initializer,
    )
    head = layers.ClassificationHead(inner_dim=config["hidden_size"], num_classes=2, dropout_rate=0.0, name="nsp")
    model = models.BertPretrainerV2(
        encoder,
        mlm_activation=lambda x: tf.keras.activations.gelu(x, approximate=True),
        mlm_initializer=initializer,
        classification_heads=[head],
    )

    def logits(features):
        outputs = model(
            {
                "input_word_ids": features["input_ids"],
                "input_mask": features["input_mask"],
                "input_type_ids": features["segment_ids"],
                "masked_lm_positions": features["masked_lm_positions"],
            },
            training=True,
        )
        return outputs["mlm_logits"], outputs["nsp"]

    batch = random_batch(settings)
    logits({name: tf.constant(values[0]) for name, values in batch.items()})  # makes the variables
    optimizer = LAMB(
        LEARNING_RATE, weight_decay_rate=0.01, exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"]
    )
    return accumulated_update(logits, model.trainable_variables, optimizer, batch)


if __name__ == "__main__":
    serve(make_update, lambda: {"tensorflow": tf.__version__, "tf-models-official": version("tf-models-official")})
