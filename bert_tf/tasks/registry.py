"""The fine-tuning tasks: a line for each, with the class that its folder registers."""

from __future__ import annotations

import importlib

from bert_tf.tasks.task import Task

TASKS = {"squad": "bert_tf.tasks.squad.task.SquadTask", "glue": "bert_tf.tasks.glue.task.GlueTask"}


def find_task_class(name: str) -> type[Task]:
    """Imports only this task's folder."""
    module, _, name_of_class = TASKS[name].rpartition(".")
    return getattr(importlib.import_module(module), name_of_class)
