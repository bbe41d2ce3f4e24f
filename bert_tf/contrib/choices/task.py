"""Multiple choice as a task: reads questions, chooses, scores and writes what it chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.bert_config import BertConfig
from bert_tf.contrib.choices.read import Question, read_questions
from bert_tf.contrib.choices.rows import ChoiceRows, make_choice_rows
from bert_tf.contrib.choices.settings import SETTINGS, ChoiceOptions
from bert_tf.interchange.heads import CHOICES
from bert_tf.memory.plan import Workload
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.finetuning import PREDICT, TRAIN, Ask, Conclusion, FinetuningTask, Outputs
from bert_tf.tasks.prompt import typed_lines
from bert_tf.tasks.scores import mean_loss, probabilities
from bert_tf.tasks.task import Facts, Run

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import ChoiceModel
    from bert_tf.model.losses import ClassificationObjective

_SWAG_CHOICES = 4


@dataclasses.dataclass
class ChoiceTask(FinetuningTask):
    """One job of run_swag.py."""

    fields: str | None = None  # what the files call them, by --fields
    max_bad_records: int = 0

    settings, name, head, num_texts, main_score = SETTINGS, "choices", CHOICES, 2, "accuracy"

    @classmethod
    def workload(cls, config: FinetuningConfig, options: ChoiceOptions, bert_config: BertConfig, **_: int) -> Workload:
        num_choices = _SWAG_CHOICES
        if options.train_file:
            how: dict[str, Any] = {"fields": options.fields, "max_bad_records": options.max_bad_records, "limit": 1}
            num_choices = len(read_questions(Path(options.train_file), needs_labels=True, **how)[0][0].choices)
        return super().workload(config, options, bert_config, num_choices=num_choices)

    def read(self, use: str, paths: Sequence[Path]) -> tuple[list[Question], str]:
        options: dict[str, Any] = {"fields": self.fields, "max_bad_records": self.max_bad_records}
        return read_questions(paths[0], needs_labels=use != PREDICT, **options)

    def rows_of(self, content: Sequence[Question], *, show_progress: bool = False) -> ChoiceRows:
        return make_choice_rows(content, self.tokenizer, self.max_seq_length, show_progress=show_progress)

    def make_rows(self, use: str, run: Run) -> ChoiceRows:
        rows: ChoiceRows = super().make_rows(use, run)
        num_alike = int((rows.first_alike_FxN() < np.arange(rows.num_choices)).any(axis=1).sum())
        if num_alike:
            alike = f"{num_alike:,} question(s) have choices that are alike within {self.max_seq_length} tokens"
            way_out = "the first of them counts; a larger --max_seq_length may tell them apart"
            run.say(f"{self.files[use][0]}: {alike}; {way_out}")
        return rows

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> ChoiceModel:
        from bert_tf.model.heads import ChoiceModel

        return ChoiceModel(config, backend, seed)

    def make_objective(self) -> ClassificationObjective:
        from bert_tf.model.losses import ClassificationObjective

        return ClassificationObjective()

    def fixed(self) -> Facts:
        return {**super().fixed(), **({"fields": self.fields} if self.fields else {})}

    def recorded(self) -> Facts:
        choices = {"num_choices": self.rows[TRAIN].num_choices} if TRAIN in self.rows else {}
        return {**super().recorded(), **choices}

    def conclude(self, use: str, outputs: Outputs) -> Conclusion:
        """A line for each question, with the probabilities of its choices."""
        [scores_FxN], labels_F = outputs, self.rows[use].labels_F
        # What is alike has the same score, whatever the rounding in its place of a batch; the first one is chosen.
        scores_FxN = np.take_along_axis(scores_FxN, self.rows[use].first_alike_FxN(), axis=1)
        files = {"predictions.tsv": "".join(_prediction_lines(scores_FxN, labels_F))}
        about = f"choices for {len(scores_FxN):,} questions"
        if labels_F is None:
            return Conclusion(files, about, ["not scored: not all right choices are known"])
        accuracy = float((scores_FxN.argmax(axis=1) == labels_F).mean())
        scores = {"accuracy": accuracy, "eval_loss": mean_loss(scores_FxN, labels_F)}
        return Conclusion(files, about, scores=scores)

    def converse(self, ask: Ask) -> None:
        """Chooses among the lines after each line of context."""
        for context in typed_lines("\nContext (an empty line ends): "):
            if choices := list(typed_lines("Choice (an empty line ends them): ")):
                _, [scores_1xN] = ask([Question(context, choices, None)])
                for value, choice in sorted(zip(-probabilities(scores_1xN)[0], choices)):
                    print(f"{-value:7.3f}  {choice}", flush=True)


def _prediction_lines(scores_FxN: np.ndarray, labels_F: np.ndarray | None) -> Iterator[str]:
    """A header, and for each question its number, the choice, the right one if known, and each one's probability."""
    right = [] if labels_F is None else [labels_F]
    columns = [np.arange(len(scores_FxN)), scores_FxN.argmax(axis=1), *right]
    header = ["index", "prediction", "label"][: len(columns)]
    yield "\t".join([*header, *map(str, range(scores_FxN.shape[1]))]) + "\n"
    for *numbers, values_N in zip(*columns, probabilities(scores_FxN)):
        yield "\t".join([*map(str, numbers), *(f"{value:.6f}" for value in values_N)]) + "\n"
