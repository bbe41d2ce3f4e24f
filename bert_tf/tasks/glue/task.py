"""Sentences and pairs of sentences as a task: GLUE's nine, ChemProt, and a user's own files."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import TEXTS
from bert_tf.tasks.glue.metrics import describe_predictions, score
from bert_tf.tasks.glue.read import Examples, check_variety, find_labels, read_examples, targets
from bert_tf.tasks.glue.tasks import CUSTOM, EVAL, PREDICT, TRAIN, TextTask, custom_task, find_files, find_task
from bert_tf.tasks.rows import TextRows, make_rows
from bert_tf.tasks.task import Head, Task

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import ClassifierModel
    from bert_tf.tasks.job import TaskRun
    from bert_tf.tasks.predict import Predictor

CLASSIFIER_HEAD = Head("classification", TEXTS.variable, outputs=("logits",), uses_pooler=True)
_SHOWN_LABELS = 8
# The files that a mode reads.
_READS = {"train_and_eval": (TRAIN, EVAL), "train": (TRAIN,), "eval": (EVAL,), "predict": (PREDICT,)}
_Part = tuple[str, str]  # TRAIN, EVAL or PREDICT, and the part of its files


class _Prepared(NamedTuple):
    examples: Examples
    rows: TextRows


@dataclasses.dataclass
class GlueTask(Task):
    """One job of run_classifier.py."""

    task: TextTask  # a custom one has no labels before its files have been read
    files: Mapping[str, Mapping[str, Path]]  # those of TRAIN, EVAL and PREDICT that the mode needs -> part -> file
    max_seq_length: int
    max_bad_records: int | None = None  # None: as many as the published files have
    quoting: str | None = None  # as in `read_examples`

    head = CLASSIFIER_HEAD
    _prepared: dict[_Part, _Prepared] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        least = 1 + 2 * len(self.task.text_columns)
        if self.max_seq_length < least:
            raise UserError(
                f"max_seq_length={self.max_seq_length}: must be at least {least}, room for [CLS] and, for each of the "
                f"{len(self.task.text_columns)} text(s), a token and [SEP]"
            )

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> GlueTask:
        task = _text_task(flags)
        uses = _READS.get(flags["mode"], ())
        files = {use: find_files(task, use, flags["data_dir"], flags[f"{use}_file"]) for use in uses}
        return cls(task, files, flags["max_seq_length"], flags["max_bad_records"], flags["quoting"])

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.task.name

    @property
    def training_files(self) -> Sequence[Path]:
        return list(self.files.get(TRAIN, {}).values())

    def prepare(self, run: TaskRun) -> None:
        """Reads all files and makes all rows; all labels are checked before the first sentence is tokenised."""
        from bert_tf.tasks.glue import classes

        with run.workers.keep_alive():
            examples = self._read()
        if TRAIN in self.files:
            if classes.learns_labels(self.task):
                self.task = dataclasses.replace(self.task, labels=find_labels(examples[TRAIN, ""]))
            fitted = classes.as_started(self.task, run.weights)
        else:
            assert run.weights
            fitted = classes.as_trained(self.task, run.weights)
        self.task, self.keeps_head, note = fitted
        self.task.check_unscored()
        for read in examples.values():
            run.say("\n".join([*read.notes, describe_examples(read)]))
        if note:
            run.say(note)
        with run.workers.keep_alive():
            self._prepared = self._make_rows(run, examples)

    def _read(self) -> dict[_Part, Examples]:
        options: dict[str, Any] = {"max_bad_records": self.max_bad_records, "quoting": self.quoting}
        return {
            (use, part): read_examples(path, self.task, wants_labels=use != PREDICT, **options)
            for use, files in self.files.items()
            for part, path in files.items()
        }

    def _make_rows(self, run: TaskRun, examples: Mapping[_Part, Examples]) -> dict[_Part, _Prepared]:
        labels = {part: None if read.labels is None else targets(read, self.task) for part, read in examples.items()}
        if (labels_F := labels.get((TRAIN, ""))) is not None:
            check_variety(examples[TRAIN, ""], labels_F)
        prepared = {}
        for part, read in examples.items():
            is_chief = run.workers.is_chief
            rows = make_rows(read.texts, labels[part], run.tokenizer, self.max_seq_length, show_progress=is_chief)
            prepared[part] = _Prepared(read, rows)
            run.say(run.tokenizer.count_unknown(rows.ids_T).describe(read.path))
        return prepared

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> ClassifierModel:
        from bert_tf.model.heads import ClassifierModel

        return ClassifierModel(config, self.task.num_classes, backend, seed)

    def make_objective(self) -> Any:
        from bert_tf.model.losses import ClassificationObjective, RegressionObjective

        return RegressionObjective() if self.task.is_regression else ClassificationObjective()

    def training_rows(self, run: TaskRun) -> TextRows:
        return self._prepared[TRAIN, ""].rows

    def meaning(self) -> dict[str, Any]:
        task = self.task
        columns = {"text_columns": list(task.text_columns), "label_column": task.label_column} if task.is_custom else {}
        return {"task_name": task.name, "labels": list(task.labels), "is_regression": task.is_regression, **columns}

    def settings(self) -> dict[str, Any]:
        files = {f"{use}_file": ",".join(map(str, parts.values())) for use, parts in self.files.items()}
        return {"task_name": self.name, "max_seq_length": self.max_seq_length, **files}

    def export_settings(self) -> dict[str, Any]:
        return {**super().export_settings(), "task": "classification"}

    def finish(self, predictor: Predictor) -> None:
        if EVAL in self.files:
            self._score(predictor)
        for part in self.files.get(PREDICT, ()):
            examples, rows = self._prepared[PREDICT, part]
            logits_FxC = predictor.predict(rows, by_position=False).outputs[0]
            is_first = part in ("", *list(self.task.files[PREDICT])[:1])
            text = describe_predictions(self.task, examples.indices, logits_FxC)
            path = predictor.write(f"test_results{'' if is_first else f'_{part}'}.tsv", text)
            renamed = "".join(f"; for the benchmark, name it {name}" for name in self.task.submissions.get(part, ()))
            predictor.telemetry.note(f"predictions for {len(logits_FxC):,} rows: {path}{renamed}")

    def _score(self, predictor: Predictor) -> None:
        scores: dict[str, float] = {}
        batch_secs: list[float] = []  # over all parts
        for part in self.files[EVAL]:
            rows = self._prepared[EVAL, part].rows
            predicted = predictor.predict(rows, by_position=False)
            batch_secs += predicted.batch_secs
            scores_of_part = score(self.task, predicted.outputs[0], np.asarray(rows.labels_F))
            scores.update({f"{part}_{name}" if part else name: value for name, value in scores_of_part.items()})
        scores["global_step"] = predictor.update
        speed = predicted._replace(batch_secs=batch_secs).speed()
        predictor.telemetry.evaluation(predictor.update, **scores, **speed)
        predictor.write_scores(scores)


def _text_task(flags: Mapping[str, Any]) -> TextTask:
    name, mode = flags["task_name"], flags["mode"]
    if not name:
        raise UserError("--task_name is required: the name of a GLUE task, or custom for your own files")
    if name.lower() != CUSTOM:
        task = find_task(name)
        for flag in ("text_columns", "label_column", "regression", "no_score_for"):
            if flags[flag]:
                raise UserError(f"--{flag} belongs to --task_name={CUSTOM}; for {task.name} it is known")
        return task
    if mode in ("train_and_eval", "train", "eval") and not flags["label_column"]:
        raise UserError(f"--label_column is required with --mode={mode}")
    return custom_task(flags["text_columns"], flags["label_column"], flags["regression"], flags["no_score_for"])


def describe_examples(examples: Examples) -> str:
    """One line: the number of rows, and of each label."""
    counts = collections.Counter(examples.labels or ()).most_common(_SHOWN_LABELS + 1)
    shown = ", ".join(f"{label}: {count:,}" for label, count in counts[:_SHOWN_LABELS])
    more = ", ..." if len(counts) > _SHOWN_LABELS else ""
    return f"{examples.path}: {len(examples.lines):,} rows" + (f" ({shown}{more})" if shown else "")
