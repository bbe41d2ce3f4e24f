"""A call of a launcher's script: its plan, and its runs, which are restarted after a crash (RESTARTS, MAX_HOURS)."""

from __future__ import annotations

import abc
import dataclasses
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import USER_ERROR_EXIT_CODE, MissingError, UserError
from bert_tf.base.files import CHECKOUT, read_json_object, work_folder, write_text
from bert_tf.base.signals import STOPPED_EXIT_CODE, handling_signals
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Argument, Positionals, Values
from bert_tf.launch.environment import SETTINGS_OF, LaunchEnvironment, flag_texts, short_path, show
from bert_tf.launch.job import run
from bert_tf.launch.rank import FORWARDED_SIGNALS, POLL_SECS, describe_signal
from bert_tf.run.run_folder import find_checkpoints, find_damage
from bert_tf.settings.declaration import from_variables, pick_settings

# Exit codes after which a restart is useless: success, the user's mistake, a stop by the user or the system.
_FINAL_CODES = (
    0,
    USER_ERROR_EXIT_CODE,
    STOPPED_EXIT_CODE,
    128 + signal.SIGHUP,
    128 + signal.SIGINT,
    128 + signal.SIGTERM,
)
_CHECKPOINTS = "a run folder, a folder with a checkpoint or Hugging Face's model, or a prefix as .../bert_model.ckpt"
# The pause before a restart, which doubles with each consecutive start that has made no progress.
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 2.0, 300.0


class Run(NamedTuple):
    """A run of a program.

    Attributes:
      program: the name of a module in `programs`.
      flags: by name; the logs go to ``logs`` below the flag model_dir.
      files: contents of files to write before the run starts, by path.
    """

    title: str
    program: str
    flags: Values
    files: Mapping[Path, str] = {}
    reason_to_skip: Callable[[], str] = lambda: ""  # "": it must be started


@dataclasses.dataclass(frozen=True)
class Call(abc.ABC):
    """A call of a script, with a subclass for each kind of script.

    Attributes:
      kind: a part of the name of the results folder.
    """

    kind: str
    positionals: Positionals
    environment: LaunchEnvironment

    @property
    @abc.abstractmethod
    def size(self) -> str:
        """The last part of the name of the results folder, such as gbs64."""

    @abc.abstractmethod
    def describe(self) -> list[str]:
        """Lines about what follows from the arguments."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises `UserError` for settings that do not go together, whatever files are there."""

    @abc.abstractmethod
    def runs(self) -> list[Run]:
        """The runs of the call, in order. Raises `UserError` if files are missing or do not fit."""

    @abc.abstractmethod
    def results(self, runs: Sequence[Run]) -> Sequence[str]:
        """Lines that name the results of the runs."""

    @property
    def num_ranks(self) -> int:
        # Scripts without this argument start one.
        return self.positionals.values.get(self.positionals.name_of("num_ranks"), 1)

    @property
    def folder(self) -> Path:
        name = f"tf_bert_{self.kind}_{self.positionals['bert_model']}_{self.positionals['precision']}_{self.size}"
        return self.environment.path("results_dir", work_folder() / "results" / name)

    def launch(self) -> int:
        """Shows the plan and, unless this is a dry run, carries it out; returns the first exit code that is not 0."""
        environment = self.environment
        self.check()
        limits = ((name, environment.value_of(name)) for name in ("restarts", "max_hours"))
        show(
            *self.positionals.describe(),
            *self.describe(),
            f"device = {environment.describe_device(self.num_ranks)}",
            f"results_dir = {short_path(self.folder)}",
            *(f"{name} = {limit:g}" for name, limit in limits if limit),
        )
        runs = environment.prepare(self.num_ranks, self.folder, self.runs)
        if runs is None:
            return 0
        for each_run in runs:
            for file, text in each_run.files.items():
                write_text(file, text)
            if reason := each_run.reason_to_skip():
                show(f"{each_run.title}: {reason}, {short_path(each_run.flags['model_dir'])}")
            elif code := self.train(each_run):
                return code
            elif environment.signals and each_run is not runs[-1]:
                return STOPPED_EXIT_CODE  # the signal came after the run's last update
        show(*self.results(runs))
        return 0

    def settings(self, program: str, flags: Values) -> Values:
        """The flags of a program: those that environment variables set, and `flags`, which take precedence."""
        return {**from_variables(self.environment.environ, *SETTINGS_OF[program]), **flags}

    def check_settings(self, program: str, flags: Values) -> None:
        """Raises the program's `UserError` for settings that do not go together, before it is started."""
        settings = SimpleNamespace(**self.settings(program, flags))
        for settings_class in SETTINGS_OF[program]:
            pick_settings(settings_class, settings)

    def train(self, training: Run) -> int:
        """Carries a run out to its end; returns the exit code of the last start.

        After a crash it is restarted, unless more than RESTARTS consecutive starts have ended without a new checkpoint.
        A mistake of the user's, a signal or MAX_HOURS ends it.
        """
        with handling_signals(FORWARDED_SIGNALS, self.environment.signals.append):  # those between the starts, too
            return self._train(training)

    def _train(self, training: Run) -> int:
        environment, run_folder = self.environment, Path(training.flags["model_dir"])
        flags, logs = self.settings(training.program, training.flags), run_folder / "logs"
        restarts, num_fruitless = environment.value_of("restarts"), 0
        update = newest_update(run_folder) if restarts else 0
        while not environment.signals:
            if (left := environment.hours_left()) is not None:
                if left < 1e-4:
                    show(f"MAX_HOURS={environment.value_of('max_hours'):g} are over; the same command goes on")
                    break
                flags["max_hours"] = f"{left:.4f}"
            command = ["-m", f"bert_tf.programs.{training.program}", *flag_texts(flags)]
            code = run(training.title, command, self.num_ranks, logs, environment)
            if code in _FINAL_CODES or environment.signals or not restarts:
                return code
            reached, update = update, newest_update(run_folder)
            num_fruitless = 0 if update > reached else num_fruitless + 1
            ended = (
                f"{training.title} ended with code {code}{describe_signal(code)}; starts in a row without a checkpoint "
                f"after update {update}: {num_fruitless} of {restarts}"
            )
            if num_fruitless > restarts:
                show(f"{ended}; given up: {short_path(logs)} says why; put that right, and the same command goes on")
                return code
            pause_secs = min(_FIRST_PAUSE_SECS * 2**num_fruitless, _LONGEST_PAUSE_SECS)
            show(f"{ended}; it goes on in {pause_secs:.0f} s")
            for _ in range(round(pause_secs / POLL_SECS)):
                if not environment.signals:
                    time.sleep(POLL_SECS)
        return STOPPED_EXIT_CODE


