"""Hugging Face's BERT folders: reading them, and the mapping between their names of parameters and ours.

A folder contains ``config.json`` and the weights: ``model.safetensors``, several files that
``model.safetensors.index.json`` names, or ``pytorch_model.bin`` (which needs PyTorch).
PyTorch's linear layers store [out, in], so our kernels are transposed; classifier heads are not, because Google stores
them as [classes, in].
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from bert_tf.base.errors import UserError, first_line
from bert_tf.base.files import check_file, read_json_object
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import HEADS, TEXTS
from bert_tf.interchange.weights import Weights, read_float32
from bert_tf.text.hugging_face import gives_token_types
from bert_tf.text.tokenizer import StoredTokenizer

CONFIG = "config.json"
_FETCH_AGAIN = "fetch the model again"
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
SHARDS = f"{SAFETENSORS}.index.json"
# Hugging Face's names of activations -> ours. Their "gelu" is exact, Google's (and ours) is the tanh approximation.
ACTIVATIONS = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}
_OUR_NAMES = {
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}
_THEIR_NAMES = {
    ours: theirs for names in (_OUR_NAMES, *(head.names for head in HEADS)) for theirs, ours in names.items()
}
_TYPE_TABLE = "bert/embeddings/token_type_embeddings"
_WORD_TABLE, _DECODER = "bert/embeddings/word_embeddings", "cls.predictions.decoder.weight"
# Constants, and the masked-word head's copy of the word table (`check_tied`).
_IGNORED = re.compile(rf"(bert\.)?embeddings\.(position_ids|token_type_ids)|{re.escape(_DECODER)}")


def to_their_name(name: str) -> str:
    """Hugging Face's name of our variable `name`, in a model with a head."""
    if name in _THEIR_NAMES:
        return _THEIR_NAMES[name]
    theirs = re.sub(r"\.layer_(\d+)\.", r".layer.\1.", name.replace("/", "."))
    if theirs.endswith("_embeddings"):
        return f"{theirs}.weight"
    return re.sub(r"\.(kernel|gamma)$", ".weight", re.sub(r"\.beta$", ".bias", theirs))


def to_our_name(name: str) -> str:
    """Our name of a parameter of Hugging Face's encoder or pre-training heads. `name` may lack the prefix ``bert.``,
    and may have ``gamma`` and ``beta`` as in old files. Other parameters get a name that no variable of ours has."""
    if name in _OUR_NAMES:
        return _OUR_NAMES[name]
    if re.match(r"(embeddings|encoder|pooler)\.", name):
        name = f"bert.{name}"
    ours = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name)
    ours = re.sub(r"_embeddings\.weight$", "_embeddings", ours)
    ours = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", ours))
    return re.sub(r"\.weight$", ".kernel", ours).replace(".", "/")


def is_transposed(name: str) -> bool:
    """Whether PyTorch stores our variable `name` transposed, as it does all kernels [in, out]."""
    return name.endswith("/kernel")


# Earlier versions of PyTorch can be made to run code in a file even with weights_only (CVE-2025-32434).
_SAFE_TORCH = (2, 6)
# Fields of ``config.json``, and their values with which our encoder computes the same; the first is the default.
_ALLOWED: dict[str, Sequence[Any]] = {
    "model_type": ["bert"],
    "position_embedding_type": ["absolute"],
    "is_decoder": [False],
    "add_cross_attention": [False],
    "pruned_heads": [{}],
    "hidden_act": list(ACTIVATIONS),
}


