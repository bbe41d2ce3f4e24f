"""A stage of preparation: how it runs, how it continues after a kill, and what it leaves on the disk.

A stage writes its files below one folder and at the end a manifest: the arguments, the inputs, total
counts, and size and sha256 of each file. While the stage runs, a journal beside the manifest lists the
finished files. A stage that is started again compares its arguments and inputs with the manifest or
journal. If they are the same and all files exist, there is nothing to do; if they are the same and files
are missing, the stage writes only those; if they differ, it refuses. It also refuses to continue a stage
begun by another version of the program, because the bytes may differ; finished stages of any version stay valid.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import (
    TEMPORARY_SUFFIX,
    atomic_file,
    naming_unreadable,
    read_bytes,
    sha256_of_code,
    sha256_of_file,
)
from bert_tf.base.locks import FileLock, LockedError, is_locked
from bert_tf.records.manifest import MANIFEST_NAME, FileEntry, Header, Manifest, VocabEntry, read_manifest
from bert_tf.records.pairs import SUFFIXES as PAIR_SUFFIXES
from bert_tf.text.tokenizer import original_vocabulary

# Incremented when a change of the code gives other bytes for the same arguments.
FORMAT_VERSION = 2
# The ending of the temporary names of `atomic_file`.
_TEMPORARY = "." + 32 * "[0-9a-f]" + TEMPORARY_SUFFIX
_JOURNAL = ".journal"


def _line(entry: Mapping[str, Any]) -> bytes:
    """An entry as a line of the journal: the JSON's checksum in hexadecimal, then the JSON."""
    content = json.dumps(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _entry(line: bytes) -> Any:
    """What `_line` wrote. Raises: ValueError if it is not as it was written."""
    checksum, _, content = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content):
        raise ValueError("a line does not match its checksum")
    return json.loads(content)


