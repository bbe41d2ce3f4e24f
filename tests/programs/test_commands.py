"""The installed package: its commands, and what its wheel is told to hold."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from bert_tf.programs import commands

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # tomllib came with Python 3.11
COMMANDS = re.findall(r'^([\w-]+) = "bert_tf\.programs\.commands:(\w+)"$', PYPROJECT, re.MULTILINE)


def test_every_command_runs_a_module_of_the_package():
    names = "bertprep bert-pretrain bert-squad bert-classify bert-ner bert-swag bert-report bert-doctor bert-launch"
    assert [command for command, _ in COMMANDS] == [*names.split(), "bert-pretrain-lamb", "bert-pretrain-adam"]
    for _, function in COMMANDS:
        called = getattr(commands, function)
        module = "bert_tf.launch" if called.func is commands._launch else called.args[0]
        found = importlib.util.find_spec(module)
        assert found and (not found.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__"))


def test_every_file_that_is_read_beside_a_module_goes_into_the_wheel():
    packages = [path.parent for path in (ROOT / "bert_tf").rglob("__init__.py")]
    suffixes = {path.suffix for package in packages for path in package.iterdir() if path.is_file()} - {".py", ".sh"}
    [patterns] = re.findall(r'^"\*" = \[(.*)\]$', PYPROJECT, re.MULTILINE)
    assert all(f'"*{suffix}"' in patterns for suffix in suffixes), suffixes
