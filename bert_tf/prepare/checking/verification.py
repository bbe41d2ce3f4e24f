"""--action verify: checks files against manifests; with --repair, removes what is damaged and has it made again.

The stage makes its own files again, as it makes missing ones. What is derived from them is removed, too, and made as
whoever reads them next would make it.
"""

from __future__ import annotations

import dataclasses
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
from bert_tf.prepare.instances import vocabulary
from bert_tf.prepare.layout import Layout, task_pool_of
from bert_tf.prepare.running.stage import Prepared, clear_disk_errors, read_stage, set_aside
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.prepare.stages import STAGES, find_prepared
from bert_tf.records import tfrecord, token_file
from bert_tf.records.manifest import MANIFEST_NAME, FileEntry, Manifest
from bert_tf.records.pair_file import PairFile, ensure_pairs, usual_settings
from bert_tf.records.pairs import SUFFIXES
from bert_tf.records.shard import INDEX_SUFFIX, index_path, load_index, open_index
from bert_tf.records.token_file import TokenFile
from bert_tf.settings.preparation import LICENSE_GROUPS, PreparationOptions
from bert_tf.text.tokenizer import original_vocabulary


class Repair(enum.Enum):
    """Who makes a damaged file again."""

    STAGE = "its stage"
    READER = "who reads it: an index, pairs, the copy of a vocabulary"
    USER = "nobody else can"


class Fault(NamedTuple):
    path: Path
    description: str
    repair: Repair = Repair.STAGE


def _record_faults(path: Path, entry: FileEntry) -> Iterator[Fault]:
    try:
        offsets = tfrecord.verify_records(path)
    except UserError as error:
        yield Fault(path, str(error).removeprefix(f"{path}: ").removesuffix(f"; {tfrecord.HOW_TO_MEND}"))
        return
    num_records, expected = len(offsets) - 1, entry.counts["num_instances"]
    if num_records != expected:
        yield Fault(path, f"holds {num_records:,} records, its manifest says {expected:,}")
        return
    index = open_index(path)
    if (
        index is None
        or not index.has_right_checksum()
        or not np.array_equal(index.offsets(), offsets)
        or int(index.lengths().sum()) != entry.counts["num_instance_tokens"]
    ):
        yield Fault(index_path(path), "is missing, damaged or that of other records", Repair.READER)


def _token_faults(path: Path, entry: FileEntry) -> Iterator[Fault]:
    checksum = None
    try:
        tokens = TokenFile(path)
        checksum = tokens.checksum
        tokens.verify()
    except UserError as error:
        yield Fault(path, str(error).removesuffix(f"; {token_file.HOW_TO_MEND}"))
    for pairs in sorted(each for each in path.parent.glob(f"{path.name}.*") if each.suffix in SUFFIXES):
        try:
            pair_file = PairFile(pairs)
            pair_file.verify()
            is_whole = checksum in (None, pair_file.token_checksum)
        except (UserError, ValueError):
            is_whole = False
        if not is_whole:
            yield Fault(pairs, "is damaged, or was drawn from another token file", Repair.READER)


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
        return [Fault(path, f"cannot be read: {error.strerror}")]
    if sha256 != entry.sha256 and path not in {fault.path for fault in faults}:
        sizes = f"{path.stat().st_size:,} where its manifest says {entry.num_bytes:,}"
        faults.append(Fault(path, f"has other bytes than those that were made, {sizes}"))
    return faults


def _wrong_totals(manifest: Manifest) -> Iterator[str]:
    """Totals that are not the sums of the files' counts."""
    for key, total in manifest.counts.items():
        # "num_documents_training" is the sum of the training files' "num_documents".
        split = next((split for split in manifest.shards if key.endswith(f"_{split}")), None)
        files = manifest.shards[split] if split else manifest.entries
        parts: list[Any] = [entry.counts.get(key.removesuffix(f"_{split}")) for entry in files]
        if None not in parts and sum(parts) != total:
            yield f"says {key} {total:,}, its files add up to {sum(parts):,}: correct it by an editor"


