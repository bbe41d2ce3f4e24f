"""One job on sentences or pairs of sentences: reads files, fine-tunes, scores and predicts, as its mode says."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.interchange.labels import TASK_FILE
from bert_tf.model.heads import ClassifierModel
from bert_tf.model.losses import ClassificationObjective, RegressionObjective
from bert_tf.ranks.workers import Workers
from bert_tf.run.flops import classifier_flops_per_sequence
from bert_tf.run.run_folder import write_whole
from bert_tf.run.telemetry import Telemetry
from bert_tf.tasks.finetuning import Task
from bert_tf.tasks.glue.classes import (
    CLASSIFIER_HEAD,
    as_started,
    as_trained,
    describe_classifier,
    learns_labels,
    respelled,
)
from bert_tf.tasks.glue.features import Features, make_features
from bert_tf.tasks.glue.metrics import METRICS
from bert_tf.tasks.glue.read import Examples, check_variety, find_labels, read_examples, targets
from bert_tf.tasks.glue.tasks import EVAL, PREDICT, TRAIN, TextTask
from bert_tf.tasks.job import FinetuningJob, TaskRun, for_export
from bert_tf.tasks.predict import Predicted, Rows, compile_model, predict_rows, rows_per_compilation

_SHOWN_LABELS = 8


@dataclasses.dataclass(frozen=True)
class GlueJob(FinetuningJob):
    """One call of run_classifier.py."""

    task: TextTask  # a custom task has no labels yet
    files: Mapping[str, Mapping[str, Path]]  # those of TRAIN, EVAL and PREDICT that the mode needs -> part -> file
    max_seq_length: int
    max_bad_records: int | None  # None: as many as the published files have
    quoting: str | None = None  # as in `read_examples`

    def __post_init__(self) -> None:
        least = 1 + 2 * len(self.task.text_columns)
        if self.max_seq_length < least:
            raise UserError(
                f"max_seq_length={self.max_seq_length}: must be at least {least}, room for [CLS] and, for each of the "
                f"{len(self.task.text_columns)} text(s), a token and [SEP]"
            )

    def settings(self) -> dict[str, Any]:
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(FinetuningJob)}
        files = {f"{use}_file": ",".join(map(str, parts.values())) for use, parts in self.files.items()}
        own = {"task_name": self.task.name, "max_seq_length": self.max_seq_length, **files}
        return {**FinetuningJob(**shared).settings(), **own}


class _Rows(NamedTuple):
    examples: Examples
    features: Features


_Part = tuple[str, str]  # TRAIN, EVAL or PREDICT, and the part of its files


def run_glue(job: GlueJob, workers: Workers) -> bool:
    """Trains, scores and predicts as `job` says. Returns False if a signal or --max_hours stopped the training."""
    run = TaskRun(job, workers, job.max_seq_length, predicts_with=None if TRAIN in job.files else CLASSIFIER_HEAD)
    # All files are read before the training, which may take days, so that mistakes in them show at once.
    examples = workers.run_keeping_alive(lambda: _read(job))
    task, keeps_classifier = job.task, True
    if TRAIN in job.files:
        if learns_labels(task):
            task = dataclasses.replace(task, labels=find_labels(examples[TRAIN, ""]))
        task, keeps_classifier = as_started(task, run.weights)
    elif run.weights:
        task = as_trained(task, run.weights)
        if learns_labels(task):
            examples = {part: respelled(found, task) for part, found in examples.items()}
    if workers.is_chief:
        for found in examples.values():
            print("\n".join([*found.notes, describe_examples(found)]), flush=True)
        print("".join(f"{line}\n" for line in describe_classifier(task, run.weights, keeps_classifier)), end="")
    rows = workers.run_keeping_alive(lambda: _make_rows(job, run, task, examples))
    model = ClassifierModel(run.bert_config, task.num_classes, run.blocks, job.training.seed)

    def afterwards(telemetry: Telemetry, update: int) -> None:
        compute = compile_model(model)

        def predict(features: Features) -> Predicted:
            work = Rows(features.batch, features.lengths_F, job.max_seq_length, rows_per_compilation(model))
            predicted = predict_rows(compute, work, job.predict_batch_size, workers, by_position=False)
            for line in predicted.describe_speed():
                telemetry.note(line)
            return predicted

        if EVAL in job.files:
            scores: dict[str, float] = {}
            batch_secs: list[float] = []  # over all parts
            for part in job.files[EVAL]:
                features = rows[EVAL, part].features
                predicted = predict(features)
                batch_secs += predicted.batch_secs
                found = score(task, predicted.outputs[0], np.asarray(features.labels_F))
                scores.update({f"{part}_{name}" if part else name: value for name, value in found.items()})
            scores["global_step"] = update
            telemetry.evaluation(update, **scores, **predicted._replace(batch_secs=batch_secs).speed())
            if workers.is_chief:
                text = "".join(f"{name} = {value}\n" for name, value in scores.items())
                write_whole(job.model_dir / "eval_results.txt", text)
        for part in job.files.get(PREDICT, ()):
            logits_FxC = predict(rows[PREDICT, part].features).outputs[0]
            if workers.is_chief:
                telemetry.note(_write_predictions(job, task, part, rows[PREDICT, part].examples.indices, logits_FxC))

    if TRAIN not in job.files:
        return run.carry_out(model, None, afterwards)
    training = _training_task(job, run, task, model, rows[TRAIN, ""])
    return run.carry_out(model, training._replace(initialised=model if keeps_classifier else model.bert), afterwards)


def export_glue(job: GlueJob, workers: Workers, folder: Path, batch_size: int | None) -> None:
    """Writes the trained model into `folder`, for servers; ``settings.json`` says what its classes mean.

    Args:
      batch_size: None leaves the batch size variable.
    """
    run = TaskRun(for_export(job, folder), workers, job.max_seq_length, predicts_with=CLASSIFIER_HEAD)
    assert run.weights
    task = as_trained(job.task, run.weights)
    if workers.is_chief:
        print("".join(f"{line}\n" for line in describe_classifier(task, run.weights, True)), end="")
    model = ClassifierModel(run.bert_config, task.num_classes, run.blocks)
    settings = {
        "task": "classification",
        "batch_size": batch_size,
        "max_seq_length": job.max_seq_length,
        **_about(task),
    }
    run.export(model, folder, ("logits",), settings)


def _read(job: GlueJob) -> dict[_Part, Examples]:
    return {
        (use, part): read_examples(
            path, job.task, wants_labels=use != PREDICT, max_bad_records=job.max_bad_records, quoting=job.quoting
        )
        for use, files in job.files.items()
        for part, path in files.items()
    }


def describe_examples(examples: Examples) -> str:
    """One line: the number of rows, and of each label."""
    counts = collections.Counter(examples.labels or ()).most_common(_SHOWN_LABELS + 1)
    shown = ", ".join(f"{label}: {count:,}" for label, count in counts[:_SHOWN_LABELS])
    more = ", ..." if len(counts) > _SHOWN_LABELS else ""
    return f"{examples.path}: {len(examples.lines):,} rows" + (f" ({shown}{more})" if shown else "")


def _make_rows(job: GlueJob, run: TaskRun, task: TextTask, examples: Mapping[_Part, Examples]) -> dict[_Part, _Rows]:
    """Makes all rows; all labels are checked before the first sentence is tokenised."""
    labels = {part: None if found.labels is None else targets(found, task) for part, found in examples.items()}
    if (labels_F := labels.get((TRAIN, ""))) is not None:
        check_variety(examples[TRAIN, ""], labels_F)
    rows: dict[_Part, _Rows] = {}
    for part, found in examples.items():
        features = make_features(
            found.texts, labels[part], run.tokenizer, job.max_seq_length, show_progress=run.workers.is_chief
        )
        rows[part] = _Rows(found, features)
        if run.workers.is_chief:
            print(run.tokenizer.count_unknown(features.ids_T).describe(found.path), flush=True)
    return rows


def _about(task: TextTask) -> dict[str, Any]:
    """The meaning of the model's classes, for files beside the weights."""
    columns = {"text_columns": list(task.text_columns), "label_column": task.label_column} if task.is_custom else {}
    return {"task_name": task.name, "labels": list(task.labels), "is_regression": task.is_regression, **columns}


