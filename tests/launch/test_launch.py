"""The shell launchers: by DRY_RUN=1 where nothing has to run, else with a stand-in for the program."""

from __future__ import annotations

import json
import os
import platform
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bert_tf.base.errors import UserError
from bert_tf.base.machine import GIB, count_gpus, process_state
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.bert_config import BertConfig
from bert_tf.launch import adam, call, checks, environment, finetune_benchmark, lamb, launchers, pretraining, squad
from bert_tf.launch import rank as rank_wrapper
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.prepared_data import choose_data
from bert_tf.memory.plan import Device
from bert_tf.settings.declaration import with_variable
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.pretraining_data import write_manifest
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
SMALL = "4 2 2 1e-3 1e-3 fp32 false 1 1 1 20 5 1 2 tiny".split()
RECIPE_VARIABLES = [
    *(each.variable for each in with_variable(*environment.SETTINGS)),
    *("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"),
]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, tmp_path):
    for name in RECIPE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def values_of(output):
    return dict(line.split(" = ", 1) for line in output.splitlines() if " = " in line)


def prepare(data_dir, dataset="sample", lengths=((128, 20), (512, 80)), parameters="", sha="a", lower=1):
    for seq, pred in lengths:
        folder = data_dir / "tfrecord" / f"lower_case_{lower}_seq_len_{seq}_max_pred_{pred}{parameters}" / dataset
        for split in ("training", "test"):
            (folder / split).mkdir(parents=True)
            (folder / split / f"{dataset}_{split}_0.tfrecord").touch()
        arguments = {"max_seq_length": seq, "max_predictions_per_seq": pred, "do_lower_case": lower}
        write_manifest(folder, "records", arguments, sha)


# --- GPUs and launchers --------------------------------------------------------------------------


def with_gpus(tmp_path, number):
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {i}: A GPU (UUID: x)'\n" for i in range(number)))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("visible, number", [(None, 4), ("", 0), ("2", 1), ("0,1,-1,2", 2), ("0,1,2,3,4", 4)])
def test_visible_gpus(tmp_path, monkeypatch, visible, number):
    monkeypatch.setenv("PATH", with_gpus(tmp_path, 4)["PATH"])
    assert count_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == number


def fake_machine(monkeypatch, horovod=True, mpi=True, tools=("mpirun", "srun", "ssh")):
    monkeypatch.setattr(checks, "horovod_library", lambda: Path("mpi_lib.so") if horovod else None)
    monkeypatch.setattr(checks, "horovod_has_mpi", lambda: horovod and mpi)
    monkeypatch.setattr(checks.shutil, "which", lambda name: name if name in tools else None)


def refusal(num_ranks, environ):
    """The first problem that a launcher finds before it starts so many ranks; "" if there is none."""
    try:
        for check in checks.start_checks(num_ranks, 0, environ, Path("/tmp")):
            check()
    except UserError as error:
        return str(error)
    return ""


def test_choice_of_launcher(monkeypatch):
    choose = checks.choose_launcher
    fake_machine(monkeypatch)
    assert [choose(1, {}), choose(2, {}), choose(2, {"SLURM_JOB_ID": "7"})] == ["none", "mpirun", "srun"]
    assert choose(2, {"LAUNCHER": "horovodrun"}) == "horovodrun" and refusal(2, {"LAUNCHER": "mpirun"}) == ""
    fake_machine(monkeypatch, mpi=False)
    assert [choose(2, {"SLURM_JOB_ID": "7"}), choose(2, {})] == ["srun", "horovodrun"]
    assert "LAUNCHER=mpirun needs a Horovod with MPI" in refusal(2, {"LAUNCHER": "mpirun"})
    fake_machine(monkeypatch, tools=())
    assert choose(2, {}) == "horovodrun" and refusal(2, {}) == ""
    for environ, expected in (
        ({"LAUNCHER": "srun"}, "there is no srun"),
        ({"HOSTS": "a,b"}, "HOSTS needs ssh, which is not on this machine's PATH"),
        ({"LAUNCHER": "none"}, "num_gpus is 2"),
    ):
        assert expected in refusal(2, environ)
    fake_machine(monkeypatch, horovod=False)
    assert choose(1, {}) == "none" and refusal(1, {}) == ""
    assert "needs Horovod, which is not installed" in refusal(2, {})


