"""The programs of the tasks, pre-training among them: from a command line to a task's job."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

from bert_tf.base.errors import exit_on_user_error
from bert_tf.base.machine.hardware import choose_device, count_gpus
from bert_tf.base.machine.software import check_tensorflow
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.programs.flags import parse_flags, require_flags
from bert_tf.settings.declaration import pick_settings
from bert_tf.tasks.task import Task, find_task_class, settings_classes


def define_program(
    task_name: str, description: str | None, before: Callable[[SimpleNamespace], bool] = lambda _: False
) -> Callable[[Sequence[str]], int]:
    """The program of a task of `tasks.task`: a main function, which returns the exit code.

    Args:
      description: the description that --help prints.
      before: called with the flags before the job begins; returns whether nothing else is to be done.
    """

    @exit_on_user_error
    def main(argv: Sequence[str]) -> int:
        faulthandler.enable()
        settings = settings_classes(task_name)
        flags = parse_flags(argv, description, *settings)
        choose_device(flags.device)
        if flags.plan:
            print(_describe_plan(task_name, flags))
            return 0
        check_tensorflow(count_gpus(os.environ))
        if before(flags):
            return 0
        require_flags(flags, *settings)
        return _run(task_name, flags)

    return main


def _settings(task_name: str, flags: SimpleNamespace) -> tuple[type[Task], Any, Any]:
    """The task's class, its config and its options."""
    task_class = find_task_class(task_name)
    config_class, options_class = task_class.settings
    return task_class, pick_settings(config_class, flags), pick_settings(options_class, flags)


def _describe_plan(task_name: str, flags: SimpleNamespace) -> str:
    from bert_tf.memory.split import show_plan

    task_class, config, options = _settings(task_name, flags)
    bert_config = task_class.plan_config(options)
    return show_plan(config, options, lambda config: task_class.workload(config, options, bert_config))


def _run(task_name: str, flags: SimpleNamespace) -> int:
    task_class, config, options = _settings(task_name, flags)
    task = task_class.from_settings(config, options)
    from bert_tf.ranks.connect import connect  # imports TensorFlow, as the task's module must not
    from bert_tf.tasks.job import Job, converse, export_task, predict_with_export, run_job

    job, workers = Job(config, options, task), connect(options.use_horovod)
    mode = getattr(options, "mode", "train")
    if mode in ("export_only", "sm_predict"):
        export = Path(options.model_export_path or Path(options.model_dir) / "export")
        if mode == "sm_predict":
            predict_with_export(job, workers, export, flags.typed)
        else:
            export_task(job, workers, export, options.export_batch_size)
    elif mode == "interactive":
        converse(job, workers)
    elif not run_job(job, workers):
        return STOPPED_EXIT_CODE
    return 0
