"""--action verify: checks files against manifests; with --repair, makes exactly the broken ones again."""

from __future__ import annotations

import argparse
import enum
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.prepare import stages
from bert_tf.prepare.checking.prepared import WITH_VOCABULARY, Prepared, find_prepared, options_of, read_stage
from bert_tf.prepare.layout import Layout, task_pool_of
from bert_tf.prepare.running.stage import clear_disk_errors, is_marked_damaged, mark_damaged
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records import tfrecord
from bert_tf.records.index import INDEX_SUFFIX, load_index, open_index
from bert_tf.records.manifest import FileEntry
from bert_tf.records.pair_file import PAIRS_SUFFIX, PairFile, ensure_pairs
from bert_tf.records.pairs import PairSettings
from bert_tf.records.token_file import TokenFile
from bert_tf.text.tokenizer import original_vocabulary

_BLOCK_BYTES = 1 << 20


class Repair(enum.Enum):
    """How a fault is repaired."""

    MAKE_FILE = "the stage makes the file again"
    MAKE_INDEX = "the index of the records is made again"
    MAKE_PAIRS = "the pairs of the token file are drawn again"
    WRITE_MANIFEST = "the stage writes its manifest, and its copy of the vocabulary, again"
    BY_HAND = "only the user can repair it"


class Fault(NamedTuple):
    """What is wrong with a file, which is named relative to its manifest's folder."""

    file: str
    description: str
    repair: Repair


def _hash_and_count_lines(path: Path, report: Callable[[int], object]) -> tuple[str, int]:
    digest, num_lines = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_lines += block.count(b"\n")
            report(len(block))
    return digest.hexdigest(), num_lines


def _expected_lines(stage: str, entry: FileEntry) -> int | None:
    """The number of lines of a text file, from the manifest's counts; None for other files."""
    if stage == "text_formatting":
        return entry.counts["num_documents"]
    if stage == "sharding":
        # One line per sentence, and a blank line after each document.
        return entry.counts["num_sentences"] + entry.counts["num_documents"]
    is_text = not entry.file.endswith(".model")
    return entry.counts["num_pieces"] if stage == "create_vocab" and is_text else None


def _check_index(path: Path, offsets: np.ndarray, entry: FileEntry) -> Iterator[str]:
    index = open_index(path)
    expected_tokens = entry.counts["num_instance_tokens"]
    if index is None or not index.has_right_checksum():
        exists = path.with_name(path.name + INDEX_SUFFIX).exists()
        yield "its index is " + ("damaged" if exists else "missing")
    elif not np.array_equal(index.offsets(), offsets):
        yield "its index has wrong offsets"
    elif (num_tokens := int(index.lengths().sum())) != expected_tokens:
        yield f"its index counts {num_tokens:,} tokens, the manifest {expected_tokens:,}"


def _check_records(path: Path, entry: FileEntry) -> Iterator[Fault]:
    try:
        offsets = tfrecord.verify_records(path)
    except UserError as error:
        fault = error.args[1] if isinstance(error, tfrecord.DamagedRecord) else str(error)
        yield Fault(entry.file, fault, Repair.MAKE_FILE)
        return
    num_records, expected = len(offsets) - 1, entry.details["num_instances"]
    if num_records != expected:
        fault = f"holds {num_records:,} records, its manifest says {expected:,}"
        yield Fault(entry.file, fault, Repair.MAKE_FILE)
    for fault in _check_index(path, offsets, entry):
        yield Fault(entry.file, fault, Repair.MAKE_INDEX)


def _check_tokens(path: Path, entry: FileEntry) -> Iterator[Fault]:
    checksum = None
    try:
        tokens = TokenFile(path)
        checksum = tokens.checksum
        tokens.verify()
    except UserError as error:
        # Its message tells the user to run this very action.
        yield Fault(entry.file, str(error).rsplit("; ", 1)[0], Repair.MAKE_FILE)
    for pairs in sorted(path.parent.glob(f"{path.name}.*{PAIRS_SUFFIX}")):
        try:
            pair_file = PairFile(pairs)
            pair_file.verify()
            fault = "" if checksum in (None, pair_file.token_checksum) else "were drawn from another token file"
        except (UserError, ValueError):
            fault = "are damaged"
        if fault:
            yield Fault(f"{entry.file}{pairs.name.removeprefix(path.name)}", fault, Repair.MAKE_PAIRS)


