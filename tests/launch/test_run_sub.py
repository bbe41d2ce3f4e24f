"""run.sub: variables into arguments, the signal, the queue, containers; srun and scontrol are stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bert_tf.base.errors import UserError
from bert_tf.base.machine import launchers, software
from bert_tf.launch import pretraining, run_sub
from bert_tf.launch.arguments import Typed
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.recipes import find_recipe
from tests.launch.helpers import ROOT, VARIABLES, prepare
from tests.refusals import refused
from tests.stand_ins import programs

NVIDIA = "16 2 8 1.875e-4 1.25e-4 fp16 true 32 2000 200 7820 100 128 512 large"
SMALL = {"BERT_MODEL": "tiny", "PRECISION": "fp32", "TRAIN_STEPS": "20", "WARMUP_STEPS": "1"}
FOUR_NODES = {"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "8"}
# One rank's end for each; where something is to be saved, a signal is waited for: then a checkpoint, and code 75.
SRUN = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
while [[ "$1" != bert_tf.launch.rank ]]; do shift; done
code=0
echo ready >"$2/rank_0.log"
if [[ -n "$SAVED" ]]; then
  until [[ -s "$2/signals.txt" && "$(tr -d '\\n' <"$2/signals.txt")" ]]; do sleep 0.1; done
  mkdir -p "$RESULTS_DIR/phase_1/checkpoints/$SAVED"
  code=75
fi
for ((rank = 0; rank < $3; rank++)); do echo "$code 0.0" >"$2/rank_$rank.exit"; done
exit $code
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Environment variables of a job of two nodes with stand-ins for srun and scontrol, and with Pyxis."""
    prepare(tmp_path / "data")
    path = programs(tmp_path, srun=SRUN, scontrol='echo "scontrol $*" >>"$CALLS"')
    return {
        **{name: value for name, value in os.environ.items() if name not in VARIABLES},
        **SMALL,
        "CALLS": str(tmp_path / "calls"),
        "CONTAINER_IMAGE": "nvcr.io#nvidia/tensorflow:24.03-tf2-py3",
        "CUDA_VISIBLE_DEVICES": "",
        "DATA_DIR": str(tmp_path / "data"),
        "PATH": path,
        "RESULTS_DIR": str(tmp_path / "run"),
        "SAVED": "",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_SUBMIT_DIR": str(ROOT),
    }


