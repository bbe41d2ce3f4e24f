"""Fine-tuning tasks: which files they read, the rows made of these, and the results from the model's outputs."""

from __future__ import annotations

import abc
import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, ClassVar, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import Head
from bert_tf.memory.plan import Workload
from bert_tf.run.run_folder import CONFIG, FEATURES, describe_differences, read_config
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.rows import CACHE_VERSION, Arrays, Outputs, TaskRows, cached_arrays, content_key
from bert_tf.tasks.task import Facts, Run, Task

if TYPE_CHECKING:
    from bert_tf.base.tensorflow import keras
    from bert_tf.interchange.weights import Weights
    from bert_tf.run.telemetry import Telemetry
    from bert_tf.tasks.predict import Predicted, Predictor

# The uses of files: to train on; to predict and score; to predict, and score if they hold the right answers.
TRAIN, EVAL, PREDICT = "train", "eval", "predict"
# By --mode and use: the setting that names the file. A mode ignores the settings of other files.
USES = {
    "train_and_predict": {TRAIN: "train_file", PREDICT: "predict_file"},
    "train_and_eval": {TRAIN: "train_file", EVAL: "predict_file"},
    "train": {TRAIN: "train_file"},
    "predict": {PREDICT: "predict_file"},
    "eval": {EVAL: "predict_file"},
    "sm_predict": {PREDICT: "predict_file"},
}
# The program's settings that a run's config.json records, besides the task's own.
_RECORDED = (
    "train_file predict_file model_dir predict_batch_size init_checkpoint bert_config_file vocab_file do_lower_case "
    "strip_accents dllog_path continue_with_changes allow_missing_weights"
).split()

# Takes what was typed, in the form that `FinetuningTask.rows_from_content` takes; returns its rows and the model's
# outputs.
Ask = Callable[[Any], tuple[Any, Outputs]]


def files_of_mode(config: FinetuningConfig, options: Any) -> dict[str, Sequence[Path]]:
    """The files that --mode needs, by use. Raises `UserError` if one is not given."""
    files: dict[str, Sequence[Path]] = {}
    for use, name in USES.get(options.mode, {}).items():
        if not (path := getattr(options, name)):
            raise UserError(f"--{name} is required with --mode={options.mode}")
        # Files that are scored during training must hold the right answers.
        files[EVAL if use == PREDICT and TRAIN in files and config.eval_steps else use] = [Path(path)]
    return files


class Conclusion(NamedTuple):
    """The results for one file, from the model's outputs.

    Attributes:
      files: texts to be written into the run folder, by file name; each in parts, of which only one need be in memory.
      file_description: what the first of `files` holds, in a few words.
      notes: lines to be shown.
      scores: by name; empty if the right answers are not known, or no scores are asked for.
    """

    files: Mapping[str, Iterable[str]] = {}
    file_description: str = ""
    notes: Sequence[str] = ()
    scores: Mapping[str, float] = {}


