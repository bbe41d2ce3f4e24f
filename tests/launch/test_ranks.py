"""Starting ranks: by which launcher and where, their logs and codes, signals, and their ends."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from unittest import mock

import pytest

from bert_tf.base.errors import UserError
from bert_tf.base.machine import launchers, software
from bert_tf.base.machine.launchers import START_CHECKS, Start
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.launch import job, slurm, start
from bert_tf.launch import rank as wrapper
from bert_tf.launch.environment import LaunchEnvironment
from tests.launch.helpers import ROOT, START_RANKS, pretend_machine, processes_of
from tests.processes import answer, wait_for

# --- Which launcher, and where -------------------------------------------------------------------

NO_SRUN = "there is no srun on this machine's PATH"


@pytest.mark.parametrize(
    "machine, num_ranks, variables, launcher, refused",
    [
        ({}, 2, "LAUNCHER=horovodrun", "horovodrun", ""),
        ({}, 2, "LAUNCHER=mpirun", "mpirun", ""),
        ({"mpi": False}, 2, "SLURM_JOB_ID=7", "srun", ""),
        ({"mpi": False}, 2, "", "horovodrun", ""),
        ({"mpi": False}, 2, "LAUNCHER=mpirun", "mpirun", "LAUNCHER=mpirun needs a Horovod with MPI"),
        ({"tools": ()}, 2, "", "horovodrun", ""),
        ({"tools": ()}, 2, "LAUNCHER=srun", "srun", NO_SRUN),
        ({"tools": ()}, 1, "CONTAINER_IMAGE=x", "srun", NO_SRUN),
        ({"tools": ()}, 2, "HOSTS=a,b", "horovodrun", "there is no ssh on this machine's PATH"),
        ({"horovod": False}, 1, "", "none", ""),
        ({"horovod": False}, 2, "", "horovodrun", "needs Horovod, which is not installed"),
    ],
)
def test_choice_of_launcher_and_the_first_problem(monkeypatch, machine, num_ranks, variables, launcher, refused):
    pretend_machine(monkeypatch, **machine)
    start = Start(num_ranks, 0, dict(pair.split("=") for pair in variables.split()))
    assert start.launcher == launcher
    said = ""
    try:
        for check in START_CHECKS:
            check(start)
    except UserError as error:
        said = str(error)
    assert refused in said and bool(refused) == bool(said)


def slurm_step(number, node, local_rank, tasks_per_node):
    """The variables of a task."""
    names = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR")
    values = map(str, (number, node, local_rank, "n", "10.0.0.1"))
    return dict(zip(names, values), SLURM_STEP_TASKS_PER_NODE=tasks_per_node)


@pytest.mark.parametrize(
    "node, expected", [(0, "0 7 0 3 0 3"), (0, "2 7 2 3 0 1"), (1, "4 7 1 2 1 3"), (2, "6 7 1 2 2 3")]
)
def test_places_in_a_slurm_step(node, expected):
    """Three nodes with 3, 2 and 2 tasks: rank, size, local rank and size, rank and size among equals."""
    rank, _, local_rank, *_ = expected.split()
    place = slurm.slurm_place(slurm_step(rank, node, local_rank, "3,2(x2)"))
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert " ".join(place[f"HOROVOD_{name}"] for name in names) == expected
    assert place["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"


def test_a_rank_of_horovodrun_keeps_its_place_in_a_slurm_step(tmp_path):
    """As in salloc's own step, or in a container without srun that srun has started."""
    place = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_PORT": "7"}
    program = "import os; print(os.environ['HOROVOD_RANK'], 'of', os.environ['HOROVOD_SIZE'])"
    command = [sys.executable, "-m", "bert_tf.launch.rank", str(tmp_path), "2", sys.executable, "-c", program]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **slurm_step(0, 0, 0, "1"), **place}, check=True)
    assert (tmp_path / "rank_1.log").read_text() == "1 of 2\n"


def test_the_interface_towards_another_host():
    """Gloo shall use it, and not the address of the host's own name."""
    assert slurm.interface_towards("127.0.0.1") == "lo"
    assert slurm.interface_towards("no address") == ""


def test_ranks_leave_and_read_their_addresses():
    url = f"http://127.0.0.1:{slurm.serve_addresses()}/global/0"

    def ask(method, body=None):
        with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=10) as answer:
            return answer.read()

    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask("GET")
    ask("PUT", b"\x00address")
    ask("DELETE")
    assert ask("GET") == b"\x00address"


