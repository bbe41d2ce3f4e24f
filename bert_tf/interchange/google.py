"""Weights in TensorFlow's checkpoint format: ours, Google's TF1, NVIDIA's TF1 and TF2, tf-models-official's.

TF1 checkpoints store variables by name, and so do ours. TF2 checkpoints (`tf.train.Checkpoint`) store them by their
path through Python objects, with an object graph that gives each variable's Keras name. Known are the Keras names of
NVIDIA's TF2 code and of tf-models-official. Their layouts have separate axes for attention heads: query [H, N, D],
attention output [N, D, H].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import parse_object_graph
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.keras_names import to_our_name
from bert_tf.interchange.weights import Weights, read_float32
from bert_tf.run.variables import StoredWeights, open_checkpoint
from bert_tf.text.tokenizer import StoredTokenizer

CONFIG_FILE = "bert_config.json"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Components of checkpoint keys that mark an optimizer's variables; the last one is used by Keras before 2.11.
_OPTIMIZERS = {"optimizer", "_optimizer", ".OPTIMIZER_SLOT"}
# Variables of the training's state other than optimizer slots, in Google's, NVIDIA's and our checkpoints.
_NOT_WEIGHTS = re.compile(
    r"(global|local)_step|batch_finite|(current_)?loss_scale|(good|bad)_steps|beta[12]_power|save_counter"
)


def _is_weight(name: str, shapes: Mapping[str, Any]) -> bool:
    """False for the state of a training, including optimizer slots <variable>/<slot>, such as .../kernel/adam_m."""
    return not _NOT_WEIGHTS.fullmatch(name) and name.rpartition("/")[0] not in shapes


_NSP_LOGITS = re.compile(r"(?:.*/)?(predictions/transform|next_sentence)/logits/(kernel|bias)")
_NSP_HEAD = {"kernel": "cls/seq_relationship/output_weights", "bias": "cls/seq_relationship/output_bias"}
# In tf-models-official's BertPretrainerV2 the next-sentence head has a pooler of its own, and nothing trains the
# encoder's. So the head's is read as the encoder's, as in their exports (copy_pooler_dense_to_encoder).
_NSP_POOLER = re.compile(r"(?:.*/)?next_sentence/pooler_dense/(kernel|bias)")
_MASKED_WORD_HEAD = "cls/predictions/transform/dense/kernel"
# In a Keras name: shows that NVIDIA's code wrote it. tf-models-official, whose masked-word head has an activation, uses
# another name today.
_NVIDIA_ATTENTION = "/self_attention_output/"
# Google's name. As a Keras name, only this project's encoder has it.
_OUR_WORD_TABLE = "bert/embeddings/word_embeddings"
# The settings of a run of tf-models-official. Nothing in its checkpoint tells encoders with norm_first from others.
_PARAMS_FILE, _NORM_FIRST = "params.yaml", re.compile(r"\bnorm_first: *true\b")
_NO_ACTIVATION = (
    "NVIDIA's TF2 code trains the masked-word head without an activation; the head here has BERT's gelu, so what these "
    "weights predict for masked words is off until the head has been trained on (the encoder is not affected)"
)


def read_checkpoint(prefix: Path) -> Weights:
    """The weights of a checkpoint, without its optimizer's state, and the configuration and vocabulary beside it.

    Raises:
      UserError: the checkpoint or the ``bert_config.json`` beside it cannot be read.
    """
    stored, folder = open_checkpoint(prefix), prefix.parent
    keras_names: Mapping[str, str] = {}
    if _OBJECT_GRAPH in stored.shapes:
        graph = stored.read(_OBJECT_GRAPH)  # not inside the try, which would blame Keras for an unreadable file
        try:
            keras_names = _keras_names(stored, graph)
            stored = _by_keras_names(stored, keras_names)
        except (DecodeError, IndexError, TypeError, ValueError) as error:
            raise UserError(
                f"checkpoint {prefix} holds objects of Keras, but not those of a BERT ({error}); name another one"
            ) from None
    if _OUR_WORD_TABLE in keras_names.values():
        raise UserError(
            f"checkpoint {prefix} was written by Keras from an encoder of this project: load it with the encoder's "
            "load_weights, and write it with the save() of what bert_tf.from_pretrained returned"
        )
    params = folder / _PARAMS_FILE
    if keras_names and params.is_file() and _NORM_FIRST.search(params.read_text(encoding="utf-8", errors="replace")):
        raise UserError(
            f"{params} says norm_first: true: this encoder normalises before attention and feed-forward, BERT's own, "
            "which is the one here, after them; name another model"
        )
    config_file = folder / CONFIG_FILE
    is_nvidias = any(_NVIDIA_ATTENTION in keras_name for keras_name in keras_names.values())

    def read(name: str) -> np.ndarray:
        array = stored.read(name)
        return read_float32(lambda: array, array.dtype.name, f"checkpoint {prefix}", name)

    return Weights(
        source=str(prefix),
        shapes={name: shape for name, shape in stored.shapes.items() if _is_weight(name, stored.shapes)},
        read=read,
        folder=folder,
        config=BertConfig.from_json_file(config_file) if config_file.is_file() else None,
        config_file=config_file,
        tokenizer=StoredTokenizer(folder),
        warnings=(_NO_ACTIVATION,) if is_nvidias and _MASKED_WORD_HEAD in stored.shapes else (),
    )


def _keras_names(stored: StoredWeights, graph: Any) -> dict[str, str]:
    """The Keras names of a TF2 checkpoint's variables, without an optimizer's, by their keys in the checkpoint."""
    nodes = parse_object_graph(graph).nodes
    return {
        attribute.checkpoint_key: attribute.full_name
        for node in nodes
        for attribute in node.attributes
        if attribute.checkpoint_key in stored.shapes and not _OPTIMIZERS & set(attribute.checkpoint_key.split("/"))
    }


def _by_keras_names(stored: StoredWeights, keras_names: Mapping[str, str]) -> StoredWeights:
    """The variables of a TF2 checkpoint under our names and in our layouts; unknown ones keep their Keras name."""
    keys = {to_our_name(keras_name): key for key, keras_name in keras_names.items()}
    for keras_name in list(keys):
        if match := _NSP_POOLER.fullmatch(keras_name):
            keys[f"bert/pooler/dense/{match[1]}"] = keys.pop(keras_name)
        # Without a masked-word head, logits of this name are not the next-sentence head's, but a classifier's or a span
        # head's.
        elif (match := _NSP_LOGITS.fullmatch(keras_name)) and _MASKED_WORD_HEAD in keys:
            keys[_NSP_HEAD[match[2]]] = keys.pop(keras_name)

    def shape(name: str) -> list[int]:
        return list(_to_our_layout(name, np.empty(stored.shapes[keys[name]], np.bool_)).shape)

    return StoredWeights(
        stored.source,
        {name: shape(name) for name in sorted(keys)},
        lambda name: _to_our_layout(name, stored.read(keys[name])),
    )


def _to_our_layout(name: str, array: np.ndarray) -> np.ndarray:
    if name == _NSP_HEAD["kernel"]:
        return array.T
    if name.endswith("/attention/output/dense/kernel"):
        return array.reshape(-1, array.shape[-1])
    if name.endswith("/kernel"):
        return array.reshape(array.shape[0], -1)
    return array.reshape(-1) if name.endswith("/bias") else array
