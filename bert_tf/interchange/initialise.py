"""The weights a run starts from: finds them by path, checks them, loads them and reports what was missing."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.config import BertConfig
from bert_tf.interchange import google, hugging_face
from bert_tf.interchange.weights import Weights
from bert_tf.run.checkpoint import (
    MANIFEST,
    PREFIX,
    CheckpointFolder,
    check_encoder,
    find_damage,
    load_weights,
    named_variables,
)
from bert_tf.run.telemetry import Telemetry
from bert_tf.text.vocabulary import check_casing, is_lower_case, load_vocab
from bert_tf.text.wordpiece import FullTokenizer

_INDEX = ".index"
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z")
_PUT_IT_THERE = "put the model's there, or where a program has the flag, name it with"
# Fields of a configuration, each with a variable and its dimension that has this size.
_SIZES = {
    "hidden_size": ("bert/embeddings/word_embeddings", 1),
    "intermediate_size": ("bert/encoder/layer_0/intermediate/dense/kernel", 1),
    "max_position_embeddings": ("bert/embeddings/position_embeddings", 0),
    "type_vocab_size": ("bert/embeddings/token_type_embeddings", 0),
}


def find_weights(path: str | Path, argument: str = "--init_checkpoint") -> Weights:
    """The weights at `path`.

    `path` may be one of our run folders (its newest sound checkpoint), a folder with a TensorFlow checkpoint (one of
    ours, or what Google and NVIDIA publish), the prefix of a checkpoint, or a folder with a Hugging Face model.

    Raises:
      UserError: there is nothing of the kind, or it is damaged or of another architecture.
    """
    path = Path(path)
    try:
        if (path / "checkpoints").is_dir():
            return _newest_of_run(path)
        if path.is_dir() and hugging_face.is_folder(path):
            return hugging_face.read_folder(path)
        prefix = _prefix_in(path) if path.is_dir() else path
        if not Path(f"{prefix}{_INDEX}").is_file():
            raise UserError(_explain_no_checkpoint(path))
        if (prefix.parent / MANIFEST).is_file():
            damage = find_damage(prefix.parent)
            if damage:
                raise UserError(f"{prefix.parent} is damaged ({damage}); use another checkpoint")
        return google.read_checkpoint(prefix)
    except UserError as error:
        raise UserError(f"{argument}={path}: {error}") from None


def _newest_of_run(folder: Path) -> Weights:
    """The weights of a run's newest sound checkpoint; that newer ones are damaged is a warning."""
    newest, complaints = CheckpointFolder(folder / "checkpoints", keep=1, vocab_size=0, companions={}).newest_sound()
    if newest is None:
        found = "; ".join(complaints) or "no checkpoint has been saved there yet"
        raise UserError(f"{found}; train longer or name another checkpoint")
    weights = google.read_checkpoint(newest / PREFIX)
    return dataclasses.replace(weights, warnings=(*complaints, *weights.warnings))


def _prefix_in(folder: Path) -> Path:
    """The prefix of a folder's TensorFlow checkpoint: the one with Google's name if it exists, else the only one."""
    found = sorted(folder.glob(f"*{_INDEX}"))
    if folder / f"{PREFIX}{_INDEX}" in found or not found:
        return folder / PREFIX
    if len(found) > 1:
        raise UserError(f"several checkpoints lie there ({', '.join(file.stem for file in found)}); name one of them")
    return found[0].with_suffix("")


def _explain_no_checkpoint(path: Path) -> str:
    if path.is_file() and path.suffix in _ARCHIVES:
        return "is an archive; unpack it and name the folder with the weights"
    if path.is_file():
        return f"is a single file; name its folder, {path.parent}"
    if (path / hugging_face.CONFIG).is_file():
        return (
            f"there is a {hugging_face.CONFIG}, but neither {hugging_face.SAFETENSORS} nor {hugging_face.TORCH}; "
            "fetch the weights too"
        )
    if path.is_dir() and (file := hugging_face.weight_file(path)):
        return (
            f"there is a {file.name}, but no {hugging_face.CONFIG}, which says what model it is; fetch it too, or if "
            f"{google.CONFIG_FILE} is that of these weights, copy it to {hugging_face.CONFIG}"
        )
    return (
        f"there is neither {path.name}{_INDEX} nor a folder with a checkpoint; name a run folder (phase_2 in that of "
        f"a pre-training), one with {PREFIX}{_INDEX} or {hugging_face.SAFETENSORS}, or the path up to and with '.ckpt'"
    )


def choose_config(bert_config_file: str | None, weights: Weights | None) -> BertConfig:
    """The model's configuration: that of the file (Google's or Hugging Face's) if given, else that beside the weights.

    Raises:
      UserError: there is neither, the file does not describe a BERT, or one of another size than the weights.
    """
    if bert_config_file:
        path = Path(bert_config_file)
        config = (hugging_face.read_config if path.name == hugging_face.CONFIG else BertConfig.from_json_file)(path)
    elif weights is None:
        raise UserError("--bert_config_file is required where no --init_checkpoint is given")
    elif weights.config is None:
        raise UserError(f"{weights.config_file} does not exist; {_PUT_IT_THERE} --bert_config_file")
    else:
        path, config = weights.config_file, weights.config
    if weights:
        _check_sizes(config, path, weights)
    return config