def test_many_ranks_can_ask_for_addresses_at_once():
    """Before the first is answered: a connection that the kernel has no room for would be lost."""
    server = slurm._Server(("127.0.0.1", 0), None)
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        for _ in range(128):
            stack.enter_context(socket.create_connection(server.server_address, timeout=5))


def test_srun_and_hosts_spread_ranks_over_machines(monkeypatch):
    on_two = {"SLURM_JOB_NUM_NODES": "2", "LAUNCHER": "srun"}
    assert {"--ntasks=16", "--ntasks-per-node=8"} <= set(start.launcher_command(Start(16, 0, on_two)))
    uneven = {"--ntasks=15", "--nodes=2", "--distribution=plane=8"}
    assert uneven <= set(start.launcher_command(Start(15, 0, on_two)))
    assert Start(3, 0, {**on_two, "LAUNCHER": "mpirun"}).ranks_per_node == 3
    assert Start(3, 0, {"HOSTS": "a:2,b"}).ranks_per_node == 2
    version = subprocess.CompletedProcess([], 0, "mpirun (Open MPI) 4.1.4", "")
    monkeypatch.setattr(start.subprocess, "run", lambda *_, **__: version)
    for launcher in ("mpirun", "horovodrun"):
        environ = {"LAUNCHER": launcher, "HOSTS": "a:2, b"}
        command = " ".join(start.launcher_command(Start(3, 0, environ), ["NCCL_DEBUG"]))
        assert " -np 3 " in command and " -H a:2,b:1" in command
        assert (" -x NCCL_DEBUG" in command) == (launcher == "mpirun")  # horovodrun passes everything on
        here = " ".join(start.launcher_command(Start(3, 0, {"LAUNCHER": launcher})))
        assert " -H " not in here
        assert (" --disable-cache " in here) == (launcher == "horovodrun")  # which writes it to the home folder


def test_horovodrun_which_writes_variables_into_command_lines_gets_no_secrets(tmp_path, monkeypatch):
    secrets = dict.fromkeys(("WANDB_API_KEY", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "PGPASSWORD", "my_secret"), "x")
    others = {"TOKENIZERS_PARALLELISM": "0", "NCCL_IB_PKEY": "1", "KEYBOARD": "us"}
    for launcher, num_ranks in (("horovodrun", 2), ("none", 1)):
        start_child = mock.Mock(side_effect=InterruptedError)
        monkeypatch.setattr(job, "start_child", start_child)
        environment = LaunchEnvironment({**secrets, **others, "LAUNCHER": launcher, "DEVICE": "cpu"})
        with pytest.raises(InterruptedError):
            job.run("it", ["-c", "pass"], num_ranks, tmp_path, environment)
        (_, _, variables, _), _ = start_child.call_args
        assert others.items() <= variables.items()
        assert secrets.keys() & variables.keys() == (set() if launcher == "horovodrun" else {*secrets})


