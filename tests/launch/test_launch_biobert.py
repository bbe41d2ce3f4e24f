"""scripts/biobert: arguments, plan, the program's flags, errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.base.errors import UserError
from bert_tf.bert_config import BertConfig
from bert_tf.launch import biobert, call
from bert_tf.launch.__main__ import LAUNCHERS
from bert_tf.launch.environment import LaunchEnvironment
from tests.entity_data import columns

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts/biobert").glob("*.sh"))
# NVIDIA's names and defaults, by position.
NAMES = "init_checkpoint train_batch_size learning_rate cased precision use_xla num_gpu seq_length bert_model"
DEFAULTS = "8 3.125e-6 false fp16 true 16 128 base"
ENTITIES = {
    "ner_bc5cdr-chem": f"results/biobert_tf_uncased_base/model.ckpt {DEFAULTS} 8 10.0",
    "ner_bc5cdr-disease": f"results/biobert_tf_uncased_base/model.ckpt-4340 {DEFAULTS} 8 100.0",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """BC5CDR's files, and a checkpoint of the tiny model by its files' names."""
    for name in ("DATA_DIR", "LAUNCHER", "DRY_RUN", "VOCAB_FILE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for kind in ("chem", "disease"):
        (tmp_path / "data/BC5CDR" / kind).mkdir(parents=True)
        for name in ("train", "devel", "test"):
            (tmp_path / f"data/BC5CDR/{kind}/{name}.tsv").write_text(columns())
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/bert_config.json").write_text(BertConfig.preset("tiny", 50).to_json())
    (tmp_path / "tiny/bert_model.ckpt.index").write_text("")
    monkeypatch.setenv("BIOBERT_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("DEVICE", "cpu")
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The programs that a launcher would start: (what, command, ranks)."""
    calls = []
    monkeypatch.setattr(call, "train", lambda what, job, _: calls.append((what, job.command, job.num_ranks)) or 0)
    return calls


@pytest.mark.parametrize("name", ENTITIES)
def test_names_positions_and_defaults_are_nvidias(name):
    arguments, _ = LAUNCHERS[f"biobert/{name}"]
    assert [each.name for each in arguments] == [*NAMES.split(), "eval_batch_size", "epochs"]
    assert [each.default for each in arguments] == ENTITIES[name].split()


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_script_starts_its_launcher(script, folder):
    done = subprocess.run(["bash", script, "--help"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: bash scripts/biobert/{script.name} "), done.stderr
    done = subprocess.run(
        ["bash", script, folder / "tiny", *"8 1e-5 false fp32 true 1 64 tiny".split()],
        env={**os.environ, "DRY_RUN": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stdout.endswith("DRY_RUN: nothing was started\n"), done.stderr
    assert "a real run would stop here" not in done.stdout and not (folder / "results").exists()


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


@pytest.mark.parametrize(
    "position, value, message",
    [
        (1, "absent.ckpt", r"init_checkpoint \(position 1\) is 'absent.ckpt': there is no checkpoint"),
        (1, "none", "init_checkpoint is 'none' .random weights., which needs VOCAB_FILE"),
        (2, "auto", r"train_batch_size \(position 2\) is 'auto': must be a whole number"),
        (4, "maybe", r"cased \(position 4\) is 'maybe': must be one of true, false"),
        (9, "mini", r"bert_model \(position 9\) is mini, .* describes 2 layers of 128"),
        (11, "1.5", "chem has no devel.tsv, with a token .*; BIOBERT_DIR names the folder above BC5CDR"),
    ],
)
def test_mistakes(folder, started, position, value, message):
    typed = [str(folder / "tiny"), *"4 2e-5 true fp32 false 1 16 tiny 6 1.5".split()]
    typed[position - 1] = value
    if position == 11:
        (folder / "data/BC5CDR/chem/devel.tsv").unlink()
    with pytest.raises(UserError, match=message):
        biobert.launch_entities("chem", typed, LaunchEnvironment(os.environ))
    assert not started
