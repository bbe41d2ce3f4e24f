"""Puts the report together and writes it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import write_text
from bert_tf.report import curves, page, tables, words
from bert_tf.report.charts import draw_file
from bert_tf.report.curves import Timeline
from bert_tf.report.runs import Run, num_parameters, read_run
from bert_tf.report.scales import write_value

DEFAULT_TITLE = "BERT training report"


def write_report(run_folders: Sequence[str | Path], output: str | Path, title: str = DEFAULT_TITLE) -> None:
    """Writes one self-contained HTML page about the runs; an older page is replaced in one move.

    Args:
      run_folders: pre-training phases in their order, and fine-tuning runs. Folders that do not
        exist yet are left out.
      output: the file to write.
      title: heading of the page.

    Raises:
      OSError: the page cannot be written; an older one is left as it was.
    """
    runs = [read_run(folder) for folder in run_folders if Path(folder).is_dir()]
    phases = [run for run in runs if run.is_pretraining]
    answering = [run for run in runs if run.is_question_answering]
    body = "\n".join(
        part
        for part in (
            _header(runs, phases, title),
            _headline(phases, answering),
            curves.learning(phases),
            curves.answers(answering),
            curves.pace(phases or answering),
            tables.data(phases),
            tables.course(runs),
            tables.repeat(runs),
            _footer(),
        )
        if part
    )
    write_text(Path(output), page.page(title, body))


def write_curve_svg(run_folders: Sequence[str | Path], path: str | Path) -> None:
    """Writes loss and MLM accuracy of the pre-training phases as one SVG on a white ground.

    Raises:
      UserError: none of the folders holds a pre-training run with logged updates.
    """
    runs = [read_run(folder) for folder in run_folders]
    phases = [run for run in runs if run.is_pretraining and run.train]
    if not phases:
        names = ", ".join(str(folder) for folder in run_folders)
        raise UserError(f"no logged updates of pre-training in {names}; name run folders that ran")
    timeline = Timeline(phases)
    charts = [curves.loss_chart(timeline), curves.accuracy_chart(timeline)]
    write_text(Path(path), draw_file([chart for chart in charts if chart.has_points], 620, 360))


def _header(runs: Sequence[Run], phases: Sequence[Run], title: str) -> str:
    described = next((run for run in (*phases, *runs) if run.section("bert_config")), None)
    parts = _model_facts(described) if described else []
    chips = []
    for run in runs:
        state, text = words.state(run)
        chips.append(f'<li><span class="state {state}"></span><b>{escape(run.label)}</b> {escape(text)}</li>')
    if not runs:
        parts = ["No run has begun yet in the folders this page is made from."]
    return (
        f'<h1>{escape(title)}</h1><p class="muted">{escape(" · ".join(parts))}</p>'
        f'<ul class="chips">{"".join(chips)}</ul>'
    )


def _model_facts(run: Run) -> list[str]:
    config = run.section("bert_config")
    parts = []
    if config.get("num_hidden_layers") and config.get("hidden_size"):
        parts.append(f"BERT, {config['num_hidden_layers']} layers of width {config['hidden_size']}")
    parameters = num_parameters(config)
    if parameters:
        parts.append(f"{parameters / 1e6:,.1f} million parameters")
    if config.get("vocab_size"):
        parts.append(f"vocabulary of {words.count(config['vocab_size'])} pieces")
    ranks = run.setting("num_ranks")
    if ranks:
        device = run.config.get("processor") if run.config.get("device") == "CPU" else None
        device = device or run.config.get("device") or "an unnamed device"
        parts.append(f"{ranks} rank{'' if ranks == 1 else 's'} on {device}")
    for name in ("precision", "optimizer_type"):
        if run.setting(name):
            parts.append(str(run.setting(name)))
    return parts


def _headline(phases: Sequence[Run], answering: Sequence[Run]) -> str:
    cards = []
    if phases:
        last = phases[-1]
        vocab_size = curves.vocab_size_of(phases)
        guess = f"; guessing costs {math.log(vocab_size):.2f}" if vocab_size else ""
        cards += [
            _result_card(last, "MLM loss", "masked_lm_loss", "mlm_loss", "number", guess),
            _result_card(last, "MLM accuracy", "masked_lm_accuracy", "mlm_accuracy", "percent"),
            _result_card(last, "NSP accuracy", "next_sentence_accuracy", "nsp_accuracy", "percent"),
        ]
    cards += _score_cards(answering)
    if phases:
        rate = words.median_rate(phases[-1])
        if rate is not None:
            cards.append(page.card("Throughput", write_value(rate, "number"), "seq/s", words.speed(phases[-1])))
        secs = sum(run.elapsed_secs for run in phases)
        updates = sum(run.last_update for run in phases)
        figure, unit = words.duration(secs)
        cards.append(page.card("Pre-training time", figure, unit, f"{updates:,} updates in all"))
    return f'<div class="cards">{"".join(cards)}</div>' if any(cards) else ""


def _result_card(run: Run, name: str, held_out_name: str, train_name: str, style: str, remark: str = "") -> str:
    held_out, train = run.last_held_out(held_out_name), run.last(train_name)
    value = train if held_out is None else held_out
    if value is None:
        return ""
    figure, _, unit = write_value(value, style).partition(" ")
    if held_out is None:
        beside = f"in training, {run.label.lower()}; no held-out text measured yet"
    elif train is None:
        beside = "on held-out text"
    else:
        beside = f"on held-out text; {write_value(train, style)} in training"
    return page.card(name, figure, unit, beside + remark)


def _score_cards(answering: Sequence[Run]) -> list[str]:
    scored = [run for run in answering if run.last_held_out("f1") is not None]
    if not scored:
        return []
    best = next((run for run in scored if words.is_pretrained(run)), scored[0])
    others = [run for run in scored if run is not best]
    cards = []
    for name, key in (("SQuAD F1", "f1"), ("SQuAD EM", "exact_match")):
        value = best.last_held_out(key)
        if value is None:
            continue
        rest = [f"{run.last_held_out(key) or 0:.2f} {words.origin(run)}" for run in others]
        cards.append(page.card(name, f"{value:.2f}", "", "; ".join([words.origin(best), *rest])))
    return cards


def _footer() -> str:
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return f"<footer>Written {now} from the run folders' metrics.jsonl and config.json.</footer>"
