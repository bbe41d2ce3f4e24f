"""Measures the speed of fine-tuning and predicting with SQuAD's shapes: what fits, or one.

Each is a run of benchmarks/finetuning.py with random weights and made-up rows, so that no data is needed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import checkout, work_folder
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.launch.arguments import Typed, Values
from bert_tf.launch.environment import LaunchEnvironment, as_typed, flag_texts, show, shown
from bert_tf.launch.finetuning import task_arguments
from bert_tf.launch.job import Job, run
from bert_tf.memory.plan import Workload, find_device, fits

_PREDICT = task_arguments("squad", "bert_model=large batch_size=8 precision=fp16 use_xla=true")
# By mode.
ARGUMENTS = {"train": (_PREDICT[0], *task_arguments("squad", "num_gpu=8"), *_PREDICT[1:]), "predict": _PREDICT}
_SEQ_LENGTH = 384
# What the sweeps choose from: NVIDIA's configurations.
_SWEEPS: dict[str, dict[str, Sequence[Any]]] = {
    "train": {"bert_model": ("base", "large"), "seq_length": (128, 384), "batch_size": (1, 2, 4, 8, 16, 32, 64)},
    "predict": {"bert_model": ("base", "large"), "seq_length": (128, 384), "batch_size": (1, 2, 4, 8)},
}


def make(mode: str, typed: Typed, environment: LaunchEnvironment) -> Benchmark:
    """Measures the configuration that was typed, or else all that fit."""
    if typed.texts:
        show(typed.describe())
        configurations = [{"seq_length": _SEQ_LENGTH, **typed.values}]
    else:
        num_ranks = max(environment.num_gpus, 1) if mode == "train" else 1
        configurations = what_fits(environment, num_gpu=[num_ranks], **_SWEEPS[mode])
    return Benchmark(f"finetune_{mode}_benchmark", mode, configurations, environment)


def what_fits(environment: LaunchEnvironment, **choices: Sequence[Any]) -> list[Values]:
    """The configurations whose micro-batch fits into memory by training's plan; predicting needs less.

    Args:
      choices: the values of each argument; with the precisions of this machine all are combined.
    """
    precisions, scope = (("fp16", "fp32"), "step") if environment.num_gpus else (("fp32",), "blocks")
    choices = {**choices, "precision": precisions, "use_xla": [True]}

    def work(configuration: Values) -> Workload:
        config = BertConfig.preset(configuration["bert_model"], GOOGLE_VOCAB_SIZE)
        size, precision = configuration["batch_size"], configuration["precision"]
        num_ranks = configuration["num_gpu"]
        return Workload(config, configuration["seq_length"], 0, scope, size, precision, num_ranks=num_ranks)

    limit = find_device(None, choices["num_gpu"][0]).memory
    combined = (dict(zip(choices, values)) for values in itertools.product(*choices.values()))
    return [configuration for configuration in combined if fits(work(configuration), limit)]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Configurations that are measured one after the other.

    Attributes:
      name: of the folder of results.
      mode: "train" or "predict".
      heads: what is measured, by a configuration's "task"; without one, SQuAD's.
    """

    name: str
    mode: str
    configurations: Sequence[Values]
    environment: LaunchEnvironment
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def launch(self) -> int:
        """Returns 0, or the last exit code that is not."""
        environment, configurations = self.environment, self.configurations
        folder = environment.path("results_dir", work_folder() / "results" / self.name)
        show([f"results_dir = {shown(folder)}", "random weights and made-up rows: only the speed is measured"])
        show([_line(configuration) for configuration in configurations])
        num_ranks = max((configuration.get("num_gpu", 1) for configuration in configurations), default=1)
        if environment.prepare(num_ranks, folder, lambda: configurations) is None:
            return 0
        program = (checkout() or Path()) / "benchmarks" / "finetuning.py"
        if not program.is_file():
            raise UserError("the benchmarks are in the checkout, which was not installed: type this there")
        code = 0
        for configuration in configurations:
            flags = {
                "mode": self.mode,
                "bert_model": configuration["bert_model"],
                "task": self.heads.get(configuration.get("task", "")),
                "cased": configuration.get("cased"),
                "batch_size": configuration["batch_size"],
                "precision": configuration["precision"],
                "enable_xla": configuration["use_xla"],
                "max_seq_length": configuration["seq_length"],
                "device": environment.given("device"),
                "dllog_path": _log_file(folder, configuration),
            }
            num_ranks, command = configuration.get("num_gpu", 1), [str(program), *flag_texts(flags)]
            job = Job(command, num_ranks, environment.num_gpus, folder / "logs", environment.environ)
            code = run(_line(configuration), job, environment.signals) or code
        _show_table(folder, configurations)
        return code


def _line(configuration: Values) -> str:
    return ", ".join(f"{name} {as_typed(value)}" for name, value in configuration.items())


def _log_file(folder: Path, configuration: Values) -> Path:
    return folder / f"{'_'.join(str(as_typed(value)) for value in configuration.values())}.json"


def _show_table(folder: Path, configurations: Sequence[Values]) -> None:
    """Shows a line per configuration with its last measurement, from DLLogger's lines."""
    for configuration in configurations:
        file = _log_file(folder, configuration)
        if not file.is_file():
            continue
        data = json.loads(file.read_text(encoding="utf-8").splitlines()[-1].partition(" ")[2])["data"]
        rate = next((value for name, value in data.items() if name.startswith("throughput")), math.nan)
        show([f"{_line(configuration)}: {rate:.2f} sequences/s, {data.get('latency_average_ms', math.nan):.2f} ms"])
