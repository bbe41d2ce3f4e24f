"""Launchers of fine-tuning that start nothing."""

from __future__ import annotations

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.launch import call


@pytest.fixture
def launch_folder(tmp_path, monkeypatch):
    """A checkpoint of the tiny model by its files' names, in a folder `tiny`; results go beside it."""
    for name in ("DATA_DIR", "LAUNCHER", "DRY_RUN", "VOCAB_FILE", "QUOTING", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/bert_config.json").write_text(BertConfig.preset("tiny", 50).to_json())
    (tmp_path / "tiny/bert_model.ckpt.index").write_text("")
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("DEVICE", "cpu")
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The programs that a launcher would start: (what, command, ranks)."""
    calls = []
    monkeypatch.setattr(call, "train", lambda what, job, _: calls.append((what, job.command, job.num_ranks)) or 0)
    return calls
