"""The shell scripts start however they are called, and the set-up deletes nothing but what it has made."""

import ast
import re
import sys
import venv

import pytest
from packaging.requirements import Requirement

from tests.processes import ROOT, answer
from tests.refusals import refusal
from tests.stand_ins import programs

# Those that only another script sources, or a user's bash.
SOURCED = ("paths.sh", "docker.sh", "unknown.sh", "pretrain_config.sh", "squad_config.sh")
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("scripts", "scripts/docker", "scripts/biobert", "data")
    for path in (ROOT / folder).glob("*.sh")
    if path.name not in SOURCED
)


def start(*command, cwd=None, **variables):
    variables = {"PYTHONPATH": str(ROOT), "DRY_RUN": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    return answer(*command, cwd=cwd, **variables)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_starts_by_any_shell_and_through_a_link(tmp_path, script):
    """By sh, through a link and without a home: what goes so goes without any of these, too."""
    (tmp_path / "link.sh").symlink_to(ROOT / script)
    done = start("sh", "link.sh", "--help", cwd=tmp_path, HOME=None, XDG_CACHE_HOME=None)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout and not done.stdout.startswith("docker")


def test_a_script_starts_in_posix_mode():
    """Which the environment hands on to the bash that it starts itself anew with."""
    done = start("bash", ROOT / "scripts/quickstart.sh", "--help", SHELLOPTS="posix", POSIXLY_CORRECT="1")
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("name", ["pretrain_config.sh", "squad_config.sh"])
def test_what_only_bash_can_source_says_so(name):
    assert "error: these functions are for bash" in refusal(start("sh", ROOT / "scripts/configs" / name))


@pytest.mark.parametrize(
    ("script", "typed", "said"),
    [
        *((f"{name}.sh", word, f"'{word}'") for name in ("setup", "test", "first_gpu") for word in ("x", "--x")),
        ("first_gpu.sh", "--rehearse --budget_minutes ten", "--budget_minutes=ten: must be a number of minutes"),
        ("first_gpu.sh", "--peer_python", "--peer_python lacks its value"),
        ("run_squad.sh", "", "BERT_VENV=.*/venv: there is no bin/python in it"),
        ("doctor.sh", "", "BERT_VENV=.*/venv: there is no bin/python in it"),
    ],
)
def test_what_is_typed_wrong_does_nothing(tmp_path, script, typed, said):
    done = start("bash", ROOT / "scripts" / script, *typed.split(), BERT_VENV=str(tmp_path / "venv"))
    assert re.search(said, refusal(done)) and not list(tmp_path.iterdir())


def python_in_scripts():
    """What the scripts give to `python -c`, each with its script."""
    return [
        pytest.param(code, id=f"{path.name}: {code[:40]}")
        for path in sorted([*(ROOT / "scripts").rglob("*.s[hu]*"), *ROOT.glob("Dockerfile*")])
        for _, code in re.findall(r"""python[^\s"]*"? -c (['"])(.*?)\1""", path.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize("code", python_in_scripts())
def test_python_in_a_script_names_what_exists(code):
    """A type checker does not see into a shell's text."""
    tree = ast.parse(code)
    names = {"sys": sys}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("bert_tf"):
            exec(compile(ast.Module([node], []), code, "exec"), names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            assert hasattr(names[node.value.id], node.attr), ast.unparse(node)


def test_python_finds_the_project_from_every_folder(tmp_path):
    done = start(sys.executable, "-c", "import bert_tf", cwd=tmp_path, PYTHONPATH=None)
    assert done.returncode == 0, f"{done.stderr} (made by an older set-up? bash scripts/setup.sh --test)"


def test_a_script_runs_the_code_of_its_own_checkout(tmp_path):
    """The folder that the user is in may be another checkout, with a file named like one of Python's modules."""
    for name in ("bert_tf/__init__.py", *(["types.py"] if sys.version_info >= (3, 11) else [])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('not of this checkout')\n")
    started = start("bash", ROOT / "scripts/doctor.sh", "--help", cwd=tmp_path)
    if sys.version_info >= (3, 11):
        assert started.returncode == 0 and started.stdout.startswith("usage: "), started
    else:
        assert "start this in another folder" in refusal(started)


def function(name):
    """The text of a function of the set-up."""
    text = (ROOT / "scripts/setup.sh").read_text()
    return re.search(rf"^{name}\(\) \{{.*?^\}}\n", text, re.DOTALL | re.MULTILINE)[0]


def test_python_starts_in_an_environment_whatever_the_folder_of_the_project_is_called(tmp_path):
    project = tmp_path / "Jos\u00e9's \\code"
    project.mkdir()
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    text = f"python={python} root=$1\n{function('add_project')}add_project"
    assert answer("bash", "-c", text, "bash", project).returncode == 0
    done = answer(python, "-c", "import sys; print(ascii(sys.path[-1]))", LC_ALL="C")
    assert done.stdout.strip() == ascii(str(project)), done.stderr


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("link", "a link to .*/disk, and a link is neither followed nor deleted: remove it, or name"),
        ("folder", "a folder with files, but no virtual environment, and is not deleted"),
        ("file", "a file; remove it, or name another place"),
    ],
)
def test_the_set_up_deletes_nothing_that_it_has_not_made(tmp_path, kind, said):
    place = tmp_path / "venv"
    disk = tmp_path / ("venv" if kind == "folder" else "disk")
    disk.mkdir()
    (disk / "thesis.tex").write_text("mine")
    if kind == "link":
        place.symlink_to(disk)
    elif kind == "file":
        place.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    line = refusal(start("bash", ROOT / "scripts/setup.sh", BERT_VENV=f"{place}/"))
    assert re.match(f"error: {place} is {said}", line) and sorted(tmp_path.rglob("*")) == before


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
    needed = [each.name for each in map(Requirement, lines) if not each.marker or each.marker.evaluate(there)]
    found = [name for name in needed if name not in ("tensorflow-estimator", "tensorflow-io-gcs-filesystem")]
    assert found == packages_of_2_15[: 2 if lock.parent.name == "2.15" else 1]


# Installs nothing, and says that it is for Apple's processors.
PYTHON = f"""#!/bin/sh
case "$*" in
  *platform.machine*) echo arm64 ;;
  *sys.executable*) echo "$0" ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "VIRTUAL_ENV=$3" >"$3/bin/activate"; >"$3/pyvenv.cfg" ;;
  "-m "*) ;;
  *bert_tf.pth*) ;;
  "-c import sys, horovod"*) exit 1 ;;
  -) echo "TensorFlow 2.15.1, no Horovod (one process)" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


def uname(system, machine):
    return f"case $1 in -s) echo {system} ;; -m) echo {machine} ;; *) echo {system} {machine} ;; esac"


def set_up(tmp_path, stand_ins, *arguments, **variables):
    """The set-up of an environment in that folder, where these programs stand for the machine's."""
    folder = {"BERT_VENV": str(tmp_path / "venv"), "XDG_CACHE_HOME": str(tmp_path)}
    variables = {"PATH": programs(tmp_path / "bin", **stand_ins), "PYTHON": "none", **folder, **variables}
    return start("bash", ROOT / "scripts/setup.sh", *arguments, **variables)


INTEL, APPLE = {"uname": uname("Darwin", "x86_64")}, {"uname": uname("Darwin", "arm64")}
MAC = {**APPLE, "python": PYTHON}
# A machine that builds Horovod, as far as its compiler can tell.
WITH_TENSORFLOW = PYTHON.replace("  *)", "  *tensorflow.__version__*) echo tf ;;\n  *)")
BUILDER = {"python": WITH_TENSORFLOW, **dict.fromkeys(("g++", "make"), "exit 1")}
ARM = {"uname": uname("Linux", "aarch64")}
NVIDIA = {"NVIDIA_PRODUCT_NAME": "TensorFlow"}


@pytest.mark.parametrize(
    ("stand_ins", "arguments", "variables", "said"),
    [
        ({"uname": uname("Linux", "i686")}, [], {}, "no packages for Linux on i686, only on x86_64 and aarch64"),
        ({**ARM, "getconf": "echo glibc 2.17"}, [], {}, "C library here is glibc 2.17, .*: take a newer Linux"),
        ({**ARM, "getconf": "exit 1"}, [], {}, "C library here is another than glibc, and .* glibc 2.28: take a newer"),
        (ARM, ["--gpu"], {}, "packages for aarch64 have no code for GPUs; NVIDIA's container has"),
        (INTEL, [], {}, "this is a Mac with an Intel processor"),
        ({}, [], {"BERT_VENV": "venv"}, "BERT_VENV=venv: must begin with /"),
        (APPLE, ["--gpu"], {}, "--gpu is for NVIDIA's GPUs, and a Mac has none"),
        # NVIDIA's images between and after the two: those that can be used are named.
        ({"python3": "echo 2.16"}, [], NVIDIA, "TensorFlow 2.16, and none of 2.15 2.17 2.20: .*25.02-tf2-py3 has"),
        ({"python3": "echo none >&2; exit 1"}, [], NVIDIA, "TensorFlow without a version, .*24.03-tf2-py3 has 2.15"),
    ],
)
def test_a_machine_that_the_set_up_is_not_for_is_named(tmp_path, stand_ins, arguments, variables, said):
    assert re.search(said, refusal(set_up(tmp_path, stand_ins, *arguments, **variables)))
    assert not (tmp_path / "venv").exists()


def test_a_mac_is_set_up_for_one_process(tmp_path):
    first, again = (set_up(tmp_path, MAC, PYTHON="python") for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "continuing without Horovod: this is a Mac" in first.stdout and "num_gpus must be 1." in first.stdout
    assert "[setup] ready: TensorFlow 2.15.1, no Horovod (one process) (checked in " in again.stdout, again.stdout
    of_intel = set_up(tmp_path / "other", APPLE, PYTHON=sys.executable)
    assert of_intel.returncode == 2 and "is not Python 3.9 to 3.13 for Apple's processors" in of_intel.stderr


def test_a_python_is_chosen_by_a_path_with_blanks(tmp_path):
    programs(tmp_path / "my programs", python=PYTHON)
    done = set_up(tmp_path, APPLE, PYTHON=str(tmp_path / "my programs/python"))
    assert done.returncode == 0, done.stderr


def test_a_set_up_killed_while_it_deletes_the_environment_goes_on(tmp_path):
    set_up(tmp_path, MAC, PYTHON="python")
    (tmp_path / "venv/bin/activate").unlink()
    killed = set_up(tmp_path, {**MAC, "rm": '/bin/rm "$2/pyvenv.cfg"; kill -9 $PPID'}, PYTHON="python")
    assert killed.returncode == -9
    (tmp_path / "bin/rm").unlink()
    again = set_up(tmp_path, MAC, PYTHON="python")
    assert again.returncode == 0 and "it is made again" in again.stdout, again.stderr


def test_packages_go_into_the_environment_whatever_is_set_for_other_uses(tmp_path):
    programs(tmp_path, python='echo "$PYTHONPATH,$PIP_TARGET,$PIP_PREFIX,$PIP_USER"')
    text = f'step() {{ shift; "$@"; }}\nstate=. python=./python\n{function("install")}install packages'
    variables = {"PYTHONPATH": "modules", "PIP_TARGET": "target", "PIP_PREFIX": "prefix", "PIP_USER": "1"}
    assert answer("bash", "-c", text, cwd=tmp_path, **variables).stdout == ",,,0\n"


def test_another_python_makes_another_environment(tmp_path):
    """One that cannot be had is refused while the environment is there, and the next set-up has forgotten it."""
    stand_ins = {**MAC, "newer": PYTHON.replace("  -)", '  -V) echo "Python 3.13.9" ;;\n  -)')}
    set_up(tmp_path, stand_ins, PYTHON="python")
    refused = set_up(tmp_path, stand_ins, PYTHON="none", TENSORFLOW="2.17")
    assert "PYTHON=none is not Python 3.9 to 3.12" in refusal(refused)
    assert "(checked in" in set_up(tmp_path, stand_ins, PYTHON="python").stdout
    assert "of another Python: it is made again" in set_up(tmp_path, stand_ins, PYTHON="newer").stdout
    assert "(checked in" in set_up(tmp_path, stand_ins, PYTHON="newer").stdout


def test_what_may_hide_the_packages_of_the_environment_is_named(tmp_path):
    stand_ins = {**APPLE, "python": PYTHON.replace("  -)", "  -) exit 1 ;;\n  -)")}
    done = set_up(tmp_path, stand_ins, PYTHON="python", PYTHONPATH="/modules/numpy")
    assert "TensorFlow does not import (PYTHONPATH=/modules/numpy comes before .venv: try it without)" in done.stderr


def test_the_set_up_leaves_another_machines_environment_as_it_is(tmp_path):
    numpy = tmp_path / "venv/lib/python3.11/site-packages/numpy/core"
    numpy.mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").touch()
    (numpy / "_multiarray_umath.cpython-311-s390x-linux-gnu.so").touch()
    line = refusal(set_up(tmp_path, {}))
    assert "venv holds packages for another machine than" in line and "s390x" in line
    assert "delete it, or name another place by BERT_VENV" in line and list(numpy.iterdir())


def test_packages_for_gpus_are_taken_where_there_is_none(tmp_path):
    """On a login node; the next set-up without --gpu stays with them. It ends before it fetches anything."""
    place = tmp_path / "venv"  # the checkout may lie on another disk, which has room
    full = f"[ $2 = {place} ] && room=1024; printf 'Filesystem\\n/dev/sda 9 8 %s\\n' ${{room:-99999999}}"
    stand_ins = {"df": full, "python": PYTHON}
    for arguments, needed in ([], 2500), (["--test"], 3500), (["--gpu"], 10000), ([], 10000):
        done = set_up(tmp_path, stand_ins, *arguments, PYTHON="python")
        assert done.returncode == 1 and f"1 MiB are free at {place}; the set-up needs about {needed}" in done.stderr


def test_horovod_is_built_again_when_nccl_has_come(tmp_path):
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tensorflow.py").write_text("def nccl_built(): return 0\nmpi_built = nccl_built\n")
    python = WITH_TENSORFLOW.replace("exit 1", f'exec {sys.executable} "$@"').replace("no Horovod (one process)", "")
    of_gpu = {"nvidia-smi": "echo 'GPU 0: a'", "nvcc": "echo 'Cuda compilation tools, release 12.4'"}
    stand_ins = {**BUILDER, **of_gpu, "python": python}
    variables = {"PYTHON": "python", "PYTHONPATH": str(tmp_path)}
    first = set_up(tmp_path, stand_ins, **variables, HOROVOD_NCCL_HOME="")
    again = set_up(tmp_path, stand_ins, **variables, HOROVOD_NCCL_HOME="/opt/nccl")
    assert first.returncode == 0 and "compiled once" not in first.stdout, first.stdout + first.stderr
    assert "Horovod 0.28.1 (gloo-nccl), compiled once" in again.stdout, again.stdout + again.stderr


def test_horovod_is_not_built_where_its_compiler_would_not_find_tensorflow(tmp_path):
    """CMake gets the folder of TensorFlow's headers without quotation marks."""
    folder = tmp_path / "Bob's code"
    folder.mkdir()
    done = set_up(folder, BUILDER, PYTHON="python")
    assert done.returncode == 0 and "compiled once" not in done.stdout, done.stdout + done.stderr
    assert "without Horovod: its build does not take the blank in the path" in done.stdout, done.stdout
    assert "(checked in" in set_up(folder, BUILDER, PYTHON="python").stdout


def test_horovod_is_kept_beside_the_environment_where_the_home_cannot_be_written(tmp_path):
    (tmp_path / "home").touch()
    set_up(tmp_path, BUILDER, PYTHON="python", XDG_CACHE_HOME=str(tmp_path / "home"))
    assert f"build_horovod {tmp_path}/venv-setup/wheels/horovod-" in (tmp_path / "venv-setup/setup.log").read_text()


def test_a_horovod_is_kept_whole_or_not_at_all(tmp_path):
    """Its folder is on another disk, as home folders are, which fills while the wheel is moved there."""
    stand_ins = """
      state=$PWD venv=$PWD python=made horovod_version=1 horovod_sha256=2f
      made() { echo whole >"$scratch/horovod-1-py3.whl"; }
      tar() { :; }
      sed() { :; }
      mv() { # <-f> <from> <to>
        if [[ -d "$3" ]]; then set -- "$1" "$2" "$3/horovod-1-py3.whl"; fi
        echo half >"$3" && "$has_room" && command mv "$@"
      }
    """
    for has_room in ("false", "true"):
        text = f"{stand_ins}\n{function('build_horovod')}\nhas_room={has_room}; build_horovod kept"
        assert (answer("bash", "-c", text, cwd=tmp_path).returncode == 0) == (has_room == "true")
        wheels = [wheel.read_text() for wheel in tmp_path.glob("kept/horovod-*.whl")]
        assert wheels == (["whole\n"] if has_room == "true" else [])
        (wanted,) = tmp_path.glob("horovod.*/horovod.txt")  # of the build that failed
        assert wanted.read_text() == "horovod==1 --hash=sha256:2f\n"


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
    done = set_up(tmp_path, {"uv": "exit 1", **dict.fromkeys(names, python)}, PYTHON=None)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    for part in (found, "apt-get install python3-venv", "type the same command again"):
        assert part in done.stderr
