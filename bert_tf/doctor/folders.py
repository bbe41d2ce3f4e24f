"""Examines the folders of data and results: their file systems and free space, and what is prepared."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.files import atomic_folder, check_folder, checkout
from bert_tf.base.locks import WITHOUT_FLOCK
from bert_tf.doctor.findings import OK, PROBLEM, WARNING, Finding, Findings, judge, problems
from bert_tf.launch.prepared_data import find_data

GB = 10**9
# Token files of English Wikipedia and books, with all that they are made from (docs/preparing_data.md).
_DATA_BYTES = 84 * GB
# Both phases of BERT-Large: seven checkpoints (three per phase, one being saved), 336 M weights with two moments.
_RESULTS_BYTES = 28 * GB


class Folder(NamedTuple):
    """A folder that a training uses and that need not exist yet."""

    path: Path
    variable: str  # the variable that names another folder

    @property
    def existing(self) -> Path:
        """The folder, or the closest one above it that exists."""
        return next(folder for folder in (self.path, *self.path.parents) if folder.exists())


def data_folder() -> Folder:
    variables = ("DATA_DIR", "BERT_PREP_WORKING_DIR")
    return _folder(next(filter(os.environ.get, variables), "DATA_DIR"), "data")


def results_folder() -> Folder:
    return _folder("RESULTS_DIR", "results")


def _folder(variable: str, name: str) -> Folder:
    return Folder(Path(os.path.abspath(os.environ.get(variable) or (checkout() or Path()) / name)), variable)


def examine_file_system(folder: Folder) -> Findings:
    """Examines that folders can be written, replaced by a rename, and locked."""
    if refused := problems(check_folder, folder.path, f"{folder.variable}={folder.path}"):
        yield from refused
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder.existing) as scratch:
            for _ in range(2):  # the second time replaces the first
                with atomic_folder(Path(scratch) / "folder"):
                    pass
            with open(Path(scratch) / "lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in WITHOUT_FLOCK:
            remedy = "never start two runs in one folder; after a kill on another machine delete .lock.held by hand"
            yield Finding(WARNING, f"{folder.path} has no locks ({error.strerror}): {remedy}")
        else:
            remedy = f"ask for the right to, or name another folder by {folder.variable}="
            yield Finding(PROBLEM, f"{folder.path} cannot be written ({error.strerror}): {remedy}")
    else:
        yield Finding(OK, f"{folder.path}: writing, renaming and locks work")


def examine_data(folder: Folder) -> Findings:
    """Lists what is prepared; without anything, compares the free space with what Wikipedia needs."""
    complete, unfinished = find_data(folder.path)
    for item in complete:
        yield Finding(OK, f"{item.dataset} as {item.data_format} ({item.shown_lengths})")
    for path in unfinished:
        remedy = "'python3 data/bertPrep.py --action status' says how to go on"
        yield Finding(WARNING, f"{path} is unfinished, or not made by bertPrep.py: {remedy}")
    if not complete and not unfinished:
        remedy = "'bash scripts/quickstart.sh' makes its own; docs/preparing_data.md; DATA_DIR names another place"
        yield Finding(WARNING, f"nothing is prepared below {folder.path}: {remedy}")
        yield _judge_room(folder, _DATA_BYTES, "Wikipedia takes 84 as token files, 490 as records")


def examine_room_for_results(folder: Folder) -> Findings:
    yield _judge_room(folder, _RESULTS_BYTES, "both phases of BERT-Large take up to 28, of base 9")


def _judge_room(folder: Folder, num_bytes: int, needs: str) -> Finding:
    """Whether there is room for so many bytes; small models and texts still work with a GB."""
    free = shutil.disk_usage(folder.existing).free
    message = f"{free / GB:.1f} GB free at {folder.path}; {needs}"
    fault = f"{message}: free some, or name a folder on another disk by {folder.variable}="
    return judge(free >= num_bytes, message, fault, WARNING if free >= GB else PROBLEM)
