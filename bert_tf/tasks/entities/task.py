"""Finding entities as a task: reads sentences, labels their tokens, scores and writes what it found."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import split_paths
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import TOKENS
from bert_tf.tasks.entities.labels import OUTSIDE, all_labels, describe_counts, fault_of, find_scheme, score
from bert_tf.tasks.entities.read import Sentences, read_sentences
from bert_tf.tasks.entities.rows import EntityRows, make_rows
from bert_tf.tasks.scores import mean_loss
from bert_tf.tasks.task import Head, Task, files_of_mode

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import TokenModel
    from bert_tf.model.losses import TokenObjective
    from bert_tf.tasks.job import TaskRun
    from bert_tf.tasks.predict import Predictor

TOKEN_HEAD = Head("token classification", TOKENS.variable, outputs=("logits",), by_position=True)
PREDICTIONS = "predictions.tsv"
_BREAKS = re.compile(r"[\t\r\n]")  # within a token of JSON


@dataclasses.dataclass
class EntityTask(Task):
    """One job of run_ner.py."""

    train_files: Sequence[Path] = ()  # none: no training
    predict_file: Path | None = None  # None: no prediction
    max_seq_length: int = 128
    label_names: Sequence[str] = ()  # none: those of the training files
    max_bad_records: int = 0
    needs_scores: bool = False  # whether the file to label must have labels

    name, head = "entities", TOKEN_HEAD
    labels: Sequence[str] = dataclasses.field(default=(), init=False)  # in the order of the model's classes
    _training: EntityRows | None = dataclasses.field(default=None, init=False, repr=False)
    _prediction: tuple[Sentences, EntityRows] | None = dataclasses.field(default=None, init=False, repr=False)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> EntityTask:
        files = files_of_mode(flags)
        return cls(
            [Path(path) for path in split_paths(files["train_file"] or "")],
            Path(files["predict_file"]) if files["predict_file"] else None,
            flags["max_seq_length"],
            _label_names(flags["label_names"]),
            flags["max_bad_records"],
            needs_scores=flags["mode"] == "eval",
        )

    @property
    def training_files(self) -> Sequence[Path]:
        return self.train_files

    def prepare(self, run: TaskRun) -> None:
        """Reads all files and makes all rows; all labels are checked before the first token is cut to pieces."""
        read = functools.partial(read_sentences, label_names=self.label_names, max_bad_records=self.max_bad_records)
        with run.workers.keep_alive():
            training = [read(path, known=self.label_names or None, needs_labels=True) for path in self.train_files]
            found = all_labels(itertools.chain.from_iterable(file.labels or () for file in training))
            note = self._choose_labels(self.label_names or sorted(found) if training else (), run)
            to_label = [self.predict_file] if self.predict_file else []
            predicted = [read(path, known=self.labels, needs_labels=self.needs_scores) for path in to_label]
            _check_training(training, predicted)
        for line in [*(file.describe() for file in [*training, *predicted]), *([note] if note else [])]:
            run.say(line)
        with run.workers.keep_alive():
            if training:
                self._training = self._make_rows(run, training)
            for file in predicted:
                self._prediction = file, self._make_rows(run, [file])

    def _choose_labels(self, labels: Sequence[str], run: TaskRun) -> str:
        """Sets `labels`, in the order of the weights' classes if these have them, and `keeps_head`.

        Args:
          labels: those to train on; none: the weights say which.

        Returns: a line about a new classifier, or "".
        Raises: UserError if the weights are to predict, and their labels are not known or no labels of tokens.
        """
        from bert_tf.interchange.labels import TASK_FILE, read_task

        self.labels, weights = labels, run.weights
        if weights is None or TOKEN_HEAD.variable not in weights.shapes:
            return ""
        trained = read_task(weights, TOKEN_HEAD.variable)
        self.keeps_head = trained is not None and (not labels or sorted(labels) == sorted(trained.labels))
        if labels and not self.keeps_head:
            other = trained or "labels that are not known"
            return f"{weights.source} was fine-tuned for {other}: a new classifier is made"
        if trained is None:
            raise UserError(
                f"{weights.folder / TASK_FILE} does not exist, so the model's labels are not known; use a checkpoint "
                "of this program"
            )
        if fault := next(filter(None, map(fault_of, trained.labels)), ""):
            raise UserError(f"{trained.file}: {fault}; give the model's labels there, or use another checkpoint")
        self.labels = trained.labels
        return ""

    def classes_of(self, labels: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [W]: the class of each token's label."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.array([numbers[label] for label in itertools.chain(*labels)], np.int64)

    def _make_rows(self, run: TaskRun, files: Sequence[Sentences]) -> EntityRows:
        sentences = [tokens for file in files for tokens in file.tokens]
        labels = [labels for file in files for labels in file.labels or ()]
        classes_W = self.classes_of(labels) if labels else None
        is_chief = run.workers.is_chief
        rows = make_rows(sentences, classes_W, run.tokenizer, self.max_seq_length, show_progress=is_chief)
        source = ", ".join(str(file.path) for file in files)
        run.say(run.tokenizer.count_unknown(rows.ids_P).describe(source))
        if num_without := len(rows.rows_W) - int(rows.has_piece_W.sum()):
            run.say(f"{source}: {num_without:,} token(s) of which the tokenizer leaves nothing: labelled {OUTSIDE}")
        return rows

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> TokenModel:
        from bert_tf.model.heads import TokenModel

        return TokenModel(config, len(self.labels), backend, seed)

    def make_objective(self) -> TokenObjective:
        from bert_tf.model.losses import TokenObjective

        return TokenObjective()

    def training_rows(self, run: TaskRun) -> EntityRows:
        assert self._training
        return self._training

    def meaning(self) -> dict[str, Any]:
        return {"task_name": self.name, "labels": list(self.labels)}

    def settings(self) -> dict[str, Any]:
        return {
            "task_name": self.name,
            "train_file": ",".join(map(str, self.train_files)),
            "predict_file": self.predict_file and str(self.predict_file),
            "max_seq_length": self.max_seq_length,
            "label_names": ",".join(self.label_names) or None,
            "max_bad_records": self.max_bad_records,
        }

    def other_modes(self) -> Mapping[str, Callable]:
        from bert_tf.tasks.entities import serving

        return {"interactive": serving.converse}

    def finish(self, predictor: Predictor) -> None:
        """Writes a line of token, right label if known, and predicted label for each token, and the scores."""
        if not self._prediction:
            return
        sentences, rows = self._prediction
        predicted = predictor.predict(rows, by_position=True)
        if not predictor.workers.is_chief:
            return
        logits_KxC = rows.token_logits(predicted.outputs[0])
        found = iter(self.labels_of(rows, logits_KxC))
        labels = [list(itertools.islice(found, len(tokens))) for tokens in sentences.tokens]
        path = predictor.write(PREDICTIONS, "".join(_prediction_lines(sentences, labels)))
        predictor.telemetry.note(f"labels of {len(rows.rows_W):,} tokens: {path}")
        scores: dict[str, float] = {}
        if sentences.labels and sentences.scheme:
            predictor.telemetry.note(describe_counts(sentences.labels, labels))
            scores = score(sentences.labels, labels, sentences.scheme.name)
            scores["eval_loss"] = mean_loss(logits_KxC, self.classes_of(sentences.labels)[rows.has_piece_W])
            scores["global_step"] = predictor.update
            predictor.write_scores(scores)
        else:
            predictor.telemetry.note("not scored: the tokens come without labels")
        if scores or predicted.batch_secs:
            predictor.telemetry.evaluation(predictor.update, **scores, **predicted.speed())

    def labels_of(self, rows: EntityRows, logits_KxC: np.ndarray) -> list[str]:
        """The label of each token, from the logits of those that have a piece; the others are outside of entities."""
        labels_W = np.full(len(rows.rows_W), OUTSIDE, object)
        labels_W[rows.has_piece_W] = np.array(self.labels, object)[logits_KxC.argmax(axis=1)]
        return labels_W.tolist()


def _prediction_lines(sentences: Sentences, labels: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of the file with the predictions; a blank line ends each sentence."""
    for number, tokens in enumerate(sentences.tokens):
        columns = [[_BREAKS.sub(" ", token) for token in tokens], labels[number]]
        if sentences.labels:
            columns.insert(1, sentences.labels[number])
        yield from ("\t".join(line) + "\n" for line in zip(*columns))
        yield "\n"


def _label_names(text: str | None) -> Sequence[str]:
    """The labels in --label_names. Raises `UserError` if one is no label, or occurs twice."""
    names = [name.strip() for name in (text or "").split(",")] if text else []
    fault = next(filter(None, map(fault_of, names)), "one occurs twice" if len(set(names)) < len(names) else "")
    if fault:
        raise UserError(f"--label_names={text}: {fault}; name each label once, with commas between, as O,B-PER,I-PER")
    return names


def _check_training(training: Sequence[Sentences], predicted: Sequence[Sentences]) -> None:
    """Raises `UserError` if there is nothing to learn, or if the labels of a file follow another scheme."""
    schemes = [(file.scheme, file) for file in training if file.scheme and file.scheme.num_entities]
    if training and not schemes:
        raise UserError(
            f"{training[0].path}: all labels are {OUTSIDE}, so there is nothing to learn; is the last column the label?"
        )
    for expected, first in schemes[:1]:
        for file in (*training, *predicted):
            scheme = find_scheme(file.labels or (), expected.name)
            if scheme and scheme.name != expected.name:
                raise UserError(
                    f"{file.path} has labels by {scheme}, {first.path} by {expected}; write both by one scheme"
                )
