"""scripts/biobert: arguments, and the flags of the program that is started."""

import os
import sys

import pytest

from bert_tf.base.errors import UserError
from bert_tf.launch import biobert
from bert_tf.launch.environment import LaunchEnvironment
from tests.entity_data import columns

# NVIDIA's, by position.
NAMES = "init_checkpoint train_batch_size learning_rate cased precision use_xla num_gpu seq_length bert_model"


@pytest.fixture
def folder(launch_folder, monkeypatch):
    """BC5CDR's files, and a checkpoint of the tiny model by its files' names."""
    for kind in ("chem", "disease"):
        (launch_folder / "data/BC5CDR" / kind).mkdir(parents=True)
        for name in ("train", "devel", "test"):
            (launch_folder / f"data/BC5CDR/{kind}/{name}.tsv").write_text(columns())
    monkeypatch.setenv("BIOBERT_DIR", str(launch_folder / "data"))
    return launch_folder


@pytest.mark.parametrize("arguments", [biobert.CHEMICAL_ARGUMENTS, biobert.DISEASE_ARGUMENTS])
def test_names_and_positions_are_nvidias(arguments):
    """The defaults are in test_launch_calls.py."""
    assert [each.name for each in arguments] == [*NAMES.split(), "eval_batch_size", "epochs"]


@pytest.mark.parametrize("kind", ["chem", "disease"])
def test_entities(folder, started, capsys, kind):
    typed = [str(folder / "tiny"), *"4 2e-5 true fp32 false 1 16 tiny 6 1.5".split()]
    assert biobert.launch_entities(kind, typed, LaunchEnvironment(os.environ)) == 0
    [(what, command, num_ranks)] = started
    assert (what, num_ranks) == (f"BC5CDR-{kind}, train_and_predict", 1)
    assert command[:3] == [sys.executable, "-m", "bert_tf.programs.ner"]
    data = folder / "data/BC5CDR" / kind
    assert dict(word.lstrip("-").split("=", 1) for word in command[3:]) == {
        "mode": "train_and_predict",
        "train_file": f"{data / 'train.tsv'},{data / 'devel.tsv'}",
        "predict_file": str(data / "test.tsv"),
        "model_dir": str(folder / "results/entities"),
        "init_checkpoint": str(folder / "tiny"),
        "do_lower_case": "false",
        "train_batch_size": "4",
        "predict_batch_size": "6",
        "learning_rate": "2e-05",
        "num_train_epochs": "1.5",
        "max_seq_length": "16",
        "precision": "fp32",
        "enable_xla": "false",
        "dllog_path": str(folder / "results/entities/dllogger.json"),
        "device": "cpu",
    }
    shown = capsys.readouterr().out
    assert "cased = true\n" in shown and "global_batch_size = 4\n" in shown and "eval_results.txt" in shown


def test_each_file_must_be_there(folder, started):
    (folder / "data/BC5CDR/chem/devel.tsv").unlink()
    typed = [str(folder / "tiny"), *"4 2e-5 true fp32 false 1 16 tiny".split()]
    with pytest.raises(UserError, match="chem has no devel.tsv, with a token .*; BIOBERT_DIR names the folder above"):
        biobert.launch_entities("chem", typed, LaunchEnvironment(os.environ))
    assert not started
