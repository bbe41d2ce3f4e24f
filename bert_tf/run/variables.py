"""A model's variables in TensorFlow checkpoints: their names and shapes in files; writing and reading them."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError, first_line
from bert_tf.base.files import check_file, check_readable_path
from bert_tf.base.tensorflow import tf
from bert_tf.optimizer_registry import weight_of_slot

# In the model these are padded to a multiple of 8 rows; in files they have one row per piece of the vocabulary.
_VOCABULARY_ROWS = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")
# The errors that TensorFlow raises for a damaged checkpoint; IndexError if a file ends early.
_READ_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, IndexError)


@dataclasses.dataclass(frozen=True)
class StoredWeights:
    """Weights in files: their shapes, and a function that reads them."""

    source: str  # for messages
    shapes: Mapping[str, list[int]]  # by name
    read: Callable[[str], np.ndarray]


class LoadReport(NamedTuple):
    """What `load_weights` found."""

    loaded: list[str]
    missing: list[str]  # in the model, but not stored: left as initialised
    unused: list[str]  # stored, but not in the model


def named_variables(variables: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    """The variables by their names in files (without the ":0" that TensorFlow appends)."""
    by_name = {variable.name.split(":")[0]: variable for variable in variables}
    assert len(by_name) == len(variables), "two variables share a name, so a checkpoint could not hold both"
    return by_name


def file_tensors(variables: Sequence[tf.Variable], vocab_size: int) -> dict[str, tf.Tensor]:
    """The variables' values as they are stored in files, by name."""
    return {
        name: variable.value()[:vocab_size] if weight_of_slot(name) in _VOCABULARY_ROWS else variable.value()
        for name, variable in named_variables(variables).items()
    }


def save_tensors(prefix: Path, tensors: Mapping[str, tf.Tensor]) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


@contextlib.contextmanager
def _as_damage(source: str, suffix: str) -> Iterator[None]:
    """Turns a failed read of `source` into a `UserError` that names its damaged file."""
    try:
        yield
    except _READ_ERRORS as error:
        raise UserError(
            f"{source} cannot be read ({first_line(error)}): its {suffix} file is damaged; fetch or copy it again, or "
            "use another checkpoint"
        ) from None


def open_checkpoint(prefix: str | Path) -> StoredWeights:
    """The weights of a TensorFlow checkpoint, and any optimizer state. Raises `UserError` if it cannot be read."""
    check_readable_path(prefix, f"checkpoint {prefix}")
    prefix = Path(prefix)
    for file in (prefix.with_name(f"{prefix.name}.index"), *prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")):
        check_file(file, "fetch or copy it again, or use another checkpoint")
    with _as_damage(f"checkpoint {prefix}", ".index"):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()

    def read(name: str) -> np.ndarray:
        if name not in shapes:
            raise KeyError(f"checkpoint {prefix} has no variable {name!r}")
        with _as_damage(f"checkpoint {prefix}: {name}", ".data"):
            return reader.get_tensor(name)

    return StoredWeights(str(prefix), {name: shapes[name] for name in sorted(shapes)}, read)


def check_encoder(stored: StoredWeights, names: Collection[str], remedy: str) -> None:
    """Checks that the stored encoder has the variables of the model, `names`; either may lack the pooler.

    Raises:
      UserError: it lacks a variable or has one that the model does not have; the message ends with `remedy`.
    """
    stored_names, model_names = (
        [name for name in group if name.startswith("bert/") and not name.startswith("bert/pooler/")]
        for group in (stored.shapes, names)
    )
    lacking = [name for name in model_names if name not in stored.shapes]
    faults = [f"it lacks {enumerate_names(lacking)}"] if lacking else []
    # If no variable is named like the encoder's, the other names tell what the file holds.
    if extra := [name for name in stored_names or stored.shapes if name not in names]:
        faults.append(f"it also has {enumerate_names(extra)}")
    if faults:
        raise UserError(f"{stored.source}: its encoder is not the model's: {', '.join(faults)}; {remedy}")


def enumerate_names(names: Sequence[str]) -> str:
    """The first names of variables and their number, for a message."""
    return f"{', '.join(names[:3])} ({len(names)} variables in all)"


def load_weights(stored: StoredWeights, variables: Sequence[tf.Variable], vocab_size: int) -> LoadReport:
    """Assigns to `variables` what is stored under their names.

    Raises:
      UserError: a variable's shape differs; then nothing has been assigned.
    """
    shapes, by_name = stored.shapes, named_variables(variables)
    loaded = [name for name in by_name if name in shapes]
    padded = {name for name in loaded if weight_of_slot(name) in _VOCABULARY_ROWS}
    for name in loaded:
        expected = list(by_name[name].shape)
        if name in padded:
            expected[0] = vocab_size
        if shapes[name] != expected:
            raise UserError(
                f"{stored.source}: {name} is {shapes[name]}, the model wants {expected}: they are of another model "
                "size or vocabulary, or of a task with other labels"
            )
    for name in loaded:
        value = stored.read(name)
        if name in padded:
            value = np.pad(value, [(0, by_name[name].shape[0] - vocab_size), *[(0, 0)] * (value.ndim - 1)])
        by_name[name].assign(value)
    return LoadReport(
        loaded, [name for name in by_name if name not in shapes], [name for name in shapes if name not in by_name]
    )
