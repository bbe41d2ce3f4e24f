"""run.sub: variables into arguments, the signal, the queue, containers; srun and scontrol are stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bert_tf.base.machine import software
from bert_tf.base.machine.launchers import Start
from bert_tf.launch import pretraining, run_sub
from bert_tf.launch.arguments import Positionals
from bert_tf.launch.environment import LaunchEnvironment
from tests.launch.helpers import ROOT, VARIABLES, prepare, pretend_machine
from tests.refusals import refused
from tests.stand_ins import programs

SMALL = {"BERT_MODEL": "tiny", "PRECISION": "fp32", "TRAIN_STEPS": "20", "WARMUP_STEPS": "1"}
# One rank's end for each. Where something is to be saved, a signal is waited for unless the job is preempted: then a
# checkpoint, and code 75.
SRUN = """#!/usr/bin/env bash
echo "SLURM_OVERLAP=$SLURM_OVERLAP $*" >>"$CALLS"
while [[ "$1" != bert_tf.launch.rank ]]; do shift; done
code=0
echo ready >"$2/rank_0.log"
if [[ -n "$SAVED" ]]; then
  until [[ -n "$PREEMPTED" || -s "$2/signals.txt" && "$(tr -d '\\n' <"$2/signals.txt")" ]]; do sleep 0.1; done
  mkdir -p "$RESULTS_DIR/phase_1/checkpoints/$SAVED"
  echo '{"sha256": {}}' >"$RESULTS_DIR/phase_1/checkpoints/$SAVED/manifest.json"
  code=75
fi
for ((rank = 0; rank < $3; rank++)); do echo "$code 0.0 a" >"$2/rank_$rank.exit"; done
exit $code
"""
SCONTROL = """if [[ "$1" == show ]]; then echo "PreemptEligibleTime=2026-11-28T05:38:19 PreemptTime=${PREEMPTED:-None}"
else echo "scontrol $*" >>"$CALLS"; fi"""


@pytest.fixture
def job(tmp_path):
    """Environment variables of a job of two nodes with stand-ins for srun and scontrol, and with Pyxis."""
    prepare(tmp_path / "data")
    folders = {"CALLS": "calls", "DATA_DIR": "data", "RESULTS_DIR": "run"}
    return {
        **{name: value for name, value in os.environ.items() if name not in VARIABLES},
        **SMALL,
        **{name: str(tmp_path / folder) for name, folder in folders.items()},
        "CONTAINER_IMAGE": "nvcr.io#nvidia/tensorflow:24.03-tf2-py3",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": programs(tmp_path, srun=SRUN, scontrol=SCONTROL),
        "PREEMPTED": "",
        "SAVED": "",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_SUBMIT_DIR": str(ROOT),
    }


def start(job, script=ROOT / "run.sub", **variables):
    streams = dict(text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen(["bash", str(script)], env={**job, **variables}, **streams)


def test_phase_2_takes_from_phase_1_what_is_not_typed(tmp_path):
    typed = "4 2 2 1e-3 1e-3 fp32 false 2 1 1 20 5 1 2 tiny".split()
    plan = {**Positionals(pretraining.LAMB, typed).values, "use_xla": "false", "dataset": "sample"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    texts = run_sub.argument_texts(2, {"BATCHSIZE": "1"}, tmp_path, 2)
    assert " ".join(texts) == "4 1 2 0.001 0.001 fp32 false 2 1 1 20 5 1 2 tiny"


def test_other_programs_variables_are_none_of_ours():
    others = "CONTAINER_NAME DATASET_DIR DEVICE_ID XDG_DATA_DIRS SLURM_CONTAINER_IMAGE SLURM_JOB_ID HOSTNAME PATH"
    run_sub.refuse_mistyped(dict.fromkeys(others.split(), "x"), phase=1)
    run_sub.refuse_mistyped({"BATCH_SIZE": ""}, phase=1)


@pytest.mark.parametrize(
    "name, phase, meant",
    [
        ("NUM_ACCUMULATION_PHASE1", 1, "NUM_ACCUMULATION_STEPS"),
        ("NUM_ACCUMULATION_PHASE1", 2, "NUM_ACCUMULATION_STEPS with PHASE=1"),
        ("LEARNING_RATE_PHASE2", 2, "LEARNING_RATE"),
        ("NUM_ACCUMULATION_STEPS_PHASE2", 2, "NUM_ACCUMULATION_STEPS"),
        ("TRAIN_BATCH_SIZE", 1, "BATCHSIZE"),
        ("BATCH_SIZE_PHASE1", 1, "BATCHSIZE"),
        ("NUM_TRAIN_STEPS", 1, "TRAIN_STEPS"),
        ("ENABLE_XLA", 2, "USE_XLA"),
        ("MASKED_LM_PROP", 1, "MASKED_LM_PROB"),
        ("NUM_GPUS", 1, "sbatch's -N and --ntasks-per-node"),
    ],
)
def test_a_variable_of_another_name_for_the_same_is_refused(name, phase, meant):
    message = rf"^{name}=3: run.sub reads .*; did you mean {meant}\? Else take it out: env -u {name} sbatch"
    refused(message, run_sub.refuse_mistyped, {name: "3"}, phase)


@pytest.mark.parametrize(
    "changed, code, said",
    [
        ({"SLURM_JOB_ID": None}, 2, "error: this is no Slurm job; type BATCHSIZE=16 "),
        ({"SLURM_NTASKS": ""}, 2, "error: sbatch lacks --ntasks-per-node"),
        ({"SLURM_JOB_NUM_NODES": "2-4"}, 2, "error: SLURM_JOB_NUM_NODES=2-4: must be a whole number"),
        ({"SLURM_JOB_ID": None, "SLURM_SUBMIT_DIR": None, "DRY_RUN": "1"}, 0, "+ bash scripts/run_pretraining_lamb_"),
    ],
)
def test_where_nothing_is_started(job, changed, code, said):
    program = start({name: value for name, value in {**job, **changed}.items() if value is not None})
    output, errors = program.communicate(timeout=300)
    assert (program.returncode, errors.count("\n")) == (code, code // 2) and (errors or output).startswith(said)
    assert not Path(job["CALLS"]).exists() and not Path(job["RESULTS_DIR"]).exists()


def test_the_checkout_is_that_of_the_script_or_where_sbatch_was_typed(job, tmp_path):
    """Slurm runs a copy; a shell of salloc's may have been asked for in another folder, or in another checkout."""
    copy = shutil.copy(ROOT / "run.sub", tmp_path / "slurm_script")
    for script, folder, code in ((copy, "/", 2), (copy, str(ROOT), 0), (ROOT / "run.sub", "/", 0)):
        program = start(job, script, SLURM_SUBMIT_DIR=folder, DRY_RUN="1")
        _, errors = program.communicate(timeout=300)
        assert program.returncode == code, errors
        assert errors == ("error: / is not the checkout: type sbatch in the checkout\n" if code else "")


