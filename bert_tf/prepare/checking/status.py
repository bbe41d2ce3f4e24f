"""--action status: what is finished, what is running and for how long, and which command comes next."""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_tf.prepare import stages
from bert_tf.prepare.checking.prepared import CORPUS_STAGES, Prepared, command, command_again, find_prepared
from bert_tf.prepare.corpora import registry
from bert_tf.prepare.fetching.fetch import PART_SUFFIX
from bert_tf.prepare.layout import Layout, counts_in_words
from bert_tf.prepare.running.journal import Journal
from bert_tf.prepare.sharding.sharding import shards_for
from bert_tf.records.pair_file import pair_lengths

_STAGE_WIDTH = max(map(len, stages.STAGES)) + 2
_TEXT_WIDTH = 100
# The records that the two phases of pre-training need.
_SHAPE = ("max_seq_length", "max_predictions_per_seq")
_PHASES = ((128, 20), (512, 80))


def size_in_words(num_bytes: float) -> str:
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:,.1f} GB"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes:,.0f} bytes"


def time_in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _units(prepared: Prepared, journal: Journal) -> tuple[str, float, list[float]]:
    """The unit in which an unfinished stage counts, the total (0: not known), and how much each entry adds."""
    if prepared.stage == "text_formatting":
        done_mb = [(entry.checkpoint or {}).get("input_bytes", 0) / 1e6 for entry in journal.entries]
        total = sum(entry.num_bytes for entry in journal.header.inputs) / 1e6
        return "MB", total, [done - earlier for earlier, done in zip([0, *done_mb], done_mb)]
    totals = {
        "create_token_files": len(journal.header.inputs),
        "create_tfrecord_files": len(journal.header.inputs),
        "sharding": sum(journal.header.arguments.get(f"num_{split}_shards", 0) for split in ("training", "test")),
    }
    # With a manifest this is a repair: the journal names the undamaged files.
    total = len(prepared.entries) or totals.get(prepared.stage, 0)
    return "files" if prepared.stage == "download" else "shards", total, [1.0] * len(journal.entries)


def _progress_in_words(prepared: Prepared, journal: Journal) -> str:
    """How much is done, the rate (of the work since the latest start), and the time left."""
    unit, total, steps = _units(prepared, journal)
    done = sum(steps)
    words = f"{done:,.0f} of {total:,.0f} {unit} ({done / total:.0%})" if total else f"{done:,.0f} {unit}"
    times = [entry.time for entry in journal.entries]
    secs = max(filter(None, times), default=journal.time) - journal.time
    done_since = sum(step for step, time in zip(steps, times) if time is not None)
    if secs <= 0 or not done_since:
        return words
    words += f", {done_since / secs:,.3g} {unit}/s"
    secs_left = max(total - done, 0) * secs / done_since
    of_work = "" if prepared.is_at_work else " of work"
    return words + (f", about {time_in_words(secs_left)}{of_work} left" if secs_left else "")


def _main_counts(prepared: Prepared) -> dict[str, Any]:
    assert prepared.manifest
    counts = prepared.manifest.counts
    if prepared.stage != "create_tfrecord_files":
        return counts
    return {
        name: count for name, count in counts.items() if name.startswith("num_instances_") or name.endswith("_share")
    }


def _pairs_in_words(prepared: Prepared) -> str:
    """The lengths for which the token files have pairs."""
    of_length, num_files = pair_lengths(prepared.folder), len(prepared.entries)
    lengths = [
        f"{length}" + (f" ({num:,} of {num_files:,} files)" if num < num_files else "")
        for length, num in sorted(of_length.items())
    ]
    return f"pairs of length {', '.join(lengths)}" if lengths else "no pairs yet; training draws those that it needs"


def describe_stage(prepared: Prepared) -> Iterator[str]:
    """A stage's state, sizes and counts, arguments and folder, as paragraphs."""
    if prepared.fault:
        yield f"damaged: {prepared.fault}"
    elif prepared.is_at_work or prepared.journal or not prepared.manifest:
        state = "running" if prepared.is_at_work else "stopped"
        journal = prepared.journal
        yield f"{state}: {_progress_in_words(prepared, journal) if journal else 'nothing is finished yet'}"
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(prepared.manifest_path)))
        files = prepared.entries
        yield (f"done {when}: {len(files):,} file{'s' if len(files) > 1 else ''}, {size_in_words(prepared.num_bytes)}")
        if damaged := [entry.file for entry in files if not entry.is_in(prepared.folder)]:
            yield (
                f"{len(damaged)} of them are gone or have another size, such as {damaged[0]}: "
                "--action verify --repair makes them again"
            )
        yield counts_in_words(_main_counts(prepared))
        if prepared.stage == "create_token_files":
            yield _pairs_in_words(prepared)
    arguments = {name: value for name, value in prepared.header.arguments.items() if value is not None}
    if vocab := prepared.header.vocab:
        arguments["vocabulary"] = f"of {vocab.size:,} pieces"
    if arguments:
        yield "with " + ", ".join(f"{name} {value}" for name, value in arguments.items())
    yield str(prepared.folder)


def _placed_by_hand(layout: Layout, stage: str, corpus: str) -> list[Path]:
    """Files that the user put in place of a stage's output: raw files, or formatted text."""
    if stage == "download":
        # Not counting locks and the remains of a stopped download.
        return [
            path
            for path in layout.download_folder(corpus).rglob("*")
            if path.is_file() and not path.name.startswith(".") and path.suffix != PART_SUFFIX
        ]
    if stage == "text_formatting" and registry.dataset_named(corpus).formatted_file:
        return [path for path in [layout.formatted_file(corpus)] if path.is_file()]
    return []


