"""Entities or parts of speech as a task: reads sentences, labels their tokens, scores and writes what it found."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import split_paths
from bert_tf.contrib.entities.labels import KINDS, OUTSIDE, LabelKind, all_labels, describe_counts, find_scheme, score
from bert_tf.contrib.entities.read import Sentences, read_sentences
from bert_tf.contrib.entities.rows import EntityRows, make_entity_rows
from bert_tf.contrib.entities.settings import SETTINGS, EntityOptions
from bert_tf.interchange.heads import TOKENS
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.finetuning import PREDICT, TRAIN, Ask, Conclusion, FinetuningTask
from bert_tf.tasks.prompt import typed_lines
from bert_tf.tasks.rows import Outputs
from bert_tf.tasks.scores import mean_loss, probabilities
from bert_tf.tasks.task import Facts
from bert_tf.text.basic_tokenizer import Casing, spans_of_words

_BREAKS = re.compile(r"[\t\r\n]")  # within a token of JSON


@dataclasses.dataclass
class EntityTask(FinetuningTask):
    """One job of run_ner.py."""

    task_name: str = "ner"
    label_names: str | None = None  # with commas between; None: those of the training files
    max_bad_records: int = 0
    labels: Sequence[str] = dataclasses.field(default=(), init=False)  # in the order of the model's classes

    settings, name, head = SETTINGS, "entities", TOKENS
    model, objective = "bert_tf.model.heads:TokenModel", "bert_tf.model.losses:TokenObjective"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labels = self._parse_label_names()

    @property
    def kind(self) -> LabelKind:
        return KINDS[self.task_name]

    @property
    def main_score(self) -> str:  # type: ignore[override]
        return self.kind.main_score

    def _parse_label_names(self) -> Sequence[str]:
        """The labels in --label_names. Raises `UserError` if one is no label, or occurs twice."""
        names = [name.strip() for name in self.label_names.split(",")] if self.label_names else []
        doubled = "one occurs twice" if len(set(names)) < len(names) else ""
        if fault := next(filter(None, map(self.kind.fault_of, names)), doubled):
            raise UserError(
                f"--label_names={self.label_names}: {fault}; name each label once, with commas between, such as "
                "O,B-PER,I-PER"
            )
        return names

    @classmethod
    def from_settings(cls, config: FinetuningConfig, options: EntityOptions) -> FinetuningTask:
        task = super().from_settings(config, options)
        if TRAIN in task.files:
            paths = [Path(path) for path in split_paths(options.train_file or "")]
            task.files = {**task.files, TRAIN: paths}
        return task

    def read(self, use: str, paths: Sequence[Path]) -> tuple[list[Sentences], str]:
        files = [
            read_sentences(
                path,
                self.kind,
                allowed_labels=self.labels or None,
                needs_labels=use != PREDICT,
                label_names=self._parse_label_names(),
                max_bad_records=self.max_bad_records,
            )
            for path in paths
        ]
        _check_schemes([*self.contents.get(TRAIN, ()), *files])
        return files, "\n".join(file.notes for file in files)

    def fit(self) -> str:
        """Sets `labels`, in the order of the weights' classes if these have them, and `keeps_head`.

        Raises: UserError if all training labels are O, or if the weights are to predict and their labels are not
          known, or are no labels of tokens.
        """
        from bert_tf.interchange.labels import no_labels, read_task

        training: Sequence[Sentences] = self.contents.get(TRAIN, ())
        training_labels = all_labels(itertools.chain.from_iterable(file.labels or () for file in training))
        if training_labels == {OUTSIDE}:
            raise UserError(f"{training[0].path}: all labels are {OUTSIDE}: nothing to learn; is it the last column?")
        self.labels, weights = self.labels or sorted(training_labels) if training else (), self.weights
        if weights is None or TOKENS.variable not in weights.shapes:
            return ""
        trained = read_task(weights, TOKENS)
        self.keeps_head = trained is not None and (not training or sorted(self.labels) == sorted(trained.labels))
        if training and not self.keeps_head:
            other = trained or "labels that are not known"
            return f"{weights.source} was fine-tuned for {other}: a new classifier is made"
        if trained is None:
            raise no_labels(weights)
        unnamed = "" if trained.is_named else "the labels have no names"
        if fault := next(filter(None, map(self.kind.fault_of, trained.labels)), unnamed):
            raise UserError(f"{trained.file}: {fault}; give the model's labels there, or use another checkpoint")
        self.labels = trained.labels
        return ""

    def classes_of(self, labels: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [W]: the class of each token's label."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.array([numbers[label] for label in itertools.chain(*labels)], np.int64)

    def rows_from_content(self, content: Sequence[Sentences], *, show_progress: bool = False) -> EntityRows:
        sentences = [tokens for file in content for tokens in file.tokens]
        labels = [labels for file in content for labels in file.labels or ()]
        classes_W = self.classes_of(labels) if labels else None
        return make_entity_rows(sentences, classes_W, self.tokenizer, self.max_seq_length, show_progress=show_progress)

    def remark_on_rows(self, use: str, rows: EntityRows) -> str:
        num_without = int((~rows.has_piece_W).sum())
        if not num_without:
            return ""
        return f"{num_without:,} token(s) of which the tokenizer leaves nothing: labelled {self.kind.of_no_piece}"

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return len(self.labels)

    def output_meaning(self) -> Facts:
        return {"task_name": self.name, "labels": list(self.labels)}

    def conclude(self, use: str, outputs: Outputs) -> Conclusion:
        """A line of token, right label if known, and predicted label for each token."""
        [sentences], rows = self.contents[use], self.rows[use]
        logits_KxC = rows.token_logits(outputs[0])
        predicted = iter(self.labels_of(rows, logits_KxC))
        labels = [list(itertools.islice(predicted, len(tokens))) for tokens in sentences.tokens]
        files = {"predictions.tsv": _prediction_lines(sentences, labels)}
        file_description = f"labels of {len(rows.rows_W):,} tokens"
        if not sentences.labels:
            return Conclusion(files, file_description, ["not scored: the tokens come without labels"])
        scores = score(sentences.labels, labels, sentences.scheme.name if sentences.scheme else None)
        scores["eval_loss"] = mean_loss(logits_KxC, self.classes_of(sentences.labels)[rows.has_piece_W])
        notes = [describe_counts(sentences.labels, labels)] if sentences.scheme else []
        return Conclusion(files, file_description, notes, scores)

    def labels_of(self, rows: EntityRows, logits_KxC: np.ndarray) -> list[str]:
        """The label of each token, from the logits of those that have a piece; all others get the kind's for them."""
        labels_W = np.full(len(rows.rows_W), self.kind.of_no_piece, object)
        labels_W[rows.has_piece_W] = np.array(self.labels, object)[logits_KxC.argmax(axis=1)]
        return labels_W.tolist()

    def converse(self, ask: Ask) -> None:
        """Shows the entities in each sentence, or the label of each token."""
        for text in typed_lines("\nSentence (an empty line ends): ", are_last=True):
            print("\n".join(self._entities_in(text, ask)) or "(no entity)", flush=True)

    def _entities_in(self, text: str, ask: Ask) -> Iterator[str]:
        """A line for each entity in a text: the mean probability of its tokens' labels, its type, and its characters.

        The tokens are the text's words and signs, as BERT's tokenizer and those of most corpora separate them.
        """
        spans = [(starts[0], ends[-1]) for _, starts, ends in spans_of_words(text, Casing(False, False))]
        if not spans:  # nothing but control characters
            return
        tokens = [text[start:end] for start, end in spans]
        rows, outputs = ask([Sentences(Path(), [tokens], None, None, "")])
        logits_KxC = rows.token_logits(*outputs)
        confidence_W = np.ones(len(spans))
        confidence_W[rows.has_piece_W] = probabilities(logits_KxC).max(axis=1)
        for kind, start, end in self.kind.read(self.labels_of(rows, logits_KxC)):
            words = text[spans[start][0] : spans[end - 1][1]]
            yield f"{confidence_W[start:end].mean():7.3f}  {kind or 'entity'}: {words}"


def _prediction_lines(sentences: Sentences, labels: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of the file with the predictions; a blank line ends each sentence."""
    for number, tokens in enumerate(sentences.tokens):
        columns = [[_BREAKS.sub(" ", token) for token in tokens], labels[number]]
        if sentences.labels:
            columns.insert(1, sentences.labels[number])
        yield from ("\t".join(line) + "\n" for line in zip(*columns))
        yield "\n"


def _check_schemes(files: Sequence[Sentences]) -> None:
    """Raises `UserError` if the labels of a file follow another scheme than those of the first file with entities."""
    for first in [file for file in files if file.scheme and file.scheme.num_entities][:1]:
        assert first.scheme
        for file in files:
            scheme = find_scheme(file.labels or (), first.scheme.name)
            if scheme and scheme.name != first.scheme.name:
                raise UserError(
                    f"{file.path} has labels by {scheme}, {first.path} by {first.scheme}; write both in one scheme"
                )
