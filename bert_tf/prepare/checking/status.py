"""--action status: what is finished, what is running and for how long, and which command comes next."""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from bert_tf.prepare import stages
from bert_tf.prepare.checking.prepared import CORPUS_STAGES, Prepared, command, command_again, find_prepared
from bert_tf.prepare.corpora import registry
from bert_tf.prepare.fetching.fetch import PART_SUFFIX
from bert_tf.prepare.layout import Layout, counts_in_words
from bert_tf.prepare.running.stage import Journal
from bert_tf.records.pair_file import pair_lengths
from bert_tf.records.pairs import SUFFIXES
from bert_tf.records.token_file import SPLITS

_STAGE_WIDTH = max(map(len, stages.STAGES)) + 2
_TEXT_WIDTH = 100


def _progress(prepared: Prepared, journal: Journal) -> str:
    """How much is done, and the time left at the rate of the work since the latest start."""
    arguments, inputs = journal.header.arguments, journal.header.inputs
    if prepared.stage == "text_formatting":
        unit, total = "B", sum(entry.num_bytes for entry in inputs)
        done = [step.get("checkpoint", {}).get("input_bytes", 0) for step in journal.steps]
    else:
        num_shards = sum(arguments.get(f"num_{split}_shards", 0) for split in SPLITS)
        # With a manifest this is a repair. How many files a download has is not known.
        unit, total = " files", len(prepared.entries) or (num_shards if prepared.stage == "sharding" else len(inputs))
        done = list(range(1, len(journal.steps) + 1))
    left = " of {total_fmt}{unit} ({percentage:.0f}%), {rate_fmt}, {remaining} of work left"
    words = tqdm.format_meter(
        done[-1],
        total,
        max(0, (journal.steps[-1].get("time") or 0) - journal.time),
        initial=max((amount for amount, step in zip(done, journal.steps) if "time" not in step), default=0),
        unit=unit,
        unit_scale=unit == "B",
        bar_format="{n_fmt}" + (left if total else "{unit}"),
    )
    return " ".join(words.split())


def describe_stage(prepared: Prepared) -> Iterator[str]:
    """A stage's state, sizes and counts, arguments and folder, as paragraphs."""
    if prepared.fault:
        yield f"damaged: {prepared.fault}"
    elif prepared.is_at_work or prepared.journal or not prepared.manifest:
        state = "running" if prepared.is_at_work else "stopped"
        journal = prepared.journal
        yield f"{state}: {_progress(prepared, journal) if journal else 'nothing is finished yet'}"
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(prepared.manifest_path)))
        files = prepared.entries
        size = tqdm.format_sizeof(prepared.num_bytes)
        yield f"done {when}: {len(files):,} file{'s' if len(files) > 1 else ''}, {size}B"
        if damaged := [entry.file for entry in files if not entry.is_in(prepared.folder)]:
            yield (
                f"{len(damaged)} of them are gone or have another size, such as {damaged[0]}: "
                "--action verify --repair makes them again"
            )
        yield counts_in_words(prepared.manifest.counts)
        if prepared.stage == "create_token_files":
            drawn = [
                f"{kind} of length {', '.join(map(str, lengths))}"
                for kind, suffix in zip(("pairs", "single segments"), SUFFIXES)
                if (lengths := pair_lengths(prepared.folder, suffix))
            ]
            yield "; ".join(drawn) or "no pairs yet; training draws those that it needs"
    arguments = {name: value for name, value in prepared.header.arguments.items() if value is not None}
    if vocab := prepared.header.vocab:
        arguments["vocabulary"] = f"of {vocab.size:,} pieces"
    if arguments:
        yield "with " + ", ".join(f"{name} {value}" for name, value in arguments.items())
    yield str(prepared.folder)


def _stages_of(dataset: str) -> Iterable[str]:
    if registry.parts_of(dataset):
        return stages.STAGES
    return CORPUS_STAGES if registry.dataset_named(dataset).tables else ("download",)


def _placed_by_hand(layout: Layout, stage: str, corpus: str) -> list[Path]:
    """Files that the user put in place of a stage's output: raw files, or formatted text."""
    paths: Iterable[Path] = ()
    if stage == "download":
        paths = layout.download_folder(corpus).rglob("*")
    elif stage == "text_formatting" and registry.dataset_named(corpus).formatted_file:
        paths = [layout.formatted_file(corpus)]
    # Not counting locks and the remains of a stopped download.
    return [path for path in paths if path.is_file() and path.name[0] != "." and path.suffix != PART_SUFFIX]


def _describe_placed(files: list[Path]) -> list[str]:
    size = tqdm.format_sizeof(sum(path.stat().st_size for path in files))
    return [
        f"placed by hand: {len(files):,} file{'s' if len(files) > 1 else ''}, {size}B",
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
    if {("create_token_files", dataset), ("create_tfrecord_files", dataset)} & done:
        launch = f"DRY_RUN=1 DATASET={dataset} bash scripts/run_pretraining_lamb.sh"
        return [launch + "  # shows the plan; without arguments it is BERT-Large on 8 ranks"]
    if ("sharding", dataset) in done:
        vocab = command("create_vocab", dataset) + "  # or name your own with --vocab_file below"
        first = [] if ("create_vocab", dataset) in done else [vocab]
        return [*first, command("create_token_files", dataset)]

    def is_there(stage: str, corpus: str) -> bool:
        return (stage, corpus) in done or bool(_placed_by_hand(layout, stage, corpus))

    if not registry.parts_of(dataset):
        return [command(stage, dataset) for stage in _stages_of(dataset) if not is_there(stage, dataset)][:1]
    for corpus in registry.parts_of(dataset):
        if is_there("text_formatting", corpus):
            continue
        if corpus == "custom":
            return [command("text_formatting", corpus, input_files="FILES_OR_FOLDERS")]
        return [command("text_formatting" if is_there("download", corpus) else "download", corpus)]
    return [command("sharding", dataset)]


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
    for stage in _stages_of(dataset):
        if (stage, dataset) == ("download", "custom"):
            continue
        blocks = [(p.dataset, list(describe_stage(p))) for p in begun if p.stage == stage]
        blocks += [
            (corpus, _describe_placed(placed))
            for corpus in registry.parts_of(dataset) or (dataset,)
            if corpus not in dict(blocks) and (placed := _placed_by_hand(layout, stage, corpus))
        ]
        for owner, (first, *more) in blocks or [(dataset, ["not begun"])]:
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
