"""Which weights a fine-tuning job starts from or predicts with, and loading them into a model with a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import keras
from bert_tf.interchange.heads import HEADS, Head
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.weights import Weights
from bert_tf.run.checkpoint import STATE, read_state
from bert_tf.run.run_folder import CONFIG, locate_start, read_config
from bert_tf.run.variables import check_encoder, load_weights, named_variables
from bert_tf.settings.programs import FinetuningOptions
from bert_tf.tasks.rows import content_key
from bert_tf.text.hugging_face import TOKENIZER
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer


def find_start(options: FinetuningOptions, head: Head, *, trains: bool) -> Weights | None:
    """The weights to train from (None: start from random ones), or else to predict with."""
    if not trains:
        return find_trained_weights(Path(options.model_dir or ""), options.init_checkpoint, head)
    return find_weights(options.init_checkpoint) if options.init_checkpoint else None


def _has_run_from(model_dir: Path, init_checkpoint: str) -> bool:
    """Whether `model_dir` holds checkpoints of a run that started from `init_checkpoint`."""
    if not (model_dir / "checkpoints").is_dir() or not (model_dir / CONFIG).is_file():
        return False
    recorded = read_config(model_dir) or {}
    return recorded["identity"].get("init_checkpoint") == locate_start(init_checkpoint, model_dir)


def find_trained_weights(model_dir: Path, init_checkpoint: str | None, head: Head) -> Weights:
    """The weights to predict with: `init_checkpoint` if it has the head, else those of the run in `model_dir`.

    If the run started from `init_checkpoint`, the run's weights are preferred, as they are what became of it.

    Raises:
      UserError: neither of the two has the head.
    """
    paths: dict[str, str | Path] = {}
    if init_checkpoint and not _has_run_from(model_dir, init_checkpoint):
        paths["--init_checkpoint"] = init_checkpoint
    if (model_dir / "checkpoints").is_dir():
        paths["--model_dir"] = model_dir
    faults = []
    for flag, path in paths.items():
        weights = find_weights(path, flag)
        if head.variable in weights.shapes:
            return weights
        # Which model they are instead, if that is known.
        classes = weights.architectures or [other.architecture for other in HEADS if other.variable in weights.shapes]
        kind = f" but is a {' and a '.join(classes)}" if classes else ""
        faults.append(f"{flag}={path} has no {head.name} head ({head.variable}){kind}")
    if "--model_dir" not in paths:
        faults.append(f"--model_dir={model_dir} holds no checkpoint to predict with")
    raise UserError(
        f"{', and '.join(faults)}; fine-tune first with --mode=train, or name a fine-tuned checkpoint with "
        "--init_checkpoint"
    )


def load_trained_weights(weights: Weights, model: keras.Model, head: Head) -> int:
    """Loads a model's weights for prediction; returns the number of updates it was trained for, 0 if unknown.

    Raises:
      UserError: the checkpoint lacks a variable that prediction uses.
    """
    remedy = f"name a checkpoint that was fine-tuned for {head.name}"
    check_encoder(weights, named_variables(model.variables), remedy)
    report = load_weights(weights, model.variables, model.config.vocab_size)
    used = {variable.name.split(":")[0] for variable in model.trainable_variables}
    if missing := [name for name in report.missing if name in used]:
        raise UserError(f"{weights.source} lacks {', '.join(missing)}; {remedy}")
    return read_state(weights.folder)["updates_applied"] if (weights.folder / STATE).is_file() else 0


def tokenizer_identity(tokenizer: Tokenizer) -> dict[str, Any]:
    """The part of a run's identity that tells tokenizers apart; a missing ``tokenizer.json`` counts as an empty one."""
    files = {"vocabulary": VOCABULARY, TOKENIZER: TOKENIZER}
    keys = {name: content_key(tokenizer.files().get(file, "").encode("utf-8")) for name, file in files.items()}
    return {**keys, **tokenizer.casing.flags()}
