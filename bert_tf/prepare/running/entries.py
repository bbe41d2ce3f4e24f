"""The content of manifests and journals, and its JSON: a stage's arguments, its inputs, the files it has written."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import CHECKOUT

# The code that decides which bytes a stage writes.
_CODE = ("bert_tf/prepare", "bert_tf/base", "bert_tf/text", "bert_tf/records", "bert_tf/batches")
_SAMPLE_BYTES = 1 << 16
_MOST = 1 << 53  # larger numbers in a manifest are nonsense


class _Read(NamedTuple):
    """The names of a stage's numbers that other actions read: arguments, total counts, and counts of each file."""

    arguments: str = ""
    counts: str = ""
    counts_of_a_file: str = ""
    splits: str = "training test"


_READ = {
    "text_formatting": _Read("", "num_documents", "num_documents", ""),
    "sharding": _Read(
        "num_training_shards fraction_test_set", "num_documents num_documents_test", "num_documents num_sentences"
    ),
    "create_vocab": _Read("do_lower_case", "num_pieces", "", "vocabulary"),
    "create_token_files": _Read("do_lower_case num_training_shards fraction_test_set", "num_tokens", "num_tokens"),
    "create_tfrecord_files": _Read(
        "do_lower_case max_seq_length max_predictions_per_seq", "num_instances", "num_instances num_instance_tokens"
    ),
}


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """A file that a stage has written; `file` is relative to the manifest's folder.

    `details` holds the entry's other fields: counts, URL, damage.
    """

    file: str
    num_bytes: int
    sha256: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> dict[str, Any]:
        return {**self.details, **self.details.get("counts", {})}

    def require_counts(self, names: str) -> None:
        """Raises: ValueError if a count is missing, or if a field named like a count is not one."""
        if not isinstance(self.details.get("counts", {}), dict):
            raise ValueError(f"names no counts of {self.file}")
        _require_numbers(self.counts, {*names.split(), *(name for name in self.counts if name.startswith("num_"))})

    def is_in(self, folder: Path) -> bool:
        """Whether `folder` holds this file with the same size."""
        path = folder / self.file
        return path.is_file() and path.stat().st_size == self.num_bytes

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "bytes": self.num_bytes, "sha256": self.sha256, **self.details}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FileEntry:
        own = _typed(content, "file", str), _typed(content, "bytes", int), _typed(content, "sha256", str)
        return cls(*own, {name: value for name, value in content.items() if name not in ("file", "bytes", "sha256")})


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file that a stage reads; its name is relative if it lies below the working directory, which may be moved.

    If its sha256 is not known, its modification time and the sha256 of three samples (first, middle and last
    64 KiB) tell whether it has changed. Old manifests have neither.
    """

    file: str
    num_bytes: int
    sha256: str | None = None
    modified_ns: int | None = None
    sample_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        content = {"file": content.pop("file"), "bytes": content.pop("num_bytes"), **content}
        return {name: value for name, value in content.items() if value is not None}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> InputFile:
        names = ("sha256", "modified_ns", "sample_sha256")
        own = _typed(content, "file", str), _typed(content, "bytes", int)
        return cls(*own, *(content.get(name) for name in names))

    def has_same_content(self, other: InputFile) -> bool:
        """Compares size and hashes; a hash that either of the two lacks is not compared."""
        pairs = ((self.sha256, other.sha256), (self.sample_sha256, other.sample_sha256))
        return self.num_bytes == other.num_bytes and all(None in pair or pair[0] == pair[1] for pair in pairs)

    def has_same_time(self, other: InputFile) -> bool:
        return None in (self.modified_ns, other.modified_ns) or self.modified_ns == other.modified_ns


def describe_input(path: Path, base: Path, sha256: str | None = None) -> InputFile:
    """The entry of an input file in its present state; `base` is the working directory."""
    resolved, resolved_base = path.resolve(), base.resolve()
    inside = resolved_base in resolved.parents
    name, status = str(resolved.relative_to(resolved_base) if inside else resolved), path.stat()
    if sha256 is not None:
        return InputFile(name, status.st_size, sha256)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for place in sorted({0, max(0, status.st_size // 2), max(0, status.st_size - _SAMPLE_BYTES)}):
            file.seek(place)
            digest.update(file.read(_SAMPLE_BYTES))
    return InputFile(name, status.st_size, None, status.st_mtime_ns, digest.hexdigest())


@dataclasses.dataclass(frozen=True)
class VocabEntry:
    """The vocabulary of token files or records."""

    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.size:,} pieces, sha256 {self.sha256[:12]}"


@dataclasses.dataclass(frozen=True)
class Header:
    """Everything that decides which bytes a stage writes, except the code."""

    stage: str
    dataset: str
    format_version: int
    arguments: dict[str, Any]
    inputs: tuple[InputFile, ...]
    vocab: VocabEntry | None

    def to_json(self) -> dict[str, Any]:
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(Header)}
        content["inputs"] = [entry.to_json() for entry in self.inputs]
        vocab = content.pop("vocab")
        return content if vocab is None else {**content, "vocab": dataclasses.asdict(vocab)}

    @staticmethod
    def fields_of(content: Any) -> dict[str, Any]:
        """The arguments of `Header` in a JSON object. Raises: ValueError if one is missing or of a wrong type."""
        kinds = {"stage": str, "dataset": str, "format_version": int, "arguments": dict, "inputs": list}
        fields = {name: _typed(content, name, kind) for name, kind in kinds.items()}
        fields["inputs"] = tuple(map(InputFile.from_json, fields["inputs"]))
        vocab = content.get("vocab")
        has_vocab = vocab is not None
        fields["vocab"] = VocabEntry(_typed(vocab, "size", int), _typed(vocab, "sha256", str)) if has_vocab else None
        return fields

    def differences(self, here: Header, *, is_finished: bool) -> list[str]:
        """The differences between this stored header and `here`, that of the current command, in words.

        Modification times of inputs are compared only for an unfinished stage: a finished one may
        have been copied to another disk together with its inputs, which changes them.
        """
        names = ("stage", "dataset", "format_version")
        there, now = ({**{name: getattr(h, name) for name in names}, **h.arguments} for h in (self, here))
        found = [
            f"{name} is {there.get(name)} there, {now.get(name)} here"
            for name in dict.fromkeys((*names, *sorted({*there, *now})))
            if there.get(name) != now.get(name)
        ]
        if self.vocab != here.vocab:
            found.append(f"the vocabulary is {self.vocab or 'none'} there, {here.vocab or 'none'} here")
        return found + _input_differences(self.inputs, here.inputs, is_finished)


def _input_differences(there: tuple[InputFile, ...], here: tuple[InputFile, ...], is_finished: bool) -> list[str]:
    old, new = ({entry.file: entry for entry in entries} for entries in (there, here))
    changed = [
        name
        for name in old.keys() & new.keys()
        if not old[name].has_same_content(new[name]) or not (is_finished or old[name].has_same_time(new[name]))
    ]
    found = []
    for names, what in (
        (old.keys() - new.keys(), "was an input there"),
        (new.keys() - old.keys(), "is an input only here"),
        (changed, "has changed since"),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            found.append(f"{min(names)}{more} {what}")
    if not found and list(old) != list(new):
        one, other = next(pair for pair in zip(old, new) if pair[0] != pair[1])
        found.append(f"the input files come in another order, {one} there where {other} is here")
    return found


@dataclasses.dataclass(frozen=True)
class Manifest(Header):
    """What a finished stage has written: total counts, and its files by split."""

    counts: dict[str, Any]
    shards: dict[str, list[FileEntry]]

    @property
    def entries(self) -> Iterator[FileEntry]:
        """The files of all splits."""
        for entries in self.shards.values():
            yield from entries

    def require_whole(self, folder: Path, way_out: str) -> None:
        """Raises: UserError if a file is missing from `folder` or has another size; its message says what to run."""
        for entry in self.entries:
            if not entry.is_in(folder):
                raise UserError(f"{folder / entry.file} is missing or was changed: run {way_out}")

    def to_json(self) -> dict[str, Any]:
        shards = {split: [entry.to_json() for entry in entries] for split, entries in self.shards.items()}
        return {**super().to_json(), "counts": self.counts, "shards": shards}

    @classmethod
    def from_json(cls, content: Any) -> Manifest:
        """Raises: ValueError if a field is missing or of a wrong type."""
        header = Header.fields_of(content)
        shards = _typed(content, "shards", dict)
        shards = {split: list(map(FileEntry.from_json, _typed(shards, split, list))) for split in shards}
        found = cls(**header, counts=_typed(content, "counts", dict), shards=shards)
        if found.stage in ("create_token_files", "create_tfrecord_files") and found.vocab is None:
            raise ValueError("names no vocab")
        return found

    def require_what_is_read(self, stage: str) -> None:
        """Raises: ValueError if it is another stage's, if a number that other actions read is missing or not a number,
        or if a split has no file.
        """
        if self.stage != stage:
            raise ValueError(f"is that of {self.stage}, not of {stage}")
        read = _READ.get(stage, _Read(splits=""))
        _require_numbers(self.arguments, read.arguments.split())
        _require_numbers(self.counts, {*read.counts.split(), *self.counts})
        for split in read.splits.split():
            if split not in self.shards or not (self.shards[split] or split == "test"):
                raise ValueError(f"names no files for {split}")
        for entry in self.entries:
            entry.require_counts(read.counts_of_a_file)


def _typed(content: Any, name: str, kind: type) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get(name), kind):
        raise ValueError(f"names no {name}")
    if kind is str and "\0" in content[name]:
        raise ValueError(f"has a NUL in its {name}")
    return content[name]


def _require_numbers(content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises: ValueError if one of the names is missing or not a number of at least 0, or a count is not an integer."""
    for name in sorted(names):
        value = content.get(name)
        if not isinstance(value, int if name.startswith("num_") else (int, float)) or not 0 <= value < _MOST:
            raise ValueError(f"names no {name}, or not as a number")


