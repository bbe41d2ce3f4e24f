"""scripts/biobert: arguments, and the flags of the program that is started."""

import os
import sys

import pytest

from bert_tf.base.errors import UserError
from bert_tf.launch import biobert
from bert_tf.launch.environment import LaunchEnvironment
from tests.chemprot_data import write_files
from tests.entity_data import columns
from tests.launch.test_launch import prepare
from tests.refusals import refused

# NVIDIA's, by position.
NAMES = "init_checkpoint train_batch_size learning_rate cased precision use_xla num_gpu seq_length bert_model"
PRETRAINING = (
    "train_batch_size learning_rate cased precision use_xla num_gpu warmup_steps train_steps num_accumulation_steps "
    "save_checkpoint_steps eval_batch_size"
)


@pytest.fixture
def folder(launch_folder, monkeypatch):
    """BC5CDR's and ChemProt's files, and a checkpoint of the tiny model by its files' names."""
    for kind in ("chem", "disease"):
        (launch_folder / "data/BC5CDR" / kind).mkdir(parents=True)
        for name in ("train", "devel", "test"):
            (launch_folder / f"data/BC5CDR/{kind}/{name}.tsv").write_text(columns())
    write_files(launch_folder / "data/ChemProt", dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), b""))
    monkeypatch.setenv("BIOBERT_DIR", str(launch_folder / "data"))
    return launch_folder


def flags_of(command):
    return dict(word.lstrip("-").split("=", 1) for word in command[3:])


@pytest.mark.parametrize(
    "arguments", [biobert.CHEMICAL_ARGUMENTS, biobert.DISEASE_ARGUMENTS, biobert.RELATION_ARGUMENTS]
)
def test_names_and_positions_are_nvidias(arguments):
    """The defaults are in test_launch_calls.py."""
    assert [each.name for each in arguments] == [*NAMES.split(), "eval_batch_size", "epochs"]


def test_names_and_positions_of_pretraining_are_nvidias_with_the_model_at_the_end():
    names = [[each.name for each in each] for each in biobert.PHASES.values()]
    ours = [*PRETRAINING.split(), "bert_model"]
    assert names == [ours, ["init_checkpoint", *ours]]


@pytest.mark.parametrize("kind", ["chem", "disease"])
def test_entities(folder, started, capsys, kind):
    typed = [str(folder / "tiny"), *"4 2e-5 true fp32 false 1 16 tiny 6 1.5".split()]
    assert biobert.launch_entities(kind, typed, LaunchEnvironment(os.environ)) == 0
    [(what, command, num_ranks)] = started
    assert (what, num_ranks) == (f"BC5CDR-{kind}, train_and_predict", 1)
    assert command[:3] == [sys.executable, "-m", "bert_tf.programs.ner"]
    data = folder / "data/BC5CDR" / kind
    assert flags_of(command) == {
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


def test_relations(folder, started, capsys):
    """Trained and scored on dev.tsv, then scored on test.tsv, then its labels predicted."""
    typed = [str(folder / "tiny"), *"4 2e-5 true fp32 false 1 16 tiny 6 1.5".split()]
    assert biobert.launch_relations(typed, LaunchEnvironment(os.environ)) == 0
    assert [what for what, *_ in started] == [f"ChemProt, {mode}" for mode in ("train_and_eval", "eval", "predict")]
    assert all(command[:3] == [sys.executable, "-m", "bert_tf.programs.classifier"] for _, command, _ in started)
    training, scoring, predicting = (flags_of(command) for _, command, _ in started)
    common = {
        "task_name": "ChemProt",
        "data_dir": str(folder / "data/ChemProt"),
        "do_lower_case": "false",
        "train_batch_size": "4",
        "predict_batch_size": "6",
        "learning_rate": "2e-05",
        "num_train_epochs": "1.5",
        "max_seq_length": "16",
        "precision": "fp32",
        "enable_xla": "false",
        "device": "cpu",
    }
    places = {
        name: {"model_dir": str(folder / "results" / name), "dllog_path": str(folder / f"results/{name}/dllogger.json")}
        for name in ("relations", "test")
    }
    tested = {**common, **places["test"], "init_checkpoint": places["relations"]["model_dir"]}
    assert training == {
        **common, **places["relations"], "init_checkpoint": str(folder / "tiny"), "mode": "train_and_eval"
    }  # fmt: skip
    assert scoring == {**tested, "mode": "eval", "eval_file": str(folder / "data/ChemProt/test.tsv")}
    assert predicting == {**tested, "mode": "predict"}
    shown = capsys.readouterr().out
    assert f"scores of test.tsv: {folder}/results/test/eval_results.txt" in shown and "test_results.tsv" in shown
    (folder / "data/ChemProt/dev.tsv").unlink()
    refused("ChemProt has no dev.tsv, with index, .*", biobert.launch_relations, typed, LaunchEnvironment(os.environ))


@pytest.mark.parametrize("number, lengths", [(1, "128 20"), (2, "512 80")])
def test_pretraining(folder, started, monkeypatch, number, lengths):
    monkeypatch.setenv("INIT_CHECKPOINT", str(folder / "tiny" if number == 1 else "another"))
    monkeypatch.setenv("DATA_DIR", str(folder))
    monkeypatch.setenv("DATASET", "sample")
    prepare(folder)
    typed = [*([str(folder / "tiny")] if number == 2 else []), *"4 1e-4 false fp32 false 1 2 9 3 5 7 tiny".split()]
    assert biobert.launch_pretraining(number, typed, LaunchEnvironment(os.environ)) == 0
    [(what, command, num_ranks)] = started
    assert (what, num_ranks, command[2]) == (f"phase {number}", 1, "bert_tf.programs.pretraining")
    flags, (length, num_predictions) = flags_of(command), lengths.split()
    assert (
        flags.items()
        >= {
            "model_dir": str(folder / f"results/phase_{number}"),
            "init_checkpoint": str(folder / "tiny"),
            "optimizer_type": "lamb",
            "bert_model": "tiny",
            "train_batch_size": "4",
            "num_accumulation_steps": "3",
            "learning_rate": "0.0001",
            "warmup_steps": "2",
            "num_train_steps": "9",
            "save_checkpoint_steps": "5",
            "eval_batch_size": "7",
            "max_seq_length": length,
            "max_predictions_per_seq": num_predictions,
        }.items()
    )
    cased = [*typed[: number + 1], "true", *typed[number + 2 :]]
    monkeypatch.setenv("RESULTS_DIR", str(folder / "cased"))
    refused("with one cased vocabulary", biobert.launch_pretraining, number, cased, LaunchEnvironment(os.environ))
