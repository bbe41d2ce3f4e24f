"""--action status: what is finished, what is running and for how long, and which command comes next."""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data import stages
from data.checking.prepared import CORPUS_STAGES, Prepared, command, command_again, find_prepared
from data.corpora import registry
from data.stages import Layout

_STAGE_WIDTH = max(map(len, stages.STAGES)) + 2
_TEXT_WIDTH = 100
# The records that the two phases of pre-training need.
_SHAPE = ("max_seq_length", "max_predictions_per_seq")
_PHASES = ((128, 20), (512, 80))


class Progress(NamedTuple):
    """The progress of an unfinished stage, from its journal."""

    done: float
    total: float | None
    unit: str  # "shards", "files", or "MB" of input
    per_sec: float | None

    @property
    def secs_left(self) -> float | None:
        if not self.per_sec or self.total is None:
            return None
        return max(self.total - self.done, 0) / self.per_sec

    def __str__(self) -> str:
        words = f"{self.done:,.0f}"
        if self.total:
            words += f" of {self.total:,.0f} {self.unit} ({self.done / self.total:.0%})"
        else:
            words += f" {self.unit}"
        return words + (f", {self.per_sec:,.3g} {self.unit}/s" if self.per_sec else "")


def size_in_words(num_bytes: float) -> str:
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:,.1f} GB"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes:,.0f} bytes"


def time_in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _total_shards(prepared: Prepared) -> int | None:
    if prepared.manifest:
        return len(prepared.entries)
    if prepared.stage == "create_tfrecord_files":
        return len(prepared.header.inputs)
    arguments = prepared.header.arguments
    if prepared.stage == "sharding":
        return arguments["num_training_shards"] + arguments["num_test_shards"]
    return None


def progress_of(prepared: Prepared) -> Progress | None:
    """From the journal; the rate counts only the work since the latest start."""
    if prepared.journal is None:
        return None
    journal = prepared.journal
    is_formatting = prepared.stage == "text_formatting"
    done, done_before, latest = 0.0, 0.0, journal.time
    for entry in journal.entries:
        if is_formatting:
            done = (entry.checkpoint or {}).get("input_bytes", 0) / 1e6
        else:
            done += 1
        latest = entry.time or latest
        if entry.time is None:
            done_before = done
    secs = latest - journal.time
    per_sec = (done - done_before) / secs if secs > 0 else None
    if is_formatting:
        total: float | None = sum(entry.num_bytes for entry in journal.header.inputs) / 1e6
        return Progress(done, total, "MB", per_sec)
    unit = "files" if prepared.stage == "download" else "shards"
    if prepared.manifest:
        # A repair: the journal names the undamaged files.
        return Progress(done, len(prepared.entries), unit, per_sec)
    return Progress(done, _total_shards(prepared), unit, per_sec)


def _damaged(prepared: Prepared) -> list[str]:
    """The files that are missing or do not have the size in the manifest."""
    return [entry.file for _, entry in prepared.entries if not _has_size(prepared.folder / entry.file, entry.num_bytes)]


def _has_size(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False


def _counts_in_words(counts: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {count:,}" if isinstance(count, int) else f"{name} {count:.4g}" for name, count in counts.items()
    )


def _main_counts(prepared: Prepared) -> dict[str, Any]:
    assert prepared.manifest
    counts = prepared.manifest.counts
    if prepared.stage != "create_tfrecord_files":
        return counts
    return {
        name: count for name, count in counts.items() if name.startswith("num_instances_") or name.endswith("_share")
    }


def describe_stage(prepared: Prepared) -> Iterator[str]:
    """Paragraphs: state, sizes and counts, arguments, folder."""
    progress = progress_of(prepared)
    if prepared.fault:
        yield f"damaged: {prepared.fault}"
    elif prepared.is_at_work:
        left = progress and progress.secs_left
        yield (
            "running: "
            + (str(progress) if progress else "nothing is finished yet")
            + (f", about {time_in_words(left)} left" if left else "")
        )
    elif prepared.manifest is None or progress:
        left = progress and progress.secs_left
        yield f"stopped: {progress}" + (f", about {time_in_words(left)} of work left" if left else "")
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(prepared.manifest_path)))
        files = prepared.entries
        yield (f"done {when}: {len(files):,} file{'s' if len(files) > 1 else ''}, {size_in_words(prepared.num_bytes)}")
        if damaged := _damaged(prepared):
            yield (
                f"{len(damaged)} of them are gone or have another size, such as {damaged[0]}: "
                "--action verify --repair makes them again"
            )
        yield _counts_in_words(_main_counts(prepared))
    arguments = {name: value for name, value in prepared.header.arguments.items() if value is not None}
    if vocab := prepared.header.vocab:
        arguments["vocabulary"] = f"of {vocab.size:,} pieces"
    if arguments:
        yield "with " + ", ".join(f"{name} {value}" for name, value in arguments.items())
    yield str(prepared.folder)


