"""What a stage leaves behind, and how a stage that was killed goes on.

A stage writes its files below one folder and, when all are there, a manifest: the arguments, the
inputs, counts that add up, and size and sha256 of each file. While it works, finished files are
noted in a journal beside the manifest. Started again, a stage compares its arguments and inputs
with what it finds: the same and complete means there is nothing to do, the same and incomplete
means that only what is missing is made, anything else is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, atomic_file
from bert_tf.base.locks import FileLock, LockedError, is_locked

# Raised when a change of the code makes other bytes from the same arguments.
FORMAT_VERSION = 2
_COPY_BYTES = 1 << 20
_LOCK_TRIALS, _LOCK_PAUSE_SECS = 3, 0.05
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_json(path: Path, content: object) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


@contextlib.contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turns a full disk, an exceeded quota or a read-only folder into one clear `UserError`."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in _NO_SPACE:
            raise UserError(
                f"no space left while writing below {folder} ({error.strerror}): what was finished "
                "stays, the unfinished file is removed; make room, or choose another "
                "BERT_PREP_WORKING_DIR, and start the same command again"
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise UserError(
                f"{where}: {error.strerror}; set BERT_PREP_WORKING_DIR to a folder that may be written to"
            ) from error
        raise


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest at `path`, or None where there is none.

    Raises:
      UserError: it is there but is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete the folder {path.parent} and make it again") from error


def describe_input(path: Path, base: Path, sha256: str | None = None) -> dict[str, Any]:
    """An input's entry in a manifest; below `base` the name is relative, so that it may move."""
    resolved, resolved_base = path.resolve(), base.resolve()
    inside = resolved_base in resolved.parents
    entry: dict[str, Any] = {
        "file": str(resolved.relative_to(resolved_base) if inside else resolved),
        "bytes": path.stat().st_size,
    }
    if sha256 is not None:
        entry["sha256"] = sha256
    return entry


