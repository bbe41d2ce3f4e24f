"""Checks the folders of data and results: their file systems and free space, and what is prepared."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.files import atomic_folder, checkout, write_text
from bert_tf.base.locks import WITHOUT_FLOCK
from bert_tf.launch.findings import OK, PROBLEM, WARNING, Finding, Findings, check_writable, judge
from bert_tf.launch.prepared_data import FORMATS, find_data

GB = 10**9
# Bytes on disk per byte of text (docs/preparing_data.md).
_SHARDED, _TOKENS, _RECORDS = 1.0, 0.7, 19.0
# English Wikipedia and books: compressed, and as formatted text.
_PACKED, _TEXT = 25 * GB, 22 * GB
# Both phases of BERT-Large: seven checkpoints (three per phase, one being saved), 336 M weights with two moments.
_LARGE_RUN = 28 * GB


class Folder(NamedTuple):
    """A folder that a training uses and that need not exist yet."""

    path: Path
    variable: str  # the variable that names another folder

    @property
    def existing(self) -> Path:
        """The folder, or the closest one above it that exists."""
        return next(folder for folder in (self.path, *self.path.parents) if folder.exists())

    @property
    def free(self) -> int:
        return shutil.disk_usage(self.existing).free

    @property
    def remedy(self) -> str:
        """What to do where it has too little room."""
        return f"free some, or name a folder on another disk by {self.variable}="


def data_folder() -> Folder:
    variables = ("DATA_DIR", "BERT_PREP_WORKING_DIR")
    return _folder(next(filter(os.environ.get, variables), "DATA_DIR"), "data")


def results_folder() -> Folder:
    return _folder("RESULTS_DIR", "results")


def _folder(variable: str, name: str) -> Folder:
    return Folder(Path(os.path.abspath(os.environ.get(variable) or (checkout() or Path()) / name)), variable)


def check_file_system(folder: Folder) -> Findings:
    """Checks that files and folders can be written, replaced by a rename, and locked."""
    if problems := list(check_writable(folder.path, folder.variable)):
        yield from problems
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder.existing) as name:
            scratch = Path(name)
            for _ in range(2):  # the second time replaces the first
                write_text(scratch / "file", "")
                with atomic_folder(scratch / "folder"):
                    pass
            fault = _lock_fault(scratch / "lock")
    except OSError as error:
        remedy = f"ask for the right to, or name another folder by {folder.variable}="
        yield Finding(PROBLEM, f"{folder.path} cannot be written ({error.strerror}): {remedy}")
        return
    remedy = "never start two runs in one folder; after a kill on another machine delete .lock.held by hand"
    no_locks = f"{folder.path} has no locks ({fault}): {remedy}"
    yield judge(not fault, f"{folder.path}: writing, renaming and locks work", no_locks, WARNING)


def _lock_fault(path: Path) -> str:
    """What is wrong with flock; empty if it works. Raises OSError if our locks would fail, too."""
    try:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in WITHOUT_FLOCK:
            raise
        return str(error.strerror)
    return ""


def check_data(folder: Folder) -> Findings:
    """Lists what is prepared."""
    complete, unfinished = find_data(folder.path)
    for item in complete:
        lengths = "/".join(map(str, item.lengths)) if item.lengths else "all lengths"
        num_shards = len(list(item.training.glob(f"*{FORMATS[item.data_format][1]}")))
        yield Finding(OK, f"{item.dataset} as {item.data_format} ({lengths}), {num_shards} training shard(s)")
    for path in unfinished:
        remedy = "'python3 data/bertPrep.py --action status' says how to go on"
        yield Finding(WARNING, f"{path} is unfinished, or not made by bertPrep.py: {remedy}")
    if not complete and not unfinished:
        remedy = "'bash scripts/quickstart.sh' makes its own; docs/preparing_data.md; DATA_DIR names another place"
        yield Finding(WARNING, f"nothing is prepared below {folder.path}: {remedy}")


def check_room_for_data(folder: Folder) -> Findings:
    """Compares the free space with what the text still needs, or with what Wikipedia needs if there is no text yet."""
    room = f"{folder.free / GB:.1f} GB free for data"
    if find_data(folder.path)[0]:
        yield Finding(OK, f"{room}, which is prepared")
        return
    text = _size_of(folder.path / "formatted_one_article_per_line", "*.txt")
    name, size = (f"{text / GB:.1f} GB of text", text) if text else ("Wikipedia", _TEXT)
    sharding = max(_SHARDED * size - _size_of(folder.path / "sharded", "*/*/*.txt"), 0.0)
    before = sharding if text else sharding + _PACKED + _TEXT
    tokens, records = (before + share * size for share in (_TOKENS, _RECORDS))
    message = f"{room}; {name} takes {tokens / GB:.1f} as token files, {records / GB:.1f} as records"
    yield _judge_room(folder, tokens, message, least=tokens if text else GB)


def _judge_room(folder: Folder, num_bytes: float, message: str, least: float = GB) -> Finding:
    """Whether a folder has room for so many bytes; small models and texts still work with the `least`."""
    state = WARNING if folder.free >= least else PROBLEM
    return judge(folder.free >= num_bytes, message, f"{message}: {folder.remedy}", state)


def _size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def check_room_for_results(folder: Folder) -> Findings:
    message = f"{folder.free / GB:.1f} GB free for results; both phases of BERT-Large take up to 28, of base 9"
    yield _judge_room(folder, _LARGE_RUN, message)
