"""--action status: what is finished, what is running and for how long, and which command comes next."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from bert_tf.prepare.corpora import registry
from bert_tf.prepare.fetching.fetch import PART_SUFFIX
from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import Journal, Prepared, counts_in_words
from bert_tf.prepare.stages import STAGES, find_prepared, options_of, stages_of
from bert_tf.records.pair_file import drawn_kinds
from bert_tf.records.token_file import SPLITS
from bert_tf.settings.preparation import PreparationOptions, command

_STAGE_WIDTH = max(map(len, STAGES)) + 2
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
    of_total = " of {total_fmt}{unit} ({percentage:.0f}%), {rate_fmt}, {remaining} of work left"
    words = tqdm.format_meter(
        done[-1],
        total,
        max(0, (journal.steps[-1].get("time") or 0) - journal.time),
        initial=max((amount for amount, step in zip(done, journal.steps) if "time" not in step), default=0),
        unit=unit,
        unit_scale=unit == "B",
        bar_format="{n_fmt}" + (of_total if total else "{unit}"),
    )
    return " ".join(words.split())


def _size(num_files: int, num_bytes: int) -> str:
    return f"{num_files:,} file{'s' if num_files > 1 else ''}, {tqdm.format_sizeof(num_bytes)}B"


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
        yield f"done {when}: {_size(len(prepared.entries), prepared.num_bytes)}"
        if damaged := [entry.file for entry in prepared.entries if not entry.is_in(prepared.folder)]:
            yield (
                f"{len(damaged)} of them are gone or have another size, such as {damaged[0]}: "
                "--action verify --repair makes them again"
            )
        yield counts_in_words(prepared.manifest.counts)
        if prepared.stage == "create_token_files":
            drawn = ", ".join(settings.kind for settings in drawn_kinds(prepared.folder))
            yield drawn or "no pairs yet; training draws those that it needs"
    arguments = {name: value for name, value in prepared.header.arguments.items() if value is not None}
    if vocab := prepared.header.vocab:
        arguments["vocabulary"] = f"of {vocab.size:,} pieces"
    if arguments:
        yield "with " + ", ".join(f"{name} {value}" for name, value in arguments.items())
    yield str(prepared.folder)


def _placed_by_hand(layout: Layout, stage: str, corpus: str) -> list[Path]:
    """Files that the user put in place of a stage's output: raw files, or formatted text."""
    paths: Iterable[Path] = ()
    if stage == "download":
        paths = layout.download_folder(corpus).rglob("*")
    elif stage == "text_formatting" and registry.dataset_named(corpus).formatted_file:
        paths = [layout.formatted_file(corpus)]
    # Not counting locks and the remains of a stopped download.
    return [path for path in paths if path.is_file() and path.name[0] != "." and path.suffix != PART_SUFFIX]


class _Dataset:
    """What there is of a dataset itself, by stage: what stages have left, and what the user has placed."""

    def __init__(self, dataset: str, layout: Layout):
        self.dataset, self._layout = dataset, layout
        self._begun = [prepared for prepared in find_prepared(layout, dataset) if prepared.dataset == dataset]
        # custom text is not downloaded.
        self._stages = [stage for stage in stages_of(dataset) if (stage, dataset) != ("download", "custom")]
        begun = {prepared.stage for prepared in self._begun}
        placed = {stage: _placed_by_hand(layout, stage, dataset) for stage in self._stages if stage not in begun}
        self._placed = {stage: files for stage, files in placed.items() if files}

    @property
    def is_empty(self) -> bool:
        return not self._begun and not self._placed

    def has(self, stage: str) -> bool:
        return stage in self._placed or any(each.stage == stage and each.manifest for each in self._begun)

    def print(self) -> None:
        print(self.dataset)
        for stage in self._stages:
            blocks = [list(describe_stage(prepared)) for prepared in self._begun if prepared.stage == stage]
            if files := self._placed.get(stage):
                size = _size(len(files), sum(path.stat().st_size for path in files))
                blocks.append([f"placed by hand: {size}", os.path.commonpath([path.parent for path in files])])
            for paragraphs in blocks or [["not begun"]]:
                _print_block(stage, paragraphs)

    def next_commands(self) -> list[str]:
        if any(prepared.is_at_work for prepared in self._begun):
            return ["wait for what is running"]
        for prepared in self._begun:
            if not prepared.fault and (prepared.manifest is None or prepared.journal):
                options = options_of(prepared, self._layout)
                if paths := options.pop("input_paths", ()):
                    options["input_files"] = ",".join(paths)
                return [command(prepared.stage, self.dataset, **options)]
        if self.has("create_token_files") or self.has("create_tfrecord_files"):
            launch = f"DRY_RUN=1 DATASET={self.dataset} bash scripts/run_pretraining_lamb.sh"
            return [launch + "  # shows the plan; without arguments it is BERT-Large on 8 ranks"]
        if self.has("sharding"):
            vocab = command("create_vocab", self.dataset) + "  # or name your own with --vocab_file below"
            first = [] if self.has("create_vocab") else [vocab]
            return [*first, command("create_token_files", self.dataset)]
        parts = registry.parts_of(self.dataset)
        if parts and all(self._layout.formatted_file(part).is_file() for part in parts):
            return [command("sharding", self.dataset)]
        if len(parts) > 1:
            return [f"format {' and '.join(parts)} first"]
        missing = [stage for stage in self._stages if not self.has(stage)]
        files = {"input_files": "FILES_OR_FOLDERS"} if self.dataset == "custom" else {}
        return [command(stage, self.dataset, **files) for stage in missing[:1]]


def _print_block(stage: str, paragraphs: Iterable[str]) -> None:
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(paragraph, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
    for number, line in enumerate(lines):
        print(f"  {stage if number == 0 else '':{_STAGE_WIDTH}}{line}", flush=True)


def run_status(options: PreparationOptions, layout: Layout) -> None:
    """Prints the state of one dataset and the corpora that it is made of, or of all datasets that have any files."""
    print(f"below {layout.root}")
    if options.dataset:
        datasets = dict.fromkeys((*registry.parts_of(options.dataset), options.dataset))
        all_of_them = [_Dataset(dataset, layout) for dataset in datasets]
    else:
        names = {*layout.datasets(), *(prepared.dataset for prepared in find_prepared(layout))}
        all_of_them = [_Dataset(name, layout) for name in sorted(names)]
        all_of_them = [each for each in all_of_them if not each.is_empty]
    for each in all_of_them:
        each.print()
        steps = each.next_commands()
        print("  next:\n" + "".join(f"    {step}\n" for step in steps) if steps else "", flush=True)
    if not all_of_them:
        print("nothing has been prepared yet; begin with\n    " + command("download", "sample"))
