"""The shell scripts start however they are called, and the set-up deletes nothing but what it has made."""

import os
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.processes import answer
from tests.refusals import refusal
from tests.scripts.test_macos import PYTHON
from tests.stand_ins import programs

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
    return answer(*command, cwd=cwd, **variables)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_starts_by_any_shell_and_through_a_link(tmp_path, script):
    """By sh, through a link and without a home: what goes so goes without any of these, too."""
    (tmp_path / "link.sh").symlink_to(ROOT / script)
    argument = [] if script.name in WITHOUT_HELP else ["--help"]
    done = start("sh", "link.sh", *argument, cwd=tmp_path, HOME=None, XDG_CACHE_HOME=None)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.startswith(WITHOUT_HELP.get(script.name, "")) and done.stdout


@pytest.mark.parametrize("name", ["pretrain_config.sh", "squad_config.sh"])
def test_what_only_bash_can_source_says_so(name):
    assert "error: these functions are for bash" in refusal(start("sh", ROOT / "scripts/configs" / name))


@pytest.mark.parametrize(
    ("script", "typed", "said"),
    [
        *(
            (f"{name}.sh", word, f"'{word}'")
            for name in ("setup", "test", "first_gpu")
            for word in ("wrong", "--wrong")
        ),
        ("first_gpu.sh", "--rehearse --budget_minutes ten", "--budget_minutes=ten: must be a number of minutes"),
        ("first_gpu.sh", "--peer_python", "--peer_python lacks its value"),
        ("run_squad.sh", "", "BERT_VENV=.*/venv: there is no bin/python in it"),
        ("doctor.sh", "", "BERT_VENV=.*/venv: there is no bin/python in it"),
    ],
)
def test_what_is_typed_wrong_does_nothing(tmp_path, script, typed, said):
    done = start("bash", ROOT / "scripts" / script, *typed.split(), BERT_VENV=str(tmp_path / "venv"))
    assert re.search(said, refusal(done)) and not list(tmp_path.iterdir())


def test_python_finds_the_project_from_every_folder(tmp_path):
    done = start(sys.executable, "-c", "import bert_tf", cwd=tmp_path, PYTHONPATH=None)
    assert done.returncode == 0, f"{done.stderr} (made by an older set-up? bash scripts/setup.sh --test)"


def test_the_set_up_deletes_nothing_that_it_has_not_made(tmp_path):
    place = tmp_path / "venv"

    def refused(fault):
        before = sorted(tmp_path.rglob("*"))
        line = refusal(start("bash", ROOT / "scripts/setup.sh", BERT_VENV=f"{place}/"))
        assert line.startswith(f"error: {place} is {fault}"), line
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


def set_up(tmp_path, path, *arguments, python="none"):
    """The set-up of an environment in that folder."""
    variables = {"PATH": path, "PYTHON": python, "BERT_VENV": str(tmp_path / "venv"), "XDG_CACHE_HOME": str(tmp_path)}
    return start("bash", ROOT / "scripts/setup.sh", *arguments, **variables)


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements/2.*/lock-cpu.txt")), ids=lambda lock: lock.parent.name)
@pytest.mark.parametrize(
    ("system", "machine", "packages_of_2_15"),
    [
        ("linux", "x86_64", ["tensorflow-cpu"]),
        ("linux", "aarch64", ["tensorflow", "tensorflow-cpu-aws"]),
        ("darwin", "arm64", ["tensorflow", "tensorflow-macos"]),
    ],
)
def test_a_lock_names_the_packages_that_hold_tensorflow_on_each_machine(lock, system, machine, packages_of_2_15):
    lines = [line.rstrip(" \\\n") for line in lock.read_text().splitlines() if line.startswith("tensorflow")]
    there = {"sys_platform": system, "platform_machine": machine, "python_full_version": "3.11.7"}
    names = [
        found.name for found in map(Requirement, lines) if found.marker is None or found.marker.evaluate(dict(there))
    ]
    found = [name for name in names if name not in ("tensorflow-estimator", "tensorflow-io-gcs-filesystem")]
    assert found == packages_of_2_15[: 2 if lock.parent.name == "2.15" else 1]


UNAME = 'case $1 in -s) echo Linux ;; -m) echo "{0}" ;; *) echo "Linux {0}" ;; esac'


