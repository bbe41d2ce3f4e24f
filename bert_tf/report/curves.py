"""The report's curves: what was learned, how fast, and how well questions are answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bert_tf.report import page, words
from bert_tf.report.charts import Chart, Segment, Series
from bert_tf.report.runs import Run, number, whole
from bert_tf.report.scales import Point, write_value

_COLOURS = ("c1", "c2", "c3", "c4")


class Timeline:
    """Runs one after the other on a common update axis."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = list(runs)
        self.offsets = []
        offset = 0
        for run in self.runs:
            self.offsets.append(offset)
            offset += max(run.last_update, 1)
        self.end = offset

    def chart(self, title: str, series: list[Series], **options: Any) -> Chart:
        segments, warmups, restarts = [], [], []
        for run, offset in zip(self.runs, self.offsets):
            last = offset + max(run.last_update, 1)
            length = run.setting("max_seq_length")
            remark = f", length {length}" if length else ""
            segments.append(Segment(offset, last, run.label, remark))
            warmup = number(run.setting("warmup_steps")) or 0
            if warmup > 0:
                warmups.append((float(offset), float(min(offset + warmup, last))))
            restarts += [float(offset + update) for update in run.restarts]
        return Chart(title, series, segments, warmups=warmups, restarts=restarts, **options)

    def training(self, name: str, label: str, colour: str = "c1", smooth: bool = False) -> Series:
        return Series(label, self._segments("series", name), colour, smooth=smooth)

    def held_out(self, name: str, label: str, colour: str = "c2") -> Series:
        return Series(label, self._segments("held_out", name), colour, dots=True)

    def _segments(self, source: str, name: str) -> list[list[Point]]:
        return [
            [(x + offset, y) for x, y in getattr(run, source)(name)] for run, offset in zip(self.runs, self.offsets)
        ]


def vocab_size_of(runs: Sequence[Run]) -> int | None:
    sizes = (whole(run.section("bert_config").get("vocab_size")) for run in runs)
    return next((size for size in sizes if size > 1), None)


def _curve(timeline: Timeline, title: str, train: str, held_out: str, **options: Any) -> Chart:
    series = [timeline.training(train, "training", smooth=True), timeline.held_out(held_out, "held-out text")]
    return timeline.chart(title, [one for one in series if one.points], **options)


def _start_line(loss: float, name: str) -> list[tuple[float, str]]:
    return [(loss, f"guessing: {name} = {write_value(loss, 'number')}")]


def loss_chart(timeline: Timeline) -> Chart:
    vocab_size = vocab_size_of(timeline.runs)
    line = _start_line(math.log(vocab_size) + math.log(2), "ln V + ln 2") if vocab_size else []
    return _curve(timeline, "Total loss (MLM + NSP)", "total_loss", "loss", references=line)


def accuracy_chart(timeline: Timeline) -> Chart:
    return _curve(
        timeline, "Masked-word accuracy", "mlm_accuracy", "masked_lm_accuracy", style="percent", from_zero=True
    )


def learning(phases: Sequence[Run]) -> str:
    timeline = Timeline(phases)
    vocab_size = vocab_size_of(phases)
    share = next((value for run in phases if (value := number(run.data_counts.get("random_next_share")))), None)
    caption = (
        "Lower is better. The model guesses hidden words (MLM) and whether one sentence follows "
        "another (NSP); this is the sum of both losses, in nats."
    )
    if vocab_size:
        caption += (
            f" A model that has learned nothing gives all V = {vocab_size:,} pieces the same "
            "chance, which costs ln V, and tosses a coin for the sentences, which costs ln 2: the "
            "dashed line, where every run starts."
        )
    chance = [(max(share, 1 - share), "always the commoner answer")] if share else []
    mlm_line = _start_line(math.log(vocab_size), "ln V") if vocab_size else []
    small = [
        (accuracy_chart(timeline), "Share of the hidden words that the model names exactly."),
        (
            _curve(
                timeline,
                "Next-sentence accuracy",
                "nsp_accuracy",
                "next_sentence_accuracy",
                style="percent",
                references=chance,
            ),
            "Share of sentence pairs rightly called neighbours or strangers.",
        ),
        (
            _curve(timeline, "MLM loss", "mlm_loss", "masked_lm_loss", references=mlm_line),
            "Mean over the hidden words of the negative log of the chance given to the right one.",
        ),
        (
            _curve(timeline, "NSP loss", "nsp_loss", "next_sentence_loss", references=_start_line(math.log(2), "ln 2")),
            "The same for the question whether the second sentence follows the first.",
        ),
    ]
    drawn = page.chart_figure(loss_chart(timeline), caption, page.MAIN) + page.chart_pairs(small)
    lead = (
        "One axis counts the updates of all phases. Where a line has a thin shadow, that is what "
        "was logged and the line the mean of neighbours. Dots were measured on text never trained "
        "on."
    )
    return page.heading("What it learned", lead) + drawn if drawn else ""


