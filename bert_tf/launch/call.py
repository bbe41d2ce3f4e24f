"""A call of a launcher's script: its plan, and its trainings, which go on after a crash (RESTARTS) and end in time."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import USER_ERROR_EXIT_CODE, MissingError, UserError
from bert_tf.base.files import CHECKOUT, read_json_object, work_folder
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Typed, Values
from bert_tf.launch.environment import LaunchEnvironment, program_command, run_job, show, shown
from bert_tf.launch.launchers import Job
from bert_tf.launch.rank import describe_signal
from bert_tf.run.run_folder import find_checkpoints
from bert_tf.settings.declaration import from_variables

# Ends that a restart would not change: success, the user's mistake, and a stop by the user or the system.
_FINAL_CODES = (
    0,
    USER_ERROR_EXIT_CODE,
    STOPPED_EXIT_CODE,
    *(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)),
)
_CHECKPOINTS = "a run folder, a folder with a checkpoint or Hugging Face's model, or a prefix as .../bert_model.ckpt"
# The pause before each restart; it doubles with each start that has made no progress.
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 2.0, 300.0


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a script.

    Attributes:
      kind: part of the name of the results' folder.
    """

    kind: str
    typed: Typed
    environment: LaunchEnvironment

    @property
    def num_ranks(self) -> int:
        return self.typed.values.get(self.typed.name_of("num_ranks"), 1)  # scripts without this argument start one

    @property
    def size(self) -> str:
        """The end of the name of the results' folder."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        name = f"tf_bert_{self.kind}_{self.typed['bert_model']}_{self.typed['precision']}_{self.size}"
        return self.environment.path("results_dir", work_folder() / "results" / name)

    def show_plan(self, lines: Sequence[str], data: Sequence[str] = ()) -> None:
        """Shows the arguments, the `lines` that follow from them, where the ranks will run, and with which `data`."""
        device = f"device = {self.environment.describe_device(self.num_ranks)}"
        limits = self.environment.describe_limits()
        show([*self.typed.describe(), *lines, device, *data, f"results_dir = {shown(self.folder)}", *limits])

    def train(self, title: str, program: str, settings: Sequence[type], flags: Values) -> int:
        """Runs a program of `programs` to its end; returns the ranks' exit code.

        Args:
          settings: the program's; those with a variable become flags, too, unless `flags` has them.
          flags: by name. The logs go to ``logs`` below their model_dir.
        """
        # What is left of MAX_HOURS is added with each start.
        flags = {**from_variables(self.environment.environ, *settings), "max_hours": None, **flags}
        log_folder, command = Path(flags["model_dir"]) / "logs", program_command(program)
        job = self.environment.job(command, flags, self.num_ranks, log_folder=log_folder)
        return train(title, job, self.environment)


def find_checkpoint(path: str, title: str) -> Path:
    """A folder or prefix, relative to the working folder or to the checkout; `title` begins the message."""
    for base in (Path.cwd(), CHECKOUT):
        if (base / path).is_dir() or Path(f"{base / path}.index").is_file():
            return base / path
    raise MissingError(f"{title}: there is no checkpoint; name {_CHECKPOINTS}; to fine-tune random weights: 'none'")


def config_file(checkpoint: Path) -> Path:
    """The file beside a checkpoint that describes its model, ours or Hugging Face's; it may not exist."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    ours, theirs = folder / "bert_config.json", folder / "config.json"
    return theirs if theirs.is_file() and not ours.is_file() else ours


def check_model(checkpoint: Path, typed: Typed) -> None:
    """Raises `UserError` if the file beside a checkpoint describes another model than argument bert_model."""
    file = config_file(checkpoint)
    sizes = read_json_object(
        file, "name the folder in which it lies beside the weights; of a pre-training in two phases that is phase_2"
    )
    described = sizes.get("num_hidden_layers"), sizes.get("hidden_size")
    if None in described:
        raise UserError(f"{file} does not say num_hidden_layers and hidden_size, as a BERT's does; name {_CHECKPOINTS}")
    if described != PRESETS[typed["bert_model"]]:
        ours, theirs = (f"{layers} layers of {width}" for layers, width in (PRESETS[typed["bert_model"]], described))
        name = f"{typed.title('bert_model')} is {typed['bert_model']}, {ours}"
        raise UserError(f"{name}, but {file} describes {theirs}; name its model, or use the program itself (run_*.py)")


def newest_update(run_folder: Path) -> int:
    """The update of the newest checkpoint, by its name only; 0 if there is none."""
    return max(find_checkpoints(run_folder / "checkpoints"), default=0)


def train(title: str, job: Job, environment: LaunchEnvironment) -> int:
    """Runs a training to its end; returns the exit code of the last start.

    After a crash it is restarted, unless more than RESTARTS consecutive starts have ended without a new checkpoint.
    A mistake of the user's, a signal or MAX_HOURS ends it.

    Args:
      job: a program that resumes from its checkpoints; its log folder must be in the run folder.
    """
    run_folder, num_fruitless, restarts = job.log_folder.parent, 0, environment.given("restarts")
    while True:
        flags = []
        if (left := environment.hours_left()) is not None:
            if left < 1e-4:
                show([f"MAX_HOURS={environment.given('max_hours'):g} are over: stopped; the same command goes on"])
                return STOPPED_EXIT_CODE
            flags = [f"--max_hours={left:.4f}"]
        reached = newest_update(run_folder)
        code = run_job(title, dataclasses.replace(job, command=[*job.command, *flags]), environment.signals)
        if code in _FINAL_CODES or environment.signals or not restarts:
            return code
        update = newest_update(run_folder)
        num_fruitless = 0 if update > reached else num_fruitless + 1
        ended = f"RESTARTS={restarts}: {title} ended with code {code}{describe_signal(code)}"
        if num_fruitless > restarts:
            remedy = f"{shown(job.log_folder)} says why; once that is put right, the same command goes on"
            fruitless = f"{num_fruitless} starts in a row made no checkpoint after update {update}"
            show([f"{ended}; {fruitless}: given up. {remedy}"])
            return code
        pause_secs = min(_FIRST_PAUSE_SECS * 2**num_fruitless, _LONGEST_PAUSE_SECS)
        tries = f" ({num_fruitless} in a row without a new checkpoint)" if num_fruitless else ""
        show([f"{ended}{tries}; in {pause_secs:.0f} s it goes on from update {update}"])
        time.sleep(pause_secs)