def _folder_faults(prepared: Prepared, manifest: Manifest) -> Iterator[Fault]:
    """The faults of a folder: wrong totals, a wrong copy of the vocabulary, files of others."""
    for fault in _wrong_totals(manifest):
        yield Fault(prepared.manifest_path, fault, Repair.USER)
    if manifest.vocab and not prepared.find_vocab():
        fault = "is gone, or not the vocabulary that the files were made with"
        yield Fault(original_vocabulary(prepared.folder), fault, Repair.READER)
    if prepared.stage == "sharding" or manifest.vocab:
        known = {entry.file for entry in prepared.entries}
        known |= {name + INDEX_SUFFIX for name in known}
        for path in sorted(path for split in manifest.shards for path in (prepared.folder / split).glob("[!.]*")):
            name = path.relative_to(prepared.folder).as_posix()
            if name not in known and path.suffix not in (TEMPORARY_SUFFIX, *SUFFIXES):
                fault = "is not in the manifest: a training would read it too; move it away"
                yield Fault(path, fault, Repair.USER)


def all_faults(prepared: Prepared, workers: TaskPool) -> list[Fault]:
    """The faults of a finished stage."""
    assert prepared.manifest
    entries, faults = prepared.entries, list(_folder_faults(prepared, prepared.manifest))
    of_one = functools.partial(file_faults, stage=prepared.stage, folder=prepared.folder)
    with Progress(total=prepared.num_bytes, unit="B", description=f"verifying {prepared.stage}") as bar:
        if len(entries) == 1:
            # In this process, so that the bar can show the progress within a large file.
            return [*faults, *of_one(entries[0], report=bar.update)]
        for entry, new_faults in zip(entries, workers.map_in_order(of_one, entries)):
            faults += new_faults
            bar.update(entry.num_bytes)
    return faults


def _repair(prepared: Prepared, faults: list[Fault], options: PreparationOptions, layout: Layout) -> None:
    """Raises: UserError where a stage is running, fails, or makes other bytes than the first time."""
    if prepared.is_at_work:
        raise UserError(f"{prepared.stage} of {prepared.dataset} is being made: wait for its end")
    if prepared.header.vocab:
        other = Path(options.vocab_file) if options.vocab_file else layout.vocab / prepared.dataset / "vocab.txt"
        vocab = prepared.find_vocab(other)
        if vocab is None:
            known = f"{prepared.header.vocab} is neither in {prepared.folder} nor {other}"
            raise UserError(f"the vocabulary of {known}: name it by --vocab_file")
        vocabulary.copy_vocab(vocab, prepared.folder)
    if broken := sorted({fault.path for fault in faults if fault.repair == Repair.STAGE}):
        _make_again(prepared, broken, options, layout)
    derived = [fault.path for fault in faults if fault.repair == Repair.READER]
    for path in derived:
        if path.suffix in (*SUFFIXES, INDEX_SUFFIX):
            path.unlink(missing_ok=True)
    for path in derived:
        if path.suffix in SUFFIXES:  # drawn with the settings of the other files' pairs
            ensure_pairs(sorted(path.parent.glob(f"*{token_file.TOKENS_SUFFIX}")), usual_settings(path))
        elif path.suffix == INDEX_SUFFIX:
            load_index(path.with_suffix(""))
        print(f"  made again: {path.relative_to(prepared.folder)}", flush=True)


