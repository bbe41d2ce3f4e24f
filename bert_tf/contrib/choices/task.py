"""Multiple choice as a task: reads questions, chooses, scores and writes what it chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.bert_config import BertConfig
from bert_tf.contrib.choices.read import Question, read_questions
from bert_tf.contrib.choices.rows import ChoiceRows, make_choice_rows
from bert_tf.contrib.choices.settings import SETTINGS, ChoiceOptions
from bert_tf.interchange.heads import CHOICES
from bert_tf.memory.plan import Workload
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.finetuning import PREDICT, TRAIN, Ask, Conclusion, FinetuningTask
from bert_tf.tasks.prompt import typed_lines
from bert_tf.tasks.rows import Outputs
from bert_tf.tasks.scores import mean_loss, probabilities, shown_probabilities, tsv
from bert_tf.tasks.task import Facts

_SWAG_CHOICES = 4


@dataclasses.dataclass
class ChoiceTask(FinetuningTask):
    """One job of run_swag.py."""

    fields: str | None = None  # names of the files' fields, as in --fields
    max_bad_records: int = 0

    settings, name, head, num_texts, main_score = SETTINGS, "choices", CHOICES, 2, "accuracy"
    model, objective = "bert_tf.model.heads:ChoiceModel", "bert_tf.model.losses:ClassificationObjective"

    @classmethod
    def workload(cls, config: FinetuningConfig, options: ChoiceOptions, bert_config: BertConfig, **_: int) -> Workload:
        num_choices = _SWAG_CHOICES
        if options.train_file:
            num_choices = len(_read(options, options.train_file, needs_labels=True, limit=1)[0][0].choices)
        return super().workload(config, options, bert_config, num_choices=num_choices)

    def read(self, use: str, paths: Sequence[Path]) -> tuple[list[Question], str]:
        return _read(self, paths[0], needs_labels=use != PREDICT)

    def rows_from_content(self, content: Sequence[Question], *, show_progress: bool = False) -> ChoiceRows:
        return make_choice_rows(content, self.tokenizer, self.max_seq_length, show_progress=show_progress)

    def remark_on_rows(self, use: str, rows: ChoiceRows) -> str:
        if not (num_alike := (rows.first_alike_FxN() < np.arange(rows.num_choices)).any(axis=1).sum()):
            return ""
        return (
            f"{num_alike:,} question(s) have choices that are alike within {self.max_seq_length} tokens; the first of "
            "them counts; a larger --max_seq_length may tell them apart"
        )

    def fixed_settings(self) -> Facts:
        fields = {"fields": self.fields} if self.trains and self.fields else {}  # files to predict may have others
        return {**super().fixed_settings(), **fields}

    def recorded_settings(self) -> Facts:
        choices = {"num_choices": self.rows[TRAIN].num_choices} if TRAIN in self.rows else {}
        return {**super().recorded_settings(), **choices}

    def conclude(self, use: str, outputs: Outputs) -> Conclusion:
        """A line for each question, with the probabilities of its choices."""
        [scores_FxN], rows = outputs, self.rows[use]
        # Rounding depends on the position in a batch: choices with the same tokens get the score of the first of them.
        scores_FxN = np.take_along_axis(scores_FxN, rows.first_alike_FxN(), axis=1)
        chosen_F, labels_F = scores_FxN.argmax(axis=1), rows.labels_F
        columns: dict[Any, Any] = {"index": range(len(chosen_F)), "prediction": chosen_F}
        if labels_F is not None:
            columns["label"] = labels_F
        columns.update(enumerate(shown_probabilities(scores_FxN)))
        files = {"predictions.tsv": [tsv([columns, *zip(*columns.values())])]}
        file_description = f"choices for {len(chosen_F):,} questions"
        if labels_F is None:
            return Conclusion(files, file_description, ["not scored: not all right choices are known"])
        scores = {"accuracy": float((chosen_F == labels_F).mean()), "eval_loss": mean_loss(scores_FxN, labels_F)}
        return Conclusion(files, file_description, scores=scores)

    def converse(self, ask: Ask) -> None:
        """Shows the probabilities of the choices that are typed after each context."""
        for context in typed_lines("\nContext (an empty line ends): ", are_last=True):
            if choices := list(typed_lines("Choice (an empty line ends them): ")):
                _, [scores_1xN] = ask([Question(context, choices, None)])
                for value, choice in sorted(zip(-probabilities(scores_1xN)[0], choices)):
                    print(f"{-value:7.3f}  {choice}", flush=True)


def _read(
    settings: Any, path: str | Path, *, needs_labels: bool, limit: int | None = None
) -> tuple[list[Question], str]:
    """Calls `read_questions` with the settings of a task or of its options."""
    fields, max_bad = settings.fields, settings.max_bad_records
    return read_questions(Path(path), needs_labels=needs_labels, fields=fields, max_bad_records=max_bad, limit=limit)