@pytest.mark.parametrize(
    ("machine", "getconf", "arguments", "said"),
    [
        ("armv7l", "", [], "no packages for Linux on armv7l, only on x86_64 and aarch64"),
        ("i686", "", [], "no packages for Linux on i686, only on x86_64 and aarch64"),
        ("aarch64", "echo glibc 2.17", [], "the C library here is glibc 2.17, and .* glibc 2.28: take a newer Linux"),
        ("aarch64", "exit 1", [], "the C library here is another than glibc, and .* glibc 2.28: take a newer Linux"),
        ("aarch64", "", ["--gpu"], "packages for aarch64 have no code for GPUs; NVIDIA's container has"),
    ],
)
def test_the_set_up_names_a_machine_for_which_there_are_no_packages(tmp_path, machine, getconf, arguments, said):
    path = programs(tmp_path / "bin", uname=UNAME.format(machine), **({"getconf": getconf} if getconf else {}))
    assert re.search(said, refusal(set_up(tmp_path, path, *arguments)))


def test_the_set_up_leaves_another_machines_environment_as_it_is(tmp_path):
    numpy = tmp_path / "venv/lib/python3.11/site-packages/numpy/core"
    numpy.mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").touch()
    (numpy / "_multiarray_umath.cpython-311-s390x-linux-gnu.so").touch()
    line = refusal(set_up(tmp_path, os.environ["PATH"]))
    assert "venv holds packages for another machine than" in line and "s390x" in line
    assert "delete it, or name another place by BERT_VENV" in line and list(numpy.iterdir())


def test_packages_for_gpus_are_taken_where_there_is_none(tmp_path):
    """On a login node; the next set-up without --gpu stays with them. It ends before it fetches anything."""
    path = programs(tmp_path / "bin", df="printf 'Filesystem\\n/dev/sda 9 8 1024\\n'", python=PYTHON)
    for arguments, needed in ([], 2500), (["--test"], 3500), (["--gpu"], 10000), ([], 10000):
        done = set_up(tmp_path, path, *arguments, python="python")
        assert done.returncode == 1 and f"1 MiB are free at {ROOT}; the set-up needs about {needed}" in done.stderr


@pytest.mark.parametrize(
    ("answer", "said"),
    [("echo 2.16", "TensorFlow 2.16"), ("echo no such package >&2; exit 1", "TensorFlow without a version")],
)
def test_the_set_up_in_a_container_with_another_tensorflow(tmp_path, answer, said):
    """NVIDIA's images between and after the two: the images that can be used are named, and nothing is made."""
    path = programs(tmp_path / "bin", python3=answer)
    variables = {"PATH": path, "BERT_VENV": str(tmp_path / "venv"), "NVIDIA_PRODUCT_NAME": "TensorFlow"}
    line = refusal(start("bash", ROOT / "scripts/setup.sh", **variables))
    assert f"error: this container has {said}, and none of 2.15 2.17 2.20" in line
    assert "25.02-tf2-py3 has 2.17 and 24.03-tf2-py3 has 2.15" in line
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("version", "bits", "found"),
    [
        ((3, 8), 64, "no Python 3.9 to 3.13 of 64 bits was found (python3 here: 3.8, 64 bits), and uv could not fetch"),
        ((3, 14), 64, "(python3 here: 3.14, 64 bits)"),
        ((3, 11), 32, "(python3 here: 3.11, 32 bits)"),
        ((3, 13), 64, "Python 3.13 here has no module venv, and uv, which needs none, could not be had"),
    ],
)
def test_the_set_up_names_a_python_that_cannot_make_the_environment(tmp_path, version, bits, found):
    pretended = f"sys.version_info, sys.maxsize = {(*version, 0)}, {2 ** (bits - 1) - 1}"
    python = f"""case $* in
      -V) echo Python {version[0]}.{version[1]}; exit ;;
      *ensurepip*) exit 1 ;;
    esac
    exec {sys.executable} -c 'import sys; {pretended}; code = sys.argv[2]; del sys.argv[1:3]; exec(code)' "$@" """
    names = ("python", "python3", *(f"python3_{minor}" for minor in range(9, 14)))
    path = programs(tmp_path / "bin", uv="exit 1", **dict.fromkeys(names, python))
    done = set_up(tmp_path, path, python=None)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert found in done.stderr and "apt-get install python3-venv" in done.stderr
    assert "type the same command again" in done.stderr