def _describe_placed(files: list[Path]) -> list[str]:
    size = size_in_words(sum(path.stat().st_size for path in files))
    return [
        f"placed by hand: {len(files):,} file{'s' if len(files) > 1 else ''}, {size}",
        os.path.commonpath([path.parent for path in files]),
    ]


def _next_steps(dataset: str, begun: list[Prepared], layout: Layout) -> list[str]:
    """The commands to run next."""
    if any(prepared.is_at_work for prepared in begun):
        return ["wait for what is running"]
    for prepared in begun:
        if not prepared.fault and (prepared.manifest is None or prepared.journal):
            return [command_again(prepared, layout)]
    done = {(prepared.stage, prepared.dataset) for prepared in begun if prepared.manifest}
    if ("sharding", dataset) in done:
        return _next_records(dataset, begun, layout)
    if not registry.parts_of(dataset):
        return [] if ("download", dataset) in done else [command("download", dataset)]

    def is_there(stage: str, corpus: str) -> bool:
        return (stage, corpus) in done or bool(_placed_by_hand(layout, stage, corpus))

    for corpus in registry.parts_of(dataset):
        if is_there("text_formatting", corpus):
            continue
        if corpus == "custom":
            return [command("text_formatting", corpus, input_files="FILES_OR_FOLDERS")]
        action = "text_formatting" if is_there("download", corpus) else "download"
        return [command(action, corpus)]
    return [command("sharding", dataset, **_fewer_shards(dataset, begun))]


def _fewer_shards(dataset: str, begun: list[Prepared]) -> dict[str, int]:
    """Options for a text with fewer documents than the default number of shards; none if the defaults fit."""
    counts = [p.manifest.counts for p in begun if p.stage == "text_formatting" and p.manifest]
    num_documents = sum(counted["num_documents"] for counted in counts)
    defaults = stages.default_shards(dataset)
    num_training, num_test = shards_for(num_documents, *defaults)
    if not counts or num_test == 0 or (num_training, num_test) == defaults:
        return {}
    return {"n_training_shards": num_training, "n_test_shards": num_test}


def _next_records(dataset: str, begun: list[Prepared], layout: Layout) -> list[str]:
    tokens = [p for p in begun if p.stage == "create_token_files" and p.manifest]
    records = [p for p in begun if p.stage == "create_tfrecord_files" and p.manifest]
    made = [tuple(p.header.arguments[name] for name in _SHAPE) for p in records]
    missing = [dict(zip(_SHAPE, phase)) for phase in _PHASES if phase not in made]
    if not missing or (tokens and not records):
        # If there are both, the launcher asks which to use.
        which = "DATA_FORMAT=tokens " if tokens and records else ""
        launch = f"DRY_RUN=1 DATASET={dataset} {which}bash scripts/run_pretraining_lamb.sh"
        launch += "  # shows the plan; without arguments it is BERT-Large on 8 ranks"
        return [command("verify", dataset), command("inspect", dataset), launch]
    if records:
        return [command_again(records[0], layout, **shape) for shape in missing]
    has_vocab = any(p.stage == "create_vocab" and p.manifest for p in begun)
    first = [] if has_vocab else [command("create_vocab", dataset) + "  # or name your own with --vocab_file below"]
    return [*first, command("create_token_files", dataset)]


def _print_block(stage: str, paragraphs: Iterable[str]) -> None:
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(paragraph, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
    for number, line in enumerate(lines):
        print(f"  {stage if number == 0 else '':{_STAGE_WIDTH}}{line}", flush=True)


def _print_dataset(dataset: str, layout: Layout) -> None:
    begun = find_prepared(layout, dataset)
    print(dataset)
    for stage in stages.STAGES if registry.parts_of(dataset) else ("download",):
        of_stage = [prepared for prepared in begun if prepared.stage == stage]
        blocks = [(p.dataset, list(describe_stage(p))) for p in of_stage]
        blocks += [
            (corpus, _describe_placed(placed))
            for corpus in registry.parts_of(dataset) or (dataset,)
            if corpus not in dict(blocks) and (placed := _placed_by_hand(layout, stage, corpus))
        ]
        if not blocks and (stage, dataset) != ("download", "custom"):
            blocks = [(dataset, ["not begun"])]
        for owner, (first, *more) in blocks:
            _print_block(stage, [first if owner == dataset else f"{owner}: {first}", *more])
    steps = _next_steps(dataset, begun, layout)
    print("  next:\n" + "".join(f"    {step}\n" for step in steps) if steps else "", flush=True)


def _all_datasets(layout: Layout) -> list[str]:
    """The datasets that have any files; a corpus that is part of another dataset is shown with that one."""
    begun = find_prepared(layout, None)
    placed = {
        corpus
        for corpus in filter(registry.parts_of, layout.datasets())
        for stage in CORPUS_STAGES
        if _placed_by_hand(layout, stage, corpus)
    }
    of_later_stages = {prepared.dataset for prepared in begun if prepared.stage not in CORPUS_STAGES}
    parts = {corpus for dataset in of_later_stages for corpus in registry.parts_of(dataset)}
    return sorted(of_later_stages | (placed | {prepared.dataset for prepared in begun}) - parts)


def run_status(options: argparse.Namespace, layout: Layout) -> None:
    """Prints the state of one dataset, or of all that have any files."""
    print(f"below {layout.root}")
    datasets = [options.dataset] if options.dataset else _all_datasets(layout)
    for dataset in datasets:
        _print_dataset(dataset, layout)
    if not datasets:
        print("nothing has been prepared yet; begin with\n    " + command("download", "sample"))