def _training_task(job: GlueJob, run: TaskRun, task: TextTask, model: ClassifierModel, rows: _Rows) -> Task:
    about = _about(task)
    return Task(
        task.name,
        model,
        RegressionObjective() if task.is_regression else ClassificationObjective(),
        rows.features.num_rows,
        rows.features.batch,
        classifier_flops_per_sequence(run.bert_config, job.max_seq_length, task.num_classes),
        {**about, "max_seq_length": job.max_seq_length},
        [rows.examples.path],
        {TASK_FILE: json.dumps(about, indent=2) + "\n"},
    )


def score(task: TextTask, logits_FxC: np.ndarray, truths_F: np.ndarray) -> dict[str, float]:
    """The task's metrics, and the mean loss as "eval_loss"."""
    if task.is_regression:
        compared = (logits_FxC[:, 0], truths_F)
    else:  # F1 is that of the label 1, whatever the order of the classes
        numbers_C = np.argsort(np.argsort(task.labels))
        compared = (numbers_C[logits_FxC.argmax(axis=1)], numbers_C[truths_F])
    scores = {name: METRICS[name](*compared) for name in task.metrics}
    return {**scores, "eval_loss": mean_loss(logits_FxC, truths_F)}


def _write_predictions(job: GlueJob, task: TextTask, part: str, indices: list[str], logits_FxC: np.ndarray) -> str:
    """Writes ``test_results.tsv``, in the benchmark's format: a header, then index and prediction. Returns a note."""
    is_first = part in ("", *list(task.files[PREDICT])[:1])
    path = job.model_dir / f"test_results{'' if is_first else f'_{part}'}.tsv"
    write_whole(path, describe_predictions(task, indices, logits_FxC))
    name = "".join(f"; for the benchmark, name it {name}" for name in task.submissions.get(part, ()))
    return f"predictions for {len(logits_FxC):,} rows: {path}{name}"