@pytest.mark.parametrize(
    "task, expected",
    [((0, 0, 0), "0 7 0 3 0 3"), ((2, 0, 2), "2 7 2 3 0 1"), ((4, 1, 1), "4 7 1 2 1 3"), ((6, 2, 1), "6 7 1 2 2 3")],
)
def test_places_in_a_slurm_step(task, expected):
    """Three nodes with 3, 2 and 2 tasks: rank, size, local rank and size, rank and size among equals."""
    number, node, local_rank = task
    place = rank_wrapper.slurm_place(
        {
            "SLURM_STEP_TASKS_PER_NODE": "3,2(x2)",
            "SLURM_PROCID": str(number),
            "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(local_rank),
            "SLURMD_NODENAME": "n",
            "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        }
    )
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert " ".join(place[f"HOROVOD_{name}"] for name in names) == expected
    assert place["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"


def test_the_interface_towards_another_host():
    """Gloo shall use it, and not the address of the host's own name."""
    assert rank_wrapper.interface_towards("127.0.0.1") == "lo"
    assert rank_wrapper.interface_towards("no address") == ""


def test_srun_and_hosts_spread_ranks_over_machines(monkeypatch):
    environ = {"SLURM_JOB_NUM_NODES": "2"}
    assert launchers.ranks_per_node(3, "srun", environ) == 2
    assert launchers.ranks_per_node(3, "mpirun", environ) == 3
    assert launchers.ranks_per_node(3, "mpirun", {"HOSTS": "a:2,b"}) == 2
    # Without these srun may put all of them on the first machine that has enough cores.
    assert {"--ntasks=16", "--ntasks-per-node=8"} <= set(launchers.launcher_command("srun", 16, 8, []))
    answer = subprocess.CompletedProcess([], 0, "mpirun (Open MPI) 4.1.4", "")
    monkeypatch.setattr(launchers.subprocess, "run", lambda *_, **__: answer)
    for launcher in ("mpirun", "horovodrun"):
        command = " ".join(launchers.launcher_command(launcher, 3, 2, ["NCCL_DEBUG"], {"a": 2, "b": 1}))
        assert " -np 3 " in command and " -H a:2,b:1" in command
        assert (" -x NCCL_DEBUG" in command) == (launcher == "mpirun")  # horovodrun passes everything on
        assert " -H " not in " ".join(launchers.launcher_command(launcher, 3, 3, []))


def test_a_host_that_does_not_share_the_results_folder(tmp_path):
    """The launcher has made the folder of the logs; whoever does not see it sees other files."""
    command = [sys.executable, "-m", "bert_tf.launch.rank", str(tmp_path / "elsewhere"), "2", "true"]
    answer = subprocess.run(command, env={**os.environ, "HOROVOD_RANK": "1"}, capture_output=True, text=True)
    assert answer.returncode == 2 and len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith(
        f"error: no log of rank 1 on {platform.node()}: it does not see {tmp_path / 'elsewhere'}, which"
    )


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr(launchers, "count_cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "HOROVOD_FUSION_THRESHOLD"):
        monkeypatch.delenv(name, raising=False)
    on_cpu = launchers.rank_environment(num_ranks=3, num_gpus=0)
    assert on_cpu["OMP_NUM_THREADS"] == on_cpu["TF_NUM_INTRAOP_THREADS"] == "2"
    assert launchers.rank_environment(16, 0)["OMP_NUM_THREADS"] == "1"
    assert on_cpu["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert "OMP_NUM_THREADS" not in launchers.rank_environment(num_ranks=2, num_gpus=2)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert launchers.rank_environment(3, 0)["OMP_NUM_THREADS"] == "5"


# --- Which data ----------------------------------------------------------------------------------

LENGTHS = [(128, 20), (512, 80)]


def test_the_only_dataset_is_found_and_of_several_the_named_one(tmp_path):
    prepare(tmp_path, "sample")
    prepare(tmp_path, "half", lengths=[(128, 20)])
    chosen = choose_data(tmp_path, None, LENGTHS)
    assert [(item.dataset, item.lengths) for item in chosen] == [("sample", (128, 20)), ("sample", (512, 80))]
    prepare(tmp_path, "wikicorpus_en")
    with pytest.raises(
        UserError,
        match=r"2 sets of data are prepared .* \(sample as records and wikicorpus_en as records\): choose by DATASET=",
    ):
        choose_data(tmp_path, None, LENGTHS)
    assert choose_data(tmp_path, "WikiCorpus_en", LENGTHS)[1].dataset == "wikicorpus_en"
    prepare(tmp_path, lengths=[(128, 20)], parameters="_dupe_factor_9")
    with pytest.raises(UserError, match=r"2 sets of data .*\(sample as records\): choose .* or move the folders"):
        choose_data(tmp_path, "sample", LENGTHS)


def test_errors_list_what_was_found(tmp_path):
    refused("found below .*: nothing", choose_data, tmp_path, None, LENGTHS)
    prepare(tmp_path, "sample", lengths=[(128, 20)])
    (tmp_path / "tfrecord/begun/sample/training").mkdir(parents=True)
    with pytest.raises(UserError, match=r"DATASET=sample is not prepared .*_20/sample \(128/20\).*no manifest"):
        choose_data(tmp_path, "sample", LENGTHS)
    prepare(tmp_path, lengths=[(512, 80)], sha="b")
    refused("one vocabulary", choose_data, tmp_path, None, LENGTHS)


def prepare_tokens(data_dir, dataset="sample", sha="a"):
    folder = data_dir / "tokens" / "lower_case_1" / dataset
    for split in ("training", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / f"{dataset}_{split}_0.tokens").touch()
    write_manifest(folder, "tokens", {"do_lower_case": 1}, sha)
    return folder


def test_token_files_serve_both_phases(tmp_path):
    folder = prepare_tokens(tmp_path)
    prepare(tmp_path, lengths=[(128, 20)])
    assert [item.folder for item in choose_data(tmp_path, None, LENGTHS)] == [folder, folder]
    with pytest.raises(UserError, match=r"as records; found below .*_20/sample \(128/20\), .*/sample \(all lengths\)"):
        choose_data(tmp_path, None, LENGTHS, "records")
    prepare(tmp_path, lengths=[(512, 80)])
    with pytest.raises(
        UserError, match=r"\(sample as records and sample as tokens\): choose .* DATA_FORMAT=records|tokens"
    ):
        choose_data(tmp_path, None, LENGTHS)
    assert [item.lengths for item in choose_data(tmp_path, None, LENGTHS, "records")] == LENGTHS
    assert choose_data(tmp_path, None, LENGTHS, "tokens")[1].training == folder / "training"


# --- Running -------------------------------------------------------------------------------------

STAND_IN = """
import json, os, pathlib, sys
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if "=" in argument)
folder = pathlib.Path(flags["model_dir"])
folder.mkdir(parents=True, exist_ok=True)
print("working on", folder.name)
with open(folder.parent / "calls.jsonl", "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
code = int(os.environ.get("STAND_IN_CODE_" + folder.name, "0"))
if code == 0:
    (folder / "config.json").write_text("{}")
    checkpoint = folder / "checkpoints" / ("ckpt-%08d" % int(flags["num_train_steps"]))
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "manifest.json").write_text('{"sha256": {}}')
    if "eval_files" in flags:
        (folder / "eval_results.txt").write_text("loss = 1.0\\nglobal_step = %s\\n" % flags["num_train_steps"])
sys.exit(code)
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose programs do nothing but leave traces, with prepared data."""
    (tmp_path / "program.py").write_text(STAND_IN)
    monkeypatch.setattr(environment, "program_command", lambda _: [str(tmp_path / "program.py")])
    monkeypatch.setattr(pretraining.Recipe, "_write_report", lambda _: None)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "run"))
    prepare(tmp_path / "data")
    return tmp_path


def calls(checkout):
    file = checkout / "run" / "calls.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def folders(checkout):
    """The run folders of the calls, in order."""
    return [Path(dict(flag.split("=", 1) for flag in call[1:])["--model_dir"]).name for call in calls(checkout)]


def launch(*typed, only=None):
    return lamb.launch(typed or SMALL, LaunchEnvironment(os.environ), only)


def test_both_phases_run_and_a_repetition_does_nothing(checkout, capfd):
    assert launch() == 0
    first, second = calls(checkout)
    flags = dict(argument[2:].split("=", 1) for argument in second[1:])
    assert flags["init_checkpoint"] == str(checkout / "run" / "phase_1")
    assert flags["num_train_steps"] == "2" and flags["max_seq_length"] == "512"
    assert flags["enable_xla"] == "false" and flags["learning_rate"] == "0.001"
    assert "--use_horovod" not in first
    assert "working on phase_1" in capfd.readouterr().out
    assert list((checkout / "run/phase_1/logs").glob("*/rank_0.log"))[0].read_text() == "working on phase_1\n"
    assert launch() == 0
    assert len(calls(checkout)) == 2
    assert "phase 1: finished already" in capfd.readouterr().out
    (damaged,) = checkout.glob("run/phase_2/checkpoints/ckpt-*/manifest.json")
    damaged.write_text("no longer one")
    assert launch() == 0
    assert folders(checkout) == ["phase_1", "phase_2", "phase_2"], "a damaged last checkpoint is made again"


def test_continued_pretraining_starts_from_a_checkpoint(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("INIT_CHECKPOINT", "google/bert_model.ckpt")
    (checkout / "google").mkdir()
    (checkout / "google/bert_model.ckpt.index").touch()
    assert launch() == 0
    starts = [dict(argument[2:].split("=", 1) for argument in call[1:])["init_checkpoint"] for call in calls(checkout)]
    assert starts == [os.path.abspath("google/bert_model.ckpt"), str(checkout / "run" / "phase_1")]
    monkeypatch.delenv("INIT_CHECKPOINT")
    refused("init_checkpoint: '.*google/bert_model.ckpt' there, None now", launch)


def test_packing_is_passed_on_and_belongs_to_the_plan(checkout, monkeypatch):
    monkeypatch.setenv("PACKING", "1")
    assert launch() == 0
    assert all("--packing=true" in call for call in calls(checkout))
    monkeypatch.delenv("PACKING")
    refused("packing: True there, None now", launch)


def test_no_next_sentence_is_passed_on_reads_token_files_and_belongs_to_the_plan(checkout, monkeypatch):
    """Although there are records, too."""
    folder = checkout / "data/tokens/lower_case_1_shard_1_test_split_10/sample"
    for split in ("training", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / f"sample_{split}_0.tokens").touch()
    write_manifest(folder, "tokens", {"do_lower_case": 1}, "a")
    monkeypatch.setenv("NO_NEXT_SENTENCE", "1")
    assert launch() == 0
    assert all("--no_next_sentence=true" in call for call in calls(checkout))
    assert all(f"--input_files={folder}/training" in call for call in calls(checkout))
    monkeypatch.delenv("NO_NEXT_SENTENCE")
    monkeypatch.setenv("DATA_FORMAT", "tokens")
    with pytest.raises(UserError, match="no_next_sentence: True there, None now"):
        launch()


def test_variables_of_the_programs_are_passed_on(checkout, monkeypatch):
    """The CPU can be asked for where there are GPUs."""
    monkeypatch.setenv("PATH", with_gpus(checkout, 2)["PATH"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    variables = {"ALLOW_MISSING_WEIGHTS": "1", "RECOMPUTE": "true", "MAX_EVAL_STEPS": "0", "DEVICE": "cpu"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert LaunchEnvironment(os.environ).num_gpus == 0
    assert launch() == 0
    flags = {"--allow_missing_weights=true", "--recompute=true", "--max_eval_steps=0", "--device=cpu"}
    assert all(flags <= set(words) for words in calls(checkout))


def test_adam_runs_in_one_phase(checkout):
    typed = "4 4 1e-3 fp32 false 1 0 10 5 tiny 1 512 80".split()
    assert adam.launch(typed, LaunchEnvironment(os.environ)) == 0
    (flags,) = (dict(argument[2:].split("=", 1) for argument in call[1:]) for call in calls(checkout))
    assert flags["optimizer_type"] == "adamw" and "init_checkpoint" not in flags
    assert Path(flags["model_dir"]).name == "pretraining" and flags["max_seq_length"] == "512"


def test_a_failing_phase_ends_the_script_with_its_code(checkout, monkeypatch):
    monkeypatch.setenv("STAND_IN_CODE_phase_1", "41")
    assert launch() == 41
    assert len(calls(checkout)) == 1
    monkeypatch.delenv("STAND_IN_CODE_phase_1")
    assert launch() == 0
    assert len(calls(checkout)) == 3


def test_other_arguments_are_refused_with_the_difference(checkout, monkeypatch):
    assert launch() == 0
    changed = [*SMALL[:3], "2e-3", *SMALL[4:]]
    refused("learning_rate_phase1: 0.001 there, 0.002 now", launch, *changed)
    monkeypatch.setenv("CONTINUE_WITH_CHANGES", "1")
    (checkout / "run/phase_1/eval_results.txt").unlink()
    assert launch(*changed) == 0
    assert "--continue_with_changes=true" in calls(checkout)[-1]


def test_a_batch_size_to_be_found_counts_as_one_in_the_global_batch(checkout):
    """The accumulation argument then holds the rank's sequences in an update."""
    assert launch("auto", "auto", *SMALL[2:12], "4", "4", "tiny") == 0
    for words in calls(checkout):
        assert "--train_batch_size=auto" in words and "--global_batch_size=4" in words
        assert not any(flag.startswith("--num_accumulation_steps") for flag in words)


def test_a_batch_size_to_be_found_is_refused_with_packing(checkout, monkeypatch):
    monkeypatch.setenv("PACKING", "1")
    refused("batch size auto and packing .* give the size as a number", launch, "4", "auto", *SMALL[2:])
    assert not calls(checkout)


def test_phases_one_by_one(checkout, monkeypatch, capfd):
    refused("phase 2 starts from the end of phase 1", launch, only="phase_2")
    with monkeypatch.context() as patch:
        patch.setenv("DRY_RUN", "1")
        assert launch(only="phase_2") == 0
    shown = capfd.readouterr().out
    assert values_of(shown)["init_checkpoint"] == str(checkout / "run/phase_1")
    assert "note: a real run would stop here: phase 2 starts from the end of phase 1" in shown
    assert launch(only="phase_1") == launch(only="phase_2") == 0
    assert folders(checkout) == ["phase_1", "phase_2"]


@pytest.mark.parametrize("name", ["plan.json", "report.html"])
def test_files_of_others_in_the_results_folder_stay(checkout, name):
    file = checkout / "run" / name
    file.parent.mkdir()
    file.write_text("<!DOCTYPE html>mine")
    refused(f"^{file} is a file that this program has not written, so it is not overwritten", launch)
    assert [path.name for path in file.parent.iterdir()] == [name] and file.read_text() == "<!DOCTYPE html>mine"


def test_without_a_test_split_there_is_training_and_no_evaluation(checkout, capfd):
    for file in (checkout / "data").glob("tfrecord/*/*/test/*"):
        file.unlink()
    assert launch() == 0
    assert "evaluation = none, because the dataset has no test split" in capfd.readouterr().out
    assert not any("eval" in flag.split("=")[0] for call in calls(checkout) for flag in call if "batch" not in flag)
    assert launch() == 0
    assert len(calls(checkout)) == 2, "phases are finished by their checkpoints"


def test_a_phase_goes_on_that_was_killed_in_its_evaluation_or_has_not_reached_its_end(checkout):
    assert launch(only="phase_1") == 0
    (checkout / "run/phase_1/eval_results.txt").unlink()
    assert launch(only="phase_2") == launch() == 0
    assert folders(checkout) == ["phase_1", "phase_2", "phase_1"]
    (checkout / "run/phase_1/checkpoints/ckpt-00000018").rename(checkout / "run/phase_1/checkpoints/ckpt-00000017")
    assert launch() == 0
    assert len(calls(checkout)) == 4


def test_restarts_and_hours_are_shown_and_the_hours_of_all_phases_passed_on(checkout, monkeypatch, capfd):
    monkeypatch.setenv("RESTARTS", "3")
    monkeypatch.setenv("MAX_HOURS", "1.5")
    assert launch() == 0
    shown = values_of(capfd.readouterr().out)
    assert (shown["restarts"], shown["max_hours"]) == ("3", "1.5")
    hours = [float(flag.split("=")[1]) for call in calls(checkout) for flag in call if flag.startswith("--max_hours")]
    assert len(hours) == 2 and 1.4 < hours[1] <= hours[0] <= 1.5


def test_switches_are_on_off_or_refused_by_name():
    for text, expected in (("1", True), ("YES", True), ("0", False), ("no", False), ("", False)):
        assert bool(LaunchEnvironment({"PACKING": text}).given("packing")) is expected
    for name, text, rule in (
        ("DRY_RUN", "off", "1, 0, true, false, yes or no"),
        ("MAX_EVAL_STEPS", "1_0", "a whole number"),
        ("RESTARTS", "-1", "a whole number of at least 0"),
        ("MAX_HOURS", "0", "a number above 0, and at most 100000"),
        ("DEVICE", "tpu", "one of auto, cpu"),
    ):
        refused(f"{name}={text}: must be {rule}", LaunchEnvironment, {name: text})


def test_a_start_that_was_refused_does_not_bind_the_next_one(checkout, monkeypatch):
    """By the launcher, which sees that there is no checkpoint, or by the program, before it binds its folder."""
    monkeypatch.setenv("INIT_CHECKPOINT", str(checkout / "gogle"))
    refused("INIT_CHECKPOINT=.*gogle: there is no checkpoint", launch)
    (checkout / "gogle").mkdir()
    (checkout / "gogle/bert_model.ckpt.index").touch()
    monkeypatch.setenv("STAND_IN_CODE_phase_1", "2")
    assert launch() == 2
    (checkout / "gogle/bert_model.ckpt.index").rename(checkout / "gogle/model.safetensors")
    assert launch() == 2
    monkeypatch.delenv("INIT_CHECKPOINT")
    monkeypatch.delenv("STAND_IN_CODE_phase_1")
    assert launch() == 0


@pytest.mark.parametrize("content", ["", "[]"])
def test_a_damaged_plan_is_named(checkout, content):
    assert launch() == 0
    (checkout / "run/plan.json").write_text(content)
    refused("plan.json (is|holds) .*; delete it", launch)


def test_without_tensorflow(checkout, monkeypatch, capsys):
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    refused("scripts/setup.sh", launch)
    monkeypatch.setenv("DRY_RUN", "1")
    assert launch() == 0
    assert f"note: a real run would stop here: {sys.executable} has no tensorflow" in capsys.readouterr().out


# --- SQuAD ---------------------------------------------------------------------------------------


@pytest.fixture
def questions(checkout, monkeypatch):
    for version in ("1.1", "2.0"):
        for split in ("train", "dev"):
            (checkout / f"{split}-v{version}.json").write_text("{}")
    (checkout / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *map(str, range(45))]) + "\n")
    (checkout / "tiny").mkdir()
    (checkout / "tiny/bert_config.json").write_text(BertConfig.preset("tiny", 50).to_json())
    (checkout / "tiny/bert_model.ckpt.index").write_text("")
    monkeypatch.setenv("SQUAD_DIR", str(checkout))
    return checkout


def squad_flags(checkpoint, model="tiny", version="1.1"):
    typed = ["4", "5e-5", "fp32", "false", "1", "128", "64", model, version, str(checkpoint), "1.5"]
    return squad.training_flags(squad.make_call("squad", squad.ARGUMENTS, typed, LaunchEnvironment(os.environ)))


def test_squad_flags(questions):
    flags = squad_flags(questions / "tiny/bert_model.ckpt", version="2.0")
    assert flags["init_checkpoint"] == questions / "tiny/bert_model.ckpt"
    assert flags["train_file"] == questions / "train-v2.0.json"
    assert flags["version_2_with_negative"] is True and flags["num_train_epochs"] == 1.5


def test_squad_inference(questions, monkeypatch):
    commands = []
    monkeypatch.setattr(call, "train", lambda what, job, _: commands.append(job.command) or 0)
    typed = [str(questions / "tiny/bert_model.ckpt"), "4", "fp32", "false", "128", "64", "tiny", "2.0"]
    assert squad.launch_inference(typed, LaunchEnvironment(os.environ)) == 0
    flags = dict(argument[2:].split("=", 1) for argument in commands[0][2:])
    assert flags["mode"] == "predict" and "train_file" not in flags
    assert flags["init_checkpoint"] == typed[0] and flags["predict_file"] == str(questions / "dev-v2.0.json")
    assert (flags["predict_batch_size"], flags["doc_stride"], flags["version_2_with_negative"]) == ("4", "64", "true")
    with pytest.raises(UserError, match=r"bert_model \(position 7\) is base"):
        squad.launch_inference([*typed[:6], "base"], LaunchEnvironment(os.environ))
    with pytest.raises(UserError, match=r"checkpoint \(position 1\) is 'absent'"):
        squad.launch_inference(["absent"], LaunchEnvironment(os.environ))


def test_finetune_benchmarks(monkeypatch, capsys, tmp_path):
    """Without arguments all that fits is measured; what is typed is measured alone."""
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setattr(finetune_benchmark, "find_device", lambda *_: Device(6 * GIB, "a small GPU"))
    here = LaunchEnvironment({**os.environ, "DEVICE": "cpu"})
    assert finetune_benchmark.launch("train", [], here) == 0
    sweep = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bert_model")]
    assert any("batch_size 8" in line and "base" in line for line in sweep)
    assert not any("large" in line and "batch_size 64" in line for line in sweep)
    assert finetune_benchmark.launch("predict", ["base", "2", "fp32", "false"], here) == 0
    assert "seq_length 384, bert_model base, batch_size 2, precision fp32" in capsys.readouterr().out
    refused(r"num_gpu \(position 2\) is '0'", finetune_benchmark.launch, "train", ["base", "0"], here)


def test_a_folder_of_hugging_face_is_a_checkpoint(questions):
    folder = questions / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 2, "hidden_size": 128}')
    assert squad_flags(folder)["init_checkpoint"] == folder
    with pytest.raises(
        UserError, match="bert_model .* is base, 12 layers of 768, but .*config.json .* 2 layers of 128"
    ):
        squad_flags(folder, model="base")
    (folder / "config.json").write_text('{"num_hidden_layers": 6, "hidden_size": 384}')
    refused("6 layers of 384; no model here has that size: use the program itself", squad_flags, folder)
    (folder / "config.json").unlink()
    refused("bert_config.json cannot be read .*; name the folder .* that is phase_2", squad_flags, folder)


def test_random_weights_need_a_vocabulary(questions, monkeypatch):
    refused("VOCAB_FILE", squad_flags, "none")
    monkeypatch.setenv("VOCAB_FILE", str(questions / "vocab.txt"))
    flags = squad_flags("none")
    assert "init_checkpoint" not in flags
    assert BertConfig.from_json_file(flags["bert_config_file"]) == BertConfig.preset("tiny", 50)
    squad_flags("none")  # replaces its own file
    flags["bert_config_file"].write_text('{"hidden_size": 128, "directionality": "bidi"}')
    refused("bert_config.json is a file that this program has not written", squad_flags, "none")


def test_missing_questions(questions):
    (questions / "dev-v1.1.json").unlink()
    refused("dev-v1.1.json does not exist; download it", squad_flags, questions / "tiny")


# --- Ranks ---------------------------------------------------------------------------------------


def run_job(tmp_path, program, num_ranks=1, launcher="none"):
    file = tmp_path / "program.py"
    file.write_text(program)
    return launchers.run(launchers.Job([sys.executable, str(file)], num_ranks, 0, launcher, tmp_path / "logs"))


def start_launcher(tmp_path, program, num_ranks=1, launcher="none"):
    """One in a process of its own; the program's argument is where it may leave files."""
    file = tmp_path / "program.py"
    file.write_text(program)
    code = (
        "import sys, pathlib; from bert_tf.launch import launchers; sys.exit(launchers.run(launchers.Job("
        f"[sys.executable, {str(file)!r}, {str(tmp_path / 'process_')!r}], {num_ranks}, 0, {launcher!r}, "
        f"pathlib.Path({str(tmp_path / 'logs')!r}))))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_a_rank_that_is_killed(tmp_path, capfd):
    assert run_job(tmp_path, "import os; print('here', flush=True); os.kill(os.getpid(), 9)") == 137
    assert "here" in capfd.readouterr().out


def test_a_program_that_cannot_be_started(tmp_path, capfd):
    missing = launchers.Job([str(tmp_path / "absent")], 1, 0, "none", tmp_path / "logs")
    assert launchers.run(missing) != 0
    assert "absent" in capfd.readouterr().err


def test_signals_reach_the_ranks_and_their_code_comes_back(tmp_path):
    process = start_launcher(
        tmp_path,
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({STOPPED_EXIT_CODE}))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n",
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == STOPPED_EXIT_CODE


def test_ranks_end_with_the_launcher(tmp_path):
    process = start_launcher(tmp_path, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    rank = process.stdout.readline().strip()
    process.kill()
    process.wait()
    wait_for(lambda: process_state(rank) in ("", "Z"))


def test_a_child_whose_parent_is_killed_while_it_starts(monkeypatch, tmp_path):
    """Then the kernel has nobody to tell it about; on a busy machine there is time for that."""
    monkeypatch.setattr(os, "getppid", lambda: 1)
    child = rank_wrapper.start_child(["sleep", "60"], subprocess.DEVNULL, os.environ, signal.SIGKILL)
    assert child.wait(timeout=30) == 137


RANKS_PROGRAM = """
import os, sys, time
import horovod.tensorflow as hvd
import tensorflow as tf
from bert_tf.ranks.connect import connect
connect(use_horovod=True)
total = hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum).numpy()
print("total", total, "of", hvd.size(), flush=True)
if hvd.rank() == 1:
    print("rank 1 gives up", flush=True)
    os._exit(7)
"""


def test_tensorflows_greetings_are_left_out_of_the_logs_and_all_else_is_there(tmp_path, capfd):
    noise = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I0000 00:00:1732.5 17 device_compiler.h:186] Compiled cluster using XLA!  This line is logged at most once\n"
        "2026-11-23 19:06:53.879829: E external/local_xla/xla/stream_executor/stream_executor_internal.h:177] "
        "SetPriority unimplemented for this stream.\n"
    )
    said = "update 1\nW0000 00:00:1732.5 17 file.cc:1] a real warning\nhalf a line"
    assert run_job(tmp_path, f"import sys; sys.stderr.write({noise!r}); sys.stderr.write({said!r})") == 0
    assert capfd.readouterr().out == said == (tmp_path / "logs/rank_0.log").read_text()


@pytest.mark.parametrize("received, code", [([], 1), ([signal.SIGUSR1], STOPPED_EXIT_CODE)])
def test_a_rank_that_could_not_even_write_its_code(tmp_path, capsys, received, code):
    """The launcher has then stopped the others: no stop that somebody asked for, and the reason is in its log."""
    (tmp_path / "rank_0.exit").write_text(f"{STOPPED_EXIT_CODE} 1.0")
    (tmp_path / "launcher.log").write_text(
        "[1]<stderr>:error: no log of rank 1 on b: it does not see it\n" + "x\n" * 30
    )
    assert launchers._exit_code(launchers.Job([], 2, 0, "horovodrun", tmp_path), 1, received) == code
    assert ("no log of rank 1 on b" in capsys.readouterr().err) == (code == 1)


def test_hosts_that_cannot_be_reached_are_named_without_horovods_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOSTS", "a:1,b:1")
    (tmp_path / "launcher.log").write_text(
        "ssh not successful for host a:\nssh: Could not resolve hostname a\n\nTraceback (most recent call last):\n"
        + '  File "<frozen runpy>", line 198, in _run_module_as_main\n' * 20
        + "RuntimeError: could not connect to some hosts via ssh\n"
    )
    assert launchers._exit_code(launchers.Job([], 2, 0, "horovodrun", tmp_path), 1, []) == 1
    assert capsys.readouterr().err == (
        "horovodrun ended with code 1:\n  ssh not successful for host a:\n  ssh: Could not resolve hostname a\n"
        "  Traceback (most recent call last):\n"
        "  RuntimeError: could not connect to some hosts via ssh\n"
        "docs/troubleshooting.md says what hosts need to have in common\n"
    )


@pytest.mark.parametrize(
    "code, log, is_said",
    [(137, "x\n", True), (1, "x\n", False), (137, "error: rank 0 on a has stood still for 20 s\n", False)],
)
def test_a_rank_that_was_killed_cannot_say_why_so_the_launcher_does(tmp_path, capsys, code, log, is_said):
    (tmp_path / "rank_0.exit").write_text(f"{code} 1.0")
    (tmp_path / "rank_0.log").write_text(log)
    assert launchers._exit_code(launchers.Job([], 1, 0, "none", tmp_path), code, []) == code
    assert ("rank 0 was killed (SIGKILL)" in capsys.readouterr().err) == is_said


WAITING_PROGRAM = """
import os, sys, time
rank = os.environ["HOROVOD_RANK"]
open(sys.argv[1] + rank, "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize("code, is_failure", [(0, False), (STOPPED_EXIT_CODE, False), (3, True)])
def test_a_rank_that_fails_leaves_a_mark(tmp_path, code, is_failure):
    command = [sys.executable, "-m", "bert_tf.launch.rank", str(tmp_path), "1", "sh", "-c", f"exit {code}"]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == code
    assert (tmp_path / rank_wrapper.FAILED).exists() == is_failure


def watch(child, folder, name):
    with open(folder / "log", "ab", buffering=0) as log:
        rank_wrapper._watch(child, folder, rank_wrapper.ForwardedSignals(()), log, name)
    return child.wait()


def test_a_rank_ends_where_another_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_wrapper, "WATCH_SECS", 0.01)
    monkeypatch.setattr(rank_wrapper, "WAIT_AFTER_FAILURE_SECS", 0.01)
    (tmp_path / rank_wrapper.FAILED).touch()
    with subprocess.Popen(["sleep", "100"]) as child:
        assert watch(child, tmp_path, "") == -signal.SIGKILL


def test_a_rank_that_stands_still_is_ended_and_one_that_goes_on_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_wrapper, "WATCH_SECS", 0.05)
    with subprocess.Popen(["sleep", "0.5"]) as child:
        child.send_signal(signal.SIGSTOP)
        threading.Timer(0.05, child.send_signal, [signal.SIGCONT]).start()
        assert watch(child, tmp_path, "rank 1 on a") == 0
    with subprocess.Popen(["sleep", "100"]) as child:
        child.send_signal(signal.SIGSTOP)
        assert watch(child, tmp_path, "rank 1 on b") == -signal.SIGKILL
    text = (tmp_path / "log").read_text()
    assert text.startswith("error: rank 1 on b has stood still for") and "rank 1 on a" not in text


def wait_for(condition):
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def processes_of(tmp_path):
    """Those that still run and have the folder in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(tmp_path) in (entry / "cmdline").read_text() and process_state(entry.name) not in ("", "Z"):
                found.append(entry.name)
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment, number",
    [
        ("at once", signal.SIGTERM),
        pytest.param("launcher", signal.SIGUSR1, marks=pytest.mark.long),
        pytest.param("one rank", signal.SIGTERM, marks=pytest.mark.long),
        ("both ranks", signal.SIGUSR1),
    ],
)
def test_a_signal_while_two_ranks_start_is_a_stop(tmp_path, moment, number):
    pytest.importorskip("horovod.tensorflow")
    process = start_launcher(tmp_path, WAITING_PROGRAM, 2, "horovodrun")
    if moment == "at once":
        wait_for(lambda: (tmp_path / "logs/launcher.log").exists())
    elif moment == "launcher":
        wait_for(lambda: len(processes_of(tmp_path)) > 1)
    else:
        wanted = 1 if moment == "one rank" else 2
        wait_for(lambda: len(list(tmp_path.glob("process_*"))) >= wanted)
    process.send_signal(number)
    assert process.wait(timeout=300) == STOPPED_EXIT_CODE
    wait_for(lambda: not processes_of(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["launcher", "both ranks"])
def test_a_killed_launcher_leaves_no_orphans(tmp_path, moment):
    pytest.importorskip("horovod.tensorflow")
    process = start_launcher(tmp_path, WAITING_PROGRAM, 2, "horovodrun")
    if moment == "launcher":
        wait_for(lambda: len(processes_of(tmp_path)) > 1)
    else:
        wait_for(lambda: len(list(tmp_path.glob("process_*"))) == 2)
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_two_ranks(tmp_path, capfd, monkeypatch, launcher):
    pytest.importorskip("horovod.tensorflow")
    if launcher == "mpirun" and not (checks.horovod_has_mpi() and launchers.shutil.which("mpirun")):
        pytest.skip("Horovod without MPI")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_job(tmp_path, RANKS_PROGRAM, 2, launcher) == 7
    assert not list((tmp_path / "logs").glob("*.here")), "left by ranks that waited for each other"
    shown = capfd.readouterr()
    assert "total 3.0 of 2" in shown.out
    assert "rank 1 ended first, with code 7" in shown.err and "rank 1 gives up" in shown.err


def test_a_signal_before_the_program_can_note_it_is_a_stop_too(tmp_path):
    process = start_launcher(tmp_path, "import time\nprint('starting', flush=True)\ntime.sleep(60)\n")
    assert process.stdout.readline() == "starting\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == STOPPED_EXIT_CODE