def test_one_rank_is_started_in_the_job_that_salloc_has_made(monkeypatch):
    """Its shell may stay on the login node; a job's script runs on a node of the job."""
    monkeypatch.setattr(launchers.shutil, "which", lambda program: f"/bin/{program}")
    beside, inside = (Start(1, 0, {"SLURM_JOB_ID": "7", **more}) for more in ({}, {"SLURMD_NODENAME": "n1"}))
    assert (beside.launcher, beside.uses_horovod, inside.launcher) == ("srun", False, "none")
    assert Start(2, 0, inside.environ).uses_horovod


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr(launchers, "count_cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "HOROVOD_FUSION_THRESHOLD"):
        monkeypatch.delenv(name, raising=False)
    assert start.rank_environment(Start(3, 0, {}))["HOROVOD_FUSION_THRESHOLD"] == "0"
    for ranks, num_gpus, threads in ((3, 0, "2"), (16, 0, "1"), (2, 2, None)):
        assert start.rank_environment(Start(ranks, num_gpus, {})).get("OMP_NUM_THREADS") == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert start.rank_environment(Start(3, 0, {}))["OMP_NUM_THREADS"] == "5"


# --- Logs and codes ------------------------------------------------------------------------------


def run_job(tmp_path, program, num_ranks=1, launcher="none"):
    (tmp_path / "program.py").write_text(program)
    environment = LaunchEnvironment({**os.environ, "LAUNCHER": launcher})
    return job.run("it", [str(tmp_path / "program.py")], num_ranks, tmp_path / "logs", environment)


def test_a_program_that_is_killed(tmp_path, capfd):
    assert run_job(tmp_path, "import os; print('here', flush=True); os.kill(os.getpid(), 9)") == 137
    assert "here" in capfd.readouterr().out


def test_srun_that_does_not_notice_the_ranks_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_LOOK_SECS", 0.01)
    monkeypatch.setattr(job, "_MOST_SECS_WITHOUT_RANKS", 0.01)
    (tmp_path / "rank_0.exit").write_text("0 1.0 a")
    srun = subprocess.Popen(["sleep", "3600"])
    job._show(tmp_path, srun, [], num_ranks=1)
    assert srun.returncode == -signal.SIGTERM


def test_sigint_ends_also_what_was_started_in_the_background(tmp_path):
    """By a script's `&`, which ignores it; whoever sends it means it."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open(tmp_path / "log", "wb") as log:
            wrapper.start_child([sys.executable, "-c", code], log, os.environ, 0).wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "log").read_text() == "True\n"


def test_a_rank_waits_for_no_other_where_there_is_none_or_no_folder(tmp_path):
    wrapper._wait_for_others(tmp_path, 1, STOPPED_EXIT_CODE)
    wrapper._wait_for_others(tmp_path / "removed", 2, STOPPED_EXIT_CODE)


NO_MORE_FILES = """
import os, resource
resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os._exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no process can limit another one")
def test_a_code_that_is_told_when_no_file_can_be_made(tmp_path):
    """As on a disk that has filled up meanwhile."""
    assert run_job(tmp_path, NO_MORE_FILES) == 7


def test_a_host_that_does_not_share_the_results_folder(tmp_path):
    """The launcher has made the folder of the logs; whoever does not see it sees other files."""
    command = [sys.executable, "-m", "bert_tf.launch.rank", str(tmp_path / "elsewhere"), "2", "true"]
    done = answer(*command, HOROVOD_RANK="1")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    said = f"error: no log of rank 1 on {platform.node()}: it does not see {tmp_path / 'elsewhere'}, which"
    assert done.stderr.startswith(said)


def test_tensorflows_greetings_are_left_out_of_the_logs_and_all_else_is_there(tmp_path, capfd):
    noise = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I0000 00:00:1732.5 17 device_compiler.h:186] Compiled cluster using XLA!  This line is logged at most once\n"
        "2026-11-23 19:06:53.879829: E external/local_xla/xla/stream_executor/stream_executor_internal.h:177] "
        "SetPriority unimplemented for this stream.\n"
    )
    said = "update 1\nW0000 00:00:1732.5 17 file.cc:1] a real warning\nhalf a line"
    assert run_job(tmp_path, f"import sys; sys.stderr.write({noise!r}); sys.stderr.write({said!r})") == 0
    (log,) = (tmp_path / "logs").glob("*/rank_0.log")
    assert f"\n{said}--- it: ended" in capfd.readouterr().out and log.read_text() == said


NO_LOG = "[1]<stderr>:error: no log of rank 1 on b: it does not see it\n" + "x\n" * 30
NO_HOST = (
    "ssh not successful for host a:\nssh: Could not resolve hostname a\n\nTraceback (most recent call last):\n"
    + '  File "<frozen runpy>", line 198, in _run_module_as_main\n' * 20
    + "RuntimeError: could not connect to some hosts via ssh\n"
)


