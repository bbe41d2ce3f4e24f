"""scripts/data_download.sh: which datasets it fetches, and where it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
GLUE = "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI".split()


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose Python writes down what it was asked for, and fails for what `fail` names."""
    root = tmp_path / "checkout"
    (root / "scripts").mkdir(parents=True)
    (root / "data").mkdir()
    # The tests themselves may run in a container.
    script = (CHECKOUT / "scripts/data_download.sh").read_text()
    assert "/.dockerenv" in script
    (root / "scripts/data_download.sh").write_text(script.replace("/.dockerenv", str(tmp_path / "dockerenv")))
    shutil.copytree(CHECKOUT / "scripts/docker", root / "scripts/docker")
    shutil.copy(CHECKOUT / "scripts/paths.sh", root / "scripts")
    for settings in ("bert_tf/settings", "bert_tf/tasks"):  # where launch.sh finds the variables
        shutil.copytree(CHECKOUT / settings, root / settings, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "scripts/python.sh").write_text(
        'echo "$BERT_PREP_WORKING_DIR ${*:2}" >>"$LOG"; [[ " ${FAIL:-} " != *" ${*: -1} "* ]]\n'
    )
    (root / "data/create_datasets_from_start.sh").write_text('echo "from start $*" >>"$LOG"\n')
    (tmp_path / "bin").mkdir()
    return root


def run(checkout, *arguments, image=False, **environment):
    docker = checkout.parent / "bin/docker"
    docker.write_text(
        '#!/bin/bash\ncase $1 in image) exit $IMAGE ;; info) exit ;; esac\nprintf "%s\\n" "docker" "$@" >>"$LOG"\n'
    )
    docker.chmod(0o755)
    log = checkout.parent / "log"
    log.write_text("")
    inside = dict.fromkeys(("NVIDIA_PRODUCT_NAME", "SINGULARITY_CONTAINER", "BERT_PREP_WORKING_DIR"), "")
    result = subprocess.run(
        ["bash", str(checkout / "scripts/data_download.sh"), *arguments],
        text=True,
        capture_output=True,
        env={
            **os.environ,
            **inside,
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "LOG": str(log),
            "IMAGE": "0" if image else "1",
            **environment,
        },
    )
    return result, log.read_text().splitlines()


def downloads(lines):
    return [line.split()[-1] for line in lines if "--action download" in line]


@pytest.mark.parametrize(
    "arguments,datasets,corpora",
    [
        ([], ["squad", *GLUE, "google_pretrained_weights"], "wiki_only"),
        (["wiki_only"], ["squad", *GLUE, "google_pretrained_weights"], "wiki_only"),
        (["all", "wiki_books"], ["squad", *GLUE, "google_pretrained_weights"], "wiki_books"),
        (["squad"], ["squad"], None),
        (["glue"], GLUE, None),
        (["pretrained", "wiki_only"], ["google_pretrained_weights"], None),
    ],
)
def test_what_is_fetched(checkout, arguments, datasets, corpora):
    result, lines = run(checkout, *arguments)
    assert result.returncode == 0, result.stderr
    assert downloads(lines) == datasets
    assert lines[0].startswith(f"{checkout}/data ")
    assert [line for line in lines if "from start" in line] == ([f"from start {corpora}"] if corpora else [])


@pytest.mark.parametrize("arguments", [["everything"], ["wiki_only", "all"], ["all", "wiki_only", "more"]])
def test_other_arguments_are_refused(checkout, arguments):
    result, lines = run(checkout, *arguments)
    assert result.returncode == 2 and not lines
    assert "usage: bash scripts/data_download.sh" in result.stderr


def test_what_fails_is_named_at_the_end_and_keeps_nobody_from_the_rest(checkout):
    result, lines = run(checkout, FAIL="squad QQP")
    assert result.returncode == 2 and "from start wiki_only" in lines
    assert "error: failed: squad QQP" in result.stderr


def test_container_gets_the_checkout_the_data_and_the_vocabulary(checkout, tmp_path):
    (tmp_path / "my vocab.txt").write_text("[PAD]")
    result, lines = run(
        checkout,
        "all",
        "wiki_only",
        image=True,
        VOCAB_FILE=str(tmp_path / "my vocab.txt"),
        BERT_PREP_WORKING_DIR=str(tmp_path / "work"),
    )
    assert result.returncode == 0, result.stderr
    assert lines[:3] == ["docker", "run", "--rm"] and "-it" not in lines
    folder, vocabulary = f"{tmp_path}/work", f"{tmp_path}/my vocab.txt"
    for mount in (f"{checkout}:/workspace/bert", f"{folder}:{folder}", f"{vocabulary}:{vocabulary}"):
        assert lines[lines.index(mount) - 1] == "-v"
    assert f"BERT_PREP_WORKING_DIR={folder}" in lines and f"VOCAB_FILE={vocabulary}" in lines
    assert lines[-5:] == ["bert", "bash", "scripts/data_download.sh", "all", "wiki_only"]


def test_inside_a_container_it_runs_right_there(checkout):
    _, lines = run(checkout, "squad", image=True, NVIDIA_PRODUCT_NAME="TensorFlow")
    assert downloads(lines) == ["squad"]
    (checkout.parent / "dockerenv").touch()
    _, lines = run(checkout, "glue", image=True)
    assert downloads(lines) == GLUE


@pytest.mark.parametrize("script", ["scripts/data_download.sh", "data/create_datasets_from_start.sh"])
def test_help_is_the_top_of_the_file(script):
    done = subprocess.run(["bash", CHECKOUT / script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
    assert f"  bash {script} [" in done.stdout and "set -" not in done.stdout and "#" not in done.stdout


def test_a_job_started_without_slurm_is_refused_in_one_line():
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    job = ["bash", CHECKOUT / "scripts/prepare_data.sub", "wiki_only"]
    done = subprocess.run(job, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 2 and done.stderr.startswith("error: this is a job for Slurm: sbatch ")
