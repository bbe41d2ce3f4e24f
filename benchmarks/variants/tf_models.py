"""tf-models-official: its encoder, masked-LM head and LAMB in float32, and its code that makes records and features.

NVIDIA's TF2 model descends from it.
"""

from __future__ import annotations

from typing import Any, Callable

from benchmarks.variants.shared import LEARNING_RATE, google_instances, random_batch


def update(settings: dict[str, Any]) -> Callable[[], float]:
    """One update: gradients of all micro-batches in one tf.function, then clip and apply."""
    import tensorflow as tf
    from official.modeling.optimization.lamb import LAMB
    from official.nlp.modeling import layers, models, networks

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

    def logits(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
        inputs = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
        outputs = model({names.get(name, name): features[name] for name in inputs}, training=True)
        return outputs["mlm_logits"], outputs["nsp"]

    batch = random_batch(settings)
    features = {name: tf.constant(values) for name, values in batch.items()}
    logits({name: values[0] for name, values in features.items()})  # creates the variables
    variables, num_micro_batches = model.trainable_variables, len(batch["input_ids"])
    optimizer = LAMB(
        LEARNING_RATE, weight_decay_rate=0.01, exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"]
    )
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits

    @tf.function
    def update() -> tf.Tensor:
        sums = [tf.zeros(variable.shape) for variable in variables]
        for number in range(num_micro_batches):
            part = {name: values[number] for name, values in features.items()}
            with tf.GradientTape() as tape:
                mlm_logits, nsp_logits = logits(part)
                loss = tf.reduce_mean(cross_entropy(part["masked_lm_ids"], mlm_logits)) + tf.reduce_mean(
                    cross_entropy(part["next_sentence_labels"][:, 0], nsp_logits)
                )
            gradients = tape.gradient(loss, variables)
            sums = [
                total if gradient is None else total + tf.convert_to_tensor(gradient)
                for total, gradient in zip(sums, gradients)
            ]
        clipped, _ = tf.clip_by_global_norm([total / num_micro_batches for total in sums], 1.0)
        optimizer.apply_gradients(zip(clipped, variables))
        return loss

    return lambda: float(update())


def instances(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Masked records of a file of sentences by create_pretraining_data.py; `settings` as of `this_project`."""
    from absl import logging
    from official.nlp.data import create_pretraining_data as peer
    from official.nlp.tools import tokenization

    logging.set_verbosity(logging.ERROR)
    return google_instances(peer, tokenization, settings)


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
