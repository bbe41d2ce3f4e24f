"""run_glue.sh and run_glue_inference.sh: arguments, plan, the program's flags, errors."""

import os
import sys
from pathlib import Path

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.launch import glue
from bert_tf.launch.environment import LaunchEnvironment
from tests.glue_data import write_cola, write_model
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
TYPED = "CoLA 4 2e-5 fp32 false 1 16 64 tiny 1.5 0.2".split()


@pytest.fixture
def folder(launch_folder, monkeypatch):
    """GLUE's data, and a checkpoint of the tiny model by its files' names."""
    write_cola(launch_folder / "glue/CoLA")
    monkeypatch.setenv("GLUE_DIR", str(launch_folder / "glue"))
    return launch_folder


def flags_of(command):
    assert command[:2] == [sys.executable, "-m"] and command[2] == "bert_tf.programs.classifier"
    return dict(word.lstrip("-").split("=", 1) for word in command[3:])


def launch(function, *typed):
    return function(list(map(str, typed)), LaunchEnvironment(os.environ))


def test_fine_tuning(folder, started, capsys):
    assert launch(glue.launch, *TYPED, folder / "tiny") == 0
    [(what, command, num_ranks)] = started
    assert (what, num_ranks) == ("CoLA, train_and_eval", 1)
    assert flags_of(command) == {
        "mode": "train_and_eval",
        "task_name": "CoLA",
        "data_dir": str(folder / "glue/CoLA"),
        "model_dir": str(folder / "results/glue"),
        "init_checkpoint": str(folder / "tiny"),
        "train_batch_size": "4",
        "predict_batch_size": "4",
        "learning_rate": "2e-05",
        "num_train_epochs": "1.5",
        "warmup_proportion": "0.2",
        "max_seq_length": "16",
        "precision": "fp32",
        "enable_xla": "false",
        "dllog_path": str(folder / "results/glue/dllogger.json"),
        "device": "cpu",
    }
    shown = capsys.readouterr().out
    assert "doc_stride = 64\n" in shown and "global_batch_size = 4\n" in shown and "eval_results.txt" in shown


def test_inference_scores_and_predicts(folder, started, capsys):
    assert launch(glue.launch_inference, "cola", folder / "tiny", 8, "fp32", "false", 16, 64, "tiny") == 0
    modes = [flags_of(command).pop("mode") for _, command, _ in started]
    assert modes == ["eval", "predict"]
    assert flags_of(started[0][1])["model_dir"] == str(folder / "results")
    assert "nothing is predicted" not in capsys.readouterr().out
    (folder / "glue/CoLA/test.tsv").unlink()
    launch(glue.launch_inference, "cola", folder / "tiny", 8, "fp32", "false", 16, 64, "tiny")
    assert len(started) == 3 and "test.tsv nothing is predicted" in capsys.readouterr().out


def test_mistakes(folder, started):
    for number, value, message in (
        (11, "absent.ckpt", r"checkpoint \(position 12\) is 'absent.ckpt'"),
        (0, "RTE", "RTE has no train.tsv; .*; GLUE_DIR names the folder"),
    ):
        typed = [*TYPED, folder / "tiny"]
        typed[number] = value
        refused(message, launch, glue.launch, *typed)
    assert not started


def test_quoting_and_random_weights(folder, started, monkeypatch):
    monkeypatch.setenv("QUOTING", "csv")
    monkeypatch.setenv("VOCAB_FILE", str(write_model(folder / "model") / "vocab.txt"))
    assert launch(glue.launch, *TYPED, "none") == 0
    flags = flags_of(started[0][1])
    assert flags["quoting"] == "csv" and "init_checkpoint" not in flags
    assert BertConfig.from_json_file(flags["bert_config_file"]).num_hidden_layers == 2
    monkeypatch.setenv("QUOTING", "yes")
    refused("QUOTING=yes: must be one of none, csv", launch, glue.launch, *TYPED, folder / "tiny")
