"""The program killed with -9 again and again, while it writes checkpoints and below its supervisor: the same bits.

Once: test_training; what the supervisor does: test_supervisor.
"""

import contextlib
import os
import subprocess
import sys
import time

import psutil
import pytest

from tests import processes
from tests.training.test_training import ROOT, command, lines, run, wait_for, weights
from tests.training.test_training import dataset as dataset  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.long]
LONG = dict(num_train_steps=40, save_checkpoint_steps=2, eval_files=None)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """A run that nobody disturbed."""
    model_dir = tmp_path_factory.mktemp("whole")
    run(dataset, model_dir, **LONG)
    return model_dir


# Starts the program again and again, with a slow writer, and kills it while it writes; the last start is not killed.
# Itself a fork that forks. Prints how many kills have left a checkpoint half-written.
KILLER = """
import os, pathlib, random, runpy, signal, sys, time
from bert_tf.run import checkpoint
from bert_tf.training import pretraining  # and all else that takes time to import

num_kills, folder = int(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
generator, hash_file, num_caught = random.Random(5), checkpoint.sha256_of_file, 0

def hash_slowly(path):
    time.sleep(0.05)
    return hash_file(path)

for kill in range(num_kills + 1):
    known = set(os.listdir(folder)) if folder.exists() else set()
    child = os.fork()
    if child == 0:
        checkpoint.sha256_of_file = hash_slowly
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    if kill < num_kills:
        while not (folder.exists() and set(os.listdir(folder)) - known):
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "ended too early"
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.45))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    for left in folder.glob(".unfinished-*"):  # renamed, so that the next start's own one is new to this loop
        num_caught += 1
        left.rename(folder / f".unfinished-ckpt-{9000 + kill:08d}")
print("caught", num_caught)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_killed_with_9_while_it_writes_it_ends_with_the_same_bits(whole, dataset, tmp_path):
    arguments = command(dataset, tmp_path, **LONG)
    killer = tmp_path / "killer.py"
    killer.write_text(KILLER)
    done = processes.run(
        [arguments[0], str(killer), "3", str(tmp_path / "checkpoints"), *arguments[1:]], CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) >= 1, "no kill came while a checkpoint was written"
    assert len(lines(tmp_path, "start")) == 4 and not lines(tmp_path, "warning")
    assert weights(tmp_path, 40) == weights(whole, 40)


SUPERVISE = """
import os, pathlib, sys
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.launchers import Job
from bert_tf.launch.supervisor import train
sys.exit(train("the run", Job(sys.argv[2:], 1, 0, "none", pathlib.Path(sys.argv[1])), LaunchEnvironment(os.environ)))
"""


def test_killed_with_9_it_ends_by_itself_with_the_same_bits(whole, dataset, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(tmp_path / "logs"), *command(dataset, tmp_path, **LONG)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "RESTARTS": "1"},
    )
    program = wait_for_program(process)
    wait_for(tmp_path / "checkpoints" / "ckpt-00000010", process)
    program.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and output.count("ended with code 137 (SIGKILL); in 2 s it goes on") == 1, output
    assert weights(tmp_path, 40) == weights(whole, 40)
    assert len(lines(tmp_path, "start")) == 2


def wait_for_program(process):
    """The training below the launcher, once there is one."""
    while True:
        assert process.poll() is None, process.communicate()[0]
        for part in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if part.cmdline()[1:2] == [str(ROOT / "run_pretraining.py")]:
                    return part
        time.sleep(0.05)
