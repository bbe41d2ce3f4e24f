"""Hugging Face's BERT folders: reading them, and the mapping between their names of parameters and ours.

A folder contains ``config.json`` and the weights: ``model.safetensors`` or ``pytorch_model.bin``, or several such files
and an index. PyTorch's linear layers store [out, in], so our kernels are transposed; classifier heads are not, because
Google stores them as [classes, in].
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, read_json_object
from bert_tf.config import BertConfig
from bert_tf.interchange.torch_file import open_torch_file
from bert_tf.interchange.weights import Weights, check_floats
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
_OURS_BY_HEAD = {theirs: ours for ours, theirs in _HEADS.items()}
# Copies of other parameters, and constants.
_IGNORED = re.compile(
    r"(bert\.)?embeddings\.(position_ids|token_type_ids)|cls\.predictions\.decoder\.(weight|bias)"
)  # fmt: skip


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
    required: dict[str, Any] = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "layer_norm_eps": LAYER_NORM_EPSILON,
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
    return (folder / CONFIG).is_file() and _weight_file(folder) is not None


def _weight_file(folder: Path) -> Path | None:
    for name in (SAFETENSORS, f"{SAFETENSORS}.index.json", TORCH, f"{TORCH}.index.json"):
        if (folder / name).is_file():
            return folder / name
    return None


def read_folder(folder: Path) -> Weights:
    """The weights in a Hugging Face folder, with its configuration and tokenizer.

    Raises:
      UserError: no BERT model, a damaged or missing file, or a ``pytorch_model.bin`` that contains more than tensors.
    """
    config, path = read_config(folder / CONFIG), _weight_file(folder)
    assert path
    names: dict[str, str] = {}  # our name -> theirs
    shapes: dict[str, list[int]] = {}
    stored = _open_files(path)
    for theirs, (shape, _, _) in stored.items():
        if not _IGNORED.fullmatch(theirs):
            ours = to_our_name(theirs)
            names[ours] = theirs
            shapes[ours] = shape[::-1] if is_transposed(ours) else shape

    def read(name: str) -> np.ndarray:
        _, dtype, read_tensor = stored[names[name]]
        check_floats(dtype, str(folder), names[name])
        array = read_tensor().astype(np.float32)
        return array.T if is_transposed(name) else array

    return Weights(
        source=str(folder),
        shapes=shapes,
        read=read,
        folder=folder,
        config=config,
        config_file=folder / CONFIG,
        tokenizer=StoredTokenizer(folder, is_hugging_face=True),
    )


Stored = tuple[list[int], str, Callable[[], np.ndarray]]  # shape, type, and a function that reads the values


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
            name: (list(tensor.shape), tensor.storage.dtype.name, tensor.read)
            for name, tensor in open_torch_file(path).items()
        }
    try:
        file = safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): it is damaged or incomplete; fetch it again") from None
    names = list(file.keys())
    parts = map(file.get_slice, names)
    return {
        name: (part.get_shape(), part.get_dtype(), functools.partial(file.get_tensor, name))
        for name, part in zip(names, parts)
    }
