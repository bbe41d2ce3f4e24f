"""--action verify: checks files against manifests; with --repair, makes exactly the broken ones again."""

from __future__ import annotations

import argparse
import enum
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.prepare import stages
from bert_tf.prepare.checking.prepared import WITH_VOCABULARY, Prepared, find_prepared, options_of, read_again
from bert_tf.prepare.instances import vocabulary
from bert_tf.prepare.layout import Layout, task_pool_of
from bert_tf.prepare.running.stage import clear_disk_errors, set_aside, write_json
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records import tfrecord, token_file
from bert_tf.records.manifest import FileEntry
from bert_tf.records.pair_file import PairFile, ensure_pairs, usual_settings
from bert_tf.records.pairs import SUFFIXES
from bert_tf.records.shard import INDEX_SUFFIX, load_index, open_index
from bert_tf.records.token_file import TokenFile
from bert_tf.text.tokenizer import original_vocabulary


class Repair(enum.Enum):
    """How a fault is repaired."""

    BY_STAGE = "the stage makes the file again"
    FROM_OTHERS = "it is derived from other files: an index, pairs, the totals of a manifest, a copy of a vocabulary"
    BY_HAND = "only the user can repair it"


class Fault(NamedTuple):
    """What is wrong with a file, which is named relative to its manifest's folder."""

    file: str
    description: str
    repair: Repair


def _record_faults(path: Path, entry: FileEntry) -> Iterator[Fault]:
    try:
        offsets = tfrecord.verify_records(path)
    except UserError as error:
        fault = str(error).removeprefix(f"{path}: ").removesuffix(f"; {tfrecord.HOW_TO_MEND}")
        yield Fault(entry.file, fault, Repair.BY_STAGE)
        return
    num_records, expected = len(offsets) - 1, entry.counts["num_instances"]
    if num_records != expected:
        fault = f"holds {num_records:,} records, its manifest says {expected:,}"
        yield Fault(entry.file, fault, Repair.BY_STAGE)
        return
    index = open_index(path)
    if (
        index is None
        or not index.has_right_checksum()
        or not np.array_equal(index.offsets(), offsets)
        or int(index.lengths().sum()) != entry.counts["num_instance_tokens"]
    ):
        yield Fault(f"{entry.file}{INDEX_SUFFIX}", "is missing, damaged or that of other records", Repair.FROM_OTHERS)


def _token_faults(path: Path, entry: FileEntry) -> Iterator[Fault]:
    checksum = None
    try:
        tokens = TokenFile(path)
        checksum = tokens.checksum
        tokens.verify()
    except UserError as error:
        yield Fault(entry.file, str(error).removesuffix(f"; {token_file.HOW_TO_MEND}"), Repair.BY_STAGE)
    for pairs in sorted(each for each in path.parent.glob(f"{path.name}.*") if each.suffix in SUFFIXES):
        try:
            pair_file = PairFile(pairs)
            pair_file.verify()
            is_whole = checksum in (None, pair_file.token_checksum)
        except (UserError, ValueError):
            is_whole = False
        if not is_whole:
            name = f"{entry.file}{pairs.name.removeprefix(path.name)}"
            yield Fault(name, "is damaged, or was drawn from another token file", Repair.FROM_OTHERS)


_FAULTS_INSIDE = {"create_tfrecord_files": _record_faults, "create_token_files": _token_faults}


def file_faults(
    entry: FileEntry, stage: str, folder: Path, report: Callable[[int], object] = lambda _: None
) -> list[Fault]:
    """The faults of one file; `report` is called with the number of bytes of each block read."""
    path = folder / entry.file
    try:
        sha256 = sha256_of_file(path, report)
        faults = list(_FAULTS_INSIDE[stage](path, entry)) if stage in _FAULTS_INSIDE else []
    except OSError as error:
        return [Fault(entry.file, f"cannot be read: {error.strerror}", Repair.BY_STAGE)]
    if sha256 != entry.sha256 and not any(fault.repair == Repair.BY_STAGE for fault in faults):
        sizes = f"{path.stat().st_size:,} where its manifest says {entry.num_bytes:,}"
        faults.append(Fault(entry.file, f"has other bytes than those that were made, {sizes}", Repair.BY_STAGE))
    return faults