def shard_entries(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All output files of a manifest, whatever their split."""
    for entries in manifest["shards"].values():
        yield from entries


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    found = []
    for key in ("stage", "dataset", "format_version"):
        if there.get(key) != here[key]:
            found.append(f"{key} is {there.get(key)} there, {here[key]} here")
    old, new = there.get("arguments", {}), here["arguments"]
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            found.append(f"{name} is {old.get(name)} there, {new.get(name)} here")
    if there.get("vocab") != here.get("vocab"):
        found.append(f"the vocabulary is {_short_vocab(there)} there, {_short_vocab(here)} here")
    found.extend(_input_differences(there.get("inputs", []), here["inputs"]))
    return found


def _short_vocab(header: Mapping[str, Any]) -> str:
    vocab = header.get("vocab")
    return f"{vocab['size']} pieces, sha256 {vocab['sha256'][:12]}" if vocab else "none"


def _input_differences(there: Sequence[Mapping], here: Sequence[Mapping]) -> list[str]:
    old = {entry["file"]: entry for entry in there}
    new = {entry["file"]: entry for entry in here}
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    found = []
    for names, what in ((gone, "was an input there"), (added, "is an input only here"), (changed, "has changed since")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            found.append(f"{names[0]}{more} {what}")
    return found


class Journal(NamedTuple):
    """What a stage that has not ended has noted: its header, then what was finished, in order.

    The header and what this run has added carry a ``time`` (seconds since 1970); what was taken
    over from an earlier run does not.
    """

    header: dict[str, Any]
    entries: list[dict[str, Any]]  # {"finished": entry} or {"checkpoint": checkpoint}


def _beside(manifest_path: Path, suffix: str) -> Path:
    return manifest_path.with_name(f".{manifest_path.name}{suffix}")


def read_journal(manifest_path: Path) -> Journal | None:
    """The journal beside a manifest, or None where none of a run that got to work is there."""
    try:
        lines = _beside(manifest_path, ".journal").read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    # The last piece is empty, or a line that was being written when the run was killed.
    entries = [json.loads(line) for line in lines[:-1]]
    # A run that was refused before it made anything does not bind the next one.
    return Journal(entries[0], entries[1:]) if len(entries) > 1 else None


def is_at_work(manifest_path: Path) -> bool:
    """Whether a run holds the stage's lock now."""
    return is_locked(_beside(manifest_path, ".lock"))


def mark_damaged(manifest_path: Path, names: Iterable[str]) -> None:
    """Notes that these files are not what a finished stage's manifest says.

    The stage's next run makes them again and writes the manifest anew; a kill changes nothing of
    that. Until then the files stay where they are.
    """
    write_json(_beside(manifest_path, ".broken"), sorted(names))
    # It may name files as finished that have been damaged since.
    _beside(manifest_path, ".journal").unlink(missing_ok=True)


def is_marked_damaged(manifest_path: Path) -> bool:
    """Whether such a note is there: a repair has not come to its end."""
    return _beside(manifest_path, ".broken").exists()


class Stage:
    """One run of one stage: what is already there, what is done now, the manifest at the end.

    Used as a context manager, which holds the stage's lock and turns disk errors into
    user errors. `finished` maps a file's name (relative to the manifest's folder) to its entry.

    Raises (on entering):
      UserError: another run is at work there, or what is there was made otherwise.
    """

    def __init__(
        self,
        stage: str,
        dataset: str,
        manifest_path: Path,
        arguments: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Any]],
        *,
        outputs_to_delete: str,
        temporary_files: Sequence[str] = (),
        vocab: Mapping[str, Any] | None = None,
    ):
        self.manifest_path = manifest_path
        self.folder = manifest_path.parent
        self.finished: dict[str, dict[str, Any]] = {}
        self.checkpoint: dict[str, Any] | None = None
        self.is_done = False
        self._outputs_to_delete = outputs_to_delete
        self._temporary_files = (*temporary_files, f"{manifest_path.name}*", f".{manifest_path.name}*")
        self._journal_path = _beside(manifest_path, ".journal")
        self._lock_path = _beside(manifest_path, ".lock")
        self._broken_path = _beside(manifest_path, ".broken")
        self._header: dict[str, Any] = {
            "stage": stage,
            "dataset": dataset,
            "format_version": FORMAT_VERSION,
            "arguments": dict(arguments),
            "inputs": list(inputs),
        }
        if vocab is not None:
            self._header["vocab"] = dict(vocab)
        self._exit_stack = contextlib.ExitStack()
        self._journal: IO[bytes] | None = None

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as stack:
            stack.enter_context(clear_disk_errors(self.folder))
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock(stack)
            manifest = read_manifest(self.manifest_path)
            if manifest is not None:
                self._require_same(manifest)
                self.finished.update({e["file"]: e for e in shard_entries(manifest)})
            damaged = self._forget_distrusted()
            self._read_journal()
            damaged += self._forget_damaged()
            self.is_done = manifest is not None and not damaged and not is_marked_damaged(self.manifest_path)
            if manifest is not None and damaged:
                print(
                    f"{len(damaged)} of {len(damaged) + len(self.finished)} files below "
                    f"{self.folder} are gone, have another size or were found broken; making "
                    f"them again: {damaged[0]}{', ...' if len(damaged) > 1 else ''}",
                    flush=True,
                )
            if self.is_done:
                # Of a run that was killed right after it had written the manifest.
                self.forget()
            else:
                self._remove_temporary_files()
                self._open_journal(stack)
            self._exit_stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        # Where it is done, those that a killed run's worker has left since the beginning.
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._remove_temporary_files()
        return self._exit_stack.__exit__(*exception)

    def resume_from_journal(self) -> None:
        """Goes on with a stage that was done: there is more of its input now."""
        if self.is_done:
            self.is_done = False
            self._open_journal(self._exit_stack)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Notes a finished file: ``{"file", "bytes", "sha256", counts...}``."""
        self.finished[entry["file"]] = dict(entry)
        self._write_journal({"finished": entry})

    def add_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Notes how far a single long file has come; `checkpoint` is found there after a kill."""
        self._write_journal({"checkpoint": checkpoint})

    def complete(self, counts: Mapping[str, Any], shards: Mapping[str, Sequence[Mapping]]) -> None:
        """Writes the manifest; from now on the stage is done."""
        write_json(self.manifest_path, {**self._header, "counts": counts, "shards": shards})
        self.is_done = True
        # In this order a kill in between costs nothing that was made.
        for path in (self._broken_path, self._journal_path):
            path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Removes the journal: the next run starts from the beginning."""
        self._journal_path.unlink(missing_ok=True)

    def _lock(self, stack: contextlib.ExitStack) -> None:
        for _ in range(_LOCK_TRIALS):
            try:
                stack.enter_context(FileLock(self._lock_path))
                break
            except LockedError as error:
                holder = error.holder
                # It may be somebody who only looks whether a run is at work.
                time.sleep(_LOCK_PAUSE_SECS)
        else:
            raise UserError(
                f"another run of {self._header['stage']} for {self._header['dataset']} is at work "
                f"in {self.folder} ({holder}): wait for it to end, or choose another BERT_PREP_WORKING_DIR"
            )

    def _require_same(self, there: Mapping[str, Any]) -> None:
        found = _differences(there, self._header)
        if found:
            raise UserError(
                f"{self.folder} holds {there.get('stage')} of {there.get('dataset')} made "
                f"otherwise: {'; '.join(found)}. Use the same arguments, another "
                f"BERT_PREP_WORKING_DIR, or delete {self._outputs_to_delete}"
            )

    def _read_journal(self) -> None:
        journal = read_journal(self.manifest_path)
        if journal is None:
            return
        self._require_same(journal.header)
        for entry in journal.entries:
            if "finished" in entry:
                self.finished[entry["finished"]["file"]] = entry["finished"]
            else:
                self.checkpoint = entry["checkpoint"]

    def _forget_distrusted(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = json.loads(self._broken_path.read_text(encoding="utf-8"))
            return [name for name in names if self.finished.pop(name, None)]
        return []

    def _forget_damaged(self) -> list[str]:
        damaged = []
        for name, entry in list(self.finished.items()):
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                damaged.append(name)
                del self.finished[name]
        return damaged

    def _open_journal(self, stack: contextlib.ExitStack) -> None:
        # Rewritten whole, because a torn last line must not stay in the middle.
        with atomic_file(self._journal_path) as file:
            entries: list[dict[str, Any]] = [{**self._header, "time": time.time()}]
            entries += [{"finished": entry} for entry in self.finished.values()]
            if self.checkpoint is not None:
                entries.append({"checkpoint": self.checkpoint})
            for entry in entries:
                file.write(json.dumps(entry).encode() + b"\n")
        self._journal = stack.enter_context(open(self._journal_path, "ab"))  # noqa: SIM115

    def _write_journal(self, entry: Mapping[str, Any]) -> None:
        assert self._journal is not None
        self._journal.write(json.dumps({**entry, "time": time.time()}).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def _remove_temporary_files(self) -> None:
        # Only this stage's own: another one may be at work in the same folder.
        for pattern in self._temporary_files:
            for path in self.folder.glob(pattern + TEMPORARY_SUFFIX):
                path.unlink()
