"""Translates the names of variables in NVIDIA's TF2 code and in tf-models-official to ours.

Imports nothing that NVIDIA's environment lacks, since the benchmark beside NVIDIA's code imports this module in it.
"""

from __future__ import annotations

import re

# Keras' names -> ours. Keras' names may be preceded by those of outer layers.
_LAYER, _OUR_LAYER = r"transformer/layer_(\d+)", r"bert/encoder/layer_\1"
_KERAS_NAMES = {
    r"word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    r"position_embedding(?:_\d+)?/embeddings": "bert/embeddings/position_embeddings",
    r"type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    r"embeddings/layer_norm/(gamma|beta)": r"bert/embeddings/LayerNorm/\1",
    rf"{_LAYER}/self_attention/(query|key|value)/(kernel|bias)": rf"{_OUR_LAYER}/attention/self/\2/\3",
    rf"{_LAYER}/self_attention(?:_output|/attention_output)/(kernel|bias)": rf"{_OUR_LAYER}/attention/output/dense/\2",
    rf"{_LAYER}/self_attention_layer_norm/(gamma|beta)": rf"{_OUR_LAYER}/attention/output/LayerNorm/\2",
    rf"{_LAYER}/(intermediate|output)/(kernel|bias)": rf"{_OUR_LAYER}/\2/dense/\3",
    rf"{_LAYER}/output_layer_norm/(gamma|beta)": rf"{_OUR_LAYER}/output/LayerNorm/\2",
    rf"{_LAYER}/(.+)": rf"{_OUR_LAYER}/\2",  # unknown ones keep their name, in the encoder's layer
    r"pooler_transform/(kernel|bias)": r"bert/pooler/dense/\1",
    r"cls/predictions/transform/(dense|LayerNorm)/(\w+)": r"cls/predictions/transform/\1/\2",
    r"cls/predictions/output_bias/bias": "cls/predictions/output_bias",
}


def to_our_name(keras_name: str) -> str:
    """Our name of a variable of NVIDIA's TF2 code or tf-models-official. If we have none, the name itself, but without
    ``bert/``, by which their names mean the whole model with its heads, and ours only the encoder."""
    for pattern, ours in _KERAS_NAMES.items():
        match = re.fullmatch(rf"(?:.*/)?{pattern}", keras_name)
        if match:
            return match.expand(ours)
    return keras_name.removeprefix("bert/")