@pytest.mark.parametrize(
    "files, received, code, said, not_said",
    [
        # A rank that could not even write its code: the launcher has then stopped the others, which nobody asked for.
        ({"rank_0.exit": "75 1.0 a", "launcher.log": NO_LOG}, [], 1, "no log of rank 1 on b", "xxx"),
        ({"rank_0.exit": "75 1.0 a", "launcher.log": NO_LOG}, [signal.SIGUSR1], STOPPED_EXIT_CODE, "", "no log"),
        # Without Horovod's traceback.
        ({"launcher.log": NO_HOST}, [], 1, "  ssh: Could not resolve hostname a\n", "frozen"),
        ({"rank_1.exit": "137 1.0 b"}, [], 137, "rank 1 on b was killed (SIGKILL)", "rank 0"),  # which cannot say why
    ],
)
def test_what_is_said_of_an_end(tmp_path, capsys, files, received, code, said, not_said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert job._exit_code(tmp_path, Start(2, 0, {"LAUNCHER": "horovodrun", "HOSTS": "a,b"}), code, received) == code
    shown = capsys.readouterr().err
    assert said in shown and not_said not in shown
    assert ("troubleshooting.md" in shown) == (code == 1)


# --- Signals and ends ----------------------------------------------------------------------------


def launcher_process(tmp_path, program, num_ranks=1, launcher="none", hangup=signal.SIG_DFL, **streams):
    """`hangup`: what it does at first with SIGHUP; not what the tests have, which may run under nohup."""
    (tmp_path / "program.py").write_text(program)
    words = [num_ranks, tmp_path / "logs", tmp_path / "program.py", tmp_path / "process_"]
    command = [sys.executable, "-c", START_RANKS, *map(str, words)]
    environment = {**os.environ, "LAUNCHER": launcher, "PYTHONUNBUFFERED": ""}
    prepare = partial(signal.signal, signal.SIGHUP, hangup)
    return subprocess.Popen(command, env=environment, preexec_fn=prepare, **streams)


def start_launcher(tmp_path, program, num_ranks=1, launcher="none", says="", **options):
    """One in a process of its own, whose program has said so; its argument is where it may leave files."""
    streams = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    process = launcher_process(tmp_path, program, num_ranks, launcher, **streams, **options)
    assert [process.stdout.readline()[:3] for _ in range(2)] == ["---", "+ /"]  # where the logs are, and the command
    assert not says or process.stdout.readline() == f"{says}\n"
    return process


@pytest.mark.parametrize(
    "number, prepared",
    [
        (signal.SIGTERM, f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({STOPPED_EXIT_CODE}))"),
        (signal.SIGHUP, f"signal.signal(signal.SIGHUP, lambda *_: sys.exit({STOPPED_EXIT_CODE}))"),  # a terminal's end
        (signal.SIGUSR1, ""),  # before the program can note it, there is nothing to save yet
    ],
)
def test_signals_reach_the_ranks_and_their_code_comes_back(tmp_path, number, prepared):
    program = f"import signal, sys, time\n{prepared}\nprint('ready', flush=True)\ntime.sleep(60)\n"
    process = start_launcher(tmp_path, program, says="ready")
    process.send_signal(number)
    assert process.wait(timeout=30) == STOPPED_EXIT_CODE


@pytest.mark.parametrize("output", ["a full disk", "a closed pipe"])
def test_where_the_launchers_output_cannot_be_written_the_ranks_go_on(tmp_path, output):
    program = "import pathlib, sys, time\nprint('begun', flush=True)\ntime.sleep(1)\npathlib.Path(sys.argv[1]).touch()"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe, open("/dev/full", "wb") as full:
        streams = dict.fromkeys(("stdout", "stderr"), full if output == "a full disk" else pipe)
        assert launcher_process(tmp_path, program, **streams).wait(timeout=60) == 0
    assert (tmp_path / "process_").exists()


def test_a_disk_that_is_gone_is_named_and_the_code_comes_back(tmp_path):
    program = "import pathlib, shutil, sys\nshutil.rmtree(pathlib.Path(sys.argv[1]).parent / 'logs')\nsys.exit(3)"
    process = launcher_process(tmp_path, program, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=60)
    assert "cannot be written to (No such file or directory), so the ranks' last messages" in said
    assert process.returncode == 3


def test_under_nohup_the_end_of_the_terminal_is_ignored(tmp_path):
    program = "import time\nprint('ready', flush=True)\ntime.sleep(2.5)\n"
    process = start_launcher(tmp_path, program, says="ready", hangup=signal.SIG_IGN)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=30) == 0