def start(job, **variables):
    return subprocess.Popen(
        ["bash", str(ROOT / "run.sub")],
        env={**job, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def calls(job):
    file = Path(job["CALLS"])
    return file.read_text().splitlines() if file.exists() else []


def texts(phase, environ, folder, num_ranks=32):
    return " ".join(run_sub.argument_texts(phase, environ, folder, num_ranks))


@pytest.mark.parametrize(
    "phase, variables, old, new",
    [
        (1, "BATCHSIZE=16 LEARNING_RATE=1.875e-4 NUM_ACCUMULATION_STEPS=128", "", ""),
        (2, "BATCHSIZE=4", "16 2", "16 4"),
        (1, "BATCHSIZE=auto", "16 2", "auto 2"),
        (2, "LEARNING_RATE=1e-3", "1.25e-4", "1e-3"),
        (1, "NUM_ACCUMULATION_STEPS=64", "128 512", "64 512"),
        (2, "WARMUP_STEPS=9", "2000 200", "2000 9"),
        (1, "PRECISION=bf16 USE_XLA=false", "fp16 true", "bf16 false"),
        (1, "TRAIN_STEPS=90 SAVE_CHECKPOINT_STEPS=5", "7820 100", "90 5"),
        (1, "EVAL_BATCH_SIZE=4 BERT_MODEL=large", " 8 ", " 4 "),
    ],
)
def test_variables_become_the_recipes_arguments(tmp_path, phase, variables, old, new):
    given = dict(pair.split("=") for pair in variables.split())
    assert texts(phase, given, tmp_path) == NVIDIA.replace(old, new, 1)


def test_nvidias_defaults_make_nvidias_global_batches():
    phases = pretraining.make_phases(Typed(pretraining.LAMB, NVIDIA.split()))
    assert [(phase.global_batch_size, phase.num_updates) for phase in phases] == [(65536, 7038), (32768, 1564)]


def test_phase_2_takes_from_phase_1_what_is_not_typed(tmp_path):
    typed = "4 2 2 1e-3 1e-3 fp32 false 2 1 1 20 5 1 2 tiny".split()
    (tmp_path / "plan.json").write_text(
        json.dumps({**Typed(pretraining.LAMB, typed).values, "use_xla": "false", "dataset": "sample"})
    )
    assert texts(2, {"BATCHSIZE": "1"}, tmp_path, 2) == "4 1 2 0.001 0.001 fp32 false 2 1 1 20 5 1 2 tiny"


def test_a_phase_that_has_not_begun_may_get_other_arguments(tmp_path):
    typed = Typed(pretraining.LAMB, NVIDIA.split())
    values, (_, second) = typed.values, pretraining.make_phases(typed)
    (tmp_path / "plan.json").write_text(json.dumps(values))
    other = {**values, "train_batch_size_phase2": 4}
    pretraining.check_same_plan(tmp_path, other, [second])
    refused("train_batch_size_phase2: 2 there, 4 now", pretraining.check_same_plan, tmp_path, other, [])
    with pytest.raises(UserError, match="train_batch_size_phase1: 16 there, 4 now"):
        pretraining.check_same_plan(tmp_path, {**other, "train_batch_size_phase1": 4}, [second])


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({"SLURM_NTASKS": "12"}, 12),
        (FOUR_NODES, 32),
        ({"DRY_RUN": "1"}, 8),
        ({"DRY_RUN": "1", "SLURM_JOB_NUM_NODES": ""}, 8),
    ],
)
def test_number_of_ranks(environ, expected):
    assert run_sub.count_tasks(LaunchEnvironment(environ)) == expected


@pytest.mark.parametrize(
    "typed, changed, expected",
    [
        ([], {"PHASE": "3"}, "PHASE=3: must be one of 1, 2"),
        ([], {"BATCHSIZE": "0"}, "BATCHSIZE=0: must be a whole number of at least 1"),
        ([], {"LEARNING_RATE": "-1e-4", "PHASE": "2"}, "LEARNING_RATE=-1e-4: must be a number above 0"),
        ([], {"USE_XLA": "yes"}, "USE_XLA=yes: must be one of true, false"),
        (
            [],
            {"WARMUP_STEPS": "30", "PHASE": "2"},
            "warmup_steps_phase2 (position 10) is 30: must be at most the phase's 4",
        ),
        ([], {"BATCH_SIZE": "32"}, "BATCH_SIZE=32: run.sub reads no such variable; did you mean BATCHSIZE?"),
        ([], {"TRAIN_BATCH_SIZE": "32"}, "did you mean BATCHSIZE?"),
        ([], {"LEARNING_RATE_PHASE2": "1e-4", "PHASE": "2"}, "did you mean LEARNING_RATE?"),
        ([], {"NUM_GPUS": "4"}, "did you mean sbatch's -N and --ntasks-per-node?"),
        ([], {"RESULT_DIR": "/x"}, "did you mean RESULTS_DIR?"),
        ([], {"SLURM_JOB_NUM_NODES": "4(x2)"}, "SLURM_JOB_NUM_NODES=4(x2): must be a whole number"),
        ([], {"SLURM_NTASKS": ""}, "sbatch lacks --ntasks-per-node"),
        (["64", "8"], {}, "takes no arguments (the first is '64')"),
    ],
)
def test_wrong_values_are_refused(job, typed, changed, expected):
    with pytest.raises(UserError) as error:
        find_recipe("run_sub").launch(typed, LaunchEnvironment({**job, **changed}))
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert not calls(job)