def _check_sizes(config: BertConfig, path: Path, weights: Weights) -> None:
    """Raises `UserError` if a size differs from that of the weights; checked before a model is built, which is slow."""
    for field, (name, dimension) in _SIZES.items():
        shape = weights.shapes.get(name, [])
        if dimension < len(shape) and shape[dimension] != getattr(config, field):
            raise UserError(
                f"{path}: {field}={getattr(config, field)}, but {weights.source} has {name} {shape}: the weights are "
                "of another model size; name the configuration that they were trained with"
            )


def choose_vocabulary(vocab_file: str | None, weights: Weights | None) -> Path:
    """The model's vocabulary: `vocab_file`, else that beside the weights. Raises `UserError` if there is neither."""
    if vocab_file:
        check_file(Path(vocab_file), "give the model's vocab.txt with --vocab_file")
        return Path(vocab_file)
    if weights is None:
        raise UserError("--vocab_file is required where no --init_checkpoint is given")
    if weights.vocab_file is None:
        raise UserError(f"{weights.folder / 'vocab.txt'} does not exist; {_PUT_IT_THERE} --vocab_file")
    return weights.vocab_file


def choose_tokenizer(
    vocab_file: str | None, do_lower_case: bool | None, config: BertConfig, weights: Weights | None
) -> tuple[Path, FullTokenizer]:
    """The model's vocabulary (`choose_vocabulary`) and its tokenizer.

    The casing is `do_lower_case` if given, else what the weights say about their own vocabulary, else what the
    vocabulary suggests. What the weights say is not checked: Hugging Face's bert-base-chinese claims to be cased, but
    has no capitals.

    Raises:
      UserError: the vocabulary is not the model's, or its capitals contradict `do_lower_case`.
    """
    path = choose_vocabulary(vocab_file, weights)
    vocab = load_vocab(path)
    if len(vocab) != config.vocab_size:
        raise UserError(
            f"{path} has {len(vocab)} pieces, but the model's configuration says vocab_size="
            f"{config.vocab_size}; use the vocabulary the model was trained with"
        )
    if do_lower_case is None and weights and weights.do_lower_case is not None and path == weights.vocab_file:
        return path, FullTokenizer(path, weights.do_lower_case)
    casing = is_lower_case(vocab) if do_lower_case is None else do_lower_case
    check_casing(vocab, casing, path)
    return path, FullTokenizer(path, casing)


def check_same_vocabulary(weights: Weights, vocabulary: str | None) -> None:
    """Raises `UserError` if a vocab.txt beside the weights does not match that of the records."""
    if vocabulary is None or weights.vocab_file is None:
        return
    theirs, ours = [line.rstrip("\n") for _, line in decoded_lines(weights.vocab_file)], vocabulary.split("\n")
    for number, (piece, other) in enumerate(itertools.zip_longest(theirs, ours)):
        if (piece or "").strip() != (other or "").strip():
            raise UserError(
                f"--init_checkpoint={weights.source} has another vocabulary than the records: piece {number} is "
                f"{piece!r} in {weights.vocab_file}, {other!r} in theirs; make records with the checkpoint's "
                "vocabulary (bertPrep.py --action create_tfrecord_files --vocab_file)"
            )


def initialise_from(
    weights: Weights | None,
    model: tf.keras.Model,
    telemetry: Telemetry,
    *,
    vocabulary: str | None = None,
    allow_missing: bool = False,
) -> None:
    """Loads the variables that the weights and the model share, and reports the others. None: they stay random.

    Args:
      vocabulary: the text of the vocab.txt that the data was made with.
      allow_missing: whether the encoder's variables, too, may be missing or others than the model's.

    Raises:
      UserError: the weights have other shapes, another number of heads, another vocabulary or another encoder, or share
        no variable.
    """
    if weights is None:
        telemetry.note("starting from random weights")
        return
    check_same_vocabulary(weights, vocabulary)
    for warning in (*weights.warnings, *_differences(weights, model)):
        telemetry.warning(warning)
    named = named_variables(model.variables)
    if not set(named) & set(weights.shapes):
        raise UserError(
            f"--init_checkpoint={weights.source} holds none of the model's variables; name a BERT checkpoint"
        )
    if not allow_missing:
        check_encoder(
            weights,
            named,
            "name a checkpoint of this model, or start all the same, with what is missing left random and what is not "
            "known left out, with --allow_missing_weights",
        )
    loaded, missing, unused = load_weights(weights, model.variables, model.config.vocab_size)
    telemetry.note(f"starting from {weights.source}: {len(loaded)} variables loaded")
    shapes = {**weights.shapes, **{name: list(variable.shape) for name, variable in named.items()}}
    for what, names in (
        ("not in the checkpoint, left as initialised", missing),
        ("in the checkpoint, not used", unused),
    ):
        if names:
            telemetry.note(f"  {what}: {', '.join(f'{name} {shapes[name]}' for name in names)}")


def _differences(weights: Weights, model: tf.keras.Model) -> list[str]:
    """Warnings about settings that differ but do not show in any shape. Raises `UserError` for the number of heads."""
    theirs, ours = weights.config, model.config
    if theirs is None:
        return []
    if theirs.num_attention_heads != ours.num_attention_heads:
        raise UserError(
            f"--init_checkpoint={weights.source} was trained with num_attention_heads={theirs.num_attention_heads}, "
            f"the model has {ours.num_attention_heads}; take the configuration beside those weights"
        )
    if theirs.hidden_act != ours.hidden_act:
        return [
            f"{weights.source} was trained with hidden_act={theirs.hidden_act}, the model computes {ours.hidden_act}: "
            "a small difference, which training makes up for; the configuration beside the weights has none"
        ]
    return []
