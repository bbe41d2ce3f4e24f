"""The folder of one run: locked while in use, and bound to the settings that the run began with."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError, contrast
from bert_tf.base.files import (
    check_folder,
    check_output,
    check_readable_path,
    checkout,
    read_json_object,
    remove_leftovers,
    sha256_of_file,
    write_text,
)
from bert_tf.base.locks import FileLock, LockedError
from bert_tf.base.machine.hardware import count_cores, processor_facts
from bert_tf.run.events import METRICS

CONFIG = "config.json"
REPORT = "report.html"
FEATURES = "features"  # subfolder of the rows that fine-tuning makes from its data files
MANIFEST = "manifest.json"  # of a checkpoint: the sha256 of its other files
_LOCK = ".lock"
# Patterns of the files that the programs write into run folders.
_OUTPUTS = (
    *("eval_results.txt", "predictions.json", "nbest_predictions.json", "null_odds.json", "predictions.tsv"),
    *("test_results*.tsv", "tokenizer.json", "tokenizer_config.json"),
    *(METRICS, "training_summary.txt", REPORT, "summaries", "pretrained"),
    *("bert_config.json", "vocab.txt", "task.json"),
)


class RunFolder:
    """Locks a run folder until the context or the process ends, and removes what a killed process has left there.

    Args:
      dllog_path: the file outside the folder that `sinks.DLLogger` will append to; None for none.
      is_chief: true on rank 0, which locks, checks and writes the folder; other ranks only know its path.
      continue_with_changes: whether a run goes on with other settings than it began with.

    Raises:
      UserError: another process uses the folder; the folder or `dllog_path` cannot be written, or holds a file that
        would be overwritten but was not written by a run; or TensorFlow could not read checkpoints there.
    """

    def __init__(
        self,
        path: str | Path,
        dllog_path: str | None = None,
        *,
        is_chief: bool = True,
        continue_with_changes: bool = False,
    ):
        self.path = Path(path)
        self._is_chief, self._continue_with_changes = is_chief, continue_with_changes
        if not is_chief:
            return
        check_folder(self.path, f"run folder {path}")
        check_readable_path(path, f"run folder {path}")
        if dllog_path:
            check_output(Path(dllog_path), f"--dllog_path={dllog_path}", lambda beginning: beginning[:5] == b"DLLL ")
        is_run_folder = any((self.path / name).exists() for name in (_LOCK, "checkpoints", CONFIG))
        files = [file for pattern in _OUTPUTS for file in self.path.glob(pattern) if file.is_file()]
        if files and not is_run_folder:
            raise UserError(
                f"run folder {path} was not made by a run, but holds {files[0].name}, which a run would overwrite; "
                "choose a new folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = FileLock(self.path / _LOCK)
        except LockedError as error:
            raise UserError(
                f"run folder {path} is in use by {error}; choose another, or wait for what uses it"
            ) from None
        for folder in (self.path, self.path / FEATURES):
            remove_leftovers(folder)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_chief:
            self._lock.release()

    def write_config(
        self, identity: Mapping[str, Any], record: Mapping[str, Any], companions: Mapping[str, str]
    ) -> None:
        """Writes ``config.json``; call `check` first.

        Args:
          identity: the settings that must not change within a run.
          record: everything else worth keeping; replaced at each start. Its "sources", if any, are those of `check`.
          companions: contents of text files that users of the model need, by file name (bert_config.json, vocab.txt).
        """
        text = json.dumps({"identity": dict(identity), **record}, indent=2, default=str) + "\n"
        for name, contents in {**companions, CONFIG: text}.items():
            write_text(self.path / name, contents)

    def check(self, identity: Mapping[str, Any], sources: Mapping[str, str]) -> str:
        """Checks that this run is the one that the folder was created for.

        Args:
          sources: for each hash in `identity`, by its name, the files that it is made from; for the message.

        Returns: the changes with which the run goes on, because it may; "" if there are none.

        Raises:
          UserError: the folder contains another run, or files that are not a run.
        """
        previous = read_config(self.path) if self._is_chief else None
        if previous is None:
            return ""
        old, new, old_sources = dict(previous["identity"]), dict(identity), previous.get("sources", {})
        for name, files in sources.items():
            if old.get(name) != new.get(name):
                old[name], new[name] = f"{old_sources.get(name)}, {old.get(name)}", f"{files}, {new.get(name)}"
        differences = describe_differences(old, new)
        if differences and not self._continue_with_changes:
            raise UserError(
                f"run folder {self.path} holds a run with other settings ({differences}); "
                "continue anyway with --continue_with_changes, or choose another folder"
            )
        return differences


def locate_start(path: str | Path, run_folder: Path) -> str:
    """Where the checkpoint lies that a run starts from, as `config.json` records it: a path without links.

    It is relative to the run folder if both lie in the same folder, as the phases of a pre-training do, so that this
    folder can be moved or copied while the run goes on; otherwise it is absolute.
    """
    start, run_folder = Path(path).resolve(), run_folder.resolve()
    return os.path.relpath(start, run_folder) if run_folder.parent in start.parents else str(start)


def checkpoint_path(checkpoints: Path, update: int) -> Path:
    return checkpoints / f"ckpt-{update:08d}"


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """The finished checkpoints in a run's ``checkpoints`` folder by update, ascending; looks at their names only."""
    matches = [(re.fullmatch(r"ckpt-(\d{8,})", path.name), path) for path in folder.glob("ckpt-*")]
    return dict(sorted((int(match[1]), path) for match, path in matches if match and path.is_dir()))