def _check_content(stage: str, path: Path, entry: FileEntry, report: Callable[[int], object]) -> list[Fault]:
    size = path.stat().st_size
    sha256, num_lines = _hash_and_count_lines(path, report)
    expected_lines = _expected_lines(stage, entry)
    check = {"create_tfrecord_files": _check_records, "create_token_files": _check_tokens}.get(stage)
    faults = list(check(path, entry)) if check else []
    wrong_bytes = []
    if size != entry.num_bytes:
        wrong_bytes.append(f"has {size:,} bytes, its manifest says {entry.num_bytes:,}")
    if expected_lines is not None and num_lines != expected_lines:
        wrong_bytes.append(f"has {num_lines:,} lines, {expected_lines:,} by its manifest's counts")
    if sha256 != entry.sha256 and not wrong_bytes and not any(fault.repair == Repair.MAKE_FILE for fault in faults):
        wrong_bytes.append(
            f"has other bytes than those that were made: sha256 {sha256[:12]}..., "
            f"its manifest says {entry.sha256[:12]}..."
        )
    return [Fault(entry.file, fault, Repair.MAKE_FILE) for fault in wrong_bytes] + faults


def check_file(
    entry: FileEntry, stage: str, folder: Path, report: Callable[[int], object] = lambda _: None
) -> list[Fault]:
    """The faults of one file; `report` is called with the number of bytes of each block read."""
    try:
        return _check_content(stage, folder / entry.file, entry, report)
    except FileNotFoundError:
        fault = "is gone"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except KeyError as error:
        fault = f"its manifest does not say its {error.args[0]}"
    return [Fault(entry.file, fault, Repair.MAKE_FILE)]


def check_counts(prepared: Prepared) -> Iterator[Fault]:
    """Faults where a manifest's totals are not the sums of its files' counts."""
    assert prepared.manifest
    name, totals = prepared.manifest_path.name, prepared.manifest.counts
    for key, total in totals.items():
        # "num_documents_training" is the sum of the training files' "num_documents".
        split = next((split for split in prepared.manifest.shards if key.endswith(f"_{split}")), None)
        files = prepared.manifest.shards[split] if split else prepared.entries
        parts: list[Any] = [entry.counts.get(key.removesuffix(f"_{split}")) for entry in files]
        if None not in parts and sum(parts) != total:
            yield Fault(name, f"says {key} {total:,}, its files add up to {sum(parts):,}", Repair.WRITE_MANIFEST)
    if "num_read" in totals:
        dropped = sum(n for key, n in totals.items() if key.startswith("num_dropped_"))
        if totals["num_read"] != totals["num_documents"] + dropped:
            documents = f"{totals['num_documents']:,} documents and {dropped:,} dropped"
            fault = f"says num_read {totals['num_read']:,}, but {documents}"
            yield Fault(name, fault, Repair.WRITE_MANIFEST)


def check_folder(prepared: Prepared) -> Iterator[Fault]:
    """The faults of a folder: unknown files, a wrong copy of the vocabulary, an interrupted repair."""
    if prepared.stage in ("sharding", *WITH_VOCABULARY):
        known = {entry.file for entry in prepared.entries}
        known |= {name + INDEX_SUFFIX for name in known}
        for split in sorted({name.split("/")[0] for name in known}):
            for path in sorted((prepared.folder / split).glob("*")):
                name = f"{split}/{path.name}"
                is_own = path.suffix in (TEMPORARY_SUFFIX, PAIRS_SUFFIX) or path.name.startswith(".")
                if name not in known and not is_own:
                    fault = "is not in the manifest: a training would read it too; move it away"
                    yield Fault(name, fault, Repair.BY_HAND)
    if prepared.journal or is_marked_damaged(prepared.manifest_path):
        fault = "must be written again, because a repair was interrupted"
        yield Fault(prepared.manifest_path.name, fault, Repair.WRITE_MANIFEST)
    if vocab := prepared.header.vocab:
        path = original_vocabulary(prepared.folder)
        if not path.is_file():
            yield Fault(path.name, "is gone", Repair.WRITE_MANIFEST)
        elif sha256_of_file(path) != vocab.sha256:
            yield Fault(path.name, "is not the vocabulary that the records were made with", Repair.WRITE_MANIFEST)


def check(prepared: Prepared, workers: TaskPool) -> list[Fault]:
    """The faults of a finished stage."""
    entries = prepared.entries
    check_one = functools.partial(check_file, stage=prepared.stage, folder=prepared.folder)
    faults = [*check_counts(prepared), *check_folder(prepared)]
    with Progress(total=prepared.num_bytes, unit="B", description=f"verifying {prepared.stage}") as bar:
        if len(entries) == 1:
            # In this process, so that the bar can show the progress within a large file.
            return [*faults, *check_one(entries[0], report=bar.update)]
        for entry, new_faults in zip(entries, workers.map_in_order(check_one, entries)):
            faults += new_faults
            bar.update(entry.num_bytes)
    return faults


def _find_vocab(prepared: Prepared, options: argparse.Namespace, layout: Layout) -> Path:
    """Finds a file that holds the vocabulary with which the records were made."""
    vocab = prepared.vocab
    made_here = layout.vocab / prepared.dataset / "vocab.txt"
    candidates = [original_vocabulary(prepared.folder), Path(options.vocab_file) if options.vocab_file else made_here]
    for path in candidates:
        if path.is_file() and sha256_of_file(path) == vocab.sha256:
            return path
    raise UserError(
        f"the vocabulary of {vocab.size:,} pieces, sha256 {vocab.sha256[:12]}..., is in none "
        f"of {', '.join(map(str, candidates))}: name it by --vocab_file"
    )


