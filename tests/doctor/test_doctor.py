"""The doctor in faked environments: broken packages, old drivers, small limits, bad folders."""

import errno
import os
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from bert_tf.base.errors import UserError
from bert_tf.base.machine import launchers
from bert_tf.base.machine import software as installed
from bert_tf.doctor import machine, software
from bert_tf.doctor.findings import OK, PROBLEM, WARNING, ask, problems, with_error_as_finding
from bert_tf.doctor.machine import GB, Folder
from tests.pretraining_data import write_manifest
from tests.processes import ROOT, answer
from tests.refusals import refusal
from tests.stand_ins import programs, write_program


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "LAUNCHER", "HOSTS", "SLURM_JOB_ID", "CONTAINER_IMAGE", "DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a shell script in front of PATH."""
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    return lambda name, text: write_program(tmp_path / "bin" / name, text)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a Python module in front of the installed ones, for the processes that the doctor starts."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name, text):
        path = tmp_path.joinpath(*name.split("."))
        path.mkdir(parents=True)
        (path / "__init__.py").write_text(text)

    return write


def holds(findings, *expected):
    """Whether the findings are these states, each with this in its message."""
    findings = list(with_error_as_finding(findings))
    assert [finding.state for finding in findings] == [state for state, _ in expected], findings
    for finding, (_, part) in zip(findings, expected):
        assert part in finding.message and "\n" not in finding.message


# --- The program ---------------------------------------------------------------------------------


def doctor(*arguments, **variables):
    """With a system's Python, in which nothing is installed."""
    return answer(sys.executable, "-S", "-m", "bert_tf.doctor", *arguments, PYTHONPATH=str(ROOT), **variables)


