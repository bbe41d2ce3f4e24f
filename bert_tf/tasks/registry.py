"""The fine-tuning tasks: a line for each, with its class by the name of its folder."""

from __future__ import annotations

import importlib

from bert_tf.tasks.task import Task

TASKS = {
    "squad": "task.SquadTask",
    "glue": "task.GlueTask",
    "entities": "task.EntityTask",
    "choices": "task.ChoiceTask",
}


def find_task_class(name: str) -> type[Task]:
    """Imports only this task's folder."""
    module, _, name_of_class = TASKS[name].rpartition(".")
    return getattr(importlib.import_module(f"bert_tf.tasks.{name}.{module}"), name_of_class)


def task_settings() -> dict[str, tuple[type, ...]]:
    """The classes that declare each task's settings, from the ``settings.py`` of its folder."""
    return {name: importlib.import_module(f"bert_tf.tasks.{name}.settings").SETTINGS for name in TASKS}