SAVING_PROGRAM = """
import os, signal, sys, time
def save(*_):
    time.sleep(8 if "HOROVOD_RANK" in os.environ else 2)
    open(sys.argv[1] + os.environ.get("HOROVOD_RANK", "0"), "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("launcher, num_ranks", [("none", 1), pytest.param("horovodrun", 2, marks=pytest.mark.slow)])
def test_where_the_launcher_is_killed_the_ranks_save(tmp_path, launcher, num_ranks):
    """horovodrun itself would kill them 5 s after the first signal."""
    if num_ranks > 1:
        pytest.importorskip("horovod.tensorflow")
    process = start_launcher(tmp_path, SAVING_PROGRAM, num_ranks, launcher, says="ready")
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(tmp_path))
    assert len(list(tmp_path.glob("process_?"))) == num_ranks


def test_a_rank_that_does_not_end_after_its_launcher_is_killed(tmp_path, monkeypatch):
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setenv(wrapper.LAUNCHER_VARIABLE, f"{ended.pid} {platform.node()}")
    monkeypatch.setattr(wrapper, "WAIT_FOR_SAVING_SECS", 0.5)
    begin = time.monotonic()
    with subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 100"]) as child:
        time.sleep(0.2)  # until it ignores the signal
        assert watch(monkeypatch, child, tmp_path, "") == -signal.SIGKILL
    assert time.monotonic() - begin > 0.7


def watch(monkeypatch, child, folder, name):
    """How a rank ends that is looked at every 50 ms."""
    monkeypatch.setattr(wrapper, "WATCH_SECS", 0.05)
    monkeypatch.setattr(wrapper, "WAIT_AFTER_FAILURE_SECS", 0.05)
    with open(folder / "log", "ab", buffering=0) as log:
        wrapper._watch(child, folder, [], log, name)
    return child.wait()


@pytest.mark.parametrize("code, others_end", [(0, 0), (STOPPED_EXIT_CODE, 0), (3, -signal.SIGKILL)])
def test_a_rank_ends_where_another_has_failed(tmp_path, monkeypatch, code, others_end):
    command = [sys.executable, "-m", "bert_tf.launch.rank", str(tmp_path), "1", "sh", "-c", f"exit {code}"]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == code
    with subprocess.Popen(["sleep", "100" if others_end else "0.3"]) as child:
        assert watch(monkeypatch, child, tmp_path, "") == others_end


def test_a_rank_that_stands_still_is_ended_and_one_that_goes_on_is_not(tmp_path, monkeypatch):
    with subprocess.Popen(["sleep", "0.5"]) as child:
        child.send_signal(signal.SIGSTOP)
        threading.Timer(0.05, child.send_signal, [signal.SIGCONT]).start()
        assert watch(monkeypatch, child, tmp_path, "rank 1 on a") == 0
    with subprocess.Popen(["sleep", "100"]) as child:
        child.send_signal(signal.SIGSTOP)
        assert watch(monkeypatch, child, tmp_path, "rank 1 on b") == -signal.SIGKILL
    text = (tmp_path / "log").read_text()
    assert text.startswith("error: rank 1 on b has stood still for") and "rank 1 on a" not in text


WAITING_PROGRAM = """
import os, sys, time
open(sys.argv[1] + os.environ["HOROVOD_RANK"], "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment, number", [("at once", signal.SIGTERM), ("both ranks", signal.SIGUSR1), ("both ranks", signal.SIGKILL)]
)
def test_a_signal_while_two_ranks_start_is_a_stop_and_leaves_no_orphans(tmp_path, moment, number):
    pytest.importorskip("horovod.tensorflow")
    process = start_launcher(tmp_path, WAITING_PROGRAM, 2, "horovodrun")
    pattern, number_of_files = {"at once": ("logs/*/launcher.log", 1), "both ranks": ("process_*", 2)}[moment]
    wait_for(lambda: len(list(tmp_path.glob(pattern))) == number_of_files)
    process.send_signal(number)
    assert process.wait(timeout=300) == (-number if number == signal.SIGKILL else STOPPED_EXIT_CODE)
    wait_for(lambda: not processes_of(tmp_path))


RANKS_PROGRAM = """
import os, sys, time
import horovod.tensorflow as hvd
import tensorflow as tf
from bert_tf.ranks.connect import connect
connect(use_horovod=True)
total = hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum).numpy()
print("total", total, "of", hvd.size(), flush=True)
if hvd.rank() == 1:
    print("rank 1 gives up", flush=True)
    os._exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_two_ranks(tmp_path, capfd, launcher):
    pytest.importorskip("horovod.tensorflow")
    if launcher == "mpirun" and not (software.horovod_has_mpi() and shutil.which("mpirun")):
        pytest.skip("Horovod without MPI")
    assert run_job(tmp_path, RANKS_PROGRAM, 2, launcher) == 7
    assert not list((tmp_path / "logs").glob("*/*.here")), "left by ranks that waited for each other"
    shown = capfd.readouterr()
    assert "total 3.0 of 2" in shown.out
    assert f"rank 1 on {platform.node()} ended first, with code 7" in shown.err and "rank 1 gives up" in shown.err