def pace(runs: Sequence[Run]) -> str:
    timeline = Timeline(runs)
    speed = "Sequences trained on in a second, all ranks together."
    measured = [run for run in runs if run.last("model_tflops")]
    if measured:
        speeds = ", ".join(f"{words.speed(run)} in {run.label}" for run in measured)
        speed += f" Arithmetic that the model needs for it: {speeds}."
    scale_moves = {y for run in runs for _, y in run.series("loss_scaler")} - {1.0}
    skips = any(y for run in runs for _, y in run.series("skipped_updates"))

    def line(title: str, name: str, smooth: bool = False, **options: Any) -> Chart:
        series = timeline.training(name, title.lower(), smooth=smooth)
        return timeline.chart(title, [series], **options)

    charts = [
        (
            line("Learning rate", "learning_rate", from_zero=True),
            "Rises over the warm-up and falls until the phase ends; the rate of the whole run, not of one rank.",
        ),
        (line("Throughput", "throughput_train", smooth=True, from_zero=True), speed),
        (
            line("Gradient norm", "gradient_norm", smooth=True, from_zero=True, references=[(1.0, "clipped to 1")]),
            "Length of the gradient of one update before clipping; sudden peaks foretell trouble.",
        ),
    ]
    if scale_moves:
        charts.append(
            (
                line("Loss scale", "loss_scaler", from_zero=True),
                "fp16 only: the loss is multiplied by this so that small gradients survive; it "
                "halves when one overflows and grows again later.",
            )
        )
    if skips:
        charts.append(
            (
                line("Skipped updates", "skipped_updates", from_zero=True),
                "Updates, counted from the start, left out because a gradient was not finite.",
            )
        )
    drawn = page.chart_pairs(charts)
    return page.heading("How it ran") + drawn if drawn else ""


def answers(answering: Sequence[Run]) -> str:
    if not answering:
        return ""
    compared = len({words.is_pretrained(run) for run in answering}) == len(answering) > 1
    names = [words.origin(run) if compared else f"{run.label}, {words.origin(run)}" for run in answering]
    coloured = list(zip(answering, names, _COLOURS * len(answering)))
    blocks = []
    for title, key in (("F1", "f1"), ("Exact match", "exact_match")):
        values = [
            (name, score, colour) for run, name, colour in coloured if (score := run.last_held_out(key)) is not None
        ]
        blocks.append(page.bars(title, values) if values else "")
    series = [Series(name, [run.series("total_loss")], colour, smooth=True) for run, name, colour in coloured]
    end = max(run.last_update for run in answering)
    chart = Chart("Fine-tuning loss", [one for one in series if one.points], [Segment(0, max(end, 1), "")])
    caption = "Mean cross-entropy of the answer's first and last word; each run from its update 0."
    scores = (
        "F1 counts the words shared with the true answer, exact match (EM) the answers that are "
        "right word for word; both from 0 to 100."
    )
    lead = f"Fine-tuning on questions and answers. {scores}"
    if compared:
        lead = (
            "The same fine-tuning on questions and answers, started from the pre-trained "
            "checkpoint and from random weights: the difference is what pre-training was good "
            f"for. {scores}"
        )
    panel = f'<div class="panel bars">{"".join(blocks)}</div>' if any(blocks) else ""
    drawn = page.chart_figure(chart, caption, page.WIDE)
    return page.heading("Answering questions (SQuAD)", lead) + panel + drawn
