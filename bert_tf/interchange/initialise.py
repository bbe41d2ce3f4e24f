"""The weights a run starts from: finds them by path, checks them, loads them and reports what was missing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bert_tf.base.errors import UserError, contrast
from bert_tf.base.files import check_file
from bert_tf.base.tensorflow import keras
from bert_tf.bert_config import BertConfig
from bert_tf.interchange import google, hugging_face
from bert_tf.interchange.saved_model import MODEL as EXPORTED
from bert_tf.interchange.weights import Weights
from bert_tf.run.checkpoint import MANIFEST, PREFIX, CheckpointFolder, find_damage
from bert_tf.run.telemetry import Telemetry
from bert_tf.run.variables import check_encoder, enumerate_names, load_weights, named_variables
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import TOKENIZER, HuggingFaceTokenizer, tokenize_alike
from bert_tf.text.tokenizer import CasingFlags, StoredTokenizer, open_stored, open_vocab_file, original_vocabulary
from bert_tf.text.vocabulary import SETTINGS, VOCABULARY, Tokenizer, check_vocabulary_size, load_pieces

_INDEX = ".index"
_NO_MODEL = (
    f"no model is there; name a run folder (of a pre-training its phase_2), a folder with {PREFIX}{_INDEX} or the path "
    f"up to and with '.ckpt', or a Hugging Face folder with {hugging_face.CONFIG} (a copy of {google.CONFIG_FILE} can "
    f"serve as one) and {hugging_face.SAFETENSORS}, {hugging_face.SHARDS} with the files that it names, or "
    f"{hugging_face.TORCH}; unpack an archive"
)
# Weight files of transformers that are not read here, with the argument of from_pretrained that reads them.
_UNSUPPORTED_FILES = {
    f"{hugging_face.TORCH}.index.json": "",
    "tf_model.h5": ", from_tf=True",
    "flax_model.msgpack": ", from_flax=True",
}
# Where models may lie below a folder: in it, or in the cache of a model of Hugging Face's hub.
_BELOW = (f"*/*{_INDEX}", f"*/{hugging_face.CONFIG}", f"snapshots/*/{hugging_face.CONFIG}")
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_RESERVED = re.compile(r"\[unused\d+\]")
# Fields of a configuration, and where the weights show each: a variable, and the axis of that size.
_SIZES = {
    "vocab_size": ("bert/embeddings/word_embeddings", 0),
    "hidden_size": ("bert/embeddings/word_embeddings", 1),
    "max_position_embeddings": ("bert/embeddings/position_embeddings", 0),
    "type_vocab_size": ("bert/embeddings/token_type_embeddings", 0),
    "intermediate_size": ("bert/encoder/layer_0/intermediate/dense/bias", 0),
}


def find_weights(path: str | Path, argument: str = "--init_checkpoint") -> Weights:
    """The weights at `path`.

    `path` may be one of our run folders (the checkpoint that stands for it), a folder with a TensorFlow checkpoint (one
    of ours, or what Google and NVIDIA publish), the prefix of a checkpoint, or a folder with a Hugging Face model.

    Raises:
      UserError: there are no such weights, or they are damaged or of another architecture.
    """
    path = Path(path)
    try:
        if (path / "checkpoints").is_dir():
            return _best_of_run(path)
        if hugging_face.is_folder(path):
            return hugging_face.read_folder(path)
        prefix = _prefix_at(path)
        if (prefix.parent / MANIFEST).is_file() and (damage := find_damage(prefix.parent)):
            raise UserError(f"{prefix.parent} is damaged ({damage}); use another checkpoint")
        return google.read_checkpoint(prefix)
    except UserError as error:
        raise UserError(f"{argument}={path}: {error}") from None


def _prefix_at(path: Path) -> Path:
    """The prefix of the TensorFlow checkpoint at `path`: the path itself, or for a folder the prefix with Google's name
    in it, or without that the only one in it."""
    is_folder = path.is_dir()
    if not is_folder and Path(f"{path}{_INDEX}").is_file():
        return path
    prefixes = [file.with_suffix("") for file in sorted((path if is_folder else path.parent).glob(f"*{_INDEX}"))]
    candidates = [prefix for prefix in prefixes if prefix.name == PREFIX] or prefixes
    if is_folder and len(candidates) == 1:
        return candidates[0]
    if not prefixes:
        raise UserError(_no_model(path))
    named = [prefix for prefix in prefixes if str(prefix).startswith(str(path))] or prefixes
    raise UserError(f"is no checkpoint's name, which is that of its files up to '{_INDEX}'; name {_last_three(named)}")


def _last_three(paths: Iterable[Path]) -> str:
    """The paths with the largest numbers, for a message: of checkpoint-500, checkpoint-1000 and so on the newest."""
    return " or ".join(map(str, sorted(paths, key=lambda path: (len(path.name), path))[-3:]))


def _no_model(path: Path) -> str:
    """A message for a path with nothing that can be read: what is there instead, and what to name."""
    if unsupported := [name for name in _UNSUPPORTED_FILES if (path / name).is_file()]:
        load = f"its class's from_pretrained({str(path)!r}{_UNSUPPORTED_FILES[unsupported[0]]})"
        return (
            f"{unsupported[0]} is not read here; have transformers save the model as {hugging_face.SAFETENSORS} "
            f"({load}.save_pretrained(FOLDER)), and name that folder"
        )
    if any((path / name).exists() for name in ("saved_model.pb", EXPORTED, EXPORTED.name)):
        return "a SavedModel is there, whose weights are not read here; name the run that it was exported from"
    files = [path] if path.is_file() else [file for pattern in _BELOW for file in path.glob(pattern)]
    if models := {file.parent for file in files if file.suffix == _INDEX or hugging_face.is_folder(file.parent)}:
        return f"a model's folder must be named, such as {_last_three(models)}"
    if not path.exists() and _HUB_NAME.fullmatch(str(path)):
        return (
            f"there is no such folder; a model of Hugging Face's hub must be fetched first (huggingface-cli download "
            f"{path} --local-dir FOLDER); then name that folder"
        )
    return _NO_MODEL


def _best_of_run(folder: Path) -> Weights:
    """The weights that stand for a run (`CheckpointFolder.best_undamaged`); damage to preferred ones is a warning."""
    best, complaints = CheckpointFolder(folder / "checkpoints", keep=1, vocab_size=0, companions={}).best_undamaged()
    if best is None:
        reason = "; ".join(complaints) or "no checkpoint has been saved there yet"
        raise UserError(f"{reason}; train longer or name another checkpoint")
    weights = google.read_checkpoint(best / PREFIX)
    return dataclasses.replace(weights, warnings=(*complaints, *weights.warnings))


def _missing(file: Path | None, flag: str) -> UserError:
    """The error if neither `flag` nor the weights' folder gives a file. `file`: its path there; None: no weights."""
    reason = f"{file} does not exist" if file else "no --init_checkpoint is given"
    return UserError(f"{flag} is required, as {reason}{'; put that file there, or name it' * bool(file)}")