def test_without_any_package_it_still_speaks(tmp_path):
    done = doctor(DATA_DIR=str(tmp_path), RESULTS_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    for part in ("problem  packages: ", "has no google_crc32c", "problem  TensorFlow: ", "warning  Horovod: "):
        assert part in done.stdout
    assert re.search(r"^OK       file system: .*\n(.*\n)*[2-9] problem\(s\), \d warning\(s\)\n$", done.stdout, re.M)


def test_what_is_typed_wrong():
    for argument, variables, message in (
        (["--host=a"], {}, "unrecognized arguments: --host=a; see --help"),
        ([], {"LAUNCHER": "spark"}, "LAUNCHER=spark: must be one of srun, mpirun, horovodrun, none"),
    ):
        assert refusal(doctor(*argument, **variables)) == f"error: {message}\n"


def test_its_words_are_those_of_the_launchers(tmp_path, monkeypatch):
    """What stops a start is said by the doctor, too, whatever else this says."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LAUNCHER", "mpirun")
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    refused = [problems(check, launchers.Start(2, 0, os.environ)) for check in launchers.START_CHECKS]
    examinations = (software.examine_tensorflow(), software.examine_horovod(), software.examine_launcher())
    said = {finding.message for findings in examinations for finding in with_error_as_finding(findings)}
    messages = {finding.message for findings in refused for finding in findings}
    assert len(messages) == 3 and messages <= said


def test_an_old_python_is_named_by_the_script(program, tmp_path):
    program("python", "exit 1")  # to whether it is 3.9 or later
    done = answer("bash", ROOT / "scripts/doctor.sh", BERT_VENV=str(tmp_path))
    assert done.returncode == 1 and "there is no Python 3.9" in done.stderr


@pytest.mark.slow
def test_this_machine_for_real(tmp_path):
    pytest.importorskip("horovod.tensorflow")
    folders = {"DATA_DIR": str(tmp_path), "RESULTS_DIR": str(tmp_path)}
    shown = answer("bash", ROOT / "scripts/doctor.sh", CUDA_VISIBLE_DEVICES="", **folders).stdout
    for check in ("TensorFlow", "Horovod", "launcher"):
        assert f"OK       {check}: " in shown, shown
    assert "two ranks have added their numbers" in shown


def test_what_hangs_is_ended_with_its_children():
    started = time.monotonic()
    with pytest.raises(UserError, match="it fails .it did not end in time.: mend it"):
        ask(["bash", "-c", "sleep 60 & sleep 60"], 0.1, "it fails", "mend it")
    assert time.monotonic() - started < 30


# --- Software ------------------------------------------------------------------------------------

# Stands for TensorFlow with {version}, {cuda} and {gpus}; complains as the real one does.
FAKE_TENSORFLOW = """
import sys
from types import SimpleNamespace
from unittest import mock
def look(_):
    print("2026-01-01: W x.cc:1] Could not find cuda drivers on your machine", file=sys.stderr)
    return [0] * {gpus}
__version__ = "{version}"
sysconfig = SimpleNamespace(get_build_info=lambda: dict(cuda_version="{cuda}"))
config = SimpleNamespace(list_physical_devices=look)
"""
SMI = """if [[ $1 == -L ]]; then echo 'GPU 0: A GPU (UUID: x)'; else echo '{memory}, {used}, 535.1, A GPU'; fi"""


@pytest.mark.parametrize(
    "fake, expected",
    [
        (dict(version="2.15.1", cuda="12.2", gpus=1), [(OK, "CUDA 12.2"), (OK, "it sees 1 of 1")]),
        (dict(version="2.15.1", cuda="12.2", gpus=0), [(OK, "2.15"), (PROBLEM, "0 of 1 GPU(s); Could not find cuda")]),
        (dict(version="2.15.1", cuda="", gpus=0), [(OK, "without CUDA"), (PROBLEM, "it is tensorflow-cpu")]),
        (dict(version="2.14.0", cuda="11.8", gpus=1), [(PROBLEM, "2.14.0 is installed"), (OK, "sees 1")]),
        (None, [(PROBLEM, "SIGILL")]),
    ],
)
def test_tensorflow_beside_the_driver(program, package, fake, expected):
    program("nvidia-smi", SMI.format(memory=11264, used=1))
    package("tensorflow", FAKE_TENSORFLOW.format(**fake) if fake else "import os; os.kill(os.getpid(), 4)")
    holds(software.examine_tensorflow(), *expected)


@pytest.fixture
def horovod(package, monkeypatch):
    """Pretends a Horovod that was built with these libraries, or whose import ends as `text` says."""
    monkeypatch.setattr(software, "is_installed", lambda _: True)
    monkeypatch.setattr(installed, "horovod_library", lambda: Path("mpi_lib.so"))
    monkeypatch.setattr(installed, "horovod_has_mpi", lambda: False)

    def write(nccl=0, mpi=False, gloo=False, text=""):
        package("horovod", "__version__ = '0.28.1'")
        built = f"nccl_built, mpi_built, gloo_built = (lambda: {nccl}), (lambda: {mpi}), (lambda: {gloo})"
        package("horovod.tensorflow", text or built)

    return write


def test_horovod_whose_ranks_do_not_meet(program, package, horovod, tmp_path):
    program("mpirun", "")
    horovod(nccl=21800, mpi=True, gloo=True)
    package("horovod.runner", "")
    package("horovod.runner.launch", "")
    launch = "import sys\nassert '--disable-cache' in sys.argv\n"
    launch += "if '--gloo' in sys.argv: sys.exit('RuntimeError: connection refused')"
    (tmp_path / "horovod/runner/launch/__main__.py").write_text(launch)
    refused = "by gloo (code 1, RuntimeError: connection refused)"
    holds(software.examine_horovod(), (OK, "0.28.1 with NCCL, MPI, Gloo"), (PROBLEM, refused), (OK, "by mpi"))


def test_no_horovod_or_one_that_does_not_load_or_has_no_nccl_beside_two_gpus(horovod, package, tmp_path, monkeypatch):
    horovod(text="raise ImportError('undefined symbol: x')")
    holds(software.examine_horovod(), (PROBLEM, "undefined symbol: x"))
    monkeypatch.setattr(software, "count_gpus", lambda _: 2)
    shutil.rmtree(tmp_path / "horovod")
    horovod()
    holds(software.examine_horovod(), (WARNING, "by way of the CPU"))
    monkeypatch.setattr(software, "is_installed", lambda _: False)
    monkeypatch.setattr(installed, "horovod_library", lambda: None)
    holds(software.examine_horovod(), (WARNING, "horovodrun needs Horovod, which is not installed"))
    monkeypatch.setenv("LAUNCHER", "none")
    holds(software.examine_horovod())


def test_hosts_that_are_named_for_a_training_are_no_fault_of_the_launcher(program, horovod, monkeypatch):
    program("ssh", "")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("HOSTS", "a:8,b:8")
    holds(software.examine_launcher(), (OK, "started by horovodrun"))


# --- The machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers, visible, expected",
    [
        (SMI.format(memory=11264, used=300), None, [(OK, "0: A GPU, 11.0 GiB, of which processes hold 0.3")]),
        (SMI.format(memory=11264, used=9000), None, [(WARNING, "processes hold 8.8, driver 535.1; nvidia-smi")]),
        (SMI.format(memory=11264, used=0), "-1", [(OK, ""), (WARNING, "leaves 0 of 1")]),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", None, [(PROBLEM, "mismatch")]),
        ("echo 'No devices were found'; exit 6", None, [(WARNING, "on a login node")]),
    ],
)
def test_gpus(program, monkeypatch, answers, visible, expected):
    program("nvidia-smi", answers)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    holds(machine.examine_gpus(), *expected)


def test_a_gpu_without_its_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PCI", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "a").mkdir()
    # Another maker's GPU, NVIDIA's sound, and its GPU.
    for vendor, kind, expected in (
        ("0x8086", "0x030000", (OK, "none: trains on the CPU")),
        ("0x10de", "0x040300", (OK, "none: trains on the CPU")),
        ("0x10de", "0x030200", (WARNING, "an NVIDIA GPU, but no nvidia-smi")),
    ):
        (tmp_path / "a/vendor").write_text(f"{vendor}\n")
        (tmp_path / "a/class").write_text(f"{kind}\n")
        holds(machine.examine_gpus(), expected)


@pytest.mark.parametrize(
    "num_gpus, free, is_writable, state",
    [
        (0, 64, True, WARNING),
        (2, 64, True, PROBLEM),
        (0, 0, True, PROBLEM),
        (0, 900, False, PROBLEM),
        (2, 900, True, OK),
    ],
)
def test_shared_memory(monkeypatch, num_gpus, free, is_writable, state):
    """Docker gives 64 MiB, some programs leave it full, and it may be read-only."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free << 20))
    monkeypatch.setattr(machine.os, "access", lambda *_: is_writable)
    monkeypatch.setattr(machine, "count_gpus", lambda _: num_gpus)
    holds(machine.examine_shared_memory(), (state, f"has room for {free if is_writable else 0} MiB"))


@pytest.mark.parametrize("limit, state", [(None, OK), (4 << 30, WARNING), (512 << 20, PROBLEM)])
def test_a_containers_memory(monkeypatch, limit, state):
    monkeypatch.setattr(machine, "memory_limit", lambda: limit)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 4 << 20, "SC_PAGE_SIZE": 4096}[name])
    holds(machine.examine_cores_and_memory(), (state, "of 16.0 GiB"))


