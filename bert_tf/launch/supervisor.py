"""Restarts a training after a crash (RESTARTS), and stops it in time (MAX_HOURS)."""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path

from bert_tf.base.errors import USER_ERROR_EXIT_CODE
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.launch.environment import LaunchEnvironment, run_job, show, shown
from bert_tf.launch.launchers import Job
from bert_tf.launch.rank import describe_signal
from bert_tf.run.run_folder import find_checkpoints

# Ends that a restart would not change: success, the user's mistake, and a stop by the user or the system.
_FINAL_CODES = (
    0,
    USER_ERROR_EXIT_CODE,
    STOPPED_EXIT_CODE,
    *(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)),
)
# The pause before each restart; it doubles with each start that has made no progress.
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 2.0, 300.0


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
    run_folder, num_fruitless = job.log_folder.parent, 0
    while True:
        flags = []
        if (left := environment.hours_left()) is not None:
            if left < 1e-4:
                show([f"MAX_HOURS={environment.given('max_hours'):g} are over: stopped; the same command goes on"])
                return STOPPED_EXIT_CODE
            flags = [f"--max_hours={left:.4f}"]
        reached = newest_update(run_folder)
        code = run_job(title, dataclasses.replace(job, command=[*job.command, *flags]), environment.signals)
        if code in _FINAL_CODES or environment.signals or not environment.values.restarts:
            return code
        update = newest_update(run_folder)
        num_fruitless = 0 if update > reached else num_fruitless + 1
        ended = f"RESTARTS={environment.values.restarts}: {title} ended with code {code}{describe_signal(code)}"
        if num_fruitless > environment.values.restarts:
            remedy = f"{shown(job.log_folder)} says why; once that is put right, the same command goes on"
            fruitless = f"{num_fruitless} starts in a row made no checkpoint after update {update}"
            show([f"{ended}; {fruitless}: given up. {remedy}"])
            return code
        pause_secs = min(_FIRST_PAUSE_SECS * 2**num_fruitless, _LONGEST_PAUSE_SECS)
        tries = f" ({num_fruitless} in a row without a new checkpoint)" if num_fruitless else ""
        show([f"{ended}{tries}; in {pause_secs:.0f} s it goes on from update {update}"])
        time.sleep(pause_secs)
