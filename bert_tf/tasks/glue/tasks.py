"""The text tasks, one entry each: their files, the files' columns, their labels, and how they are scored.

Nine are those of GLUE (arXiv 1804.07461); the order of their labels is that of Google's run_classifier.py. ``custom``
stands for a user's own files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.command_line import suggestion
from bert_tf.base.errors import UserError, names_in_words
from bert_tf.base.files import check_file
from bert_tf.base.registration import load
from bert_tf.tasks.finetuning import EVAL, PREDICT, TRAIN

CUSTOM = "custom"
_STEMS = {TRAIN: "train", EVAL: "dev", PREDICT: "test"}


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task as it is known before its files are read."""

    name: str
    text_columns: tuple[str, ...]  # one sentence or a pair
    label_column: str | None
    labels: tuple[str, ...]  # in the order of the classes; empty for regression
    metrics: tuple[str, ...]  # names in `metrics.METRICS`
    no_score_for: tuple[str, ...] = ()  # labels left out of precision, recall and F1; (): no such scores at all
    columns: tuple[str, ...] = ()  # the names of all columns of files without a header
    label_names: tuple[str, ...] = ()  # if `labels` are numbers: what other publishers call them, in the same order
    is_regression: bool = False
    range: tuple[float, float] | None = None  # least and greatest number of a regression; None: any
    no_label: str | None = None  # in place of a label: the annotators did not agree; such lines are left out
    max_bad_records: int = 0  # how many broken lines the published files may have
    may_be_quoted: bool = False  # whether a .tsv may be quoted, as its content shows; else quotation marks are text
    parts: tuple[str, ...] = ("",)  # the files to score and to predict are in these parts
    other_files: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by use: another file name
    preparing_action: str = "download"  # the action of bertPrep.py that makes the files

    @property
    def num_classes(self) -> int:
        return 1 if self.is_regression else len(self.labels)

    @property
    def is_custom(self) -> bool:
        return self.name == CUSTOM

    def check_unscored(self) -> None:
        """Raises `UserError` if `no_score_for` holds a label that is not the task's, or all of them."""
        if self.no_score_for and not {*self.no_score_for} < {*self.labels}:
            unscored = ",".join(self.no_score_for)
            raise UserError(f"--no_score_for={unscored}: must be some labels, not all: {names_in_words(self.labels)}")


def _glue(
    name: str, texts: tuple[str, ...], label: str, labels: str, metrics: str, *, names: str = "", **more: Any
) -> TextTask:
    """An entry; `labels`, `metrics` and `names` (the `label_names`) are strings with spaces between the items."""
    more["label_names"] = tuple(names.split())
    return TextTask(name, texts, label, tuple(labels.split()), tuple(metrics.split()), **more)


_SENTENCE, _PAIR = ("sentence",), ("sentence1", "sentence2")
_NUMBERS, _ENTAILMENT = "0 1", "entailment not_entailment"
_GLUE_TASKS = (
    _glue("CoLA", _SENTENCE, "label", _NUMBERS, "matthews_correlation accuracy", names="unacceptable acceptable"),
    _glue("SST-2", _SENTENCE, "label", _NUMBERS, "accuracy", names="negative positive"),
    _glue(
        "MRPC",
        ("#1 string", "#2 string"),
        "quality",
        _NUMBERS,
        "accuracy f1",
        names="not_equivalent equivalent",
        # Microsoft's own files, which bert_tf/prepare/fetching cuts into train, dev and test.
        other_files={use: f"msr_paraphrase_{'train' if use == TRAIN else 'test'}.txt" for use in _STEMS},
    ),
    _glue(
        "STS-B",
        _PAIR,
        "score",
        "",
        "pearson spearman",
        is_regression=True,
        range=(0.0, 5.0),
        # Its own files, in the layout of the STS benchmark.
        columns=tuple("genre filename year old_index score sentence1 sentence2".split()),
        other_files={use: f"sts-{stem}.csv" for use, stem in _STEMS.items()},
    ),
    _glue(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        _NUMBERS,
        "accuracy f1",
        names="not_duplicate duplicate",
        max_bad_records=100,  # the file as first distributed has some questions with line feeds in them
    ),
    _glue(
        "MNLI",
        _PAIR,
        "gold_label",
        "contradiction entailment neutral",
        "accuracy",
        no_label="-",
        parts=("matched", "mismatched"),
    ),
    _glue("QNLI", ("question", "sentence"), "label", _ENTAILMENT, "accuracy"),
    _glue("RTE", _PAIR, "label", _ENTAILMENT, "accuracy"),
    _glue("WNLI", _PAIR, "label", _NUMBERS, "accuracy", names="not_entailment entailment"),
)
# By name; a task that is defined in `contrib` is given as ``module:variable``.
TASKS: dict[str, TextTask | str] = {
    **{task.name: task for task in _GLUE_TASKS},
    "ChemProt": "bert_tf.contrib.biomedical.relations:CHEMPROT",
}


