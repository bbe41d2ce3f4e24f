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
from bert_tf.doctor.finding import OK, PROBLEM, WARNING, Findings
from bert_tf.launch.prepared_data import FORMATS, find_data

GB = 10**9
# Bytes on disk per byte of text (docs/preparing_data.md).
_SHARDED, _TOKENS, _RECORDS = 1.0, 0.7, 19.0
# English Wikipedia and books: compressed, and as formatted text.
_PACKED, _TEXT = 25 * GB, 22 * GB
_WIKIPEDIA_TOKENS, _WIKIPEDIA_RECORDS = (_PACKED + (1 + _SHARDED + share) * _TEXT for share in (_TOKENS, _RECORDS))
# Both phases of BERT-Large: seven checkpoints (three per phase, one being saved), 336 M weights with two moments.
_LARGE_RUN = 28 * GB


class Folder(NamedTuple):
    """A folder that a training uses and that need not exist yet."""

    path: Path
    variable: str  # the variable that names another folder

    @property
    def existing(self) -> Path:
        """The folder, or the closest one above it that exists."""
        return next(place for place in (self.path, *self.path.parents) if place.exists())

    @property
    def free(self) -> int:
        return shutil.disk_usage(self.existing).free

    @property
    def way_out(self) -> str:
        return f"free some, or name a folder on another disk by {self.variable}="


def data_folder() -> Folder:
    variable = next((name for name in ("DATA_DIR", "BERT_PREP_WORKING_DIR") if os.environ.get(name)), "DATA_DIR")
    return Folder(Path(os.path.abspath(os.environ.get(variable) or (checkout() or Path()) / "data")), variable)


def results_folder() -> Folder:
    return Folder(
        Path(os.path.abspath(os.environ.get("RESULTS_DIR") or (checkout() or Path()) / "results")), "RESULTS_DIR"
    )


def check_file_system(folder: Folder) -> Findings:
    """Checks that files and folders can be written, replaced by a rename, and locked."""
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder.existing) as scratch:
            place = Path(scratch)
            for _ in range(2):  # the second time replaces the first
                write_text(place / "file", "")
                with atomic_folder(place / "folder"):
                    pass
            fault = _lock_fault(place / "lock")
    except OSError as error:
        way_out = f"ask for the right to, or name another folder by {folder.variable}="
        yield PROBLEM, f"{folder.path} cannot be written ({error.strerror}): {way_out}"
        return
    if fault:
        way_out = "never start two runs in one folder; after a kill on another machine delete .lock.held by hand"
        yield WARNING, f"{folder.path} has no locks ({fault}): {way_out}"
    else:
        yield OK, f"{folder.path}: writing, renaming and locks work"


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
        yield OK, f"{item.dataset} as {item.data_format} ({lengths}), {num_shards} training shard(s)"
    for path in unfinished:
        way_out = "'python3 data/bertPrep.py --action status' says how to go on"
        yield WARNING, f"{path} is unfinished, or not made by bertPrep.py: {way_out}"
    if not complete and not unfinished:
        way_out = "'bash scripts/quickstart.sh' makes its own; docs/preparing_data.md; DATA_DIR names another place"
        yield WARNING, f"nothing is prepared below {folder.path}: {way_out}"


def check_room_for_data(folder: Folder) -> Findings:
    """Compares the free space with what the text still needs, or with what Wikipedia needs if there is no text yet."""
    free, room = folder.free, f"{folder.free / GB:.1f} GB free for data"
    text = _size_of(folder.path / "formatted_one_article_per_line", "*.txt")
    if find_data(folder.path)[0]:
        yield OK, f"{room}, which is prepared"
    elif text:
        sharding = max(_SHARDED * text - _size_of(folder.path / "sharded", "*/*/*.txt"), 0.0)
        tokens, records = (sharding + share * text for share in (_TOKENS, _RECORDS))
        message = (
            f"{room}; {text / GB:.1f} GB of text take {tokens / GB:.1f} as token files, {records / GB:.1f} as records"
        )
        yield (OK, message) if free >= tokens else (PROBLEM, f"{message}: {folder.way_out}")
    else:
        message = (
            f"{room}: enough for {free / (1 + _SHARDED + _TOKENS) / GB:.1f} GB of your own text; English Wikipedia and "
            f"books take {_WIKIPEDIA_TOKENS / GB:.0f} as token files, {_WIKIPEDIA_RECORDS / GB:.0f} as records"
        )
        yield _judged(folder, _WIKIPEDIA_TOKENS, message)


def _judged(folder: Folder, wanted: float, message: str) -> tuple[str, str]:
    state = OK if folder.free >= wanted else WARNING if folder.free >= GB else PROBLEM
    return state, message if state == OK else f"{message}: {folder.way_out}"


def _size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def check_room_for_results(folder: Folder) -> Findings:
    message = f"{folder.free / GB:.1f} GB free for results; both phases of BERT-Large take up to 28, of base 9"
    yield _judged(folder, _LARGE_RUN, message)
