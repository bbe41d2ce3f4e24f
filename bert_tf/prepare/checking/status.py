"""--action status: what is finished, and how far the rest is and how much longer it will take."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator
from itertools import zip_longest

from tqdm import tqdm

from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import Journal, Prepared, counts_in_words
from bert_tf.prepare.stages import STAGES, find_prepared
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


def describe_stage(prepared: Prepared) -> Iterator[str]:
    """A stage's state, sizes and counts, arguments and folder, as paragraphs."""
    if prepared.fault:
        yield f"damaged: {prepared.fault}"
    elif prepared.is_at_work or prepared.journal or not prepared.manifest:
        state = "running" if prepared.is_at_work else "stopped"
        journal = prepared.journal
        yield f"{state}: {_progress(prepared, journal) if journal and journal.steps else 'nothing is finished yet'}"
        if not prepared.is_at_work:
            yield "the same command continues"
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(prepared.manifest_path)))
        num, size = len(prepared.entries), tqdm.format_sizeof(prepared.num_bytes)
        yield f"done {when}: {num:,} file{'s' if num > 1 else ''}, {size}B"
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


def run_status(options: PreparationOptions, layout: Layout) -> None:
    """Prints the state of what has been begun of one dataset and its parts, or of all datasets."""
    print(f"below {layout.root}")
    begun = find_prepared(layout, options.dataset)
    for dataset in sorted({prepared.dataset for prepared in begun}):
        print(dataset)
        for prepared in (each for each in begun if each.dataset == dataset):
            lines = [
                line
                for paragraph in describe_stage(prepared)
                for line in textwrap.wrap(paragraph, _TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)
            ]
            for stage, line in zip_longest([prepared.stage], lines, fillvalue=""):
                print(f"  {stage:{_STAGE_WIDTH}}{line}", flush=True)
    if not begun:
        first = command("download", options.dataset or "sample")
        print(f"nothing has been prepared yet; begin with\n    {first}")