@contextlib.contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turns an `OSError` into a `UserError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or f'below {folder}'}: {error.strerror or error}; look at the disk, its space and its "
            "permissions, or set BERT_PREP_WORKING_DIR to another folder, with a shorter path, and start the same "
            "command again: what is finished stays"
        ) from error


def _beside(manifest_path: Path, suffix: str) -> Path:
    return manifest_path.with_name(f".{manifest_path.name}{suffix}")


def journal_path(manifest_path: Path) -> Path:
    return _beside(manifest_path, _JOURNAL)


# The code that decides which bytes a stage writes.
_CODE = [f"bert_tf/{package}" for package in ("prepare", "base", "text", "records", "batches", "contrib")]


@functools.cache
def code_digest() -> str:
    """sha256 of what decides the bytes, at the time of the first call."""
    return sha256_of_code(_CODE)


class Journal(NamedTuple):
    """The notes of an unfinished stage: its header, start time and program, then its steps."""

    header: Header
    time: float  # seconds since 1970
    program: str  # its `code_digest`
    # Each holds "finished", a file's entry; "checkpoint", a position in a single long file; or "damaged", the name of a
    # file that --action verify has found damaged. Also "time", unless it was copied from an earlier run's journal.
    steps: list[dict[str, Any]]
    finished: dict[str, FileEntry]
    damaged_files: set[str]  # names of damaged files that have not been made again
    checkpoint: dict[str, Any] | None  # the last one


def read_journal(path: Path) -> Journal | None:
    """The journal at `path`, or None if there is none.

    Raises: UserError where the journal is damaged.
    """
    remedy = "delete it to begin this stage anew"
    if not path.exists():
        return None
    with naming_unreadable(path, remedy):
        lines = read_bytes(path).split(b"\n")
    if len(lines) == 1:
        return None
    finished: dict[str, FileEntry] = {}
    damaged: set[str] = set()
    checkpoint = None
    try:
        # The last piece is empty, or a line cut short when the run was killed.
        first, *steps = map(_entry, lines[:-1])
        for step in steps:
            if "finished" in step:
                entry = FileEntry.from_json(step["finished"])
                finished[entry.file] = entry
                damaged.discard(entry.file)
            elif "damaged" in step:
                damaged.add(step["damaged"])
                finished.pop(step["damaged"], None)
            else:
                checkpoint = dict(step["checkpoint"])
        return Journal(Header.from_json(first), first["time"], first["program"], steps, finished, damaged, checkpoint)
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}): {remedy}") from error


def _begin_journal(manifest_path: Path, header: Header, steps: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the journal. The steps are those of earlier runs: their times do not count towards this one's rate."""
    first = {**Header.to_json(header), "program": code_digest(), "time": time.time()}
    copied = ({name: value for name, value in step.items() if name != "time"} for step in steps)
    with atomic_file(journal_path(manifest_path)) as file:
        file.writelines(map(_line, (first, *copied)))


class Stage:
    """One run of one stage: finds files of earlier runs, notes new ones, writes the manifest at the end.

    A context manager that holds the stage's lock and turns disk errors into user errors. A manifest called
    manifest.json has its folder to itself; one with a longer name may share its folder with other manifests.

    Args:
      is_fetched: the bytes do not depend on this program's version (downloads).
      grows: each run may find more files to make.
    Attributes:
      finished: name of a file (relative to the manifest's folder) -> its entry.
      damaged_files: names of files that exist, but must be made again.
      earlier_entries: name of a file -> its entry in the manifest, if there is a manifest.

    Raises (on entering):
      UserError: another run holds the lock, or the folder's files were made from other arguments or inputs.
    """

    def __init__(
        self,
        stage: str,
        dataset: str,
        manifest_path: Path,
        arguments: Mapping[str, Any],
        inputs: Sequence[FileEntry],
        *,
        vocab: VocabEntry | None = None,
        is_fetched: bool = False,
        grows: bool = False,
    ):
        self.manifest_path, self.folder = manifest_path, manifest_path.parent
        self.finished: dict[str, FileEntry] = {}
        self.checkpoint: dict[str, Any] | None = None
        self.is_done = False
        self.earlier_entries: dict[str, FileEntry] = {}
        self.damaged_files: set[str] = set()
        # The prefix of its files' names in a shared folder.
        self._shared_prefix = manifest_path.name.removesuffix(MANIFEST_NAME)
        self._journal_path = journal_path(manifest_path)
        self._header = Header(
            stage, dataset, FORMAT_VERSION, arguments=dict(arguments), inputs=tuple(inputs), vocab=vocab
        )
        self._is_fetched, self._grows = is_fetched, grows

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as stack:
            stack.enter_context(clear_disk_errors(self.folder))
            self.folder.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign_files()
            self._lock(stack)
            if manifest := read_manifest(self.manifest_path):
                self._require_same(self.manifest_path, manifest, None)
                self.earlier_entries = {entry.file: entry for entry in manifest.entries}
                self.finished.update(self.earlier_entries)
            self._read_journal()
            lost = [name for name, entry in self.finished.items() if not entry.is_in(self.folder)]
            for name in lost:
                del self.finished[name]
            to_remake = [*lost, *sorted(self.damaged_files)]
            if manifest and to_remake:
                files = f"{len(to_remake)} lost or damaged files"
                print(f"making {files} again below {self.folder}: {to_remake[0]} ...", flush=True)
            self._remove_temporary_files()
            self.is_done = bool(manifest) and not to_remake and not self._grows
            if self.is_done:
                # A run that was killed right after writing the manifest leaves its journal.
                self.remove_journal()
            else:
                self._begin_journal()
            self._exit_stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        with contextlib.suppress(OSError):
            self._remove_temporary_files()
        return self._exit_stack.__exit__(*exception)

    def add(self, entry: FileEntry) -> None:
        """Notes a finished file in the journal."""
        self.finished[entry.file] = entry
        self._note(finished=entry.to_json())

    def add_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Notes the position in a single long file; after a kill it is the next run's `checkpoint`."""
        self._note(checkpoint=checkpoint)

    def complete(self, counts: dict[str, Any], shards: dict[str, list[FileEntry]]) -> None:
        """Writes the manifest, which marks the stage as done.

        Raises: UserError if a file that was made again has other bytes than the first time: what later stages made from
          the first one does not fit it.
        """
        manifest = Manifest(**vars(self._header), counts=counts, shards=shards)
        for entry in manifest.entries:
            if self.earlier_entries.get(entry.file, entry).sha256 != entry.sha256 and not self._is_fetched:
                raise UserError(
                    f"{self.folder / entry.file} now has other bytes than the first time, because its input or the "
                    f"program has changed since: delete {self.manifest_path} with the files that it lists and all that "
                    "was made from them, and make them again"
                )
        text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False)
        with atomic_file(self.manifest_path) as file:
            # Python has bytes of a file name that are not UTF-8 as lone surrogates; in the JSON they become escapes.
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")
        self.remove_journal()

    def remove_journal(self) -> None:
        """Removes the journal: the next run starts from the beginning."""
        self._journal_path.unlink(missing_ok=True)

    def _refuse_foreign_files(self) -> None:
        """Raises: UserError where a split's folder holds files although this stage has never run."""
        if self._shared_prefix or self._is_fetched or has_begun(self.manifest_path):
            return
        for path in self.folder.glob("*/[!.]*"):
            raise UserError(
                f"{path} was not made by this stage, which would write into {self.folder}: move that folder away, or "
                "choose another BERT_PREP_WORKING_DIR"
            )

    def _lock(self, stack: contextlib.ExitStack) -> None:
        try:
            stack.enter_context(FileLock(_beside(self.manifest_path, ".lock")))
        except LockedError as error:
            raise UserError(
                f"another run of {self._header.stage} for {self._header.dataset} is at work "
                f"in {self.folder} ({error}): wait for it to end, or choose another BERT_PREP_WORKING_DIR"
            ) from None

    def _require_same(self, path: Path, stored: Header, program: str | None) -> None:
        """Compares this run with the header stored at `path` and, for an unfinished stage, its program (None: do not).

        Raises: UserError where they differ.
        """
        differences = stored.differences(self._header, is_finished=program is None)
        if program not in (None, code_digest()) and not self._is_fetched:
            differences.append("the version of the program, or of Unicode in Python, has changed")
        if differences:
            raise UserError(
                f"{self.folder} holds {stored.stage} of {stored.dataset} that was begun or made differently: "
                f"{'; '.join(differences)}. Use the same arguments, inputs and program, another BERT_PREP_WORKING_DIR, "
                f"or delete {path} with the files that it lists"
            )

    def _read_journal(self) -> None:
        journal = read_journal(self._journal_path)
        # A run that ended before its first finished step does not restrict the arguments of the next one.
        if journal is None or not journal.steps:
            return
        # A repair may go on with any version of the program: `complete` compares its bytes with the manifest.
        self._require_same(self._journal_path, journal.header, None if self.earlier_entries else journal.program)
        for name in journal.damaged_files:
            self.finished.pop(name, None)
        self.finished.update(journal.finished)
        self.damaged_files, self.checkpoint = journal.damaged_files, journal.checkpoint

    def _begin_journal(self) -> None:
        # Rewritten as a whole: appending to a last line that was cut short would damage the journal.
        steps: list[dict[str, Any]] = [{"damaged": name} for name in sorted(self.damaged_files)]
        steps += ({"finished": entry.to_json()} for entry in self.finished.values())
        if self.checkpoint is not None:
            steps.append({"checkpoint": self.checkpoint})
        _begin_journal(self.manifest_path, self._header, steps)

    def _note(self, **step: Any) -> None:
        """Appends a step to the journal; when this returns, it is on the disk."""
        with open(self._journal_path, "ab") as journal:
            journal.write(_line({**step, "time": time.time()}))
            journal.flush()
            os.fsync(journal.fileno())

    def _remove_temporary_files(self) -> None:
        # Only this stage's files: another stage may run in the same folder, or a training may draw pairs in it.
        for path in self.folder.glob(("*" if self._shared_prefix else "**/*") + _TEMPORARY):
            is_pairs = path.with_suffix("").with_suffix("").suffix in PAIR_SUFFIXES
            if path.name.lstrip(".").startswith(self._shared_prefix) and not is_pairs:
                path.unlink()


def has_begun(manifest_path: Path) -> bool:
    """Whether a stage with this manifest was ever started, so that files beside the manifest may be its own."""
    return manifest_path.exists() or _beside(manifest_path, ".lock").exists()


# What a stage has made: total counts, and its files by split.
StageResult = tuple[dict[str, Any], dict[str, list[FileEntry]]]


def run_stage(stage: Stage, label: str, output: Path, make: Callable[[Stage], StageResult]) -> dict[str, Any] | None:
    """Has `make` write the missing files; prints and returns its counts, or returns None if there was nothing to do."""
    with stage:
        if stage.is_done:
            print(
                f"nothing to do: {stage.manifest_path} lists all files, made with the same arguments from the same "
                "input",
                flush=True,
            )
            return None
        counts, shards = make(stage)
        stage.complete(counts, shards)
        print(f"{label}: {counts_in_words(counts)}\n{output}", flush=True)
        return counts


def counts_in_words(counts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {count:,}" if isinstance(count, int) else f"{name} {count:.4g}" for name, count in counts.items()
    )


class PreparedStage(NamedTuple):
    """What a stage of a dataset has left on the disk."""

    manifest_path: Path
    header: Header
    manifest: Manifest | None
    journal: Journal | None  # of a stage that is not finished, or that makes files again
    is_running: bool  # whether a run holds its lock
    fault: str | None  # why the manifest or journal cannot be read

    @property
    def stage(self) -> str:
        return self.header.stage

    @property
    def dataset(self) -> str:
        return self.header.dataset

    @property
    def folder(self) -> Path:
        return self.manifest_path.parent

    def note_damaged(self, names: Iterable[str]) -> None:
        """Has the stage's next run make these files again."""
        steps = self.journal.steps if self.journal else []
        _begin_journal(self.manifest_path, self.header, [*steps, *({"damaged": name} for name in names)])

    def find_vocab(self, *alternatives: Path) -> Path | None:
        """The vocabulary that the files were made with: the copy beside them or an alternative; None: neither."""
        assert self.header.vocab
        files = filter(Path.is_file, (original_vocabulary(self.folder), *alternatives))
        return next((path for path in files if sha256_of_file(path) == self.header.vocab.sha256), None)

    @property
    def entries(self) -> list[FileEntry]:
        return self.manifest.entries if self.manifest else []

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.entries)


def read_stage(manifest_path: Path, stage: str) -> PreparedStage | None:
    """What the `stage` with this manifest has left, or None if it has not begun."""
    is_running = is_locked(_beside(manifest_path, ".lock"))
    try:
        manifest = read_manifest(manifest_path, stage)
        journal = read_journal(journal_path(manifest_path))
    except UserError as error:
        dataset, is_in_name, _ = manifest_path.name.partition("_one_")
        name = dataset if is_in_name else manifest_path.parent.name
        unknown = Header(stage, name, FORMAT_VERSION, arguments={}, inputs=(), vocab=None)
        return PreparedStage(manifest_path, unknown, None, None, is_running, str(error))
    if manifest and journal and not journal.steps:
        journal = None  # of a run that was killed before it had made anything again
    header = journal.header if journal else manifest
    return PreparedStage(manifest_path, header, manifest, journal, is_running, None) if header else None


def manifests_in(root: Path, pattern: str) -> list[Path]:
    """The manifests in the folders that the pattern matches, and those that unfinished stages will write there."""
    journals = (path.with_name(path.name[1:].removesuffix(_JOURNAL)) for path in root.glob(f"{pattern}/.*{_JOURNAL}"))
    manifests = (path for name in ("", "*.") for path in root.glob(f"{pattern}/{name}{MANIFEST_NAME}"))
    return sorted({*manifests, *journals})
