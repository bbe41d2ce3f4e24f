"""--action verify: checks files against manifests; with --repair, damaged files are made again.

A stage makes its own damaged files again, as it makes missing ones. Damaged indexes and pairs are only removed:
whoever reads the data next makes them again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.prepare.instances.creating import create_tfrecord_files, export_tfrecord
from bert_tf.prepare.layout import Layout, make_task_pool
from bert_tf.prepare.running.stage import PreparedStage, clear_disk_errors
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.prepare.stages import STAGES, find_prepared
from bert_tf.records.manifest import MANIFEST_NAME, FileEntry, Manifest
from bert_tf.records.pair_file import PairFile
from bert_tf.records.pairs import SUFFIXES
from bert_tf.records.shard import INDEX_SUFFIX, index_path, open_index
from bert_tf.records.tfrecord import TFRecordFile
from bert_tf.records.token_file import TokenFile
from bert_tf.settings.preparation import LICENSE_GROUPS, PreparationOptions
from bert_tf.text.tokenizer import original_vocabulary

# Of files that readers derive from the file beside them if they are missing.
_DERIVED = (INDEX_SUFFIX, *SUFFIXES)


class Fault(NamedTuple):
    path: Path
    description: str
    needs_user: bool = False  # only the user can repair it


def _damage(path: Path, entry: FileEntry, stage: str) -> str:
    """What is wrong with a file that has another sha256 than its manifest says: the damaged record or block, if any."""
    try:
        if stage == "create_tfrecord_files":
            for _ in TFRecordFile(path).verified_records():
                pass
        elif stage == "create_token_files":
            TokenFile(path).verify()
    except UserError as error:
        return str(error).removeprefix(f"{path}: ").partition("; ")[0]  # without the remedy
    sizes = f"{path.stat().st_size:,} where its manifest says {entry.num_bytes:,}"
    return f"has other bytes than those that were made, {sizes}"


def _index_fits(path: Path, entry: FileEntry) -> bool:
    index = open_index(path)
    return (
        index is not None
        and index.has_right_checksum()
        and (index.num_records, index.data_bytes) == (entry.counts["num_instances"], entry.num_bytes)
    )


def _pairs_fit(path: Path, token_checksum: int | None) -> bool:
    try:
        pairs = PairFile(path)
        pairs.verify()
    except (OSError, ValueError):
        return False
    return token_checksum in (None, pairs.token_checksum)


def file_faults(entry: FileEntry, *, stage: str, folder: Path) -> list[Fault]:
    """The faults of one file, whose bytes its sha256 vouches for, and of those beside it."""
    path, faults, token_checksum = folder / entry.file, [], None
    try:
        if sha256_of_file(path) != entry.sha256:
            faults.append(Fault(path, _damage(path, entry, stage)))
        elif stage == "create_token_files":
            token_checksum = TokenFile(path).checksum
    except OSError as error:
        return [Fault(path, f"cannot be read: {error.strerror}")]
    index = index_path(path)
    if index.exists() and not _index_fits(path, entry):
        faults.append(Fault(index, "is damaged or that of other records"))
    for pairs in sorted(path.parent.glob(f"{path.name}.*")):
        if pairs.suffix in SUFFIXES and not _pairs_fit(pairs, token_checksum):
            faults.append(Fault(pairs, "is damaged, or was drawn from another token file"))
    return faults


def _wrong_totals(manifest: Manifest) -> Iterator[str]:
    """Totals that are not the sums of the files' counts; "num_documents_training" is that of the training files."""
    sums: Counter[str] = Counter()
    for split, entries in manifest.shards.items():
        for entry in entries:
            counts = {name: count for name, count in entry.counts.items() if isinstance(count, int)}
            sums.update(counts)
            sums.update({f"{name}_{split}": count for name, count in counts.items()})
    for name, total in manifest.counts.items():
        if sums.get(name, total) != total:
            yield f"says {name} {total:,}, its files add up to {sums[name]:,}: correct it with an editor"


def _folder_faults(prepared: PreparedStage, manifest: Manifest) -> Iterator[Fault]:
    """The faults of a folder: wrong totals, a wrong copy of the vocabulary, files that are not in the manifest."""
    for fault in _wrong_totals(manifest):
        yield Fault(prepared.manifest_path, fault, needs_user=True)
    if manifest.vocab and not prepared.find_vocab():
        yield Fault(
            original_vocabulary(prepared.folder), "is gone, or not the vocabulary that the files were made with"
        )
    listed = {prepared.folder / entry.file for entry in prepared.entries}
    for path in sorted(path for split in manifest.shards for path in (prepared.folder / split).glob("[!.]*")):
        if path not in listed and path.suffix not in (TEMPORARY_SUFFIX, *_DERIVED):
            yield Fault(path, "is not in the manifest: a training would read it too; move it away", needs_user=True)


