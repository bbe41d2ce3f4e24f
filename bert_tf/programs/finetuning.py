"""What the fine-tuning programs have in common: from a task's flags to its job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from absl.flags import FLAGS

from bert_tf.base.errors import exit_on_user_error
from bert_tf.base.machine.hardware import choose_device, count_gpus
from bert_tf.base.machine.software import check_tensorflow
from bert_tf.base.signals import STOPPED_EXIT_CODE, leave_on_stop_signals
from bert_tf.programs.flags import define_flags, require_flags
from bert_tf.tasks.task import find_task_class


def define_program(task_name: str, settings: Sequence[type]) -> Callable[[Sequence[str]], None]:
    """The program of a task of `tasks.task`, a main function whose flags, made here, are the `settings`."""
    define_flags(*settings)

    @exit_on_user_error
    def main(_: Sequence[str]) -> None:
        run_task(task_name, FLAGS.flag_values_dict())

    return main


def run_task(task_name: str, flags: Mapping[str, Any]) -> None:
    """Does what --mode says, with the task of this name in `tasks.task`; `flags` by name."""
    leave_on_stop_signals()
    choose_device(flags["device"])
    task_class = find_task_class(task_name)
    if flags["plan"]:
        from bert_tf.tasks.job import describe_plan

        print(describe_plan(flags, task_class))
        return
    check_tensorflow(count_gpus(os.environ))
    require_flags(flags, "model_dir")
    task, model_dir = task_class.from_flags(flags), Path(flags["model_dir"])
    from bert_tf.ranks.connect import connect  # imports TensorFlow, as the task's module must not
    from bert_tf.tasks.job import FinetuningJob, converse, export_task, predict_with_export, run_task

    workers = connect(flags["use_horovod"])
    job = FinetuningJob.from_flags(flags, task_class, workers, trains=bool(task.training_files))
    export = Path(flags["model_export_path"] or model_dir / "export")
    if flags["mode"] == "export_only":
        export_task(job, task, workers, export, flags["export_batch_size"])
    elif flags["mode"] == "sm_predict":
        predict_with_export(job, task, workers, export)
    elif flags["mode"] == "interactive":
        converse(job, task, workers)
    elif not run_task(job, task, workers):
        sys.exit(STOPPED_EXIT_CODE)