def read_config(path: Path) -> BertConfig:
    """The configuration in Hugging Face's ``config.json``; fields that do not concern the encoder are ignored.

    Raises:
      UserError: it is not BERT's, or has a setting with which our encoder would compute something different.
    """
    values = read_json_object(path, "name a folder with a model of Hugging Face's")
    allowed = {
        **{name: values.get(name, supported[0]) in supported for name, supported in _ALLOWED.items()},
        "architectures": all(str(name).startswith("Bert") for name in _list(values.get("architectures"))),
        "auto_map": not any(str(name).startswith("AutoModel") for name in _list(values.get("auto_map"))),
    }
    if wrong := next((name for name, is_allowed in allowed.items() if not is_allowed), ""):
        rule = f", and must be {' or '.join(map(repr, _ALLOWED[wrong]))}" if wrong in _ALLOWED else ""
        raise UserError(
            f"{path}: {wrong} is {values[wrong]!r:.120}{rule}: the encoder here is BERT's own; name another model"
        )
    sizes = {field.name: values[field.name] for field in dataclasses.fields(BertConfig) if field.name in values}
    activation = ACTIVATIONS[values.get("hidden_act", "gelu")]
    try:
        return BertConfig(**{"vocab_size": None, **sizes, "hidden_act": activation})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _list(value: Any) -> list[Any]:
    """The elements of a JSON list, or the keys of an object; [] for null, else a list of the value itself."""
    return [] if value is None else list(value) if isinstance(value, (list, dict)) else [value]


def is_folder(folder: Path) -> bool:
    """Whether `folder` contains a model in Hugging Face's format."""
    return (folder / CONFIG).is_file() and weight_file(folder) is not None


def weight_file(folder: Path) -> Path | None:
    """The file with a folder's weights, or the index of several such files; None if there is neither."""
    return next((folder / name for name in (SAFETENSORS, SHARDS, TORCH) if (folder / name).is_file()), None)


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    file: Path
    name: str
    shape: list[int]
    dtype: str
    load: Callable[[], np.ndarray]

    def read(self) -> np.ndarray:
        """Its values, checked, as float32."""
        return read_float32(self.load, self.dtype, str(self.file), self.name)


def read_folder(folder: Path) -> Weights:
    """The weights in a Hugging Face folder, with its configuration and tokenizer.

    Raises:
      UserError: no BERT model, a damaged or missing file, a head that several classes have if `architectures` does not
        say which, or a ``pytorch_model.bin`` where PyTorch is not installed.
    """
    config_file, path = folder / CONFIG, weight_file(folder)
    assert path
    config, config_json = read_config(config_file), read_json_object(config_file, _FETCH_AGAIN)
    architectures, tensors = tuple(map(str, _list(config_json.get("architectures")))), _open_file(path)
    heads = [head for head in HEADS if not architectures or head.architecture in architectures]
    head_names = {theirs: ours for head in heads for theirs, ours in head.names.items()}
    classifier = f"{TEXTS.prefix}.weight"
    classes = [head.architecture for head in heads if classifier in tensors and classifier in head.names]
    if len(classes) > 1:
        raise UserError(
            f"{config_file}: architectures must say of which class {classifier} is the head; put the model's class "
            f"there: {' or '.join(classes)}"
        )
    # Our name -> Hugging Face's names: in some files a variable has an old and a new one.
    names: dict[str, list[str]] = {}
    for theirs in tensors:
        if not _IGNORED.fullmatch(theirs):
            names.setdefault(head_names.get(theirs, to_our_name(theirs)), []).append(theirs)

    has_one_type = config.type_vocab_size > 1 and not gives_token_types(folder)

    def read(name: str) -> np.ndarray:
        if name.startswith("cls/predictions/"):
            check_tied()
        first, *synonyms = names[name]
        array = tensors[first].read()
        for synonym in synonyms:
            if not np.array_equal(array, tensors[synonym].read()):
                raise UserError(
                    f"{path}: {first} and {synonym} are names of the same parameter, but differ; remove the one that "
                    "the model was not trained with"
                )
        if name == _TYPE_TABLE and has_one_type:
            array = np.repeat(array[:1], len(array), axis=0)  # our rows give the second text of a pair the second type
        return array.T if is_transposed(name) else array

    @functools.cache
    def check_tied() -> None:
        """Raises `UserError` if the masked-word head does not multiply by the word table, as ours and Google's do."""
        is_tied = config_json.get("tie_word_embeddings", True) is True
        if not is_tied or (_DECODER in tensors and not np.array_equal(tensors[_DECODER].read(), read(_WORD_TABLE))):
            raise UserError(
                f"{folder}: its masked-word head has a table of its own (tie_word_embeddings in {CONFIG}, or a "
                f"{_DECODER} unlike the word embeddings), but the head here uses the word embeddings; fine-tune the "
                "encoder, or pre-train from another model"
            )

    shapes = {name: tensors[theirs[0]].shape for name, theirs in names.items()}
    one_type = f"{folder}: its tokenizer gives no token types, so both texts of a pair are of the first type"
    return Weights(
        source=str(folder),
        shapes={name: shape[::-1] if is_transposed(name) else shape for name, shape in shapes.items()},
        read=read,
        folder=folder,
        config=config,
        config_file=config_file,
        tokenizer=StoredTokenizer(folder, is_hugging_face=True),
        warnings=(one_type,) if has_one_type else (),
        architectures=architectures,
    )


