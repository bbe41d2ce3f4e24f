"""Classifying sentences and pairs of sentences, as a task: GLUE's nine, ChemProt, and a user's own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.interchange.heads import TEXTS
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.finetuning import EVAL, PREDICT, TRAIN, USES, Conclusion, FinetuningTask
from bert_tf.tasks.glue.metrics import describe_predictions, score
from bert_tf.tasks.glue.read import Examples, check_variety, find_labels, read_examples, targets
from bert_tf.tasks.glue.settings import SETTINGS, ClassifierOptions
from bert_tf.tasks.glue.tasks import CUSTOM, TextTask, custom_task, find_files, find_task
from bert_tf.tasks.records import notes_on_file
from bert_tf.tasks.rows import Outputs, TextRows, make_text_rows
from bert_tf.tasks.task import Facts


@dataclasses.dataclass
class GlueTask(FinetuningTask):
    """One job of run_classifier.py."""

    task: TextTask  # a custom one gets its labels from the training file or the weights, by `fit`
    max_bad_records: int | None = None  # as in `read_examples`
    quoting: str | None = None  # as in `read_examples`
    class_weights: str | None = None  # as in `classes.make_class_weights`
    class_weights_C: np.ndarray | None = dataclasses.field(default=None, init=False)

    settings, head, model = SETTINGS, TEXTS, "bert_tf.model.heads:ClassifierModel"

    @property
    def num_texts(self) -> int:  # type: ignore[override]
        return len(self.task.text_columns)

    @classmethod
    def from_settings(cls, config: FinetuningConfig, options: ClassifierOptions) -> GlueTask:
        task = _text_task(options)
        files = {}
        for use in USES.get(options.mode, ()):
            files.update(find_files(task, use, options.data_dir, getattr(options, f"{use}_file")))
        if options.class_weights and task.is_regression:
            raise UserError(f"--class_weights={options.class_weights} is for labels, {task.name} has numbers")
        optional = options.max_bad_records, options.quoting, options.class_weights
        return cls(files, options.max_seq_length, task, *optional)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.task.name

    def read(self, use: str, paths: Sequence[Path]) -> tuple[Examples, str]:
        examples = read_examples(
            paths[0],
            self.task,
            wants_labels=not use.startswith(PREDICT),
            max_bad_records=self.max_bad_records,
            quoting=self.quoting,
        )
        if use.startswith(EVAL):
            targets(examples, self.task)  # refuses wrong labels before the rows to train on are made
        return examples, notes_on_file(paths[0], *examples.notes)

    def fit(self) -> str:
        """Gives the task its labels, in the order of the model's classes."""
        from bert_tf.tasks.glue import classes

        examples = self.contents.get(TRAIN)
        if examples:
            if classes.learns_labels(self.task):
                self.task = dataclasses.replace(self.task, labels=find_labels(examples))
            self.task, self.keeps_head, note = classes.adapt_for_training(self.task, self.weights)
            targets_F = targets(examples, self.task)
            check_variety(examples, targets_F)
            if self.class_weights:
                self.class_weights_C = classes.make_class_weights(self.class_weights, self.task.labels, targets_F)
        else:
            assert self.weights
            self.task, note = classes.adapt_for_prediction(self.task, self.weights)
        self.task.check_unscored()
        return note

    def rows_from_content(self, content: Examples, *, show_progress: bool = False) -> TextRows:
        targets_F = None if content.labels is None else targets(content, self.task)
        return make_text_rows(
            content.texts, targets_F, self.tokenizer, self.max_seq_length, show_progress=show_progress
        )

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return self.task.num_classes

    def make_objective(self) -> Any:
        from bert_tf.model import losses

        if self.class_weights_C is not None:
            return losses.WeightedClassificationObjective(self.class_weights_C)
        return losses.RegressionObjective() if self.task.is_regression else losses.ClassificationObjective()

    def fixed_settings(self) -> Facts:
        settings, weights_C = super().fixed_settings(), self.class_weights_C
        if not self.task.is_custom:  # they follow from the name
            del settings["text_columns"]
        if self.trains and self.quoting:  # files to predict may be quoted otherwise
            settings["quoting"] = self.quoting
        if weights_C is not None:
            settings["class_weights"] = weights_C.tolist()
        return settings

    def output_meaning(self) -> Facts:
        task = self.task
        meaning: Facts = {"task_name": task.name, "labels": list(task.labels), "is_regression": task.is_regression}
        meaning["text_columns"] = list(task.text_columns)
        if task.is_custom:
            meaning["label_column"] = task.label_column
            if task.columns:
                meaning["columns"] = list(task.columns)
        return meaning

    def recorded_settings(self) -> Facts:
        values = super().recorded_settings()
        del values["task"]
        return {**values, **{f"{use}_file": ",".join(map(str, paths)) for use, paths in self.files.items()}}

    def export_settings(self) -> Facts:
        return {**super().export_settings(), "task": "classification"}

    @property
    def main_score(self) -> str:  # type: ignore[override]
        name = "f1" if self.task.no_score_for else self.task.metrics[0]
        return f"{self.task.parts[0]}_{name}" if f"{EVAL}_{self.task.parts[0]}" in self.files else name

    def conclude(self, use: str, outputs: Outputs) -> Conclusion:
        [logits_FxC], (kind, _, part) = outputs, use.partition("_")
        if kind == PREDICT:
            name = "test_results.tsv" if part in ("", self.task.parts[0]) else f"test_results_{part}.tsv"
            text = describe_predictions(self.task, self.contents[use].indices, logits_FxC)
            return Conclusion({name: [text]}, f"predictions for {len(logits_FxC):,} rows")
        scores = score(self.task, logits_FxC, self.rows[use].labels_F)
        return Conclusion(scores={f"{part}_{name}" if part else name: value for name, value in scores.items()})


def _text_task(options: ClassifierOptions) -> TextTask:
    name, mode = options.task_name, options.mode
    custom_flags = ("text_columns", "label_column", "regression", "no_score_for", "columns")
    assert name
    if name.lower() != CUSTOM:
        task = find_task(name)
        for flag in custom_flags:
            if getattr(options, flag):
                raise UserError(f"--{flag} belongs to --task_name={CUSTOM}; for {task.name} it is known")
        return task
    if mode in ("train_and_eval", "train", "eval") and not options.label_column:
        raise UserError(f"--label_column is required with --mode={mode}")
    return custom_task(
        options.text_columns, options.label_column, options.regression, options.no_score_for, columns=options.columns
    )