def known_name(name: str) -> str | None:
    """The name in `TASKS` that is this one but for case, hyphens and underscores; None: there is none."""
    return next((title for title in TASKS if _without_hyphens(title) == _without_hyphens(name)), None)


def _without_hyphens(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_task(name: str) -> TextTask:
    """The task of this `known_name`. Raises: UserError if there is none."""
    if not (title := known_name(name)):
        names = [*TASKS, CUSTOM]
        raise UserError(f"--task_name={name}: must be one of {', '.join(names)}{suggestion(name, names)}")
    task = TASKS[title]
    return load(task) if isinstance(task, str) else task


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
      no_score_for: labels with commas between them.
      columns: the names of all columns of files without a header, with commas between them; None: files have a header.

    Raises:
      UserError: the text columns are not named, are more than two or not distinct; or `no_score_for` with regression.
    """
    texts = tuple((text_columns or "").split(","))
    if not all(texts) or len(texts) > 2 or len({*texts, label_column}) != len(texts) + 1:
        raise UserError(
            f"--text_columns={text_columns or ''}: --task_name={CUSTOM} needs the name of one column, or of two "
            "different ones with a comma between, other than --label_column"
        )
    if is_regression and no_score_for:
        raise UserError(f"--no_score_for={no_score_for} is for labels, not for --regression; leave one out")
    unscored = tuple(no_score_for.split(",")) if no_score_for else ()
    metrics = ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1", "matthews_correlation")
    names = tuple(columns.split(",")) if columns else ()
    options: dict[str, Any] = {"columns": names, "is_regression": is_regression, "may_be_quoted": True}
    return TextTask(CUSTOM, texts, label_column, (), metrics, unscored, **options)


def find_files(task: TextTask, use: str, data_dir: str | None, file: str | None) -> dict[str, list[Path]]:
    """The files for `use`: `file` if it is set, else those in `data_dir`, one for each part of the task.

    Returns: by `use` or, for a task with parts, USE_PART.

    Raises:
      UserError: a file is missing, or neither `file` nor `data_dir` is set.
    """
    flag = f"--{use}_file"
    if file:
        check_file(Path(file), f"name a file with {flag}")
        return {use: [Path(file)]}
    if not data_dir:
        raise UserError(f"--data_dir, or {flag}, is required")
    suffixes = ("tsv", "csv", "jsonl") if task.is_custom else ("tsv",)
    other_names = [task.other_files[use]] if use in task.other_files else []
    files = {}
    for part in task.parts if use != TRAIN else ("",):
        part_suffix = f"_{part}" if part else ""
        names = [*(f"{_STEMS[use]}{part_suffix}.{suffix}" for suffix in suffixes), *other_names]
        present = [path for name in names if (path := Path(data_dir) / name).is_file()]
        if not present:
            command = f", or make it with data/bertPrep.py --action {task.preparing_action} --dataset {task.name}"
            raise UserError(
                f"--data_dir={data_dir} has no {' or '.join(names)}; name a file with {flag}, another folder"
                f"{'' if task.is_custom else command}"
            )
        files[f"{use}{part_suffix}"] = present[:1]
    return files
