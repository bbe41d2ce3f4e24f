"""The tasks, one entry each: their files, the files' columns, their labels, and how they are scored.

Nine are those of GLUE (arXiv 1804.07461); the order of their labels is that of Google's run_classifier.py. ``custom``
stands for a user's own files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.command_line import nearest
from bert_tf.base.errors import UserError, listed
from bert_tf.base.files import check_file
from bert_tf.base.registration import load
from bert_tf.tasks.finetuning import EVAL, PREDICT, TRAIN

CUSTOM = "custom"
_STEMS = {TRAIN: "train", EVAL: "dev", PREDICT: "test"}


@dataclasses.dataclass(frozen=True)
class TextTask:
    """What is known of a task before its files are read."""

    name: str
    text_columns: tuple[str, ...]  # one sentence or a pair
    label_column: str | None
    labels: tuple[str, ...]  # in the order of the classes; empty for regression
    metrics: tuple[str, ...]  # names in `metrics.METRICS`
    no_score_for: tuple[str, ...] = ()  # labels without a part in precision, recall and F1; none: these are not scores
    columns: tuple[str, ...] = ()  # the names of all, in files without a header
    label_names: tuple[str, ...] = ()  # what other publishers call the labels, if these are numbers; in their order
    is_regression: bool = False
    range: tuple[float, float] | None = None  # of a regression's numbers
    no_label: str | None = None  # marks lines on which the annotators did not agree; these are left out
    max_bad_records: int = 0  # how many broken lines the published files may have
    may_be_quoted: bool = False  # whether the content of a .tsv shows what its quotation marks are; else: text
    parts: tuple[str, ...] = ("",)  # of the files to score and to predict
    other_files: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by use: names that are known, too
    made_by: str = "download"  # the action of bertPrep.py that leaves the files

    @property
    def num_classes(self) -> int:
        return 1 if self.is_regression else len(self.labels)

    @property
    def is_custom(self) -> bool:
        return self.name == CUSTOM

    def file_names(self, use: str) -> dict[str, list[str]]:
        """What its files may be called, in order of preference, by the use, with "_PART" behind it if it has parts."""
        suffixes = ("tsv", "csv", "jsonl") if self.is_custom else ("tsv",)
        others = [self.other_files[use]] if use in self.other_files else []
        parts = [f"_{part}" if part else "" for part in (self.parts if use != TRAIN else ("",))]
        return {f"{use}{part}": [*(f"{_STEMS[use]}{part}.{each}" for each in suffixes), *others] for part in parts}

    def check_unscored(self) -> None:
        """Raises `UserError` if labels that are not to be scored are not the task's, or if no other is left."""
        if self.no_score_for and not {*self.no_score_for} < {*self.labels}:
            given = ",".join(self.no_score_for)
            raise UserError(f"--no_score_for={given}: must be some labels, not all: {listed(self.labels)}")


def _glue(name: str, texts: tuple[str, ...], label: str, labels: str, metrics: str, **more: Any) -> TextTask:
    """An entry: columns of text and of the label; and labels, metrics and label `names` with spaces between them."""
    more["label_names"] = tuple(more.pop("names", "").split())
    return TextTask(name, texts, label, tuple(labels.split()), tuple(metrics.split()), **more)


_SENTENCE, _PAIR = ("sentence",), ("sentence1", "sentence2")
_MRPC_PAIR, _QQP_PAIR = ("#1 string", "#2 string"), ("question1", "question2")
_NUMBERS, _ENTAILMENT = "0 1", "entailment not_entailment"
# Microsoft's own files of MRPC, which bert_tf/prepare/fetching cuts into train, dev and test.
_MICROSOFTS = {use: f"msr_paraphrase_{'train' if use == TRAIN else 'test'}.txt" for use in (TRAIN, EVAL, PREDICT)}
_MRPC: dict[str, Any] = {"names": "not_equivalent equivalent", "other_files": _MICROSOFTS}
# The file that was distributed first has some questions with line feeds.
_QQP: dict[str, Any] = {"names": "not_duplicate duplicate", "max_bad_records": 100}
_MNLI: dict[str, Any] = {"no_label": "-", "parts": ("matched", "mismatched")}
# The benchmark's own files.
_STS_COLUMNS = tuple("genre filename year old_index score sentence1 sentence2".split())
_STS_FILES = {use: f"sts-{stem}.csv" for use, stem in _STEMS.items()}
_STS = {"is_regression": True, "range": (0.0, 5.0), "columns": _STS_COLUMNS, "other_files": _STS_FILES}

