"""--action status: what is finished; of the rest, how much is done and the time that is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import Journal, PreparedStage, counts_in_words
from bert_tf.prepare.stages import find_prepared
from bert_tf.records.pair_file import drawn_pair_settings
from bert_tf.records.token_file import SPLITS
from bert_tf.settings.preparation import PreparationOptions, command


def _amount(steps: Sequence[dict[str, Any]], in_bytes: bool) -> int:
    """How much the steps of a journal have finished: bytes of the input, or files."""
    if in_bytes:
        return max((step["checkpoint"].get("input_bytes", 0) for step in steps if "checkpoint" in step), default=0)
    return sum("finished" in step for step in steps)


def _progress(prepared: PreparedStage, journal: Journal) -> str:
    """How much is done, and the time left at the rate of the work since the latest start."""
    arguments, inputs = journal.header.arguments, journal.header.inputs
    in_bytes = prepared.stage == "text_formatting"
    if in_bytes:
        total = sum(entry.num_bytes for entry in inputs)
    elif prepared.stage == "sharding":
        total = sum(arguments.get(f"num_{split}_shards", 0) for split in SPLITS)
    else:
        # A stage with a manifest is under repair. How many files a download has is not known in advance.
        total = len(prepared.entries or inputs)
    return tqdm.format_meter(
        _amount(journal.steps, in_bytes),
        total or None,
        elapsed=max(0, journal.steps[-1].get("time", journal.time) - journal.time),  # the clock may have been set back
        initial=_amount([step for step in journal.steps if "time" not in step], in_bytes),
        unit="B" if in_bytes else " files",
        unit_scale=in_bytes,
        bar_format="{n_fmt} of {total_fmt}{unit}, {remaining} of work left",
    )


def describe_stage(prepared: PreparedStage) -> Iterator[str]:
    """A stage's state, sizes and counts, arguments and folder, as lines."""
    if prepared.fault:
        yield f"damaged: {prepared.fault}"
    elif prepared.is_running or prepared.journal or not prepared.manifest:
        state = "running" if prepared.is_running else "stopped, the same command continues"
        journal = prepared.journal
        yield f"{state}: {_progress(prepared, journal) if journal and journal.steps else 'nothing is finished yet'}"
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(prepared.manifest_path)))
        yield f"done {when}: files {len(prepared.entries):,}, {tqdm.format_sizeof(prepared.num_bytes)}B"
        yield counts_in_words(prepared.manifest.counts)
        if prepared.stage == "create_token_files":
            drawn = ", ".join(settings.kind for settings in drawn_pair_settings(prepared.folder))
            yield drawn or "no pairs yet; training draws those that it needs"
    arguments = [f"{name} {value}" for name, value in prepared.header.arguments.items() if value is not None]
    if prepared.header.vocab:
        arguments.append(f"a vocabulary of {prepared.header.vocab}")
    if arguments:
        yield f"with {', '.join(arguments)}"
    yield str(prepared.folder)


def run_status(options: PreparationOptions, layout: Layout) -> None:
    """Prints the state of what has been begun of one dataset and its parts, or of all datasets."""
    print(f"below {layout.root}")
    begun = find_prepared(layout, options.dataset)
    for prepared in sorted(begun, key=lambda prepared: prepared.dataset):
        state, *more = describe_stage(prepared)
        print(f"{prepared.stage} of {prepared.dataset}, {state}", *more, sep="\n    ", flush=True)
    if not begun:
        first = command("download", options.dataset or "sample")
        print(f"nothing has been prepared yet; begin with\n    {first}")