def _options_of(prepared: Prepared, layout: Layout) -> dict[str, Any]:
    """The options with which a stage was run, as far as its bytes depend on them."""
    header, vocab = prepared.header, original_vocabulary(prepared.folder)
    options = {
        **header.arguments,
        "dataset": prepared.dataset,
        "input_paths": tuple(str(layout.root / entry.file) for entry in header.inputs),
        "n_training_shards": header.arguments.get("num_training_shards"),
        "n_test_shards": header.arguments.get("num_test_shards"),
        "license_groups": ",".join(header.arguments.get("license_groups", LICENSE_GROUPS)),
    }
    if prepared.manifest:
        options["max_bad_records"] = prepared.manifest.counts.get("num_dropped_bad_records", 0)
    if "input_format" in options:
        # Tables are told by their suffix whatever the option says, and several other kinds only by "auto".
        kinds = {*options["input_format"].split("+")} - {"parquet"}
        options["input_format"] = kinds.pop() if len(kinds) == 1 else "auto"
    if prepared.stage == "create_vocab":
        vocab = Path(str(prepared.manifest_path).removesuffix(f".{MANIFEST_NAME}"))
    known = {field.name for field in dataclasses.fields(PreparationOptions)}
    return {"vocab_file": str(vocab), **{name: value for name, value in options.items() if name in known}}


def _make_again(prepared: Prepared, paths: list[Path], options: PreparationOptions, layout: Layout) -> None:
    """Has the stage make these files again; if it fails, the damaged ones stay."""
    of_stage = _options_of(prepared, layout)
    try:
        for path in filter(Path.exists, paths):
            os.replace(path, set_aside(path))
        STAGES[prepared.stage](dataclasses.replace(options, **of_stage), layout)
    finally:
        for path in paths:
            if set_aside(path).exists() and not path.exists():
                os.replace(set_aside(path), path)
            set_aside(path).unlink(missing_ok=True)
    for path in paths:
        print(f"  made again, with the same bytes as the first time: {path.relative_to(prepared.folder)}", flush=True)


def _verify_and_repair(prepared: Prepared, options: PreparationOptions, layout: Layout) -> list[Fault]:
    """Prints the faults of one stage and, with --repair, repairs them; returns those that remain."""
    title = f"{prepared.stage} of {prepared.dataset}, {prepared.folder}"
    if prepared.fault:
        print(f"{title}: BROKEN\n  {prepared.fault}", flush=True)
        return [Fault(prepared.manifest_path, prepared.fault, Repair.USER)]
    if prepared.manifest is None:
        print(f"{title}: not finished, so not verified; --action status says more", flush=True)
        return []
    workers = task_pool_of(options, layout)
    faults = all_faults(prepared, workers)
    files = "1 file" if len(prepared.entries) == 1 else f"{len(prepared.entries):,} files"
    print(f"{title}: {'BROKEN' if faults else f'whole, {files}'}", flush=True)
    for fault in faults:
        print(f"  {fault.path.relative_to(prepared.folder)}: {fault.description}", flush=True)
    if faults and options.repair:
        try:
            with clear_disk_errors(prepared.folder):
                _repair(prepared, faults, options, layout)
        except UserError as error:
            print(f"  cannot be made again: {error}", flush=True)
        prepared = read_stage(prepared.manifest_path, prepared.stage) or prepared
        faults = all_faults(prepared, workers)
        for fault in faults:
            print(f"  still broken: {fault.path.relative_to(prepared.folder)}: {fault.description}", flush=True)
    return faults


def run_verify(options: PreparationOptions, layout: Layout) -> None:
    """Verifies all finished stages of a dataset, or of all datasets, in the order of the stages.

    Raises: UserError where something is broken and has not been made again.
    """
    begun = find_prepared(layout, options.dataset)
    if not begun:
        raise UserError(
            f"nothing{options.dataset and f' of {options.dataset}' or ''} has been prepared below {layout.root}: "
            "--action status says what to begin with"
        )
    broken = [fault for prepared in begun for fault in _verify_and_repair(prepared, options, layout)]
    if broken:
        files = {fault.path for fault in broken}
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        is_by_hand = options.repair or {fault.repair for fault in broken} == {Repair.USER}
        remedy = "repair it by hand, as said above" if is_by_hand else "--repair makes again what can be made"
        raise UserError(f"broken: {broken[0].path}{more}; {remedy}")