def test_a_launcher_that_is_not_there(job, monkeypatch):
    pretend_machine(monkeypatch, tools=())
    environment = LaunchEnvironment({**job, "CONTAINER_IMAGE": "", "LAUNCHER": "mpirun"})
    refused("there is no mpirun on this machine's PATH", run_sub.RunSub(Positionals((), ()), environment).launch)


def test_a_container_needs_what_writes_the_report_outside_of_it(job, monkeypatch):
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None if name == "plotly" else name)
    said = "has no plotly: the reports need '.* -m pip install jinja2 numpy plotly'"
    refused(said, Start(1, 0, job).check_tensorflow)


@pytest.mark.parametrize("saved", ["ckpt-00000005", "."])
def test_a_preempted_job_that_ends_within_its_grace_time_goes_back_into_the_queue(job, saved):
    program = start(job, SAVED=saved, PREEMPTED="2026-11-28T05:38:26")
    output, errors = program.communicate(timeout=300)
    assert program.returncode == 75, output + errors
    assert Path(job["CALLS"]).read_text().splitlines()[1:] == ["scontrol requeue 7"]


@pytest.mark.parametrize(
    "sent, saved, code, requeued",
    [
        (None, "", 0, []),
        (signal.SIGUSR1, "ckpt-00000005", 75, ["scontrol requeue 7"]),
        (signal.SIGTERM, "ckpt-00000005", 75, []),  # cancelled, or Slurm puts it back by itself
        (signal.SIGUSR1, ".", 2, []),  # the next start would get no further
        (signal.SIGUSR1, "ckpt-00000005/damaged", 2, []),
    ],
)
def test_ranks_in_a_container_and_ahead_of_the_time_limit_back_into_the_queue(job, sent, saved, code, requeued):
    program = start(job, SAVED=saved, CONTAINER_MOUNTS="/raid/weights:/weights")
    while program.poll() is None and not list(Path(job["RESULTS_DIR"]).glob("phase_1/logs/*/rank_0.log")):
        time.sleep(0.05)
    if sent:
        program.send_signal(sent)
    output, errors = program.communicate(timeout=300)
    assert program.returncode == code, output + errors
    assert ("this start has saved nothing" in errors) == (code == 2)
    srun, *others = Path(job["CALLS"]).read_text().splitlines()
    assert others == requeued
    data, results = job["DATA_DIR"], job["RESULTS_DIR"]
    for part in (
        "SLURM_OVERLAP=1 ",
        "--ntasks=4 --ntasks-per-node=2 ",
        f" --container-image={job['CONTAINER_IMAGE']} ",
        f" --container-mounts={ROOT}:{ROOT},{data}:{data},{results}:{results},/raid/weights:/weights ",
        f" --container-workdir={ROOT} python3 -m bert_tf.launch.rank ",
        " python3 -m bert_tf.programs.pretraining ",
    ):
        assert part in srun