def all_faults(prepared: PreparedStage, workers: TaskPool) -> list[Fault]:
    """The faults of a finished stage."""
    assert prepared.manifest
    faults = list(_folder_faults(prepared, prepared.manifest))
    check = functools.partial(file_faults, stage=prepared.stage, folder=prepared.folder)
    map_entries = workers.map_in_order if len(prepared.entries) > 1 else map  # a single file needs no workers
    with Progress(total=prepared.num_bytes, unit="B", description=f"verifying {prepared.stage}") as bar:
        for entry, new_faults in zip(prepared.entries, map_entries(check, prepared.entries)):
            faults += new_faults
            bar.update(entry.num_bytes)
    return faults


def _repair(prepared: PreparedStage, faults: list[Fault], options: PreparationOptions, layout: Layout) -> None:
    """Raises: UserError where the stage fails, or makes other bytes than the first time; the damaged files stay."""
    damaged = []
    for path in (fault.path for fault in faults if not fault.needs_user):
        name = path.relative_to(prepared.folder).as_posix()
        if path.suffix in _DERIVED:
            path.unlink()
            print(f"  removed, and made again when it is needed: {name}", flush=True)
        else:
            damaged.append(name)
    if not damaged:
        return
    options = dataclasses.replace(options, **_options_of(prepared, options, layout))
    prepared.note_damaged(damaged)
    make = STAGES[prepared.stage]
    if make is create_tfrecord_files and not (layout.sharded / prepared.dataset).exists():
        make = export_tfrecord  # from token files, which may have taken the text's place
    make(options, layout)


def _options_of(prepared: PreparedStage, options: PreparationOptions, layout: Layout) -> dict[str, Any]:
    """The values of the options, by name, with which a stage was run, as far as its bytes depend on them.

    Raises: UserError where the vocabulary is gone.
    """
    manifest = prepared.manifest
    assert manifest
    arguments = manifest.arguments
    option_names = {field.name for field in dataclasses.fields(PreparationOptions)}
    # Parquet and JSON lines are told by their suffixes whatever the option says; all other files have one format.
    formats = {*arguments.get("input_format", "auto").split("+")}
    stage_options = {
        **{name: value for name, value in arguments.items() if name in option_names},
        "dataset": prepared.dataset,
        "input_paths": tuple(str(layout.root / entry.file) for entry in manifest.inputs),
        "input_format": min(formats - {"jsonl", "parquet"} or formats),
        "n_training_shards": arguments.get("num_training_shards"),
        "n_test_shards": arguments.get("num_test_shards"),
        "license_groups": ",".join(arguments.get("license_groups", LICENSE_GROUPS)),
        "max_bad_records": manifest.counts.get("num_dropped_bad_records", 0),
    }
    if prepared.stage == "create_vocab":
        stage_options["vocab_file"] = str(prepared.manifest_path).removesuffix(f".{MANIFEST_NAME}")
    elif manifest.vocab:
        alternative = Path(options.vocab_file) if options.vocab_file else layout.vocab / prepared.dataset / "vocab.txt"
        vocab = prepared.find_vocab(alternative)
        if vocab is None:
            raise UserError(
                f"the vocabulary of {manifest.vocab} is neither in {prepared.folder} nor {alternative}: name it by "
                "--vocab_file"
            )
        stage_options["vocab_file"] = str(vocab)
    return stage_options


def _verify_and_repair(prepared: PreparedStage, options: PreparationOptions, layout: Layout) -> list[Fault]:
    """Prints the faults of one stage and, with --repair, repairs them; returns those that remain."""
    title = f"{prepared.stage} of {prepared.dataset}, {prepared.folder}"
    if prepared.fault:
        faults = [Fault(prepared.manifest_path, prepared.fault, needs_user=True)]
    elif prepared.manifest is None or prepared.is_running:
        print(f"{title}: not finished or at work, so not verified; --action status says more", flush=True)
        return []
    else:
        faults = all_faults(prepared, make_task_pool(options, layout))
    print(f"{title}: {'BROKEN' if faults else 'whole'}", flush=True)
    for fault in faults:
        print(f"  {fault.path.relative_to(prepared.folder)}: {fault.description}", flush=True)
    if options.repair:
        try:
            with clear_disk_errors(prepared.folder):
                _repair(prepared, faults, options, layout)
            return [fault for fault in faults if fault.needs_user]
        except UserError as error:
            print(f"  cannot be made again: {error}", flush=True)
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
        by_hand = options.repair or all(fault.needs_user for fault in broken)
        remedy = "repair it by hand, as said above" if by_hand else "--repair makes again what can be made"
        raise UserError(f"broken: {broken[0].path}, of {len({fault.path for fault in broken}):,} in all; {remedy}")