def mean_loss(logits_FxC: np.ndarray, labels_F: np.ndarray) -> float:
    """Mean cross-entropy of classes, or mean squared error of numbers (float labels)."""
    logits_FxC = logits_FxC.astype(np.float64)
    if labels_F.dtype == np.float32:
        return float(np.mean((logits_FxC[:, 0] - labels_F) ** 2))
    label_logits_F = logits_FxC[np.arange(len(labels_F)), labels_F]
    return float(np.mean(np.logaddexp.reduce(logits_FxC, axis=1) - label_logits_F))


def probabilities(logits_FxC: np.ndarray) -> np.ndarray:
    """Softmax over the classes."""
    weights_FxC = np.exp(logits_FxC - logits_FxC.max(axis=1, keepdims=True))
    return weights_FxC / weights_FxC.sum(axis=1, keepdims=True)


def describe_predictions(task: TextTask, indices: list[str], logits_FxC: np.ndarray) -> str:
    """The text of ``test_results.tsv``; for a custom task with a column of probabilities for each class."""
    header = ["index", "prediction"]
    lines: list[list[str]]
    if task.is_regression:
        numbers_F = np.clip(logits_FxC[:, 0], *(task.range or (-np.inf, np.inf)))
        lines = [
            [index, f"{number:.3f}" if task.range else f"{number:.6g}"] for index, number in zip(indices, numbers_F)
        ]
    else:
        lines = [[index, task.labels[number]] for index, number in zip(indices, logits_FxC.argmax(axis=1))]
    if task.is_custom and not task.is_regression:
        header += task.labels
        lines = [
            [*line, *(f"{value:.6f}" for value in values)] for line, values in zip(lines, probabilities(logits_FxC))
        ]
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([header, *lines])
    return text.getvalue()