def _open_file(path: Path) -> dict[str, StoredTensor]:
    if path.name == SHARDS:
        return _open_shards(path)
    return (_open_torch_file if path.name == TORCH else _open_safetensors)(path)


def _open_shards(path: Path) -> dict[str, StoredTensor]:
    """The tensors in the files that the index `path` names. Raises: UserError if tensors that it names are missing."""
    file_of_tensor = read_json_object(path, _FETCH_AGAIN).get("weight_map")
    if not isinstance(file_of_tensor, dict) or not file_of_tensor:
        raise UserError(f"{path} names no tensors in weight_map; {_FETCH_AGAIN}")
    tensors: dict[str, StoredTensor] = {}
    for name in sorted({Path(str(file)).name for file in file_of_tensor.values()}):
        tensors.update(_open_safetensors(path.parent / name))
    if missing := sorted(file_of_tensor.keys() - tensors.keys()):
        raise UserError(
            f"{path}: {missing[0]} is in none of the files that it names ({len(missing)} missing in all); "
            f"{_FETCH_AGAIN}"
        )
    return tensors


def _open_safetensors(path: Path) -> dict[str, StoredTensor]:
    check_file(path, _FETCH_AGAIN)
    try:
        file = safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): it is damaged or incomplete; fetch it again") from None
    parts = {name: file.get_slice(name) for name in list(file.keys())}
    return {
        name: StoredTensor(path, name, part.get_shape(), part.get_dtype(), functools.partial(file.get_tensor, name))
        for name, part in parts.items()
    }


def _open_torch_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors that ``torch.load`` reads with weights_only, which creates tensors and runs nothing from the file."""
    check_file(path, _FETCH_AGAIN)
    save_again = f"have the model saved as {SAFETENSORS} (save_pretrained of transformers does)"
    try:
        import torch  # needed only for these files
    except ImportError:
        raise UserError(f"{path} can only be read by PyTorch: 'pip install torch', or {save_again}") from None
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _SAFE_TORCH:
        raise UserError(
            f"{path}: the file could run code in PyTorch {torch.__version__} (CVE-2025-32434); install 2.6 or later, "
            f"or {save_again}"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {str(name): value.detach() for name, value in content.items()}  # fails unless all are tensors
    except Exception as error:  # a damaged pickle may raise anything
        reason = first_line(error).partition(". ")[0]  # without PyTorch's advice, which would run code in the file
        raise UserError(
            f"{path} cannot be read ({reason}): it is damaged, or holds more than tensors; fetch it again, or "
            f"{save_again}"
        ) from None

    def to_numpy(tensor: Any) -> np.ndarray:
        return tensor.float().to_dense().numpy()  # NumPy has neither bfloat16 nor sparse arrays

    return {
        name: StoredTensor(
            path, name, [*tensor.shape], str(tensor.dtype).rpartition(".")[2], functools.partial(to_numpy, tensor)
        )
        for name, tensor in tensors.items()
    }
