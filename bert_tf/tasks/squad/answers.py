"""Predicts with a SQuAD model: answers and scores, and their files in a run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.run.run_folder import write_whole
from bert_tf.run.telemetry import Telemetry
from bert_tf.tasks.predict import Predicted
from bert_tf.tasks.squad.decode import Decoded, DecodeSettings, decode
from bert_tf.tasks.squad.examples import Example
from bert_tf.tasks.squad.features import Features
from bert_tf.tasks.squad.metrics import score, score_version_2
from bert_tf.tasks.trained import Head
from bert_tf.text.wordpiece import FullTokenizer

SPAN_HEAD = Head("question answering", "cls/squad/output_weights")


class AnswerSheet(NamedTuple):
    """What `answer_questions` reads, and how it answers."""

    examples: Sequence[Example]
    features: Features
    tokenizer: FullTokenizer
    settings: DecodeSettings
    wants_scores: bool | None  # None: if the examples hold answers
    model_dir: Path  # gets the answers


def answer_questions(sheet: AnswerSheet, predicted: Predicted, telemetry: Telemetry, update: int) -> dict[str, float]:
    """Writes the answers to a file's questions into ``predictions.json``, ``nbest_predictions.json`` and, for version
    2.0, ``null_odds.json`` of the run folder; scores them by the official rules where wanted.

    The scores are printed as one line of JSON, and written to ``eval_results.txt`` and the run's
    metrics as those of update number `update`. Called by the chief only.

    Args:
      predicted: start and end logits [F, S] of the sheet's features.

    Returns: the scores, {} where there are none.
    """
    start_logits, end_logits = predicted.outputs
    decoded = decode(
        sheet.examples, sheet.features, start_logits, end_logits, sheet.tokenizer, sheet.settings, show_progress=True
    )
    _write_answers(decoded, sheet.settings.version_2_with_negative, sheet.model_dir)
    telemetry.note(f"answers to {len(sheet.examples):,} questions: {sheet.model_dir / 'predictions.json'}")
    scores = _score(sheet, decoded, telemetry)
    for line in predicted.describe_speed():
        telemetry.note(line)
    speed = {} if predicted.throughput_val is None else {"throughput_val": predicted.throughput_val}
    if scores or speed:
        telemetry.evaluation(update, **scores, global_step=update, **speed)
    return scores


def _score(sheet: AnswerSheet, decoded: Decoded, telemetry: Telemetry) -> dict[str, float]:
    holds_answers = all(example.answers is not None for example in sheet.examples)
    if sheet.wants_scores is False or (sheet.wants_scores is None and not holds_answers):
        telemetry.note("not scored: " + ("--noeval" if holds_answers else "the questions come without answers"))
        return {}
    if sheet.settings.version_2_with_negative:
        scores = score_version_2(sheet.examples, decoded.predictions, decoded.null_odds)
        telemetry.note(
            f"best null threshold: {scores['best_f1_thresh']} (F1 {scores['best_f1']:.3f}); use it with "
            "--null_score_diff_threshold"
        )
    else:
        scores = score(sheet.examples, decoded.predictions)
    telemetry.note(json.dumps(scores))
    write_whole(sheet.model_dir / "eval_results.txt", "".join(f"{name} = {value}\n" for name, value in scores.items()))
    return scores


def _write_answers(decoded: Decoded, version_2_with_negative: bool, model_dir: Path) -> None:
    files: dict[str, Any] = {"predictions.json": decoded.predictions, "nbest_predictions.json": decoded.nbest}
    if version_2_with_negative:
        files["null_odds.json"] = decoded.null_odds
    for name, content in files.items():
        write_whole(model_dir / name, json.dumps(content, indent=4) + "\n")