def choose_config(bert_config_file: str | None, weights: Weights | None) -> BertConfig:
    """The model's configuration: that in `bert_config_file` (Google's or Hugging Face's), else that beside the weights.

    Raises:
      UserError: there is neither, the file does not describe a BERT, or the weights have other sizes.
    """
    if bert_config_file:
        path = Path(bert_config_file)
        config = (hugging_face.read_config if path.name == hugging_face.CONFIG else BertConfig.from_json_file)(path)
        if weights:
            _check_sizes(config, path, weights)
        return config
    if weights is None or weights.config is None:
        raise _missing(weights.config_file if weights else None, "--bert_config_file")
    return require_config(weights)


def require_config(weights: Weights) -> BertConfig:
    """The configuration beside the weights, for callers that accept no other. Raises: UserError as `choose_config`."""
    if weights.config is None:
        raise UserError(f"{weights.config_file} does not exist; put the model's configuration there")
    _check_sizes(weights.config, weights.config_file, weights)
    return weights.config


def _check_sizes(config: BertConfig, path: Path, weights: Weights) -> None:
    """Raises: UserError if the weights have other sizes than the configuration, which was read from `path`."""
    for field, (name, axis) in _SIZES.items():
        shape = weights.shapes.get(name)
        if shape is not None and shape[axis : axis + 1] != [getattr(config, field)]:
            raise UserError(
                f"{path} says {field}={getattr(config, field)}, but {name} in {weights.source} is {shape}; give the "
                "configuration that these weights were trained with, or correct the size there"
            )


