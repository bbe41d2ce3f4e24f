"""Hugging Face's BERT folders: reading them, and the mapping between their names of parameters and ours.

A folder contains ``config.json`` and the weights: ``model.safetensors`` or ``pytorch_model.bin``, or several such files
and an index. PyTorch's linear layers store [out, in], so our kernels are transposed; classifier heads are not, because
Google stores them as [classes, in].
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, read_json_object
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.torch_file import open_torch_file
from bert_tf.interchange.weights import Weights, check_floats, finite_float32
from bert_tf.model.elementwise import LAYER_NORM_EPSILON
from bert_tf.text.tokenizer import StoredTokenizer

CONFIG = "config.json"
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
# Their names of activations -> ours. Their "gelu" is the exact one, Google's is the tanh approximation.
ACTIVATIONS = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}
_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_WORD_TABLE, _DECODER = "bert/embeddings/word_embeddings", "cls.predictions.decoder.weight"
_OURS_BY_HEAD = {
    **{theirs: ours for ours, theirs in _HEADS.items()},
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
}
# Heads whose parameters have names that other classes use for heads of another kind, and the class that has ours.
CLASSIFIER, SPANS = "BertForSequenceClassification", "BertForQuestionAnswering"
_CLASSES_OF_HEADS = {"classifier.": CLASSIFIER, "qa_outputs.": SPANS}
# Constants, and the masked-word head's copy of the word table (`_check_tied`).
_IGNORED = re.compile(rf"(bert\.)?embeddings\.(position_ids|token_type_ids)|{re.escape(_DECODER)}")


def to_their_name(name: str) -> str:
    """Hugging Face's name (in a model with a head) of our variable `name`."""
    if name in _HEADS:
        return _HEADS[name]
    theirs = re.sub(r"\.layer_(\d+)\.", r".layer.\1.", name.replace("/", "."))
    if theirs.endswith("_embeddings"):
        return f"{theirs}.weight"
    return re.sub(r"\.(kernel|gamma)$", ".weight", re.sub(r"\.beta$", ".bias", theirs))


def to_our_name(name: str) -> str:
    """Our name of Hugging Face's parameter `name`, which may lack the prefix ``bert.`` and may have ``gamma`` and
    ``beta`` as in old files. A parameter that we do not have gets a name that no variable of ours has."""
    if name in _OURS_BY_HEAD:
        return _OURS_BY_HEAD[name]
    if re.match(r"(embeddings|encoder|pooler)\.", name):
        name = f"bert.{name}"
    ours = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name)
    ours = re.sub(r"_embeddings\.weight$", "_embeddings", ours)
    ours = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", ours))
    return re.sub(r"\.weight$", ".kernel", ours).replace(".", "/")


def is_transposed(name: str) -> bool:
    """Whether PyTorch stores our variable `name` transposed, as it does all kernels [in, out]."""
    return name.endswith("/kernel")


def read_config(path: Path) -> BertConfig:
    """The configuration in Hugging Face's ``config.json``; fields without a meaning for the encoder are ignored.

    Raises:
      UserError: it is not BERT's, or has a setting with which our encoder would compute something different.
    """
    values = read_json_object(path, "name a folder with a model of Hugging Face's")
    model_type = values.get("model_type", "bert")
    architectures = values.get("architectures") or []
    if not isinstance(architectures, list):
        raise UserError(f"{path}: architectures={architectures!r:.40}: must be a list of names; fetch the model again")
    others = [name for name in architectures if not str(name).startswith("Bert")]
    if model_type != "bert" or others:
        raise UserError(
            f"{path}: model_type {model_type!r:.40}, architectures {architectures!r:.80}: only BERT's own architecture "
            "(bert) is supported; name another model"
        )
    own_code = values.get("auto_map")
    if isinstance(own_code, dict) and any(str(name).startswith("AutoModel") for name in own_code):
        raise UserError(
            f"{path}: auto_map {json.dumps(own_code):.120}: the model has code of its own, which computes something "
            "else than BERT; name another model"
        )
    required: dict[str, Any] = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "pruned_heads": {},
    }
    for name, needed in required.items():
        if values.get(name, needed) != needed:
            raise UserError(
                f"{path}: {name} is {values[name]!r:.40}, the encoder here has {needed!r} only; name another model"
            )
    act = values.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise UserError(f"{path}: hidden_act={act!r:.40}: must be one of {', '.join(ACTIVATIONS)}; name another model")
    if "vocab_size" not in values:
        raise UserError(f"{path}: vocab_size is missing; name a folder with a BERT model of Hugging Face's")
    known = {field.name for field in dataclasses.fields(BertConfig)}
    sizes = {name: value for name, value in values.items() if name in known}
    try:
        return BertConfig(**{**sizes, "hidden_act": ACTIVATIONS[act]})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def is_folder(folder: Path) -> bool:
    """Whether `folder` contains a model in Hugging Face's format."""
    return (folder / CONFIG).is_file() and weight_file(folder) is not None


def weight_file(folder: Path) -> Path | None:
    """The file with a folder's weights, or the index of several such files; None if there is none."""
    for name in (SAFETENSORS, f"{SAFETENSORS}.index.json", TORCH, f"{TORCH}.index.json"):
        if (folder / name).is_file():
            return folder / name
    return None


