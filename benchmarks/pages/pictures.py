"""Draws the plots of docs/RESULTS.md from the committed figures, and README's curve from run folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.clusters import LENGTHS, RATES, rate_errors
from benchmarks.results import FOLDER
from bert_tf.base.errors import UserError
from bert_tf.report.page import smoothed
from bert_tf.report.runs import check_run_folder, read_runs

ROOT = FOLDER.parents[1]
GOLDEN, IMAGES = ROOT / "tests/golden/convergence.json", ROOT / "docs/images"
PROBES = {"probe.reviews": "reviews of films", "probe.sst2": "books and Wikipedia"}
# Colours that can be seen on white and on black: the plots have no background.
GREY, BLUE, ORANGE, GREEN, VIOLET = "#7d8590", "#2f81f7", "#d9692a", "#3f9c50", "#a371f7"


def sources() -> dict[str, str]:
    """The pictures, and a digest of the figures that each is drawn from, which it carries."""
    figures: dict[str, Any] = {
        "convergence": json.loads(GOLDEN.read_text(encoding="utf-8")),
        "large_batch": _by_batch("large_batch"),
        "precision": _precision_curves(),
        "real_text": [_by_batch("large_batch.text"), _loss_of_word_frequencies(), *map(_scores, PROBES)],
        # Rounded, because `sum` is more exact from Python 3.12 on.
        "scaling": sorted((str(key), rate, round(error, 9)) for key, (rate, error) in rate_errors().items()),
    }
    return {name: hashlib.sha256(json.dumps(value).encode()).hexdigest() for name, value in figures.items()}


def draw_convergence(axes: Any) -> None:
    """The golden curves, and the spread of eight seeds."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    updates = range(10, 201, 10)
    for panel, name, title in zip(axes, ("mlm_loss", "nsp_loss"), ("Masked words", "Next sentence")):
        for precision, color, line in (("fp32", BLUE, "-"), ("bf16", ORANGE, "--")):
            curve, spread = (golden[precision][name][part] for part in ("curve", "spread"))
            panel.plot(updates, curve, line, color=color, label=precision)
            if precision == "fp32":
                low, high = ([y + sign * s for y, s in zip(curve, spread)] for sign in (-1, 1))
                panel.fill_between(updates, low, high, color=color, alpha=0.2, label="spread of seeds", linewidth=0)
        panel.set(title=f"{title}: training loss", xlabel="update")


def _parts(benchmark: str) -> list[dict[str, Any]]:
    """The tables of a benchmark's result."""
    return json.loads((FOLDER / f"{benchmark}.json").read_text(encoding="utf-8"))["parts"]


def _mean_and_spread(cell: str) -> list[float]:
    return [float(word) for word in cell.split()[:3:2]]


def _by_batch(benchmark: str) -> dict[str, dict[int, list[float]]]:
    """Held-out loss, mean and spread of the seeds, by optimizer and batch."""
    table = _parts(benchmark)[0]
    batches = [int(name.partition(":")[0].replace(",", "")) for name in table["columns"][1:]]
    return {name: dict(zip(batches, map(_mean_and_spread, cells))) for name, *cells in table["rows"]}


def _loss_of_word_frequencies() -> float:
    return float(_parts("large_batch.text")[-1]["rows"][0][0])


def _scores(benchmark: str) -> dict[int, list[float]]:
    """Score after fine-tuning, mean and spread of the seeds, by sequences of pre-training."""
    return {int(row[1].replace(",", "")): _mean_and_spread(row[2]) for row in _parts(benchmark)[0]["rows"]}


