"""Work on a Dask cluster: a real scheduler and two real workers, of which some are killed."""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import dask_tasks
import distributed
import pytest
from preparation import documents, run

from bert_tf.base.errors import UserError
from data.running import dask_cluster
from data.running.dask_cluster import DaskCluster, Run, code_digest, run_call
from data.running.workers import WorkersError

ROOT = Path(__file__).resolve().parent.parent
SECS = 60


def dask(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *map(str, arguments), "--no-dashboard"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """The scheduler's file; there are two worker processes, and new ones for those that are killed."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    processes = [
        dask(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            0,
            "--scheduler-file",
            file,
            DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1",
        ),
        dask(
            "worker",
            "--scheduler-file",
            file,
            "--nworkers",
            2,
            "--nthreads",
            1,
            "--memory-limit",
            0,
            "--local-directory",
            folder,
            "--preload",
            "dask_tasks",
            PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}",
            KILL_ONE=str(folder / "kill_one"),
        ),
    ]
    with distributed.Client(scheduler_file=str(file), timeout=SECS) as client:
        client.wait_for_workers(2, timeout=SECS)
    yield file
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_results_come_in_order_and_a_stream_is_read_only_a_little_ahead(scheduler, tmp_path, capfd):
    cluster = DaskCluster(str(scheduler), tmp_path)
    taken = itertools.count()
    results = cluster.map_in_order(dask_tasks.square, taken)
    assert list(itertools.islice(results, 100)) == [n * n for n in range(100)]
    results.close()
    assert next(taken) < 110
    assert ": 2 workers" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_a_task_is_raised_here_and_what_has_not_begun_is_dropped(scheduler, tmp_path):
    cluster = DaskCluster(str(scheduler), tmp_path)
    with pytest.raises(UserError, match="^number=3: not this one$"):
        list(cluster.map_in_order(dask_tasks.fail_at_three, range(20)))
    results = cluster.map_in_order(dask_tasks.note, ((tmp_path, number) for number in itertools.count()))
    next(results)
    wait_for_two_at_work(tmp_path)
    results.close()
    only_two_have_begun(tmp_path, cluster)


def wait_for_two_at_work(folder):
    while not (folder / "begun").exists() or len((folder / "begun").read_text().split()) < 3:
        time.sleep(0.05)


def only_two_have_begun(folder, cluster):
    (folder / "go").touch()
    # What had been handed out before these would have begun before them.
    assert len(list(cluster.map_in_order(dask_tasks.square, range(50)))) == 50
    assert len((folder / "begun").read_text().split()) == 3


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.slow
def test_same_bytes_as_from_a_pool_though_workers_are_killed_at_work(scheduler, tmp_path, capfd):
    source, kill_one, killed = tmp_path / "source.txt", scheduler.with_name("kill_one"), []
    source.write_text("\n\n".join(documents(150)))
    for folder, *workers in ((tmp_path / "pool",), (tmp_path / "dask", "--dask_scheduler", scheduler)):
        vocab = folder / "vocab.txt"
        for stage, *arguments in (
            ("text_formatting", "--input_files", source),
            ("create_vocab", "--vocab_size", 300, "--vocab_file", vocab),
            ("sharding", "--n_training_shards", 6, "--n_test_shards", 2),
            ("create_tfrecord_files", "--vocab_file", vocab, "--max_seq_length", 64),
            ("verify",),
        ):
            if workers and stage in ("sharding", "create_tfrecord_files"):
                kill_one.touch()
            run(folder, stage, *arguments, *workers)
            if workers and stage in ("sharding", "create_tfrecord_files") and not kill_one.exists():
                killed.append(stage)
        # Verified by the cluster: shards and records.
        assert capfd.readouterr().out.count("Dask scheduler") == (5 if workers else 0)
    assert killed == ["sharding", "create_tfrecord_files"]
    assert contents(tmp_path / "dask") == contents(tmp_path / "pool")


def test_a_piece_of_work_that_kills_its_workers_is_given_up(scheduler, tmp_path):
    with pytest.raises(WorkersError, match="2 Dask workers were killed one after the other"):
        list(DaskCluster(str(scheduler), tmp_path).map_in_order(dask_tasks.die, range(1)))


def test_a_worker_without_our_modules_is_told(scheduler, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def work(item):\n    return item\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    with pytest.raises(WorkersError, match=f"No module named 'only_here'.*same path, {ROOT}"):
        list(DaskCluster(str(scheduler), tmp_path).map_in_order(only_here.work, range(2)))


def test_a_task_finds_the_program_in_the_checkout_or_says_where_it_is_not(tmp_path):
    for checkout, message in (
        (ROOT, "does not see the files that here sees below /nowhere"),
        (tmp_path, f"ImportError: on {socket.gethostname()}: No module named"),
    ):
        task = pickle.dumps(cloudpickle.dumps(dask_cluster._task(str(checkout))))
        answer = subprocess.run(
            [
                sys.executable,
                "-c",
                "import pickle, sys\n"
                "task = pickle.loads(pickle.load(sys.stdin.buffer))\n"
                f"task(('here', {code_digest()!r}, '/nowhere/sign'), b'')",
            ],
            input=task,
            cwd=tmp_path,
            capture_output=True,
        )
        assert message in answer.stderr.decode()


def test_a_worker_that_does_not_see_the_same_files_or_code_is_told(tmp_path):
    own = Run("here", code_digest(), str(tmp_path / "sign"))
    with pytest.raises(WorkersError, match=f"does not see the files that here sees below {tmp_path} .No such file"):
        run_call(own, b"")
    with pytest.raises(WorkersError, match="another version of the program"):
        run_call(own._replace(code="x"), b"")


def test_what_a_finished_run_has_handed_out_does_not_begin(scheduler, tmp_path, monkeypatch):
    connection = dask_cluster._Connection(str(scheduler), tmp_path / "sign")
    with connection, pytest.raises(WorkersError, match="does not see"):
        connection.get_result(connection.submit(dask_tasks.square, 3))


def test_signs_of_killed_runs_are_removed_and_those_of_others_stay(tmp_path):
    (tmp_path / ".dask_run_1.alive").touch()
    with dask_cluster._sign_of_life(tmp_path) as one, dask_cluster._sign_of_life(tmp_path) as other:
        assert set(tmp_path.iterdir()) == {one, other}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address, message",
    [
        ("", "missing port"),
        ("tcp://127.0.0.1:1", "no Dask scheduler answers at .*127.0.0.1:1 "),
        ("http://127.0.0.1:1", "unknown address scheme"),
        ("{silent}", "nothing that can be understood in 1 s"),
        ("{folder}/none.json", "No such file.*--scheduler-file"),
        ("{folder}/damaged.json", "dask_scheduler=.*damaged.json .*--scheduler-file"),
    ],
)
def test_an_address_without_a_scheduler_is_told(tmp_path, monkeypatch, address, message):
    monkeypatch.setattr(dask_cluster, "CONNECT_SECS", 1 if address == "{silent}" else 60)
    monkeypatch.setattr(dask_cluster, "FIND_SCHEDULER_FILE_SECS", 0.3)
    monkeypatch.setattr(dask_cluster, "_MOMENT_SECS", 0.1)
    (tmp_path / "damaged.json").write_text('{"workers": {}}')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = address.format(folder=tmp_path, silent=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(WorkersError, match=message):
            list(DaskCluster(address, tmp_path).map_in_order(dask_tasks.square, range(2)))


def test_a_scheduler_without_a_worker_is_told_and_so_is_one_that_ends(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(dask_cluster, "_MOMENT_SECS", 0.1)
    monkeypatch.setattr(dask_cluster, "_LOOK_SECS", 0.1)
    cluster = distributed.LocalCluster(  # a real port, not its short cut within a process
        n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=":0"
    )
    with cluster:
        monkeypatch.setattr(dask_cluster, "FIND_WORKER_SECS", 0.3)
        with pytest.raises(WorkersError, match="no worker for 0.3 s"):
            list(DaskCluster(cluster.scheduler_address, tmp_path).map_in_order(dask_tasks.square, range(2)))
        assert "waiting 0.3 s at most for a worker" in capfd.readouterr().err
        monkeypatch.setattr(dask_cluster, "FIND_WORKER_SECS", SECS)
        cluster.scale(1)
        results = DaskCluster(cluster.scheduler_address, tmp_path).map_in_order(time.sleep, itertools.repeat(0.1))
        next(results)
        threading.Timer(0.5, cluster.close).start()
        with pytest.raises(WorkersError, match="has ended or cannot be reached"):
            list(results)


def test_other_versions_are_told(scheduler, tmp_path, monkeypatch):
    versions = dask_cluster._versions
    own = distributed.versions.get_versions()
    own["host"]["python"] = "3.8.1.final.0"
    assert versions(own)["python"] == "3.8"
    found = iter([versions(own)])
    monkeypatch.setattr(dask_cluster, "_versions", lambda info: next(found, versions(info)))
    with pytest.raises(WorkersError, match="Dask scheduler differs .*: python 3.1?[0-9] there, 3.8 here"):
        list(DaskCluster(str(scheduler), tmp_path).map_in_order(dask_tasks.square, range(2)))


def test_a_missing_package_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(WorkersError, match="pip install -r .*requirements-dask.txt"):
        list(DaskCluster("tcp://127.0.0.1:1", tmp_path).map_in_order(dask_tasks.square, range(2)))


@pytest.mark.slow
def test_ctrl_c_takes_back_what_was_handed_out(scheduler, tmp_path):
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
                "import itertools\n"
                "from bert_tf.base.errors import exit_on_user_error\n"
                "from data.running.dask_cluster import DaskCluster\n"
                "import dask_tasks\n"
                "from pathlib import Path\n"
                "folder = Path(sys.argv[2])\n"
                "tasks = ((folder, number) for number in itertools.count())\n"
                "work = DaskCluster(sys.argv[1], folder).map_in_order\n"
                "exit_on_user_error(lambda _: list(work(dask_tasks.note, tasks)))([])"
            ),
            str(scheduler),
            str(tmp_path),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_two_at_work(tmp_path)
    program.send_signal(signal.SIGINT)
    try:
        errors = program.communicate(timeout=SECS / 2)[1]
    except subprocess.TimeoutExpired:
        # Python drops an interrupt that meets it while it clears an object away; people press again.
        program.send_signal(signal.SIGINT)
        errors = program.communicate(timeout=SECS / 2)[1]
    assert program.returncode == 130
    assert errors.endswith("interrupted\n") and "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]
    only_two_have_begun(tmp_path, DaskCluster(str(scheduler), tmp_path))