def find_damage(folder: Path, manifest: str = MANIFEST) -> str | None:
    """What is wrong with one of our checkpoints, or None: every file must match its sha256 in the manifest."""
    try:
        hashes = read_json_object(folder / manifest, "every checkpoint has one")["sha256"]
        changed = [name for name, expected in hashes.items() if sha256_of_file(folder / name) != expected]
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    except (KeyError, AttributeError):
        return f"{manifest} does not hold the sha256 of files by their names"
    return f"{changed[0]} does not match its sha256" if changed else None


def is_report(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is a page of `report`: every version has used the colour --ink."""
    return beginning.startswith(b"<!DOCTYPE html>") and b"var(--ink)" in beginning


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Names every setting that differs, including nested ones, with both values; empty if none differs."""
    parts = []
    for name in {**old, **new}:
        old_value, new_value = old.get(name), new.get(name)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping) and old_value != new_value:
            parts.append(f"{name}: {describe_differences(old_value, new_value)}")
        elif old_value != new_value and not _are_close(old_value, new_value):
            parts.append("{}: {} there, {} now".format(name, *contrast(old_value, new_value)))
    return "; ".join(parts)


def _are_close(old: Any, new: Any) -> bool:
    """Whether two floats differ only by rounding, as the learning rate of all ranks may, which is a product."""
    return isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=1e-12)


def read_config(folder: Path) -> dict[str, Any] | None:
    """The ``config.json`` of the last start in a run folder; None before the first. Raises `UserError` if damaged."""
    path = folder / CONFIG
    if not path.exists():
        if (folder / "checkpoints").exists():
            raise UserError(
                f"{folder} holds checkpoints but no {CONFIG}, so it is unknown which run they belong to; "
                "choose another folder"
            )
        return None
    config = read_json_object(path, "choose another folder")
    if not isinstance(config.get("identity"), dict):
        raise UserError(f"{path} holds no settings of a run; choose another folder")
    return config


def provenance() -> dict[str, Any]:
    """Versions, commit, machine and command, so that a run can be repeated."""
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for package in ("bert-tf", "tensorflow", "tensorflow-cpu", "keras", "numpy", "horovod"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    # By the name of its module: its file by itself finds the package only where that is installed.
    module = sys.modules["__main__"].__spec__
    return {
        "versions": versions,
        "commit": _commit(),
        "command": [sys.executable, *(["-m", module.name] if module else sys.argv[:1]), *sys.argv[1:]],
        "host": platform.node(),
        "processor": processor_facts().get("model name", platform.machine()),  # ARM tells no name
        "num_cores": count_cores(),
    }


def _commit() -> str | None:
    folder = checkout()
    if folder is None:
        return None
    # Git reads no folder that another user owns (a shared checkout, or one in a container) unless it is called safe.
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
    return None
