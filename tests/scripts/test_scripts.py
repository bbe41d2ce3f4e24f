"""The shell scripts start however they are called, and the set-up deletes nothing but what it has made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Those that only another script sources, or a user's bash.
SOURCED = ("paths.sh", "docker.sh", "unknown.sh", "pretrain_config.sh", "squad_config.sh")
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("scripts", "scripts/docker", "data")
    for path in (ROOT / folder).glob("*.sh")
    if path.name not in SOURCED
)
# Of these, what shows that they have begun, where they have no --help.
WITHOUT_HELP = {"build.sh": "docker build ", "launch.sh": "docker run "}


def start(*command, cwd=None, **variables):
    variables = {"PYTHONPATH": str(ROOT), "DRY_RUN": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_starts_by_any_shell_and_through_a_link(tmp_path, shell, script):
    (tmp_path / "link.sh").symlink_to(ROOT / script)
    argument = [] if script.name in WITHOUT_HELP else ["--help"]
    for path in (ROOT / script, "link.sh"):
        done = start(*shell.split(), path, *argument, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert done.stdout.startswith(WITHOUT_HELP.get(script.name, "usage" if not argument else "")) and done.stdout


@pytest.mark.parametrize("name", ["pretrain_config.sh", "squad_config.sh"])
def test_what_only_bash_can_source_says_so(name):
    done = start("sh", ROOT / "scripts/configs" / name)
    assert done.returncode == 2 and done.stderr.startswith("error: these functions are for bash")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["setup.sh", "test.sh"])
@pytest.mark.parametrize("word", ["wrong", "--wrong"])
def test_a_wrong_word_does_nothing(tmp_path, script, word):
    done = start("bash", ROOT / "scripts" / script, word, BERT_VENV=str(tmp_path / "venv"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"'{word}'" in done.stderr and not list(tmp_path.iterdir())


def test_the_set_up_needs_no_home():
    done = start("bash", ROOT / "scripts/setup.sh", "--help", HOME=None, XDG_CACHE_HOME=None)
    assert done.returncode == 0 and "[--gpu] [--test]" in done.stdout and not done.stderr


def test_the_set_up_deletes_nothing_that_it_has_not_made(tmp_path):
    place = tmp_path / "venv"

    def refused(fault):
        before = sorted(tmp_path.rglob("*"))
        done = start("bash", ROOT / "scripts/setup.sh", BERT_VENV=f"{place}/")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"error: {place} is {fault}"), done.stderr
        assert sorted(tmp_path.rglob("*")) == before

    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/thesis.tex").write_text("mine")
    place.symlink_to(tmp_path / "disk")
    refused(f"a link to {tmp_path}/disk, and a link is neither followed nor deleted: remove it, or name")
    place.unlink()
    (tmp_path / "disk").rename(place)
    refused("a folder with files, but no virtual environment, and is not deleted")
    (place / "thesis.tex").unlink()
    place.rmdir()
    place.write_text("mine")
    refused("a file; remove it, or name another place")