class Recipe(NamedTuple):
    """What a script does: its arguments (none if it reads only variables), and the function that makes its call."""

    arguments: Sequence[Argument]
    make: Callable[[Positionals, LaunchEnvironment], Any]

    def launch(self, texts: Sequence[str], environment: LaunchEnvironment) -> int:
        """Carries out the call with the arguments that were typed; returns the exit code."""
        return self.make(Positionals(self.arguments, texts), environment).launch()


def find_checkpoint(path: str, title: str, otherwise: str = "") -> Path:
    """The path of a checkpoint's folder or prefix, searched from the working folder, then from the checkout.

    Raises `MissingError`, whose message begins with `title` and ends with `otherwise`, if it is in neither.
    """
    for base in (Path.cwd(), CHECKOUT):
        if (base / path).is_dir() or Path(f"{base / path}.index").is_file():
            return base / path
    raise MissingError(f"{title}: there is no checkpoint; name {_CHECKPOINTS}{otherwise}")


def config_file(checkpoint: Path) -> Path:
    """The file beside a checkpoint that describes its model, ours or Hugging Face's; it may not exist."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    ours, hugging_face = folder / "bert_config.json", folder / "config.json"
    return hugging_face if hugging_face.is_file() and not ours.is_file() else ours


def check_model(checkpoint: Path, positionals: Positionals) -> None:
    """Raises `UserError` if the file beside a checkpoint describes another model than argument bert_model."""
    file = config_file(checkpoint)
    sizes = read_json_object(
        file, "name the folder in which it lies beside the weights; of a pre-training in two phases that is phase_2"
    )
    described, expected = (sizes.get("num_hidden_layers"), sizes.get("hidden_size")), PRESETS[positionals["bert_model"]]
    if described != expected:
        raise UserError(
            f"{positionals.title('bert_model')} is {positionals['bert_model']}, with {expected[0]} layers of width "
            f"{expected[1]}, but {file} has num_hidden_layers {described[0]} and hidden_size {described[1]}; name its "
            "model, or use the program itself (run_*.py)"
        )


def newest_update(run_folder: Path) -> int:
    """The update of the newest undamaged checkpoint, from which a run is resumed; 0 if there is none."""
    checkpoints = find_checkpoints(run_folder / "checkpoints")
    return next((update for update in reversed(checkpoints) if not find_damage(checkpoints[update])), 0)
