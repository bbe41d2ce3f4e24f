"""The manifest of prepared data: a stage's arguments, its inputs, and the files that it has written, as JSON.

Preparation writes manifests; training, the launchers and the doctor read them with `read_manifest`, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.fields import checked_fields
from bert_tf.base.files import open_file, read_json_object

MANIFEST_NAME = "manifest.json"
_SAMPLE_BYTES = 1 << 16
_LIMIT = 1 << 64  # larger numbers in a manifest are nonsense
_MOST_DIFFERENCES = 5


# What other modules read from the manifests of stages that make shards: the names of numbers among the arguments and
# total counts, and of those among the counts of each file.
_REQUIRED = {
    "sharding": (
        "num_training_shards fraction_test_set num_documents num_documents_test",
        "num_documents num_sentences",
    ),
    "create_token_files": (
        "do_lower_case strip_accents num_training_shards fraction_test_set num_tokens",
        "num_tokens",
    ),
    "create_tfrecord_files": (
        "do_lower_case strip_accents max_seq_length max_predictions_per_seq masked_lm_prob random_seed num_instances",
        "num_instances num_instance_tokens",
    ),
}


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """A file that a stage has written, or reads.

    `file` is relative to the manifest's folder for a written file; for an input below the working directory, which may
    be moved, it is relative to that, else absolute. `details` holds the entry's other fields: counts, URL, damage.

    The sha256 of an input may be unknown, "". Then its modification time and the sha256 of three samples (first, middle
    and last 64 KiB), among the details, tell whether it has changed.
    """

    file: str
    num_bytes: int
    sha256: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> dict[str, Any]:
        return {**self.details, **self.details.get("counts", {})}

    def is_in(self, folder: Path) -> bool:
        """Whether `folder` holds this file with the same size."""
        path = folder / self.file
        return path.is_file() and path.stat().st_size == self.num_bytes

    def is_same(self, other: FileEntry, *, with_time: bool) -> bool:
        """Whether sizes and hashes are equal, and with `with_time` the times; what either lacks is not compared."""
        ours, theirs = self.to_json(), other.to_json()
        names = {"bytes", "sha256", "sample_sha256", *(["modified_ns"] if with_time else [])}
        return all(ours[name] == theirs[name] for name in names & ours.keys() & theirs.keys())

    def to_json(self) -> dict[str, Any]:
        optional = {"sha256": self.sha256} if self.sha256 else {}
        return {"file": self.file, "bytes": self.num_bytes, **optional, **self.details}

    @classmethod
    def from_json(cls, content: Any) -> FileEntry:
        """Raises: ValueError if a field is missing or of a wrong type."""
        fields = checked_fields(content, {"file": str, "bytes": int})
        fields |= checked_fields({"sha256": "", **content}, {"sha256": str})
        _require_numbers(fields, ["bytes"])
        details = {name: value for name, value in content.items() if name not in fields}
        return cls(fields["file"], fields["bytes"], fields["sha256"], details)


def describe_input(path: Path, base: Path, sha256: str = "") -> FileEntry:
    """The entry of an input file in its present state; `base` is the working directory."""
    resolved, resolved_base = path.resolve(), base.resolve()
    is_inside = resolved.is_relative_to(resolved_base)
    name, status = str(resolved.relative_to(resolved_base) if is_inside else resolved), path.stat()
    details = {}
    if not sha256:
        details = {"modified_ns": status.st_mtime_ns, "sample_sha256": sample_sha256(path, _SAMPLE_BYTES)}
    return FileEntry(name, status.st_size, sha256, details)


def sample_sha256(path: Path, num_bytes: int) -> str:
    """The sha256 of three samples of `num_bytes` each: a file's beginning, middle and end."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with open_file(path) as file:
        for offset in sorted({0, size // 2, max(0, size - num_bytes)}):
            file.seek(offset)
            digest.update(file.read(num_bytes))
    return digest.hexdigest()


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
    inputs: tuple[FileEntry, ...]
    vocab: VocabEntry | None

    def to_json(self) -> dict[str, Any]:
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(Header)}
        content["inputs"] = [entry.to_json() for entry in self.inputs]
        vocab = content.pop("vocab")
        return content if vocab is None else {**content, "vocab": dataclasses.asdict(vocab)}

    @classmethod
    def from_json(cls, content: Any) -> Header:
        """Raises: ValueError if a field is missing or of a wrong type."""
        kinds = {"stage": str, "dataset": str, "format_version": int, "arguments": dict, "inputs": list}
        fields = checked_fields(content, kinds)
        fields["inputs"] = tuple(map(FileEntry.from_json, fields["inputs"]))
        vocab = content.get("vocab")
        fields["vocab"] = None if vocab is None else VocabEntry(**checked_fields(vocab, {"size": int, "sha256": str}))
        return Header(**fields)

    def differences(self, current: Header, *, is_finished: bool) -> list[str]:
        """Differences between this stored header and the current command's, in words, at most `_MOST_DIFFERENCES`.

        Modification times of inputs are compared only for an unfinished stage: a finished one may
        have been copied to another disk together with its inputs, which changes them.
        """
        before, after = self._facts(), current._facts()
        facts = ((name, before.get(name, "missing"), after.get(name, "missing")) for name in {**before, **after})
        differences = [f"{name} is {old} there, {new} here" for name, old, new in facts if old != new]
        changed = (
            f"input {old.file} has changed since"
            for old, new in zip(self.inputs, current.inputs)
            if old.file == new.file and not old.is_same(new, with_time=not is_finished)
        )
        return [*differences, *changed][:_MOST_DIFFERENCES]

    def _facts(self) -> dict[str, Any]:
        """The values that can differ, by their names in messages."""
        header = {"stage": self.stage, "dataset": self.dataset, "format_version": self.format_version}
        inputs = {f"input {number}": entry.file for number, entry in enumerate(self.inputs, 1)}
        return {**header, **self.arguments, "the vocabulary": self.vocab or "none", **inputs}


@dataclasses.dataclass(frozen=True)
class Manifest(Header):
    """What a finished stage has written: total counts, and its files by split."""

    counts: dict[str, Any]
    shards: dict[str, list[FileEntry]]

    @property
    def entries(self) -> list[FileEntry]:
        return [entry for entries in self.shards.values() for entry in entries]

    def require_whole(self, folder: Path, command: str) -> None:
        """Raises: UserError if a file is missing from `folder` or has another size; its message says what to run."""
        for entry in self.entries:
            if not entry.is_in(folder):
                raise UserError(f"{folder / entry.file} is missing or was changed: run {command}")

    def to_json(self) -> dict[str, Any]:
        shards = {split: [entry.to_json() for entry in entries] for split, entries in self.shards.items()}
        return {**super().to_json(), "counts": self.counts, "shards": shards}

    @classmethod
    def from_json(cls, content: Any) -> Manifest:
        """Raises: ValueError if a field, or something that other modules read, is missing or of a wrong type."""
        header = Header.from_json(content)
        fields = checked_fields(content, {"counts": dict, "shards": dict})
        splits = checked_fields(fields["shards"], dict.fromkeys(fields["shards"], list))
        shards = {split: list(map(FileEntry.from_json, entries)) for split, entries in splits.items()}
        manifest = cls(**vars(header), counts=fields["counts"], shards=shards)
        manifest._check()
        return manifest

    def _check(self) -> None:
        """Raises: ValueError if something that other modules read is missing."""
        if self.stage in ("create_token_files", "create_tfrecord_files") and self.vocab is None:
            raise ValueError("names no vocab")
        if self.stage in _REQUIRED and not (self.shards.get("training") and "test" in self.shards):
            raise ValueError("names no files for training")
        total_names, file_names = (names.split() for names in _REQUIRED.get(self.stage, ("", "")))
        _require_numbers({**self.arguments, **self.counts}, {*total_names, *self.counts})
        for entry in self.entries:
            checked_fields({"counts": {}, **entry.details}, {"counts": dict})
            _require_numbers(entry.counts, file_names)


def _require_numbers(content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises: ValueError if one of the `names` is missing or no number in [0, 2^64), or a num_... no integer."""
    counts = {name for name in content if name.startswith("num_")}
    for name in sorted({*names, *counts}):
        value = content.get(name)
        if not isinstance(value, int if name in counts else (int, float)) or not 0 <= value < _LIMIT:
            raise ValueError(f"names no {name}, or not as a number")


def read_manifest(path: Path, stage: str | None = None) -> Manifest | None:
    """The manifest at `path`, or None if there is no such file.

    Raises: UserError where the file is not JSON, or not a manifest of the stage.
    """
    remedy = "delete it with the files that it lists, and run the stage again; if it is not of bertPrep.py, move it"
    if not path.exists():
        return None
    content = read_json_object(path, remedy)
    try:
        manifest = Manifest.from_json(content)
        if stage not in (None, manifest.stage):
            raise ValueError(f"is that of {manifest.stage}, not of {stage}")
        return manifest
    except ValueError as error:
        raise UserError(f"{path} is damaged, or no manifest ({error}): {remedy}") from error
