"""Checkpoints: copies them to the host, writes them (temporary name, fsync, rename), finds and verifies them.

Each checkpoint is a folder laid out as Google publishes a model: ``bert_config.json``, ``vocab.txt``
and a TensorFlow checkpoint ``bert_model.ckpt`` with Google's variable names (optimizer slots are
``<name>/adam_m`` and ``<name>/adam_v``, as in Google's training checkpoints). Beside them are
``state.json`` (position of the run) and ``manifest.json`` (sha256 of every file). So
`tf.train.load_checkpoint` reads it without this code, and everything that reads Google's folders
reads ours.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError, first_line
from bert_tf.base.files import atomic_folder, read_json_object, remove_folder, sha256_of_file
from bert_tf.base.tensorflow import tf
from bert_tf.run.evaluations import find_best
from bert_tf.run.run_folder import MANIFEST, checkpoint_path, find_checkpoints, find_damage
from bert_tf.run.variables import enumerate_names, file_tensors, load_weights, open_checkpoint, save_tensors

PREFIX = "bert_model.ckpt"
STATE = "state.json"


class SaveError(UserError):
    """A checkpoint could not be written, for the reason `fault`; earlier checkpoints are untouched."""

    def __init__(self, fault: str):
        super().__init__(f"{fault}, and start again")
        self.fault = fault


@contextlib.contextmanager
def _as_save_error(target: str) -> Iterator[None]:
    """Turns a failed write into a `SaveError` that names the `target`."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise SaveError(
            f"{target} could not be written ({first_line(error)}); older checkpoints are untouched; make room, or "
            "correct the permissions of that folder"
        ) from None


class Snapshot(NamedTuple):
    """The content of a checkpoint, copied to the host: later updates do not change it."""

    update: int
    tensors: Mapping[str, tf.Tensor]  # by their names in checkpoint files
    state: Mapping[str, Any]


class CheckpointFolder:
    """The ``checkpoints/`` folder of one run.

    Args:
      folder: created when the first checkpoint is saved.
      keep: how many of the newest checkpoints are kept; the best one is kept, too.
      vocab_size: rows of the word embeddings in files, without the padding that the model adds.
      companions: contents of text files to put beside the weights, by file name (bert_config.json, vocab.txt).
    """

    def __init__(self, folder: str | Path, *, keep: int, vocab_size: int, companions: Mapping[str, str]):
        self.folder, self._keep, self._vocab_size = Path(folder), keep, vocab_size
        self._companions = dict(companions)

    def copy(self, update: int, variables: Sequence[tf.Variable], state: Mapping[str, Any]) -> Snapshot:
        """Copies the variables to the host, for `write`; the copy takes as much memory there as they do."""
        tensors = file_tensors(variables, self._vocab_size)
        with tf.device("CPU:0"):
            copies = {name: tf.raw_ops.DeepCopy(x=tensor) for name, tensor in tensors.items()}
        return Snapshot(update, copies, dict(state, updates_applied=update))

    def write(self, snapshot: Snapshot) -> Path:
        """Writes a checkpoint, then deletes the oldest ones as far as it can. May run in any thread, but only in one at
        a time.

        An existing sound checkpoint of the same update is kept: training continues from it in the same way. (This
        happens to a run that was resumed from it and has only skipped updates since.)

        Raises:
          SaveError: it could not be written (a full disk, no permission); older ones are kept.
        """
        final = checkpoint_path(self.folder, snapshot.update)
        with _as_save_error(f"checkpoint {final}"):
            if final.exists() and find_damage(final) is None:
                return final
            with atomic_folder(final) as partial:
                self._write(partial, snapshot)
        best = checkpoint_path(self.folder, find_best(self.folder) or snapshot.update)
        for old in [path for path in self.finished()[: -self._keep] if path not in (best, final)]:
            with contextlib.suppress(OSError):  # tried again after the next checkpoint
                remove_folder(old)
        return final

    def finished(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return list(find_checkpoints(self.folder).values())

    def newest_undamaged(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint whose files match their hashes, and a complaint about each newer one."""
        return _first_undamaged(reversed(self.finished()))

    def best_undamaged(self) -> tuple[Path | None, list[str]]:
        """The undamaged checkpoint that stands for the run (the best one if it was evaluated in training, else the
        newest), and a complaint about each damaged one that would have been preferred."""
        best, newest_first = find_best(self.folder), self.finished()[::-1]
        preferred = [checkpoint_path(self.folder, best)] if best else []
        return _first_undamaged(dict.fromkeys([*preferred, *newest_first]))

    def restore(self, path: Path, variables: Sequence[tf.Variable]) -> dict[str, Any]:
        """Fills all `variables` from a checkpoint of this run and returns its state."""
        report = load_weights(open_checkpoint(path / PREFIX), variables, self._vocab_size)
        if differing := [*report.missing, *report.unused]:
            raise UserError(
                f"checkpoint {path} does not have the variables of the model and its optimizer: "
                f"{enumerate_names(differing)} are in only one of the two; choose another run folder"
            )
        return read_state(path)

    def _write(self, folder: Path, snapshot: Snapshot) -> None:
        save_tensors(folder / PREFIX, snapshot.tensors)
        for name, text in {**self._companions, STATE: json.dumps(snapshot.state, indent=2) + "\n"}.items():
            (folder / name).write_text(text, encoding="utf-8")
        hashes = {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}
        (folder / MANIFEST).write_text(json.dumps({"sha256": hashes}, indent=2) + "\n", encoding="utf-8")


def _first_undamaged(checkpoints: Iterable[Path]) -> tuple[Path | None, list[str]]:
    """The first undamaged checkpoint, and a complaint about each one before it."""
    complaints: list[str] = []
    for path in checkpoints:
        if (damage := find_damage(path)) is None:
            return path, complaints
        complaints.append(f"checkpoint {path} is damaged ({damage}) and is skipped")
    return None, complaints


def save_encoder(
    prefix: Path, variables: Sequence[tf.Variable], vocab_size: int, companions: Mapping[str, str]
) -> None:
    """Writes only the encoder's variables, under Google's TF1 names as in all our files.

    `companions`: contents of text files to put beside them, by file name.

    Raises:
      SaveError: it could not be written.
    """
    folder = prefix.parent
    encoder = [variable for variable in variables if variable.name.startswith("bert/")]
    with _as_save_error(f"the encoder in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in companions.items():
            (folder / name).write_text(text, encoding="utf-8")
        save_tensors(prefix, file_tensors(encoder, vocab_size))


def read_state(folder: Path) -> dict[str, Any]:
    """The ``state.json`` of one of our checkpoint folders. Raises `UserError` if it is damaged."""
    return read_json_object(folder / STATE, "use another checkpoint")
