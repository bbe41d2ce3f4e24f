"""tf-models-official: its encoder, masked-LM head and LAMB in float32, and its code that makes records and features.

NVIDIA's TF2 model descends from it.
"""

from __future__ import annotations

import random
from typing import Any, Callable

from benchmarks.variants.shared import LEARNING_RATE, random_batch
from bert_tf.base.machine import memory_peak_mib


def update(settings: dict[str, Any]) -> Callable[[], float]:
    import tensorflow as tf
    from official.modeling.optimization.lamb import LAMB
    from official.nlp.modeling import layers, models, networks

    from benchmarks.variants.tensorflow_update import accumulated_update

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
    logits({name: tf.constant(values[0]) for name, values in batch.items()})  # creates the variables
    optimizer = LAMB(
        LEARNING_RATE, weight_decay_rate=0.01, exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"]
    )
    return accumulated_update(logits, model.trainable_variables, optimizer, batch)


def instances(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Masked records of a file of sentences by create_pretraining_data.py; `settings` as of `this_project`."""
    from absl import logging
    from official.nlp.data import create_pretraining_data as peer
    from official.nlp.tools import tokenization

    logging.set_verbosity(logging.ERROR)
    length, predictions = settings["max_seq_length"], settings["max_predictions_per_seq"]

    def make() -> dict[str, float]:
        tokenizer = tokenization.FullTokenizer(vocab_file=settings["vocab_file"], do_lower_case=True)
        found = peer.create_training_instances(
            [settings["text"]],
            tokenizer,
            length,
            settings["dupe_factor"],
            0.1,
            0.15,
            predictions,
            random.Random(12345),
            False,
            None,
        )
        peer.write_instance_to_example_files(found, tokenizer, length, predictions, [settings["output"]], False, False)
        return {"instances": len(found), "peak MiB": memory_peak_mib()}

    return make


def squad_features(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """SQuAD's JSON to windows in memory by run_squad's code; its writing of TFRecords is left out."""
    from official.nlp.data import squad_lib
    from official.nlp.tools import tokenization

    is_training = settings["is_training"]

    def make() -> dict[str, float]:
        tokenizer = tokenization.FullTokenizer(settings["vocab_file"], do_lower_case=True)
        examples = squad_lib.read_squad_examples(settings["file"], is_training, version_2_with_negative=True)
        windows: list[Any] = []

        def keep(feature: Any, is_padding: bool = False) -> None:
            windows.append(feature)

        squad_lib.convert_examples_to_features(examples, tokenizer, 384, 128, 64, is_training, keep, batch_size=1)
        return {"questions": len(examples), "windows": len(windows)}

    return make
