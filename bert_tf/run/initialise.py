"""The weights a run starts from: finding a checkpoint by its path, checking it, loading it, saying what was missing."""

from __future__ import annotations

import itertools
from pathlib import Path

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.run.checkpoint import MANIFEST, PREFIX, CheckpointFolder, find_damage, load_weights
from bert_tf.run.telemetry import Telemetry


def resolve(path: str | Path, argument: str = "init_checkpoint") -> Path:
    """The TensorFlow checkpoint prefix that `path` means.

    `path` may be a run folder of ours (its newest sound checkpoint), a folder with a
    ``bert_model.ckpt`` (one of our checkpoints, or what Google publishes), or a prefix.

    Raises:
      UserError: nothing of the kind is there, or our checkpoint is damaged.
    """
    path = Path(path)
    if (path / "checkpoints").is_dir():
        newest, complaints = CheckpointFolder(path / "checkpoints", keep=1, vocab_size=0, companions={}).newest_sound()
        if newest is None:
            found = "; ".join(complaints) or "no checkpoint has been saved there yet"
            raise UserError(f"--{argument}={path}: {found}; train longer or name another checkpoint")
        return newest / PREFIX
    if path.is_dir():
        path = path / PREFIX
    if not Path(f"{path}.index").is_file():
        raise UserError(
            f"--{argument}={path}: there is no {path.name}.index; name a run folder, a folder with "
            f"{PREFIX}.index, or the path up to and with '.ckpt'"
        )
    if (path.parent / MANIFEST).is_file():
        damage = find_damage(path.parent)
        if damage:
            raise UserError(f"--{argument}: {path.parent} is damaged ({damage}); use another checkpoint")
    return path


def check_same_vocabulary(prefix: Path, vocabulary: str | None) -> None:
    """Raises `UserError` where a vocab.txt beside the checkpoint does not match that of the records."""
    file = prefix.parent / "vocab.txt"
    if vocabulary is None or not file.is_file():
        return
    theirs, ours = file.read_text(encoding="utf-8").split("\n"), vocabulary.split("\n")
    for number, (piece, other) in enumerate(itertools.zip_longest(theirs, ours)):
        if (piece or "").strip() != (other or "").strip():
            raise UserError(
                f"--init_checkpoint={prefix} has another vocabulary than the records: piece {number} is "
                f"{piece!r} in {file}, {other!r} in theirs; make records with the checkpoint's vocabulary "
                "(bertPrep.py --action create_tfrecord_files --vocab_file)"
            )


def initialise_from(
    init_checkpoint: str | None,
    model: tf.keras.Model,
    vocab_size: int,
    telemetry: Telemetry,
    vocabulary: str | None = None,
) -> None:
    """Loads all weights that a checkpoint and the model share, and reports the others.

    `vocabulary` is the text of the vocab.txt that the data was made with.
    """
    if not init_checkpoint:
        telemetry.note("starting from random weights")
        return
    prefix = resolve(init_checkpoint)
    check_same_vocabulary(prefix, vocabulary)
    loaded, missing, unused = load_weights(prefix, model.variables, vocab_size)
    if not loaded:
        raise UserError(f"--init_checkpoint={prefix} holds none of the model's variables; name a BERT checkpoint")
    telemetry.note(f"starting from {prefix}: {len(loaded)} variables loaded")
    for what, names in (
        ("not in the checkpoint, left as initialised", missing),
        ("in the checkpoint, not used", unused),
    ):
        if names:
            telemetry.note(f"  {what}: {', '.join(names)}")