# --- Folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault, state, part",
    [(None, OK, "work"), (errno.ENOLCK, WARNING, "has no locks"), (errno.EIO, PROBLEM, "cannot be written")],
)
def test_file_systems(tmp_path, monkeypatch, fault, state, part):
    if fault:
        monkeypatch.setattr(machine.fcntl, "flock", mock.Mock(side_effect=OSError(fault, os.strerror(fault))))
    holds(machine.examine_file_system(Folder(tmp_path / "a/b", "RESULTS_DIR")), (state, part))
    assert list(tmp_path.iterdir()) == []
    holds(machine.examine_file_system(Folder(Path("/proc/x"), "RESULTS_DIR")), (PROBLEM, "cannot be written"))
    holds(machine.examine_file_system(Folder(Path("/dev/null"), "DATA_DIR")), (PROBLEM, "/dev/null is a file"))


def test_a_folder_that_may_not_be_looked_into(tmp_path, monkeypatch):
    """It ends an examination, not the doctor."""
    monkeypatch.setattr(Path, "exists", mock.Mock(side_effect=PermissionError(errno.EACCES, "Denied", "/other")))
    holds(machine.examine_room_for_results(Folder(tmp_path, "RESULTS_DIR")), (PROBLEM, "/other: Denied; name another"))


@pytest.mark.parametrize("room, state", [(100, OK), (54, WARNING), (0.5, PROBLEM)])
def test_room(tmp_path, monkeypatch, room, state):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=room * GB))
    folder = Folder(tmp_path, "DATA_DIR")
    holds(machine.examine_data(folder), (WARNING, "nothing is prepared"), (state, "Wikipedia takes 84 as token files"))
    holds(machine.examine_room_for_results(folder), (PROBLEM if room < 1 else OK, "GB free at"))


def test_prepared_data(tmp_path):
    for name in ("tokens/x/done", "tokens/x/begun", "tfrecord/x/damaged"):
        (tmp_path / name / "training").mkdir(parents=True)
    write_manifest(tmp_path / "tokens/x/done", "tokens", {}, "a")
    write_manifest(tmp_path / "tfrecord/x/damaged", "records", {"max_seq_length": 1e999}, "a")
    expected = (OK, "done as tokens (all lengths)"), (WARNING, "damaged is"), (WARNING, "begun is unfinished")
    holds(machine.examine_data(Folder(tmp_path, "DATA_DIR")), *expected)
