"""Checks Python, its packages, TensorFlow, Horovod and what starts the ranks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys

from bert_tf.base.errors import UserError
from bert_tf.base.machine import count_gpus, gpu_complaints
from bert_tf.doctor.finding import OK, PROBLEM, WARNING, Findings, ask, ask_python
from bert_tf.doctor.machine import query_gpus

_SETUP = "'bash scripts/setup.sh'"
# The modules of requirements/base.txt.
_PACKAGES = "absl google_crc32c jinja2 numpy plotly google.protobuf requests safetensors sentencepiece tokenizers tqdm"
# The oldest driver for each major version of CUDA (NVIDIA, "CUDA Compatibility", minor version compatibility).
_OLDEST_DRIVERS = {"11": "450.80", "12": "525.60"}
_TENSORFLOW = """
import json, tensorflow as tf
cuda = tf.sysconfig.get_build_info().get("cuda_version", "")
print(json.dumps([tf.__version__, str(cuda), len(tf.config.list_physical_devices("GPU"))]))
"""
_HOROVOD = """
import json, horovod, horovod.tensorflow as hvd
print(json.dumps([horovod.__version__, bool(hvd.nccl_built()), bool(hvd.mpi_built()), bool(hvd.gloo_built())]))
"""
_ALL_REDUCE = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[hvd.local_rank()] if len(gpus) > 1 else [], "GPU")
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum).numpy().tolist()
assert total == [3.0], f"1 + 2 = {total}"
"""


def check_python() -> Findings:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 9) <= sys.version_info[:2] <= (3, 11):
        yield OK, f"{version}, {sys.executable}"
    else:
        yield PROBLEM, f"{version} is not 3.9, 3.10 or 3.11: {_SETUP} finds or fetches one"


def check_packages() -> Findings:
    missing = [name for name in _PACKAGES.split() if not _is_installed(name)]
    if missing:
        yield PROBLEM, f"{sys.executable} has no {', '.join(missing)}: {_SETUP} installs them"
    elif not importlib.metadata.version("numpy").startswith("1."):
        yield PROBLEM, f"numpy is {importlib.metadata.version('numpy')}, TensorFlow needs 1: {_SETUP} installs it"
    else:
        yield OK, "all of requirements/base.txt"


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package
        return False


def check_tensorflow() -> Findings:
    """Checks TensorFlow, whether the driver suits it, and whether it sees the GPUs that nvidia-smi lists."""
    if not _is_installed("tensorflow"):
        yield PROBLEM, f"{sys.executable} has none: {_SETUP} installs 2.15.1"
        return
    answer = ask_python(_TENSORFLOW)
    try:
        version, cuda, num_seen = answer.json()
    except ValueError:
        yield PROBLEM, f"it cannot be imported ({answer.reason}): {_SETUP} repairs that"
        return
    if version.startswith("2.15."):
        yield OK, f"{version}, built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    else:
        yield WARNING, f"{version} was never tried, 2.15.1 is what works: {_SETUP} installs it"
    num_gpus = count_gpus(os.environ)
    driver = next((gpu.driver for gpu in query_gpus()), "")
    oldest = _OLDEST_DRIVERS.get(cuda.split(".")[0], "")
    if driver and _numbers(driver) < _numbers(oldest):
        yield PROBLEM, f"the driver {driver} is too old for CUDA {cuda}: install {oldest} or newer, then reboot"
    if num_gpus > num_seen:
        said = "; ".join(gpu_complaints(answer.err)) if cuda else "it is tensorflow-cpu"
        way_out = f"{_SETUP} installs the CUDA libraries that fit; DEVICE=cpu (--device=cpu) trains on the CPU"
        yield PROBLEM, f"it sees {num_seen} of {num_gpus} GPU(s) ({said or 'it gives no reason'}): {way_out}"
    elif num_gpus:
        yield OK, f"it sees {num_seen} GPU(s)"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def check_horovod() -> Findings:
    """Checks Horovod, with a sum over two ranks by each library that it was built with."""
    if not _is_installed("horovod"):
        way_out = f"{_SETUP} builds it where there is a C++ compiler (apt-get install g++ make)"
        yield WARNING, f"there is none, so num_gpus must be 1: {way_out}"
        return
    answer = ask_python(_HOROVOD)
    try:
        version, nccl, mpi, gloo = answer.json()
    except ValueError:
        yield PROBLEM, f"it cannot be imported ({answer.reason}): {_SETUP} builds it again"
        return
    names = ", ".join(name for name, is_there in (("NCCL", nccl), ("MPI", mpi), ("Gloo", gloo)) if is_there)
    if count_gpus(os.environ) > 1 and not nccl:
        way_out = f"{_SETUP} builds it with NCCL where nvcc and libnccl-dev are; NVIDIA's container has it"
        yield WARNING, f"{version} with {names}: without NCCL gradients go by way of the CPU, slowly: {way_out}"
    else:
        yield OK, f"{version} with {names}"
    for way in ("gloo",) * gloo + ("mpi",) * (mpi and shutil.which("mpirun") is not None):
        command = [sys.executable, "-m", "horovod.runner.launch", f"--{way}", "-np", "2", sys.executable, "-c"]
        answer = ask([*command, _ALL_REDUCE], 120.0, TF_CPP_MIN_LOG_LEVEL="2")
        if answer.code == 0:
            yield OK, f"two ranks have added their numbers by {way}"
        else:
            way_out = "a firewall or VPN may be in the way; num_gpus=1 works without"
            yield PROBLEM, f"two ranks cannot add their numbers by {way} ({answer.reason}): {way_out}"


def check_launcher() -> Findings:
    """Checks what would start several ranks here."""
    if _is_installed("tqdm") and _is_installed("horovod"):  # otherwise an earlier check has reported it
        from bert_tf.launch.hosts import hosts_of
        from bert_tf.launch.launchers import choose_launcher  # imports tqdm

        num_ranks = sum(hosts_of(os.environ).values()) or 2
        try:
            yield OK, f"several ranks would be started by {choose_launcher(num_ranks, os.environ)}"
        except UserError as error:
            yield WARNING, str(error)
    if shutil.which("sbatch") and "SLURM_JOB_ID" not in os.environ:
        yield OK, "this is no Slurm job; 'srun -N1 bash scripts/doctor.sh' looks at a node that computes"