_OF_GLUE = (
    _glue("CoLA", _SENTENCE, "label", _NUMBERS, "matthews_correlation accuracy", names="unacceptable acceptable"),
    _glue("SST-2", _SENTENCE, "label", _NUMBERS, "accuracy", names="negative positive"),
    _glue("MRPC", _MRPC_PAIR, "quality", _NUMBERS, "accuracy f1", **_MRPC),
    _glue("STS-B", _PAIR, "score", "", "pearson spearman", **_STS),
    _glue("QQP", _QQP_PAIR, "is_duplicate", _NUMBERS, "accuracy f1", **_QQP),
    _glue("MNLI", _PAIR, "gold_label", "contradiction entailment neutral", "accuracy", **_MNLI),
    _glue("QNLI", ("question", "sentence"), "label", _ENTAILMENT, "accuracy"),
    _glue("RTE", _PAIR, "label", _ENTAILMENT, "accuracy"),
    _glue("WNLI", _PAIR, "label", _NUMBERS, "accuracy", names="not_entailment entailment"),
)
# By name; one that lies beside the rest is named by module and variable.
TASKS: dict[str, TextTask | str] = {
    **{task.name: task for task in _OF_GLUE},
    "ChemProt": "bert_tf.contrib.biomedical.relations:CHEMPROT",
}


def find_task(name: str) -> TextTask:
    """The task with this name, ignoring case and hyphens.

    Raises:
      UserError: there is no such task.
    """
    for title, task in TASKS.items():
        if _bare(title) == _bare(name):
            return load(task) if isinstance(task, str) else task
    names = [*TASKS, CUSTOM]
    raise UserError(f"--task_name={name}: must be one of {', '.join(names)}{nearest(name, names)}")


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def custom_task(
    text_columns: str | None,
    label_column: str | None,
    is_regression: bool,
    no_score_for: str | None = None,
    *,
    columns: str | None = None,
) -> TextTask:
    """A task on a user's own files.

    Args:
      text_columns: one name, or two separated by a comma.
      label_column: None if only predictions are wanted.
      no_score_for: names of labels, with commas between.
      columns: the names of all columns of files without a header, with commas between; None: files have one.

    Raises:
      UserError: the columns are not named, are too many, or are not different; or `no_score_for` numbers.
    """
    texts = tuple((text_columns or "").split(","))
    if not all(texts) or len(texts) > 2 or len({*texts, label_column}) != len(texts) + 1:
        rule = "the name of one column, or of two different ones with a comma between, other than --label_column"
        raise UserError(f"--text_columns={text_columns or ''}: --task_name={CUSTOM} needs {rule}")
    if is_regression and no_score_for:
        raise UserError(f"--no_score_for={no_score_for} is for labels, not for --regression; leave one out")
    unscored = tuple(no_score_for.split(",")) if no_score_for else ()
    metrics = ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1", "matthews_correlation")
    names = tuple(columns.split(",")) if columns else ()
    how: dict[str, Any] = {"columns": names, "is_regression": is_regression, "may_be_quoted": True}
    return TextTask(CUSTOM, texts, label_column, (), metrics, unscored, **how)


def find_files(task: TextTask, use: str, data_dir: str | None, given: str | None) -> dict[str, list[Path]]:
    """The files for a `use`, by it and their part as in `TextTask.file_names`: that `given`, else those in `data_dir`.

    Raises:
      UserError: a file is missing, or neither `given` nor `data_dir` is set.
    """
    flag = f"--{use}_file"
    if given:
        check_file(Path(given), f"name a file with {flag}")
        return {use: [Path(given)]}
    if not data_dir:
        raise UserError(f"--data_dir, or {flag}, is required")
    files = {}
    for use_and_part, names in task.file_names(use).items():
        files[use_and_part] = [path for name in names if (path := Path(data_dir) / name).is_file()][:1]
        if not files[use_and_part]:
            command = f", or make it with data/bertPrep.py --action {task.made_by} --dataset {task.name}"
            remedy = f"name a file with {flag}, another folder{'' if task.is_custom else command}"
            raise UserError(f"--data_dir={data_dir} has no {' or '.join(names)}; {remedy}")
    return files