class Stored(NamedTuple):
    """A tensor in a file."""

    file: Path
    shape: list[int]
    dtype: str
    read: Callable[[], np.ndarray]


def read_folder(folder: Path) -> Weights:
    """The weights in a Hugging Face folder, with its configuration and tokenizer.

    Raises:
      UserError: no BERT model, a damaged or missing file, or a ``pytorch_model.bin`` that contains more than tensors.
    """
    config, path = read_config(folder / CONFIG), weight_file(folder)
    assert path
    described = read_json_object(folder / CONFIG, "fetch it again")
    architectures = tuple(described.get("architectures") or ())
    stored = _open_files(path)
    tensors: dict[str, dict[str, Stored]] = {}  # our name -> their names of the same variable, usually one
    for theirs, tensor in stored.items():
        if not _IGNORED.fullmatch(theirs):
            tensors.setdefault(_our_name_in(theirs, architectures), {})[theirs] = tensor

    @functools.cache
    def check_tied() -> None:
        _check_tied(folder / CONFIG, described, stored.get(_DECODER), lambda: read(_WORD_TABLE))

    def read(name: str) -> np.ndarray:
        if name.startswith("cls/predictions/"):
            check_tied()
        return _read_variable(name, tensors[name])

    return Weights(
        source=str(folder),
        shapes={name: _our_shape(name, next(iter(found.values())).shape) for name, found in tensors.items()},
        read=read,
        folder=folder,
        config=config,
        config_file=folder / CONFIG,
        tokenizer=StoredTokenizer(folder, is_hugging_face=True),
        architectures=architectures,
    )


def _our_name_in(theirs: str, architectures: Sequence[str]) -> str:
    """Our name of a parameter in a model of these classes; that of another class's head begins with the class."""
    for prefix, architecture in _CLASSES_OF_HEADS.items():
        if theirs.startswith(prefix) and architectures and architecture not in architectures:
            return f"{architectures[0]}/{theirs}"
    return to_our_name(theirs)


def _our_shape(name: str, shape: list[int]) -> list[int]:
    return shape[::-1] if is_transposed(name) else shape


def _read_variable(name: str, tensors: Mapping[str, Stored]) -> np.ndarray:
    """Our variable `name`, of which a file may hold two copies, under an old and a new name."""
    arrays = {}
    for theirs, (file, _, dtype, read_tensor) in tensors.items():
        check_floats(dtype, str(file), theirs)
        arrays[theirs] = finite_float32(read_tensor(), str(file), theirs)
    (first, array), *others = arrays.items()
    for other, copy in others:
        if not np.array_equal(array, copy):
            raise UserError(
                f"{tensors[first].file}: {first} and {other} are names of the same parameter, but differ; remove the "
                "one that the model was not trained with"
            )
    return array.T if is_transposed(name) else array


def _check_tied(
    config_file: Path, described: Mapping[str, Any], decoder: Stored | None, read_word_table: Callable[[], np.ndarray]
) -> None:
    """Raises `UserError` if the masked-word head does not multiply by the word table, as ours and Google's do."""
    if described.get("tie_word_embeddings", True) is not True:
        found = f"{config_file}: tie_word_embeddings={described['tie_word_embeddings']!r:.40}"
    elif decoder and not np.array_equal(_read_variable(_WORD_TABLE, {_DECODER: decoder}), read_word_table()):
        found = f"{decoder.file}: {_DECODER} differs from the word embeddings"
    else:
        return
    raise UserError(
        f"{found}: the masked-word head there has a table of its own, the head here uses the word embeddings; only "
        "the encoder can be used: fine-tune it, extract features, or pre-train from another model"
    )


def _open_files(path: Path) -> dict[str, Stored]:
    """The tensors, by name, of a file or of all files that an index names."""
    if path.suffix != ".json":
        return _open_file(path)
    mapping = read_json_object(path, "fetch the model again").get("weight_map")
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping.values()):
        raise UserError(f"{path} has no weight_map from parameters to files; fetch the model again")
    tensors: dict[str, Stored] = {}
    for name in sorted(set(mapping.values())):
        if Path(name).name != name:
            raise UserError(f"{path} names the file {name!r}, which lies outside of its folder; fetch the model again")
        tensors.update(_open_file(path.parent / name))
    missing = sorted(set(mapping) - set(tensors))
    if missing:
        raise UserError(f"{path} promises {', '.join(missing[:3])}, which its files do not hold; fetch the model again")
    return tensors


def _open_file(path: Path) -> dict[str, Stored]:
    check_file(path, "fetch this part of the weights again")
    if path.suffix == ".bin":
        return {
            name: Stored(path, list(tensor.shape), tensor.storage.dtype.name, tensor.read)
            for name, tensor in open_torch_file(path).items()
        }
    try:
        file = safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): it is damaged or incomplete; fetch it again") from None
    names = list(file.keys())
    parts = map(file.get_slice, names)
    return {
        name: Stored(path, part.get_shape(), part.get_dtype(), functools.partial(file.get_tensor, name))
        for name, part in zip(names, parts)
    }
