"""A task that nobody has heard of: its folder and a line in the table make it known to launchers, plans and pages.

That the shared code trains, predicts and exports what the core does not know: tests/contrib/entities and choices.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types

from bert_tf.contrib.entities.settings import EntityOptions
from bert_tf.contrib.entities.task import EntityTask
from bert_tf.launch import environment as launch_environment
from bert_tf.memory.split import show_plan
from bert_tf.programs.settings_page import render
from bert_tf.settings.declaration import setting
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks import task
from tests.refusals import refused
from tests.squad_data import write_squad


@dataclasses.dataclass(frozen=True)
class OddOptions(EntityOptions):
    """Has a setting of its own."""

    oddity: int = setting(1, "How odd.", at_least=1, variable="ODDITY")


class Odd(EntityTask):
    name, settings = "odd", (FinetuningConfig, OddOptions)


def test_its_settings_are_known_to_the_launchers_planned_and_documented(tmp_path, monkeypatch):
    for name, content in {"": {}, ".task": {"Odd": Odd}, ".settings": {"SETTINGS": Odd.settings}}.items():
        module = types.ModuleType(f"bert_tf.tasks.odd{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(task.TASKS, "odd", "bert_tf.tasks.odd.task:Odd")
    environment = importlib.reload(launch_environment)
    try:
        assert environment.LaunchEnvironment({"ODDITY": "3"}).value_of("oddity") == 3
        refused("ODDITY=0: must be a whole number of at least 1", environment.LaunchEnvironment, {"ODDITY": "0"})
        file = write_squad(tmp_path) / "bert_config.json"
        options, odd = OddOptions(bert_config_file=str(file), gpu_memory_gib=1.0), task.find_task_class("odd")
        model = odd.plan_config(options)
        shown = show_plan(FinetuningConfig(), options, lambda config: odd.workload(config, options, model))
        assert shown.startswith("model: ") and "sequences of 128" in shown
        assert "| `--oddity` | How odd. | 1 |" in "\n".join(render({"Odd": task.settings_classes("odd")}))
    finally:
        monkeypatch.undo()
        importlib.reload(launch_environment)