def _double(panel: Any, numbers: Iterable[int]) -> None:
    """Labels the x-axis with `numbers`; each doubling is equally wide."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(numbers))
    panel.xaxis.set_major_formatter("{x:.0f}")


def draw_large_batch(axes: Any) -> None:
    """Held-out loss by batch: optimizers with a search of their own, and what was left out or not searched."""
    colors = dict(zip(("lamb", "adamw", "lars"), (BLUE, ORANGE, GREEN)))
    lines = dict(zip(("", " without warm-up", " without clipping", ", rate scaled: linear"), ("-", "--", ":", ":")))
    for name, losses in _by_batch("large_batch").items():
        optimizer = next(known_name for known_name in colors if name.startswith(known_name))
        means, spreads = zip(*losses.values())
        style = {"color": colors[optimizer], "linestyle": lines.get(name[len(optimizer) :], (0, (6, 1, 1, 1)))}
        for panel, is_shown in zip(axes, (name in colors, optimizer != "lars")):
            if is_shown:
                panel.errorbar(list(losses), means, yerr=spreads, capsize=3, label=name, **style)
    for panel, title, highest in zip(axes, ("Rates searched", "Parts left out, rates scaled"), (5.8, 9.3)):
        panel.set(title=f"{title}: held-out loss", xlabel="global batch", ylim=(0.8, highest))
        _double(panel, losses)


def draw_real_text(axes: Any) -> None:
    """Held-out loss by batch, and what pre-training on two kinds of text is worth for SST-2."""
    losses, *scores = (_by_batch("large_batch.text"), *map(_scores, PROBES))
    for (name, by_batch), color in zip(losses.items(), (BLUE, ORANGE)):
        axes[0].errorbar(list(by_batch), *zip(*by_batch.values()), capsize=3, label=name, color=color)
    axes[0].axhline(_loss_of_word_frequencies(), color=GREY, linestyle=":", label="word frequencies")
    axes[0].set(title="Held-out loss of masked words", xlabel="global batch")
    _double(axes[0], by_batch)
    for name, by_sequences, color in zip(PROBES.values(), scores, (ORANGE, BLUE)):
        axes[1].errorbar(list(by_sequences), *zip(*by_sequences.values()), capsize=3, label=name, color=color)
    axes[1].set(title="SST-2: accuracy after pre-training on", xlabel="sequences of pre-training", ylim=(0.74, 0.86))
    axes[1].set_xticks(range(0, 400_001, 100_000))
    axes[1].xaxis.set_major_formatter("{x:,.0f}")


def _precision_curves() -> dict[str, list[float]]:
    """Training losses by update, means of the seeds, and the spread of the seeds in fp32; by column of the table."""
    _, table = _parts("precision")
    return dict(zip(table["columns"], map(list, zip(*table["rows"]))))


def draw_precision(axes: Any) -> None:
    """The losses of all precisions, and their differences from fp32 in spreads of the seeds."""
    updates, *curves, spreads = _precision_curves().items()
    spread = sum(spreads[1]) / len(spreads[1])
    reference = curves[0][1]
    for (name, losses), color, line in zip(curves, (BLUE, GREEN, VIOLET, ORANGE), ("-", (0, (6, 2)), (0, (3, 3)), ":")):
        axes[0].plot(updates[1], losses, color=color, linestyle=line, label=name)
        distance = [(loss - fp32_loss) / spread for loss, fp32_loss in zip(losses, reference)]
        axes[1].plot(updates[1], distance, color=color, linestyle=line, label=name)
    axes[0].set(title="Masked words: training loss", xlabel="update")
    axes[1].set(title="Less fp32's, in spreads of seeds", xlabel="update", ylim=(-1.2, 1.2))


def draw_scaling(axes: Any) -> None:
    """What NVIDIA published (points) and what the planner says (lines), from one GPU's rate on."""
    errors = rate_errors()
    for panel, length in zip(axes, LENGTHS):
        for machine, precision, color in (("DGX A100", "fp16", BLUE), ("DGX-2H", "fp16", ORANGE)):
            rates = {key[-1]: value for key, value in errors.items() if key[:3] == (machine, precision, length)}
            published = [rate for rate, _ in rates.values()]
            planned = [rate * (1 + error) for rate, error in rates.values()]
            panel.plot(list(rates), published, "o", color=color, label=f"{machine}, published")
            panel.plot(list(rates), planned, "-", color=color, label=f"{machine}, planned")
        panel.set(title=f"BERT-Large, fp16, length {length}", xlabel="GPUs", ylabel="sequences/s")
        panel.set_yscale("log")
        _double(panel, sorted({num for row in RATES for num in row[-1] if num >= 8}))


def draw_curve(axes: Any, folders: Sequence[Path]) -> None:
    """Both phases one after the other: what was logged, and its mean over neighbours; dots on held-out text."""
    start = 0
    for run in read_runs(folders):
        for panel, name, held_out in zip(axes, ("total_loss", "mlm_accuracy"), ("loss", "masked_lm_accuracy")):
            logged, labels = run.series(name), [None, None] if start else ["training text", "held-out text"]
            panel.plot([start + x for x, _ in logged], [y for _, y in logged], color=BLUE, linewidth=0.6)
            panel.plot(*zip(*((start + x, y) for x, y in smoothed(logged))), color=BLUE, linewidth=2, label=labels[0])
            panel.plot(start + run.last_update, run.last_value(held_out), "o", color=ORANGE, label=labels[1])
            panel.axvline(start, color=GREY, linestyle=":", linewidth=1)
            text = f" {run.label}, length {run.setting('max_seq_length')}"
            alignment = {"xycoords": ("data", "axes fraction"), "va": "bottom"}
            panel.annotate(text, (start, 1), fontsize="small", color=GREY, **alignment)
        start += run.last_update
    for panel, title in zip(axes, ("Total loss (MLM + NSP)", "Masked-word accuracy")):
        panel.set_title(title, pad=20)
        panel.set(xlabel="update")


DRAWINGS = {
    "convergence": draw_convergence,
    "large_batch": draw_large_batch,
    "precision": draw_precision,
    "real_text": draw_real_text,
    "scaling": draw_scaling,
}


def draw(folders: Sequence[Path]) -> None:
    """The plots of docs/RESULTS.md; README's curve if run folders are given."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(f"the plots need matplotlib ({error}); pip install -r requirements/docs.txt") from None
    for folder in folders:
        check_run_folder(folder)
    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), GREY))
    matplotlib.rcParams.update({"xtick.color": GREY, "ytick.color": GREY, "svg.hashsalt": "same ids in every run"})
    for name, digest in {"curve": "quickstart"}.items() if folders else sources().items():
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        if name == "curve":
            draw_curve(axes, folders)
        else:
            DRAWINGS[name](axes)
        for panel in axes:
            panel.spines[["top", "right"]].set_visible(False)
            panel.legend(frameon=False, fontsize="small")
        metadata = {"Date": None, "Identifier": digest}
        figure.savefig(IMAGES / f"{name}.svg", transparent=True, metadata=metadata)