def test_other_programs_variables_are_none_of_ours():
    others = "CONTAINER_NAME DATASET_DIR DEVICE_ID XDG_DATA_DIRS SLURM_CONTAINER_IMAGE SLURM_JOB_ID HOSTNAME PATH"
    run_sub.refuse_mistyped(dict.fromkeys(others.split(), "x"), phase=1)
    run_sub.refuse_mistyped({"BATCH_SIZE": ""}, phase=1)


def test_outside_of_slurm_it_is_refused(job):
    del job["SLURM_JOB_ID"]
    program = start(job)
    _, errors = program.communicate(timeout=300)
    assert program.returncode == 2 and errors.startswith("error: this is no Slurm job; type BATCHSIZE=16 ")
    assert len(errors.splitlines()) == 1
    program = start(job, SLURM_SUBMIT_DIR=job["RESULTS_DIR"])
    assert "is not the checkout: type sbatch in the checkout" in program.communicate(timeout=300)[1]


def test_a_dry_run_shows_what_would_run(job, tmp_path):
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_SUBMIT_DIR", "CONTAINER_IMAGE"):
        del job[name]
    program = start(job, **FOUR_NODES, DRY_RUN="1", LAUNCHER="srun")
    output, errors = program.communicate(timeout=300)
    assert program.returncode == 0, errors
    first, srun, *plan = output.splitlines()
    assert first == (
        "+ bash scripts/run_pretraining_lamb_phase1.sh 16 2 8 1.875e-4 1.25e-4 fp32 true 32 1 200 20 100 128 512 tiny"
    )
    assert srun.startswith("srun = srun --ntasks=32 --ntasks-per-node=8 ")
    assert "global_batch_size_phase1 = 65536" in plan and plan[-1] == "DRY_RUN: nothing was started"
    assert not calls(job) and not Path(job["RESULTS_DIR"]).exists()


def test_ranks_in_a_container(job):
    program = start(job, CONTAINER_MOUNTS="/raid/weights:/weights")
    output, errors = program.communicate(timeout=300)
    assert program.returncode == 0, output + errors
    (call,) = calls(job)
    data, results = job["DATA_DIR"], job["RESULTS_DIR"]
    for part in (
        "--ntasks=4 --ntasks-per-node=2 ",
        f" --container-image={job['CONTAINER_IMAGE']} ",
        f" --container-mounts={ROOT}:{ROOT},{data}:{data},{results}:{results},/raid/weights:/weights ",
        f" --container-workdir={ROOT} python3 -m bert_tf.launch.rank ",
        " python3 -m bert_tf.programs.pretraining ",
    ):
        assert part in call


def test_a_container_needs_srun_and_what_writes_the_report_outside_of_it(job, monkeypatch):
    for changed, expected in (
        ({"LAUNCHER": "mpirun"}, "only srun starts ranks in CONTAINER_IMAGE"),
        ({"LAUNCHER": "", "PATH": ""}, "there is no srun on this machine's PATH"),
    ):
        monkeypatch.setenv("PATH", changed.get("PATH", job["PATH"]))
        refused(expected, launchers.check_launcher, 1, 0, {**job, **changed})
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None if name == "plotly" else name)
    refused("has no plotly: '.* -m pip install jinja2 numpy plotly'", launchers.check_tensorflow, 1, 0, job)


@pytest.mark.parametrize(
    "sent, saved, code, requeued",
    [
        (signal.SIGUSR1, "ckpt-00000005", 75, ["scontrol requeue 7"]),
        (signal.SIGTERM, "ckpt-00000005", 75, []),  # cancelled, or Slurm puts it back by itself
        (signal.SIGUSR1, ".", 2, []),  # the next start would get no further
    ],
)
def test_ahead_of_the_time_limit_the_job_goes_back_into_the_queue(job, sent, saved, code, requeued):
    program = start(job, SAVED=saved)
    while program.poll() is None and not list(Path(job["RESULTS_DIR"]).glob("phase_1/logs/*/rank_0.log")):
        time.sleep(0.05)
    program.send_signal(sent)
    output, errors = program.communicate(timeout=300)
    assert program.returncode == code, output + errors
    assert calls(job)[1:] == requeued
    assert ("this start has saved nothing" in errors) == (code == 2)
