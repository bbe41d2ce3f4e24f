"""Work on a Dask cluster: a real scheduler and two real workers, of which some are killed."""

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import distributed
import pytest

from bert_tf.prepare import stages
from bert_tf.prepare.running import dask_cluster
from bert_tf.prepare.running.dask_cluster import DaskCluster, code_digest, run_task
from bert_tf.settings.preparation import PreparationOptions
from tests import dask_tasks
from tests.preparation import contents, documents, run
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
SECS = 240
SCHEDULER = "scheduler --host 127.0.0.1 --port 0 --scheduler-file".split()
WORKER = "worker --nthreads 1 --memory-limit 0 --scheduler-file".split()


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
    two = ("--nworkers", 2, "--preload", "dask_tasks", "--local-directory", folder)
    variables = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "KILL_ONE": str(folder / "kill_one")}
    once = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    processes = [dask(*SCHEDULER, file, **once), dask(*WORKER, file, *two, **variables)]
    with distributed.Client(scheduler_file=str(file), timeout=SECS) as client:
        client.wait_for_workers(2, timeout=SECS)
    yield file
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def done_by(scheduler, folder, function, items):
    return list(DaskCluster(str(scheduler), folder).map_in_order(function, items))


def test_results_come_in_order_and_a_stream_is_read_only_a_little_ahead(scheduler, tmp_path, capfd):
    cluster = DaskCluster(str(scheduler), tmp_path)
    taken = itertools.count()
    results = cluster.map_in_order(abs, taken)
    assert list(itertools.islice(results, 100)) == list(range(100))
    results.close()
    assert next(taken) < 110
    assert ": 2 workers" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_a_task_is_raised_here_and_what_has_not_begun_is_dropped(scheduler, tmp_path):
    cluster = DaskCluster(str(scheduler), tmp_path)
    refused("^number=3: not this one$", list, cluster.map_in_order(dask_tasks.fail_at_three, range(20)))
    results = cluster.map_in_order(dask_tasks.note, ((tmp_path, number) for number in itertools.count()))
    next(results)
    begun = tmp_path / "begun"
    while not begun.exists() or len(begun.read_text().split()) < 3:  # until two are at work
        time.sleep(0.05)
    results.close()
    (tmp_path / "go").touch()
    # What had been handed out before these would have begun before them.
    assert len(done_by(scheduler, tmp_path, abs, range(50))) == 50
    assert len(begun.read_text().split()) == 3


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
            ("create_token_files", "--vocab_file", vocab),
            ("create_pairs", "--max_seq_length", 64),
            ("create_tfrecord_files", "--vocab_file", vocab, "--max_seq_length", 64),
            ("verify",),
        ):
            if workers and stage in ("sharding", "create_tfrecord_files"):
                kill_one.touch()
            run(folder, stage, *arguments, *workers)
            if workers and stage in ("sharding", "create_tfrecord_files") and not kill_one.exists():
                killed.append(stage)
        # Pairs by split; verified by the cluster: shards, token files and records.
        assert capfd.readouterr().out.count("Dask scheduler") == (9 if workers else 0)
    assert killed == ["sharding", "create_tfrecord_files"]
    assert contents(tmp_path / "dask") == contents(tmp_path / "pool")


def test_a_piece_of_work_that_kills_its_workers_is_given_up(scheduler, tmp_path):
    words = "perhaps because they ran out of memory .*on 2 different workers"
    refused(words, done_by, scheduler, tmp_path, dask_tasks.die, range(1))


def test_a_worker_without_our_modules_is_told(scheduler, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def work(item):\n    return item\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    refused(f"do not see {ROOT}: No module named 'only_here'", done_by, scheduler, tmp_path, only_here.work, range(2))


def test_a_task_finds_the_program_in_the_checkout(tmp_path):
    task = pickle.dumps(cloudpickle.dumps(dask_cluster._task(str(ROOT))))
    load = "import pickle, sys; task = pickle.loads(pickle.load(sys.stdin.buffer)); "
    command = [sys.executable, "-c", f"{load}task('here', {code_digest()!r}, '/nowhere', b'')"]
    answer = subprocess.run(command, input=task, cwd=tmp_path, capture_output=True)
    assert "does not see /nowhere: BERT_PREP_WORKING_DIR must be" in answer.stderr.decode()


def test_a_worker_that_runs_other_code_is_told(tmp_path):
    refused("other code than this command on here", run_task, "here", "x", str(tmp_path), b"")


@pytest.mark.parametrize(
    "address, message",
    [
        ("", "missing port"),
        ("tcp://127.0.0.1:1", "no Dask scheduler answers at .*127.0.0.1:1 "),
        ("http://127.0.0.1:1", "unknown address scheme"),
        ("{folder}/none.json", "none.json .FileNotFoundError.*for 0 s"),
        ("{folder}/damaged.json", "dask_scheduler=.*damaged.json .*--scheduler-file"),
    ],
)
def test_an_address_without_a_scheduler_is_told(tmp_path, monkeypatch, address, message):
    monkeypatch.setattr(dask_cluster, "FIND_SCHEDULER_SECS", 0 if "none" in address else 5)
    (tmp_path / "damaged.json").write_text('{"workers": {}}')
    refused(message, done_by, address.format(folder=tmp_path), tmp_path, abs, range(2))
    gc.collect()  # a client that failed takes a lock when it is collected, which another one may hold while it starts


def test_a_scheduler_without_a_worker_is_told_and_so_is_one_that_ends(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(dask_cluster, "_CHECK_SECS", 0.1)
    file = tmp_path / "scheduler.json"
    processes = [dask(*SCHEDULER, file)]
    try:
        monkeypatch.setattr(dask_cluster, "FIND_WORKER_SECS", 0.3)
        distributed.Client(scheduler_file=str(file), timeout=SECS).close()  # until it answers
        refused("no worker for 0.3 s", done_by, file, tmp_path, abs, range(2))
        assert "waiting up to 0.3 s for a Dask worker" in capfd.readouterr().err
        monkeypatch.setattr(dask_cluster, "FIND_WORKER_SECS", SECS)
        one_worker = ("--nworkers", 1, "--local-directory", tmp_path)
        processes.append(dask(*WORKER, file, *one_worker, PYTHONPATH=str(ROOT)))
        results = DaskCluster(str(file), tmp_path).map_in_order(time.sleep, itertools.repeat(0.1))
        next(results)
        threading.Timer(0.5, processes[0].kill).start()
        refused("is lost: restart it", list, results)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_missing_package_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "bert_tf.prepare.running.dask_cluster")
    options = PreparationOptions(dask_scheduler="tcp://127.0.0.1:1")
    refused("pip install -r .*requirements/dask.txt", stages.make_task_pool, options, stages.Layout(tmp_path))
