"""Predicts with a SQuAD model: answers and scores, and their files in a run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.weights import Weights
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import STATE, load_weights, read_state
from bert_tf.run.run_folder import write_whole
from bert_tf.run.telemetry import Telemetry
from bert_tf.tasks.predict import predict_rows
from bert_tf.tasks.squad.decode import Decoded, DecodeSettings, decode
from bert_tf.tasks.squad.examples import Example
from bert_tf.tasks.squad.features import Features
from bert_tf.tasks.squad.metrics import score, score_version_2
from bert_tf.text.wordpiece import FullTokenizer

SPAN_HEAD = "cls/squad/output_weights"
_UNUSED_HERE = "bert/pooler/"


def find_span_weights(model_dir: Path, init_checkpoint: str | None) -> Weights:
    """The weights to predict with: `init_checkpoint` if it was fine-tuned, else the run's newest.

    Raises:
      UserError: neither holds a question answering head.
    """
    if init_checkpoint:
        weights = find_weights(init_checkpoint)
        if SPAN_HEAD in weights.shapes:
            return weights
    if (model_dir / "checkpoints").is_dir():
        return find_weights(model_dir, "--model_dir")
    if init_checkpoint:
        raise UserError(
            f"--init_checkpoint={init_checkpoint} has no question answering head ({SPAN_HEAD}), and "
            f"--model_dir={model_dir} holds no checkpoint; fine-tune it first with --mode=train"
        )
    raise UserError(
        f"--model_dir={model_dir} holds no checkpoint to predict with; fine-tune first with --mode=train, "
        "or name a fine-tuned checkpoint with --init_checkpoint"
    )


def load_span_weights(weights: Weights, model: tf.keras.Model, vocab_size: int) -> int:
    """Fills a `SpanModel` for prediction; returns the number of updates it was trained for, 0 if not known.

    Raises:
      UserError: the checkpoint lacks something.
    """
    report = load_weights(weights, model.variables, vocab_size)
    missing = [name for name in report.missing if not name.startswith(_UNUSED_HERE)]
    if missing:
        raise UserError(
            f"{weights.source} lacks {', '.join(missing[:3])} ({len(missing)} variables in all), so "
            "it cannot answer questions; name a checkpoint fine-tuned with run_squad.py"
        )
    return read_state(weights.folder)["updates_applied"] if (weights.folder / STATE).is_file() else 0


class AnswerSheet(NamedTuple):
    """What `answer_questions` reads, and how it answers."""

    examples: Sequence[Example]
    features: Features
    tokenizer: FullTokenizer
    settings: DecodeSettings
    wants_scores: bool | None  # None: if the examples hold answers
    batch_size: int  # of one rank


def answer_questions(
    model: tf.keras.Model, sheet: AnswerSheet, model_dir: Path, workers: Workers, telemetry: Telemetry, update: int
) -> dict[str, float]:
    """Writes the answers to a file's questions into ``predictions.json``, ``nbest_predictions.json`` and, for version
    2.0, ``null_odds.json`` of `model_dir`; scores them by the official rules where wanted.

    The scores are printed as one line of JSON, and written to ``eval_results.txt`` and the run's
    metrics as those of update number `update`. Called by all ranks; only the chief answers.

    Returns: the scores, {} where there are none.
    """
    features = sheet.features
    predicted = predict_rows(model, features.batch, features.num_windows, sheet.batch_size, workers)
    if not workers.is_chief:
        return {}
    start_logits, end_logits = predicted.outputs
    decoded = decode(
        sheet.examples, features, start_logits, end_logits, sheet.tokenizer, sheet.settings, show_progress=True
    )
    _write_answers(decoded, sheet.settings.version_2_with_negative, model_dir)
    telemetry.note(f"answers to {len(sheet.examples):,} questions: {model_dir / 'predictions.json'}")
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
    speed = {} if predicted.throughput_val is None else {"throughput_val": predicted.throughput_val}
    telemetry.evaluation(update, **scores, global_step=update, **speed)
    write_whole(model_dir / "eval_results.txt", "".join(f"{name} = {value}\n" for name, value in scores.items()))
    return scores


def _write_answers(decoded: Decoded, version_2_with_negative: bool, model_dir: Path) -> None:
    files: dict[str, Any] = {"predictions.json": decoded.predictions, "nbest_predictions.json": decoded.nbest}
    if version_2_with_negative:
        files["null_odds.json"] = decoded.null_odds
    for name, content in files.items():
        write_whole(model_dir / name, json.dumps(content, indent=4) + "\n")
