"""The speed of fine-tuning and predicting with a task's head: what is typed, or all sizes that fit; no data is needed.

scripts/finetune_*_benchmark.sh and those of scripts/biobert call this, each size is a run of finetuning.py, and the
arguments are those of NVIDIA's scripts.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert_tf.base.files import work_folder
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.launch.arguments import Positionals, Values
from bert_tf.launch.call import Recipe
from bert_tf.launch.environment import LaunchEnvironment, as_argument, flag_texts, short_path, show
from bert_tf.launch.finetuning import task_arguments
from bert_tf.launch.job import run
from bert_tf.memory.plan import Workload, find_rank_memory, fits
from bert_tf.settings.declaration import Setting

_SEQ_LENGTH = 384
# What the sweeps choose from: NVIDIA's configurations.
_SWEEPS: dict[str, dict[str, Sequence[Any]]] = {
    "train": {"bert_model": ("base", "large"), "seq_length": (128, 384), "batch_size": (1, 2, 4, 8, 16, 32, 64)},
    "predict": {"bert_model": ("base", "large"), "seq_length": (128, 384), "batch_size": (1, 2, 4, 8)},
}
# BioBERT's tasks -> the head that is measured, with all these sizes that fit.
_HEADS = {"ner_bc5cdr-chem": "entities", "ner_bc5cdr-disease": "entities", "rel_chemprot": "classes"}
_SWEEP_OF_TASKS = {"seq_length": (128, 512), "batch_size": (8, 32, 64)}


def make(mode: str, positionals: Positionals, environment: LaunchEnvironment) -> Sweep:
    """A sweep of SQuAD's head: the configuration that was typed, else all of `_SWEEPS` that fit."""
    if positionals.texts:
        show(*positionals.describe())
        configurations = [{"seq_length": _SEQ_LENGTH, **positionals.values}]
    else:
        num_ranks = max(environment.num_gpus, 1) if mode == "train" else 1
        configurations = find_fitting(environment, num_gpu=[num_ranks], **_SWEEPS[mode])
    return Sweep(f"finetune_{mode}_benchmark", mode, configurations, environment)


def make_of_task(mode: str, positionals: Positionals, environment: LaunchEnvironment) -> Sweep:
    """A sweep of the typed task's head: all lengths, batch sizes and precisions of NVIDIA's script that fit."""
    show(*positionals.describe())
    fixed = {name: [value] for name, value in {"num_gpu": 1, **positionals.values}.items()}
    name = f"biobert_finetune_{mode}_benchmark_{positionals['task']}"
    return Sweep(name, mode, find_fitting(environment, **fixed, **_SWEEP_OF_TASKS), environment, heads=_HEADS)


def find_fitting(environment: LaunchEnvironment, **choices: Sequence[Any]) -> list[Values]:
    """The configurations whose micro-batch fits into memory by the plan for training; predicting needs less.

    Args:
      choices: the values of each argument, which are combined with each other and with this machine's precisions.
    """
    precisions, scope = (("fp16", "fp32"), "step") if environment.num_gpus else (("fp32",), "blocks")
    choices = {**choices, "precision": precisions, "use_xla": [True]}

    def work(configuration: Values) -> Workload:
        config = BertConfig.preset(configuration["bert_model"], GOOGLE_VOCAB_SIZE)
        size, precision = configuration["batch_size"], configuration["precision"]
        num_ranks = configuration["num_gpu"]
        return Workload(config, configuration["seq_length"], 0, scope, size, precision, num_ranks=num_ranks)

    limit = find_rank_memory(None, choices["num_gpu"][0]).num_bytes
    combined = (dict(zip(choices, values)) for values in itertools.product(*choices.values()))
    return [configuration for configuration in combined if fits(work(configuration), limit)]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Configurations that are measured one after the other.

    Attributes:
      name: the name of the results folder.
      mode: "train" or "predict".
      heads: a configuration's "task" -> the head that is measured; without a task, SQuAD's.
    """

    name: str
    mode: str
    configurations: Sequence[Values]
    environment: LaunchEnvironment
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def launch(self) -> int:
        """Measures them all; returns 0, or the last exit code that is not 0."""
        environment, configurations = self.environment, self.configurations
        folder = environment.path("results_dir", work_folder() / "results" / self.name)
        show(f"results_dir = {short_path(folder)}", "random weights and made-up rows: only the speed is measured")
        show(*map(_line, configurations))
        num_ranks = max((configuration.get("num_gpu", 1) for configuration in configurations), default=1)
        if environment.prepare(num_ranks, folder, lambda: configurations) is None:
            return 0
        program, code = Path(__file__).with_name("finetuning.py"), 0
        for configuration in configurations:
            flags = {
                **configuration,
                "mode": self.mode,
                "task": self.heads.get(configuration.get("task", "")),
                "device": environment.value_of("device"),
                "dllog_path": _log_file(folder, configuration),
            }
            num_ranks = flags.pop("num_gpu", 1)
            command = [str(program), *flag_texts(flags)]
            code = run(_line(configuration), command, num_ranks, folder / "logs", environment) or code
        _show_table(folder, configurations)
        return code


def _line(configuration: Values) -> str:
    return ", ".join(f"{name} {as_argument(value)}" for name, value in configuration.items())


def _log_file(folder: Path, configuration: Values) -> Path:
    return folder / f"{'_'.join(str(as_argument(value)) for value in configuration.values())}.json"


def _show_table(folder: Path, configurations: Sequence[Values]) -> None:
    """Shows a line per configuration with its last measurement, from DLLogger's lines."""
    for configuration in configurations:
        file = _log_file(folder, configuration)
        if not file.is_file():
            continue
        data = json.loads(file.read_text(encoding="utf-8").splitlines()[-1].partition(" ")[2])["data"]
        rate = next((value for name, value in data.items() if name.startswith("throughput")), math.nan)
        show(f"{_line(configuration)}: {rate:.2f} sequences/s, {data.get('latency_average_ms', math.nan):.2f} ms")


_CASED = Setting("cased", "bool", False, is_flag=False)
_TASK = Setting("task", "str", None, choices=tuple(_HEADS), is_flag=False)
RECIPES: dict[str, Recipe] = {}
for _mode, _name, _squads, _ranks in (("train", "train", "num_gpu=8", "num_gpu=2"), ("predict", "inference", "", "")):
    _arguments = task_arguments("squad", f"bert_model=large {_squads} batch_size=8 precision=fp16 use_xla=true")
    RECIPES[f"finetune_{_name}_benchmark"] = Recipe(_arguments, partial(make, _mode))
    _declared = f"task=ner_bc5cdr-chem {_ranks} bert_model=base cased=false"
    _arguments = task_arguments("squad", _declared, task=_TASK, cased=_CASED)
    RECIPES[f"biobert/biobert_finetune_{_name}_benchmark"] = Recipe(_arguments, partial(make_of_task, _mode))
