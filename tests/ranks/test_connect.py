"""Joining the ranks: a machine's GPUs, and ranks that never come."""

from __future__ import annotations

import platform
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bert_tf.base.errors import LostRankError
from bert_tf.ranks import connect as module
from bert_tf.ranks import horovod_workers, rendezvous
from bert_tf.ranks.connect import connect
from bert_tf.ranks.workers import Workers
from tests.processes import run_two_ranks
from tests.refusals import refused
from tests.stand_ins import nvidia_smi


def test_gpus_that_tensorflow_cannot_use_are_no_reason_to_train_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "bin", "x", "y"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    refused(r"nvidia-smi lists 2 GPU\(s\).*TensorFlow has 0.*--device=cpu", connect, use_horovod=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    refused(r"nvidia-smi lists 1 GPU\(s\)", connect, use_horovod=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    alone = connect(use_horovod=False)
    assert type(alone) is Workers and alone.is_chief and alone.mean([1.0, 2.0]) == [1.0, 2.0]


@pytest.mark.parametrize(
    "gpus, local_rank, taken",
    [
        (["gpu"], 2, []),  # the only one that it sees, as Slurm's --gpus-per-task and --gpu-bind have it
        (["a", "b"], 1, ["b"]),
        (["a", "b"], 2, r"rank 0 is number 2 on its machine, which has 2 GPU\(s\)"),
    ],
)
def test_which_gpu_a_rank_takes(monkeypatch, gpus, local_rank, taken):
    chosen = []
    growth = SimpleNamespace(set_memory_growth=lambda *_: None)
    config = SimpleNamespace(
        list_physical_devices=lambda _: gpus, experimental=growth, set_visible_devices=lambda gpu, _: chosen.append(gpu)
    )
    monkeypatch.setattr(module, "tf", SimpleNamespace(config=config, __version__="2.15.1"))
    workers = Workers()
    workers.local_rank = local_rank
    monkeypatch.setattr(module, "import_horovod", lambda: None)
    monkeypatch.setattr(module, "connect_horovod", lambda _: workers)
    if isinstance(taken, str):
        refused(taken, connect, use_horovod=True)
    else:
        assert connect(use_horovod=True).hosts == [platform.node()] and chosen == taken


# Two GPUs where TensorFlow keeps those it has found, of which none is there: it asks none before a model is computed.
TWO_GPUS = """
from bert_tf.base.tensorflow import tf
from bert_tf.ranks.connect import connect
from tensorflow.python.eager import context
found = context.context()
found._initialize_physical_devices()
gpus = [context.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(2)]
found._physical_devices += gpus
found._visible_device_list += gpus
workers = connect(use_horovod=True)
print(f"rank {workers.rank} of {len(workers.hosts)} sees", *(gpu.name for gpu in tf.config.get_visible_devices("GPU")))
"""


def test_a_rank_takes_its_gpu_before_tensorflow_begins_to_compute(tmp_path):
    """Afterwards TensorFlow refuses to hide a GPU."""
    program = tmp_path / "two_gpus.py"
    program.write_text(TWO_GPUS)
    done = run_two_ranks([sys.executable, program])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {n} of 2 sees /physical_device:GPU:{n}" for n in range(2)]


# --- Ranks that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize("fact, subject", [(0, "version of TensorFlow"), (1, "code in bert_tf")])
def test_hosts_with_different_programs(monkeypatch, fact, subject):
    """Each rank would apply its own rule, and their weights would no longer be the same."""
    workers = Workers()
    monkeypatch.setattr(workers, "gather", lambda vector: np.stack([vector, vector + (np.arange(len(vector)) == fact)]))
    monkeypatch.setattr(module, "import_horovod", lambda: None)
    monkeypatch.setattr(module, "connect_horovod", lambda _: workers)
    refused(f"^rank 1 on .* has other {subject} than rank 0 on ", connect, use_horovod=True)


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"])
def test_processes_that_horovod_does_not_join(monkeypatch, variable):
    """mpirun beside a Horovod without MPI, or torchrun: each process would be a run of its own."""
    monkeypatch.setattr(horovod_workers, "check_horovod", lambda _: None)
    alone = SimpleNamespace(init=lambda: None, size=lambda: 1, rank=lambda: 0, local_rank=lambda: 0)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(tensorflow=alone))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", alone)
    assert horovod_workers.import_horovod() is alone and horovod_workers.connect_horovod(alone).size == 1
    monkeypatch.setenv(variable, "2")
    refused("=2: so many processes .*: Horovod, built without MPI, does not", horovod_workers.connect_horovod, alone)


@pytest.mark.parametrize("variable", horovod_workers._SIZE_VARIABLES)
def test_processes_that_are_not_to_be_joined(monkeypatch, variable):
    """Whatever has started them: without the flag each would be a run of its own."""
    monkeypatch.setenv(variable, "2")
    refused(rf"^{variable}=2: so many processes were started.*add --use_horovod, or unset", connect, use_horovod=False)


# --- Ranks that never come -----------------------------------------------------------------------


def test_those_that_came_go_on_if_all_did_or_name_those_that_did_not(tmp_path, monkeypatch):
    folder = tmp_path / "a folder"
    folder.mkdir()
    rendezvous.arrival_file(folder, 1).touch()
    rendezvous.await_ranks({rendezvous.VARIABLE: f"0 2 {folder}"})
    monkeypatch.setattr(rendezvous, "LIMIT_SECS", 0.0)
    monkeypatch.setattr(module, "import_horovod", lambda: None)
    monkeypatch.setenv(rendezvous.VARIABLE, f"0 4 {folder}")
    with pytest.raises(LostRankError, match="rank 2, 3 of 4 has not started within 0 s after rank 0"):
        connect(use_horovod=True)


def test_without_a_launcher_horovod_gives_up_by_itself():
    environ = {}
    rendezvous.await_ranks(environ)
    assert environ == {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120"}