def wrong_totals(prepared: Prepared) -> dict[str, int]:
    """The totals that a manifest should have: those that now are not the sums of its files' counts."""
    assert prepared.manifest
    right = {}
    for key, total in prepared.manifest.counts.items():
        # "num_documents_training" is the sum of the training files' "num_documents".
        split = next((split for split in prepared.manifest.shards if key.endswith(f"_{split}")), None)
        files = prepared.manifest.shards[split] if split else prepared.entries
        parts: list[Any] = [entry.counts.get(key.removesuffix(f"_{split}")) for entry in files]
        if None not in parts and sum(parts) != total:
            right[key] = sum(parts)
    return right


def folder_faults(prepared: Prepared) -> Iterator[Fault]:
    """The faults of a folder: wrong totals, unknown files, a wrong copy of the vocabulary."""
    assert prepared.manifest
    for key, total in wrong_totals(prepared).items():
        fault = f"says {key} {prepared.manifest.counts[key]:,}, its files add up to {total:,}"
        yield Fault(prepared.manifest_path.name, fault, Repair.FROM_OTHERS)
    if prepared.stage in ("sharding", *WITH_VOCABULARY):
        known = {entry.file for entry in prepared.entries}
        known |= {name + INDEX_SUFFIX for name in known}
        for split in sorted({name.split("/")[0] for name in known}):
            for path in sorted((prepared.folder / split).glob("[!.]*")):
                name = f"{split}/{path.name}"
                if name not in known and path.suffix not in (TEMPORARY_SUFFIX, *SUFFIXES):
                    fault = "is not in the manifest: a training would read it too; move it away"
                    yield Fault(name, fault, Repair.BY_HAND)
    if prepared.header.vocab and not prepared.find_vocab():
        fault = "is gone, or not the vocabulary that the files were made with"
        yield Fault(original_vocabulary(prepared.folder).name, fault, Repair.FROM_OTHERS)


def all_faults(prepared: Prepared, workers: TaskPool) -> list[Fault]:
    """The faults of a finished stage."""
    entries = prepared.entries
    of_one = functools.partial(file_faults, stage=prepared.stage, folder=prepared.folder)
    faults = list(folder_faults(prepared))
    with Progress(total=prepared.num_bytes, unit="B", description=f"verifying {prepared.stage}") as bar:
        if len(entries) == 1:
            # In this process, so that the bar can show the progress within a large file.
            return [*faults, *of_one(entries[0], report=bar.update)]
        for entry, new_faults in zip(entries, workers.map_in_order(of_one, entries)):
            faults += new_faults
            bar.update(entry.num_bytes)
    return faults


def _find_vocab(prepared: Prepared, options: argparse.Namespace, layout: Layout) -> Path:
    other = Path(options.vocab_file) if options.vocab_file else layout.vocab / prepared.dataset / "vocab.txt"
    if path := prepared.find_vocab(other):
        return path
    raise UserError(
        f"the vocabulary of {prepared.vocab} is neither in {prepared.folder} nor {other}: name it by --vocab_file"
    )


def _make_again(prepared: Prepared, names: list[str], options: argparse.Namespace, layout: Layout) -> None:
    """Has the stage make these files again, as it makes missing ones; if it fails, the damaged ones stay.

    Raises: UserError where the stage fails, or makes other bytes than the first time.
    """
    stage_options = argparse.Namespace(**{**vars(options), **options_of(prepared, layout)})
    if prepared.stage in WITH_VOCABULARY:
        stage_options.vocab_file = str(_find_vocab(prepared, options, layout))
    paths = [prepared.folder / name for name in names]
    try:
        for path in filter(Path.exists, paths):
            os.replace(path, set_aside(path))
        stages.STAGES[prepared.stage](stage_options, layout)
    finally:
        for path in paths:
            if set_aside(path).exists() and not path.exists():
                os.replace(set_aside(path), path)
            set_aside(path).unlink(missing_ok=True)
    # Only the earlier files: a list of downloads may have grown since.
    before = {entry.file: entry.sha256 for entry in prepared.entries}
    now = read_again(prepared).entries
    other = [entry.file for entry in now if entry.sha256 != before.get(entry.file, entry.sha256)]
    if other:
        raise UserError(
            f"{prepared.folder / other[0]} now has other bytes than the first time, because its input "
            f"or the program has changed since: delete {prepared.folder} and everything made from it, "
            "and make them again"
        )
    for name in names:
        print(f"  made again, with the same bytes as the first time: {name}", flush=True)