def read_manifest(path: Path, stage: str | None = None) -> Manifest | None:
    """The manifest at `path`, or None if there is no such file; with a `stage`, checked for what other actions read.

    Raises: UserError where the file is not JSON, or not a manifest of the stage.
    """
    try:
        manifest = Manifest.from_json(json.loads(path.read_bytes()))
        if stage:
            manifest.require_what_is_read(stage)
        return manifest
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        what = "is damaged" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else "is not a manifest"
        # In other places there are files of other corpora beside it.
        whole = f"the folder {path.parent}" if path.name == "manifest.json" else "it and the file that it describes"
        raise UserError(f"{path} {what} ({error}): delete {whole}, and run the stage again") from error


@functools.cache
def code_digest() -> str:
    """sha256 of the code that prepares data, at the time of the first call."""
    digest = hashlib.sha256()
    paths = (path for folder in _CODE for path in CHECKOUT.joinpath(folder).rglob("*"))
    for path in sorted(path for path in paths if path.suffix in (".py", ".cpp")):
        digest.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def program_version() -> dict[str, str]:
    """The versions that decide a stage's bytes: of our code, and of Python's Unicode tables."""
    return {"code": code_digest(), "unicode": unicodedata.unidata_version}


def journal_line(content: Mapping[str, Any]) -> bytes:
    """A line of a journal, with a checksum of its other fields."""
    return json.dumps({**content, "crc32": _checksum(content)}).encode() + b"\n"


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _content_of(line: bytes) -> dict[str, Any]:
    content = json.loads(line)
    if not isinstance(content, dict) or content.pop("crc32", None) != _checksum(content):
        raise ValueError("a line is not as it was written")
    return content