@dataclasses.dataclass
class FinetuningTask(Task):
    """A task with the files and settings of one job, which are its fields.

    Attributes:
      name: names the run in its log; it must not change within a run.
      head: the model's layer on top of the encoder.
      num_texts: the number of texts in a row.
      files: by use, TRAIN first; the key is USE_PART where a task has several files for a use ("eval_mismatched").
      max_seq_length: positions of a row.
      keeps_head: whether training starts with the head of the initial weights, if they have one.
      weights: the weights to train from or to predict with; None: random weights.
      tokenizer: the model's; set by `open`.
      contents, rows, keys: set by `prepare`, by use as in `files`: what the files hold, its rows, the files' hashes.
    """

    head: ClassVar[Head]
    num_texts: ClassVar[int] = 1
    files: Mapping[str, Sequence[Path]]
    max_seq_length: int
    weights: Weights | None = dataclasses.field(default=None, init=False, repr=False)
    keeps_head = True

    @classmethod
    def from_settings(cls, config: FinetuningConfig, options: Any) -> FinetuningTask:
        return cls(files_of_mode(config, options), **cls._fields_in(options))

    @classmethod
    def _fields_in(cls, settings: Any) -> Facts:
        """The values in `settings` (options, or a task) for the fields of a new task but its files, by name."""
        names = [field.name for field in dataclasses.fields(cls) if field.init and field.name != "files"]
        return {name: getattr(settings, name) for name in names}

    def __post_init__(self) -> None:
        minimum = 1 + 2 * self.num_texts
        if self.max_seq_length < minimum:
            raise UserError(
                f"max_seq_length={self.max_seq_length}: must be at least {minimum}, room for [CLS] and, for each of "
                f"the {self.num_texts} text(s), a token and [SEP]"
            )

    # --- What differs between tasks

    @abc.abstractmethod
    def read(self, use: str, paths: Sequence[Path]) -> tuple[Any, str]:
        """The content of the files for `use`, and notes about it. Raises `UserError` if they cannot be used."""

    @abc.abstractmethod
    def rows_from_content(self, content: Any, *, show_progress: bool = False) -> TaskRows:
        """Tokenises what `read` returned, or what was typed at a prompt."""

    @abc.abstractmethod
    def conclude(self, use: str, outputs: Outputs) -> Conclusion:
        """The results for ``contents[use]``, from the model's outputs for ``rows[use]``."""

    def fit(self) -> str:
        """Sets what depends on the weights to train from or to predict with, such as the order of labels; called once
        the file to train on, if any, has been read. Returns a line to be shown, or ""."""
        return ""

    def make_rows(self, use: str, run: Run) -> Any:
        """The rows of the files for `use`."""
        with run.workers.keep_alive():
            return self.rows_from_content(self.contents[use], show_progress=run.workers.is_chief)

    def remark_on_rows(self, use: str, rows: Any) -> str:
        """A remark about the rows of the files for `use`, to be shown, or ""."""
        return ""

    def output_meaning(self) -> Facts:
        """What the head's outputs mean (such as labels), for a file beside the weights; {} if the head implies it."""
        return {}

    def fixed_settings(self) -> Facts:
        """The settings of model and rows that must not change within a run."""
        return {**self.output_meaning(), "max_seq_length": self.max_seq_length}

    def converse(self, ask: Ask) -> None:
        """Answers what is typed at a prompt; for tasks with --mode=interactive."""
        raise NotImplementedError

    def with_export_settings(self, settings: Mapping[str, Any]) -> FinetuningTask:
        """This task with the settings of an exported model, which `export_settings` gave; for tasks with
        --mode=sm_predict. Raises `UserError` if they are damaged."""
        raise NotImplementedError

    def export_settings(self) -> Facts:
        """What must be known to use an exported model; "task" says for which kind of task it can be used."""
        return {"task": self.name, "max_seq_length": self.max_seq_length, **self.output_meaning()}

    def recorded_settings(self) -> Facts:
        """All settings of the task but its files, by the names of their flags, for config.json."""
        return {"task_name": self.name, **self._fields_in(self)}

    # --- What all tasks share

    @property
    def trains(self) -> bool:  # type: ignore[override]
        return bool(self.files.get(TRAIN))

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return len(self.rows[TRAIN].num_tokens)

    @property
    def tokenizer_files(self) -> dict[str, str]:  # type: ignore[override]
        return self.tokenizer.files()

    @property
    def scored_uses(self) -> list[str]:
        """The keys of the `files` that are scored during training."""
        return [use for use in self.files if use.startswith(EVAL)]

    def held_out(self, config: FinetuningConfig) -> str | None:
        paths = [path for use in self.scored_uses for path in self.files[use]]
        return content_key(*paths) if paths else None

    @classmethod
    def plan_config(cls, options: Any) -> BertConfig:
        from bert_tf.interchange.initialise import choose_config
        from bert_tf.tasks.weights import find_start

        return choose_config(options.bert_config_file, find_start(options, cls.head, trains=True))

    @classmethod
    def workload(cls, config: FinetuningConfig, options: Any, bert_config: BertConfig, **row_shape: int) -> Workload:
        length, classifies = options.max_seq_length, cls.head.uses_pooler
        return Workload.from_config(
            config, options, bert_config, sequence_length=length, num_predictions=0, classifies=classifies, **row_shape
        )

    def open(self, run: Run) -> None:
        """If an exported model is used, `weights` are set already, and only its own configuration counts."""
        from bert_tf.interchange.initialise import choose_config, choose_tokenizer
        from bert_tf.tasks.weights import find_start
        from bert_tf.text.tokenizer import CasingFlags

        options = run.options
        if run.config.eval_steps and self.trains and not self.scored_uses:
            raise UserError(
                "--eval_steps needs held-out data: use --mode=train_and_predict or train_and_eval, with a file to score"
            )
        with run.workers.keep_alive():
            config_file = None if self.weights else options.bert_config_file
            self.weights = self.weights or find_start(options, self.head, trains=self.trains)
            self.bert_config = choose_config(config_file, self.weights)
            casing = CasingFlags(options.do_lower_case, options.strip_accents)
            self.tokenizer, assumed = choose_tokenizer(options.vocab_file, casing, self.bert_config, self.weights)
        if assumed:
            run.say(assumed)
        self.bert_config.check_length(self.max_seq_length)

    def prepare(self, run: Run) -> None:
        """Reads all files, checks that all ranks have the same ones, and makes their rows."""
        self.contents: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}
        notes = []
        with run.workers.keep_alive():
            for use in dict.fromkeys((TRAIN, *self.files)):
                if use in self.files:
                    self.contents[use], note = self.read(use, self.files[use])
                    notes.append(note)
                if use == TRAIN:
                    notes.append(self.fit())
            self.keys = {use: content_key(*paths) for use, paths in self.files.items()}
        sources = {use: ", ".join(map(str, paths)) for use, paths in self.files.items()}
        hashes = {sources[use]: key for use, key in self.keys.items()}
        run.workers.require_same({"tokenizer": self.tokenizer.files(), **hashes})
        if not self.trains:
            notes.append(self._compare_with_training())
        for note in filter(None, notes):
            run.say(note)
        for use, source in sources.items():
            self.rows[use] = rows = self.make_rows(use, run)
            if remark := self.remark_on_rows(use, rows):
                run.say(f"{source}: {remark}")
            run.say(self.tokenizer.count_unknown(rows.tokens).describe(source))

    def _compare_with_training(self) -> str:
        """A warning if the run that trained the weights made its rows with other settings than this job, or ""."""
        from bert_tf.run.checkpoint import STATE

        assert self.weights
        # RUN/checkpoints/CHECKPOINT; resolved, since the folder may be "."; not parents[1], which "/" lacks
        run_folder = self.weights.folder.resolve().parent.parent
        if not ((self.weights.folder / STATE).is_file() and (run_folder / CONFIG).is_file()):
            return ""
        trained, meaning = (read_config(run_folder) or {})["identity"], self.output_meaning()
        settings = {
            name: value for name, value in self.fixed_settings().items() if name in trained and name not in meaning
        }
        differences = describe_differences({name: trained[name] for name in settings}, settings)
        return differences and (
            f"warning: {run_folder} was trained with other rows ({differences}); pass the settings that it was trained "
            "with"
        )

    def cached(self, run: Run, kind: type[Arrays], make: Callable[[], Arrays], *key: object) -> Arrays:
        """The rows from the run folder's cache; if it lacks them, they are made by `make` and stored there.

        Args:
          kind: the NamedTuple of arrays that `make` returns.
          key: what the rows depend on besides the tokenizer: files as `Path`, and settings.
        """
        name = content_key(CACHE_VERSION, *key, self.tokenizer.files())
        path, is_chief = run.folder / FEATURES / f"{name}.npz", run.workers.is_chief
        return run.workers.chief_first(functools.partial(cached_arrays, path, kind, make, write=is_chief))

    def identity(self, run: Run) -> Facts:
        from bert_tf.tasks.weights import tokenizer_identity

        tokenizer = tokenizer_identity(self.tokenizer)
        return {"task": self.name, "data": self.keys[TRAIN], **tokenizer, **self.fixed_settings()}

    def training(self, run: Run, model: keras.Model) -> Facts:
        from bert_tf.interchange.initialise import choose_vocabulary, initialise_from
        from bert_tf.interchange.labels import TASK_FILE
        from bert_tf.tasks.data import TaskData

        config, options, files, meaning = run.config, run.options, self.files[TRAIN], self.output_meaning()
        return dict(
            batches=TaskData(self.rows[TRAIN], config, run.workers.rank).batches,
            initialise=lambda telemetry: initialise_from(
                self.weights,
                model if self.keeps_head else model.bert,
                telemetry,
                allow_missing=options.allow_missing_weights,
            ),
            sources={
                "data": ", ".join(map(str, files)),
                "vocabulary": str(choose_vocabulary(options.vocab_file, self.weights)),
            },
            companions={**self.model_files, **({TASK_FILE: json.dumps(meaning, indent=2) + "\n"} if meaning else {})},
            settings={**{name: getattr(options, name) for name in _RECORDED}, **self.recorded_settings()},
            facts={
                "data": {"files": len(files), "first_file": str(files[0]), "instances": self.num_rows},
                "main_score": self.main_score,
            },
        )

    def num_outputs(self, model: keras.Model) -> int:
        from bert_tf.run.variables import named_variables

        size = named_variables(model.variables)[self.head.variable].shape.num_elements()
        return size // model.config.hidden_size * (1 if self.head.uses_pooler else self.max_seq_length)

    def make_scorer(self, run: Run, model: keras.Model) -> Predictor:
        from bert_tf.tasks.predict import ROWS_PER_COMPILATION, compile_model

        cost = ROWS_PER_COMPILATION[model.backend.scope]
        return self.make_predictor(compile_model(model), run, run.options.predict_batch_size, cost)

    def make_predictor(self, compute: Any, run: Run, batch_size: int, rows_per_compilation: int | None) -> Predictor:
        """What runs `compute`, a model in use, over the task's rows; arguments as in `Predictor`."""
        from bert_tf.tasks.predict import Predictor

        by_position = not self.head.uses_pooler
        return Predictor(compute, run.workers, self.max_seq_length, batch_size, by_position, rows_per_compilation)

    def evaluate(self, predictor: Predictor, telemetry: Telemetry, update: int) -> dict[str, float]:
        conclusions = [self._conclude(predictor, use, update)[1] for use in self.scored_uses]
        return {name: score for conclusion in conclusions for name, score in conclusion.scores.items()}

    def _conclude(self, predictor: Predictor, use: str, update: int) -> tuple[Predicted, Conclusion]:
        """Predicts on all ranks; other ranks than the chief get an empty conclusion."""
        predicted, workers = predictor.predict(use, self.rows[use], update), predictor.workers
        with workers.keep_alive():
            return predicted, self.conclude(use, predicted.outputs) if workers.is_chief else Conclusion()

    def finish(self, predictor: Predictor, telemetry: Telemetry, update: int) -> None:
        """Predicts, scores and writes what the job asks for."""
        scores: dict[str, float] = {}
        for use in [use for use in self.files if use != TRAIN]:
            predicted, conclusion = self._conclude(predictor, use, update)
            with predictor.workers.keep_alive():
                for name, parts in conclusion.files.items():
                    with atomic_file(telemetry.run_folder / name) as file:
                        file.writelines(part.encode("utf-8") for part in parts)
            lines = predicted.describe_speed()
            if conclusion.files:
                lines.append(f"{conclusion.file_description}: {telemetry.run_folder / next(iter(conclusion.files))}")
            for line in [*lines, *conclusion.notes]:
                telemetry.note(line)
            scores.update(conclusion.scores)
        telemetry.results(update, scores, predictor.speed())