def _derive(prepared: Prepared, path: Path, options: argparse.Namespace, layout: Layout) -> None:
    """Makes again what is derived from other files."""
    if path == prepared.manifest_path:
        assert prepared.manifest
        prepared.manifest.counts.update(wrong_totals(prepared))
        write_json(path, prepared.manifest.to_json())
    elif path.parent == prepared.folder:
        vocabulary.copy_vocab(_find_vocab(prepared, options, layout), prepared.folder)
    elif path.name.endswith(INDEX_SUFFIX):
        path.unlink(missing_ok=True)
        load_index(path.with_name(path.name.removesuffix(INDEX_SUFFIX)))
    else:
        path.unlink(missing_ok=True)
        files = [prepared.folder / entry.file for entry in prepared.entries]
        # Drawn with the settings of the other files' pairs.
        ensure_pairs([file for file in files if file.parent == path.parent], usual_settings(path))
    print(f"  made again: {path.relative_to(prepared.folder)}", flush=True)


def _repair(
    prepared: Prepared, faults: list[Fault], broken_before: set[Path], options: argparse.Namespace, layout: Layout
) -> None:
    """Repairs all faults but `BY_HAND`. Raises: UserError as `_make_again` does, or where a stage is running."""
    if prepared.is_at_work:
        raise UserError(f"{prepared.stage} of {prepared.dataset} is being made: wait for its end")
    for entry in prepared.header.inputs:
        if (layout.root / entry.file).resolve() in broken_before:
            raise UserError(f"{prepared.stage} reads {entry.file}, which is still broken")
    if broken := sorted({fault.file for fault in faults if fault.repair == Repair.BY_STAGE}):
        _make_again(prepared, broken, options, layout)
        prepared = read_again(prepared)
    for name in dict.fromkeys(fault.file for fault in faults if fault.repair == Repair.FROM_OTHERS):
        _derive(prepared, prepared.folder / name, options, layout)


def _verify_and_repair(
    prepared: Prepared, broken_before: set[Path], options: argparse.Namespace, layout: Layout
) -> list[Fault]:
    """Prints the faults of one stage and, with --repair, repairs them; returns the remaining ones."""
    title = f"{prepared.stage} of {prepared.dataset}, {prepared.folder}"
    if prepared.fault:
        print(f"{title}: BROKEN\n  {prepared.fault}", flush=True)
        return [Fault(prepared.manifest_path.name, prepared.fault, Repair.BY_HAND)]
    if prepared.manifest is None:
        print(f"{title}: not finished, so not verified; --action status says more", flush=True)
        return []
    workers = task_pool_of(options, layout)
    faults = all_faults(prepared, workers)
    if not faults:
        files = "1 file" if len(prepared.entries) == 1 else f"{len(prepared.entries):,} files"
        print(f"{title}: whole, {files}", flush=True)
        return []
    print(f"{title}: BROKEN", flush=True)
    for fault in faults:
        print(f"  {fault.file}: {fault.description}", flush=True)
    if not options.repair:
        return faults
    try:
        with clear_disk_errors(prepared.folder):
            _repair(prepared, faults, broken_before, options, layout)
    except UserError as error:
        print(f"  cannot be made again: {error}", flush=True)
        return faults
    remaining = all_faults(read_again(prepared), workers)
    for fault in remaining:
        print(f"  still broken: {fault.file}: {fault.description}", flush=True)
    return remaining


def run_verify(options: argparse.Namespace, layout: Layout) -> None:
    """Verifies all finished stages of a dataset, or of all datasets, in the order of the stages.

    Raises: UserError where something is broken and has not been made again.
    """
    begun = find_prepared(layout, options.dataset)
    if not begun:
        raise UserError(
            f"nothing{options.dataset and f' of {options.dataset}' or ''} has been prepared below {layout.root}: "
            "--action status says what to begin with"
        )
    broken: dict[Path, Repair] = {}
    for prepared in begun:
        remaining = _verify_and_repair(prepared, {path.resolve() for path in broken}, options, layout)
        broken.update((prepared.folder / fault.file, fault.repair) for fault in remaining)
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        is_by_hand = options.repair or {*broken.values()} == {Repair.BY_HAND}
        remedy = "repair it by hand, as said above" if is_by_hand else "--repair makes again what can be made"
        raise UserError(f"broken: {next(iter(broken))}{more}; {remedy}")
