"""What the launchers' tests share: variables, pretended machines, prepared data by its files' names."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bert_tf.base.files import sha256_of_file
from bert_tf.base.machine import launchers, software
from bert_tf.bert_config import BertConfig
from bert_tf.launch.environment import SETTINGS, LaunchEnvironment
from bert_tf.launch.recipes import find_recipe
from bert_tf.settings.declaration import settings_of, with_variable
from bert_tf.settings.programs import MaskingOptions
from bert_tf.settings.training import PretrainingConfig
from tests.pretraining_data import write_manifest

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = [each.variable for each in with_variable(*SETTINGS)]
VARIABLES += "CUDA_VISIBLE_DEVICES SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_NTASKS".split()


def launch(recipe, typed):
    return find_recipe(recipe).launch(typed.split(), LaunchEnvironment(os.environ))


# A program that starts another as ranks: how many, the folder of logs, what the ranks' Python runs.
START_RANKS = """
import os, pathlib, sys
from bert_tf.launch.job import LaunchEnvironment, run
sys.exit(run("it", sys.argv[3:], int(sys.argv[1]), pathlib.Path(sys.argv[2]), LaunchEnvironment(os.environ)))
"""


def processes_of(folder):
    """The command lines that name a folder, of processes that still run."""
    if not shutil.which("ps"):
        pytest.skip("no ps")
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], stdout=subprocess.PIPE, check=True).stdout
    return [line for line in shown.decode(errors="replace").splitlines() if str(folder) in line]


def values_of(output):
    """The lines ``name = value`` that a launcher has shown."""
    return dict(line.split(" = ", 1) for line in output.splitlines() if " = " in line)


def flags_of(command):
    return dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)


def recorded_of(flags):
    """What run_pretraining.py, as one rank with these flags, records in config.json, as far as launchers read it."""

    def given(cls):
        return {each.name: each.parse(flags[each.name]) for each in settings_of(cls) if each.name in flags}

    settings, files = given(PretrainingConfig), Path(flags["input_files"])
    if "global_batch_size" in flags:  # of which the program finds the split
        settings["train_batch_size"] = int(flags["global_batch_size"])
    config = PretrainingConfig(**settings)
    manifest = files.parent / "manifest.json"
    vocab_size = json.loads(manifest.read_text())["vocab"]["size"]
    model = BertConfig.preset(flags["bert_model"], vocab_size).to_dict()
    data = {"input_files": str(files), "manifest_sha256": sha256_of_file(manifest)}
    if "tokens" in files.parts:
        data["masking_rules"] = dataclasses.asdict(MaskingOptions(**given(MaskingOptions)))
    settings, identity = dataclasses.asdict(config), {**config.identity(), "bert_config": model}
    return {"identity": identity, "settings": settings, "data": data}


def write_shards(folder, suffix, arguments, sha="a"):
    for split in ("training", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / f"{folder.name}_{split}_0.{suffix}").touch()
    write_manifest(folder, {"tfrecord": "records"}.get(suffix, suffix), arguments, sha)
    return folder


def prepare(data_dir, dataset="sample", lengths=((128, 20), (512, 80)), parameters="", sha="a"):
    """Records of these lengths."""
    for seq, pred in lengths:
        folder = data_dir / "tfrecord" / f"lower_case_1_seq_len_{seq}_max_pred_{pred}{parameters}" / dataset
        arguments = {"max_seq_length": seq, "max_predictions_per_seq": pred}
        write_shards(folder, "tfrecord", arguments, sha)


def prepare_tokens(data_dir, dataset="sample"):
    return write_shards(data_dir / "tokens/lower_case_1" / dataset, "tokens", {})


def pretend_machine(monkeypatch, horovod=True, mpi=True, tools=("mpirun", "srun", "ssh")):
    """What is installed, of Horovod and of what starts ranks."""
    monkeypatch.setattr(software, "horovod_library", lambda: Path("mpi_lib.so") if horovod else None)
    monkeypatch.setattr(software, "horovod_has_mpi", lambda: horovod and mpi)
    monkeypatch.setattr(launchers.shutil, "which", lambda name: name if name in tools else None)