def _make_again(prepared: Prepared, faults: list[Fault], options: argparse.Namespace, layout: Layout) -> None:
    """Raises: UserError where the stage fails, or makes other bytes than the first time."""
    names = sorted({fault.file for fault in faults if fault.repair == Repair.MAKE_FILE})
    paths = {name: prepared.folder / name for name in names}
    known_sha256 = {entry.file: {entry.sha256} for entry in prepared.entries}
    for name, path in paths.items():
        if path.is_file():
            # The file may be right and the manifest's sha256 wrong.
            known_sha256[name].add(sha256_of_file(path))
    stage_options = argparse.Namespace(**{**vars(options), **options_of(prepared, layout)})
    if prepared.stage in WITH_VOCABULARY:
        stage_options.vocab_file = str(_find_vocab(prepared, options, layout))
    mark_damaged(prepared.manifest_path, names)
    stages.STAGES[prepared.stage](stage_options, layout)
    now = read_stage(prepared.stage, prepared.dataset, prepared.manifest_path)
    assert now
    # Only the earlier files: a list of downloads may have grown since.
    other = [entry.file for entry in now.entries if entry.sha256 not in known_sha256.get(entry.file, {entry.sha256})]
    if other:
        raise UserError(
            f"{prepared.folder / other[0]} now has other bytes than the first time, because its input "
            f"or the program has changed since: delete {prepared.folder} and everything made from it, "
            "and make them again"
        )
    for name in names:
        print(f"  made again, with the same bytes as the first time: {name}", flush=True)


def _repair(
    prepared: Prepared, faults: list[Fault], broken_before: set[Path], options: argparse.Namespace, layout: Layout
) -> None:
    """Repairs all faults but `BY_HAND`. Raises: UserError as `_make_again` does, or where a stage is running."""
    if prepared.is_at_work:
        raise UserError(f"{prepared.stage} of {prepared.dataset} is being made: wait for its end")
    for entry in prepared.header.inputs:
        if (layout.root / entry.file).resolve() in broken_before:
            raise UserError(f"{prepared.stage} reads {entry.file}, which is still broken")
    broken = {fault.file for fault in faults if fault.repair == Repair.MAKE_FILE}
    if broken or any(fault.repair == Repair.WRITE_MANIFEST for fault in faults):
        _make_again(prepared, faults, options, layout)
    for name in sorted({f.file for f in faults if f.repair == Repair.MAKE_INDEX} - broken):
        path = prepared.folder / name
        path.with_name(path.name + INDEX_SUFFIX).unlink(missing_ok=True)
        load_index(path)
        print(f"  indexed again: {name}", flush=True)
    for name in sorted({f.file for f in faults if f.repair == Repair.MAKE_PAIRS}):
        path = prepared.folder / name
        path.unlink(missing_ok=True)
        length = int(path.name.removesuffix(PAIRS_SUFFIX).rsplit(".", 1)[1])
        files = [prepared.folder / entry.file for entry in prepared.entries]
        of_split = [file for file in files if file.parent == path.parent]
        # Drawn with the settings of the other files' pairs.
        ensure_pairs(of_split, PairSettings(length))
        print(f"  drawn again: {name}", flush=True)


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
    faults = check(prepared, workers)
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
    mended = read_stage(prepared.stage, prepared.dataset, prepared.manifest_path)
    assert mended
    remaining = check(mended, workers)
    for fault in remaining:
        print(f"  still broken: {fault.file}: {fault.description}", flush=True)
    return remaining


def _stale_inputs(prepared: Prepared, made: dict[Path, str], layout: Layout) -> str | None:
    """The first input that has since been made again with other bytes, according to the manifests."""
    for entry in prepared.header.inputs:
        now = made.get((layout.root / entry.file).resolve())
        if now and now != (entry.sha256 or now):
            return entry.file
    return None


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
    broken: list[Path] = []
    can_repair = False
    made: dict[Path, str] = {}
    for prepared in begun:
        made.update({(prepared.folder / e.file).resolve(): e.sha256 for e in prepared.entries})
        remaining = _verify_and_repair(prepared, {path.resolve() for path in broken}, options, layout)
        can_repair = can_repair or any(fault.repair != Repair.BY_HAND for fault in remaining)
        broken += [prepared.folder / name for name in dict.fromkeys(f.file for f in remaining)]
        if prepared.manifest and (stale := _stale_inputs(prepared, made, layout)):
            print(f"  note: made from another {stale} than there is now", flush=True)
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        remedy = "the same command with --repair makes again exactly what is broken"
        if options.repair:
            remedy = "what could not be made again must be repaired by hand"
        elif not can_repair:
            remedy = "do what is said there, since --repair cannot"
        raise UserError(f"broken: {broken[0]}{more}, as said above; {remedy}")
