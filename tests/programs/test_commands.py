"""The installed package: its commands, and what its wheel is told to hold."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.programs import commands

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # tomllib came with Python 3.11
COMMANDS = re.findall(r'^([\w-]+) = "bert_tf\.programs\.commands:(\w+)"$', PYPROJECT, re.MULTILINE)


def test_all_commands_are_there():
    names = "bertprep bert-pretrain bert-squad bert-classify bert-ner bert-swag bert-report bert-doctor bert-launch"
    recipes = "bert-pretrain-lamb bert-pretrain-adam"
    assert [command for command, _ in COMMANDS] == [*names.split(), *recipes.split()]


@pytest.mark.parametrize(("command", "function"), COMMANDS)
def test_a_command_runs_a_module_of_the_package(command, function):
    called = getattr(commands, function)
    assert callable(called)
    module = "bert_tf.launch" if called.func is commands._launch else called.args[0]
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    if found.submodule_search_locations:
        assert importlib.util.find_spec(f"{module}.__main__")
    else:
        assert module.startswith("bert_tf.")


def test_a_command_has_the_help_of_its_program(tmp_path):
    """From another folder."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bert_tf.programs.commands import bert_squad as c; c()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "Answers questions about texts" in done.stdout and "--doc_stride" in done.stdout, done.stderr


def test_every_file_that_is_read_beside_a_module_goes_into_the_wheel():
    packages = [path.parent for path in (ROOT / "bert_tf").rglob("__init__.py")]
    suffixes = {path.suffix for package in packages for path in package.iterdir() if path.is_file()} - {".py", ".sh"}
    [patterns] = re.findall(r'^"\*" = \[(.*)\]$', PYPROJECT, re.MULTILINE)
    assert all(f'"*{suffix}"' in patterns for suffix in suffixes), suffixes