def choose_vocabulary(vocab_file: str | Path | None, weights: Weights | None) -> Path:
    """The vocabulary file: `vocab_file`, else that beside the weights. Raises `UserError` if there is neither."""
    if vocab_file:
        check_file(Path(vocab_file), "give the model's vocab.txt with --vocab_file")
        return Path(vocab_file)
    if weights is None or weights.tokenizer.vocab_file is None:
        raise _missing(weights.folder / VOCABULARY if weights else None, "--vocab_file")
    return weights.tokenizer.vocab_file


def choose_tokenizer(
    vocab_file: str | Path | None, flags: CasingFlags, config: BertConfig, weights: Weights | None
) -> tuple[Tokenizer, str]:
    """The model's tokenizer: that of `vocab_file`, else that beside the weights; and a line about what was assumed.

    Raises:
      UserError: it is damaged, not supported, has more tokens than the model, or contradicts `flags`.
    """
    path = choose_vocabulary(vocab_file, weights)
    tokenizer, assumed = open_vocab_file(path, flags, bool(weights and weights.tokenizer.is_hugging_face))
    is_beside_weights = weights is not None and path.parent.resolve() == weights.tokenizer.folder.resolve()
    warning = check_vocabulary_size(tokenizer.vocab_size, config.vocab_size, path, is_beside_weights)
    if weights is not None and not is_beside_weights:
        warning = _compare_with_stored(tokenizer, path, weights.tokenizer)
    return tokenizer, "\n".join(filter(None, (assumed, warning)))


def _compare_with_stored(tokenizer: Tokenizer, path: Path, stored: StoredTokenizer) -> str:
    """A warning if the tokenizer of `path` has other tokens or casing than the one beside the weights, or "".

    Tokens that replace reserved ones, or follow the last one, do not count: that is how words are added to a model.
    """
    if stored.vocab_file is None:
        return ""
    try:
        pieces = open_stored(stored)[0].inv_vocab if stored.needs_library else load_pieces(stored.vocab_file)
    except UserError:  # it is damaged or not supported, which may be why the user names another
        return ""
    differences = [
        (number, *contrast(piece, stored_piece))
        for number, (piece, stored_piece) in enumerate(zip(tokenizer.inv_vocab, pieces))
        if piece != stored_piece and piece and stored_piece and not _RESERVED.fullmatch(stored_piece)
    ]
    if differences:
        number, piece, stored_piece = differences[0]
        fault = (
            f"{len(differences):,} tokens are others than in {stored.vocab_file}: {number} is {piece}, {stored_piece} "
            "there"
        )
    elif stored.casing not in (None, tokenizer.casing):
        fault = f"its text has {tokenizer.casing}, that of {stored.folder} {stored.casing}"
    else:
        return ""
    return f"warning: {path}: {fault}; a model knows only the tokens that it was trained with: leave --vocab_file out"


def check_same_tokenizer(weights: Weights, files: Mapping[str, str]) -> None:
    """Raises `UserError` if the tokenizer beside the weights does not match that of the records, if both are known.

    Args:
      files: the texts of the files of the records' tokenizer, by name; {} if it is not known.
    """
    if files and weights.tokenizer.vocab_file and (difference := _difference(weights.tokenizer, files)):
        vocab_file = original_vocabulary(weights.tokenizer.folder)
        raise UserError(
            f"--init_checkpoint={weights.source} {difference}; make records with the checkpoint's (bertPrep.py "
            f"--action create_tfrecord_files --vocab_file {vocab_file}) and its casing"
        )


