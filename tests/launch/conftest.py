"""Launchers see no variables of whoever starts the tests; those of fine-tuning start nothing."""

from __future__ import annotations

import pytest

from bert_tf.launch import call
from tests.launch.helpers import ROOT, VARIABLES


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PYTHONPATH": ROOT, "DATA_DIR": tmp_path / "data", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def started(monkeypatch):
    """The programs that a launcher would start: (what, command, ranks)."""
    calls = []
    monkeypatch.setattr(call, "run", lambda *arguments: calls.append(arguments[:3]) or 0)
    return calls