def _placed_by_hand(layout: Layout, stage: str, corpus: str) -> list[Path]:
    """Files that the user put in place of a stage's output: raw files, or formatted text."""
    if stage == "download":
        # Without locks and the remains of a stopped download.
        return [
            path
            for path in layout.download_folder(corpus).rglob("*")
            if path.is_file() and not path.name.startswith(".") and not path.name.endswith((".part", ".part.json"))
        ]
    if stage == "text_formatting" and corpus in registry.FORMATTED_FILES:
        return [path for path in [layout.formatted_file(corpus)] if path.is_file()]
    return []


def _describe_placed(files: list[Path]) -> list[str]:
    size = size_in_words(sum(path.stat().st_size for path in files))
    return [
        f"placed by hand: {len(files):,} file{'s' if len(files) > 1 else ''}, {size}",
        os.path.commonpath([path.parent for path in files]),
    ]


def _next_steps(dataset: str, found: list[Prepared], layout: Layout) -> list[str]:
    """The commands to run next."""
    if any(prepared.is_at_work for prepared in found):
        return ["wait for what is running"]
    for prepared in found:
        if not prepared.fault and (prepared.manifest is None or prepared.journal):
            return [command_again(prepared, layout)]
    done = {(prepared.stage, prepared.dataset) for prepared in found if prepared.manifest}
    if ("sharding", dataset) in done:
        return _next_records(dataset, found, layout)
    if dataset not in registry.CORPORA_OF:
        return [] if ("download", dataset) in done else [command("download", dataset)]

    def is_there(stage: str, corpus: str) -> bool:
        return (stage, corpus) in done or bool(_placed_by_hand(layout, stage, corpus))

    for corpus in registry.CORPORA_OF.get(dataset, ()):
        if is_there("text_formatting", corpus):
            continue
        if corpus == "custom":
            return [command("text_formatting", corpus, input_files="FILES_OR_FOLDERS")]
        action = "text_formatting" if is_there("download", corpus) else "download"
        return [command(action, corpus)]
    return [command("sharding", dataset)]


def _next_records(dataset: str, found: list[Prepared], layout: Layout) -> list[str]:
    records = [p for p in found if p.stage == "create_tfrecord_files" and p.manifest]
    made = [tuple(p.header.arguments[name] for name in _SHAPE) for p in records]
    missing = [dict(zip(_SHAPE, phase)) for phase in _PHASES if phase not in made]
    if not missing:
        return [
            command("verify", dataset),
            command("inspect", dataset),
            f"DATASET={dataset} bash scripts/run_pretraining_lamb.sh",
        ]
    if records:
        return [command_again(records[0], layout, **shape) for shape in missing]
    has_vocab = any(p.stage == "create_vocab" and p.manifest for p in found)
    first = [] if has_vocab else [command("create_vocab", dataset) + "  # or name your own with --vocab_file below"]
    return first + [command("create_tfrecord_files", dataset, **shape) for shape in missing]


def _print_block(stage: str, paragraphs: Iterable[str]) -> None:
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(paragraph, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
    for number, line in enumerate(lines):
        print(f"  {stage if number == 0 else '':{_STAGE_WIDTH}}{line}", flush=True)


def _print_dataset(dataset: str, layout: Layout, vocab_file: str | None) -> None:
    found = find_prepared(layout, dataset, vocab_file)
    print(dataset)
    for stage in stages.STAGES if dataset in registry.CORPORA_OF else ("download",):
        of_stage = [prepared for prepared in found if prepared.stage == stage]
        blocks = [(p.dataset, list(describe_stage(p))) for p in of_stage]
        blocks += [
            (corpus, _describe_placed(placed))
            for corpus in registry.CORPORA_OF.get(dataset, (dataset,))
            if corpus not in dict(blocks) and (placed := _placed_by_hand(layout, stage, corpus))
        ]
        if not blocks and (stage, dataset) != ("download", "custom"):
            blocks = [(dataset, ["not begun"])]
        for of, (first, *more) in blocks:
            _print_block(stage, [first if of == dataset else f"{of}: {first}", *more])
    steps = _next_steps(dataset, found, layout)
    print("  next:\n" + "".join(f"    {step}\n" for step in steps) if steps else "", flush=True)


def _all_datasets(layout: Layout, vocab_file: str | None) -> list[str]:
    """The datasets that have any files; a corpus that is part of another dataset is shown with that one."""
    found = find_prepared(layout, None, vocab_file)
    placed = {
        corpus
        for corpus in registry.FORMATTED_FILES
        for stage in CORPUS_STAGES
        if _placed_by_hand(layout, stage, corpus)
    }
    own = {prepared.dataset for prepared in found if prepared.stage not in CORPUS_STAGES}
    parts = {corpus for dataset in own for corpus in registry.CORPORA_OF.get(dataset, ())}
    return sorted(own | (placed | {prepared.dataset for prepared in found}) - parts)


def run_status(options: argparse.Namespace, layout: Layout) -> None:
    """Prints the state of one dataset, or of all that have any files."""
    print(f"below {layout.root}")
    datasets = [options.dataset] if options.dataset else _all_datasets(layout, options.vocab_file)
    for dataset in datasets:
        _print_dataset(dataset, layout, options.vocab_file)
    if not datasets:
        print("nothing has been prepared yet; begin with\n    " + command("download", "sample"))