class JournalEntry(NamedTuple):
    """One step: a finished file, or a checkpoint in a single long file."""

    finished: FileEntry | None
    checkpoint: dict[str, Any] | None
    time: float | None  # seconds since 1970; None if copied from an earlier run's journal

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> JournalEntry:
        finished = FileEntry.from_json(content["finished"]) if "finished" in content else None
        return cls(finished, content.get("checkpoint"), content.get("time"))


class Journal(NamedTuple):
    """The notes of an unfinished stage: its header, start time and program versions, then its finished steps."""

    header: Header
    time: float
    program: dict[str, str]  # as `program_version`
    entries: list[JournalEntry]


def read_damaged(path: Path) -> list[str]:
    """The names of damaged files in a note beside a manifest. Raises: UserError if it is not such a note."""
    try:
        names = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} is damaged: delete it, and let --action verify --repair find the damaged files again")
    return names


def read_journal(path: Path) -> Journal | None:
    """The journal at `path`, or None if there is none or it holds no finished step.

    Raises: UserError where the journal is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    try:
        # The last piece is empty, or a line cut short when the run was killed.
        contents = [_content_of(line) for line in lines[:-1]]
        # A run that ended before its first finished step does not restrict the arguments of the next one.
        if len(contents) < 2:
            return None
        first, *steps = contents
        header = Header(**Header.fields_of(first))
        return Journal(header, first["time"], first["program"], list(map(JournalEntry.from_json, steps)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # or it is of an earlier version
        raise UserError(f"{path} is damaged ({error}): delete it to begin this stage anew") from error