def _difference(stored: StoredTokenizer, files: Mapping[str, str]) -> str:
    """How a model's tokenizer differs from the records', which has these `files`; "" if it does not."""
    assert stored.vocab_file
    recorded = json.loads(files.get(SETTINGS, "{}"))
    casing = Casing(*(recorded[flag] for flag in CasingFlags._fields)) if recorded else None
    pipeline: str | None = None  # of the model's tokenizer, if it does not follow BERT's own rules
    if stored.needs_library:
        tokenizer, assumed = open_stored(stored)
        pieces, model_casing = tokenizer.inv_vocab, None if assumed else tokenizer.casing
        if isinstance(tokenizer, HuggingFaceTokenizer) and not tokenizer.is_google_wordpiece(
            casing or tokenizer.casing
        ):
            pipeline = tokenizer.pipeline_json()
    else:  # the pieces may be a SentencePiece model's, too
        pieces, model_casing = load_pieces(stored.vocab_file), stored.casing
    record_pieces = files[VOCABULARY].split("\n")[:-1]
    for number, (piece, record_piece) in enumerate(itertools.zip_longest(pieces, record_pieces, fillvalue="")):
        if piece != record_piece:
            in_model, in_records = contrast(piece, record_piece)
            return f"has another vocabulary than the records: piece {number} is {in_model}, {in_records} in theirs"
    if None not in (model_casing, casing) and model_casing != casing:
        return f"was trained on text with {model_casing}, the records were made with {casing}"
    if pipeline and not tokenize_alike(pipeline, files.get(TOKENIZER)):
        return f"has a {TOKENIZER} that gives other tokens than the records' tokenizer"
    return ""


def warn_of_weights(weights: Weights, config: BertConfig, telemetry: Telemetry) -> None:
    """Warns of what is damaged or differs in the weights, and of fields of `config` with which a model computes
    something else than the one that they were trained in, by the configuration beside them, though the shapes are the
    same.

    Raises: UserError if the number of attention heads is another.
    """
    trained = weights.config or config
    if trained.num_attention_heads != config.num_attention_heads:
        raise UserError(
            f"{weights.source} was trained with num_attention_heads={trained.num_attention_heads}, the model has "
            f"{config.num_attention_heads}; take the configuration beside it"
        )
    for warning in weights.warnings:
        telemetry.warning(warning)
    for field in ("hidden_act", "layer_norm_eps"):
        trained_value, value = getattr(trained, field), getattr(config, field)
        if trained_value != value:
            telemetry.warning(
                f"{weights.source} was trained with {field}={trained_value}, the model computes {value}; the "
                "configuration beside it is taken without --bert_config_file; training makes up for the difference"
            )


def initialise_from(
    weights: Weights | None,
    model: keras.Model,
    telemetry: Telemetry,
    *,
    tokenizer_files: Mapping[str, str] | None = None,
    allow_missing: bool = False,
) -> None:
    """Loads the variables that the weights and the model share, and reports the others; with None all stay random.

    Args:
      tokenizer_files: the texts, by file name, of the tokenizer that the data was made with.
      allow_missing: whether the weights may lack variables of the encoder, too, or have others than the model's.

    Raises:
      UserError: the weights have other shapes, another number of heads, another tokenizer or another encoder, or share
        no variable.
    """
    if weights is None:
        telemetry.note("starting from random weights" + allow_missing * ": --allow_missing_weights has no effect")
        return
    check_same_tokenizer(weights, tokenizer_files or {})
    warn_of_weights(weights, model.config, telemetry)
    variables = named_variables(model.variables)
    if not allow_missing:
        check_encoder(
            weights,
            variables,
            "name a checkpoint of this model, or pass --allow_missing_weights to start all the same, with missing "
            "variables left random and unknown ones left out",
        )
    loaded, missing, unused = load_weights(weights, model.variables, model.config.vocab_size)
    if not loaded:
        raise UserError(
            f"--init_checkpoint={weights.source} holds none of the model's variables, but {enumerate_names(unused)}; "
            "name a BERT checkpoint"
        )
    telemetry.note(f"starting from {weights.source}: {len(loaded)} variables loaded")
    shapes = {**weights.shapes, **{name: list(variable.shape) for name, variable in variables.items()}}
    for state, names in (
        ("not in the checkpoint, left as initialised", missing),
        ("in the checkpoint, not used", unused),
    ):
        if names:
            telemetry.note(f"  {state}: {', '.join(f'{name} {shapes[name]}' for name in names)}")
