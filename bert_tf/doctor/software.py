"""Examines Python, its packages, TensorFlow, Horovod and what starts the ranks."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import sys

from bert_tf.base.machine.hardware import count_gpus, gpu_complaints
from bert_tf.base.machine.launchers import Start, check_installed, horovodrun
from bert_tf.base.machine.software import SETUP, check_gpu_code, check_version, is_installed
from bert_tf.doctor.findings import OK, PROBLEM, WARNING, Finding, Findings, ask, ask_python, judge, problems

# The modules of requirements/base.txt.
_PACKAGES = "google_crc32c jinja2 numpy plotly google.protobuf requests safetensors sentencepiece tokenizers tqdm"
_TENSORFLOW = """
import json, tensorflow as tf
print(json.dumps([tf.__version__, tf.sysconfig.get_build_info(), len(tf.config.list_physical_devices("GPU"))]))
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
if total != [3.0]:
    raise ValueError(f"1 + 2 = {total}")
"""


def examine_python() -> Findings:
    remedy = f"3.9 to 3.13 is needed: {SETUP} finds or fetches one"
    is_fine = (3, 9) <= sys.version_info[:2] <= (3, 13)
    yield judge(is_fine, f"{platform.python_version()}, {sys.executable}", remedy)


def examine_packages() -> Findings:
    check_installed(_PACKAGES.split(), f"{SETUP} installs them")
    yield Finding(OK, "all of requirements/base.txt")


def examine_tensorflow() -> Findings:
    """Examines TensorFlow, and whether it sees the GPUs that nvidia-smi lists."""
    if not is_installed("tensorflow"):
        Start(1, 0, {}).check_tensorflow()
    out, err = ask_python(_TENSORFLOW, f"{SETUP} repairs that")
    version, build_info, num_seen = json.loads(out.splitlines()[-1])
    cuda, num_gpus = build_info.get("cuda_version", ""), count_gpus(os.environ)
    fact = f"{version}, built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    yield from problems(check_version, version) or [Finding(OK, fact)]
    yield from problems(check_gpu_code, build_info, num_gpus)
    if num_gpus:
        reason = ("; ".join(gpu_complaints(err)) if cuda else "it is tensorflow-cpu") or "it gives no reason"
        yield judge(
            num_seen >= num_gpus,
            f"it sees {num_seen} of {num_gpus} GPU(s)",
            f"{reason}: {SETUP} installs the CUDA libraries that fit; DEVICE=cpu (--device=cpu) trains on the CPU",
        )


def _start() -> Start:
    """The start to check: with the ranks that HOSTS names, else two (one if LAUNCHER=none); on the CPU."""
    num_ranks = sum(Start(1, 0, os.environ).hosts.values())
    return Start(num_ranks or (1 if os.environ.get("LAUNCHER") == "none" else 2), 0, os.environ)


def examine_horovod() -> Findings:
    """Examines Horovod, with a sum over two ranks by each library that it was built with."""
    # A missing Horovod is only a warning: one rank works without it.
    refused = problems(_start().check_horovod)
    yield from refused
    if not is_installed("horovod") or any(finding.state == PROBLEM for finding in refused):
        return
    out, _ = ask_python(_HOROVOD, f"{SETUP} builds it again")
    version, nccl, mpi, gloo = json.loads(out.splitlines()[-1])
    names = ", ".join(itertools.compress(("NCCL", "MPI", "Gloo"), (nccl, mpi, gloo)))
    remedy = (
        "without NCCL gradients go by way of the CPU, slowly: "
        f"{SETUP} builds it with NCCL where CUDA 12's nvcc and nccl.h are (docs/clusters.md); NVIDIA's container has it"
    )
    yield judge(nccl or count_gpus(os.environ) < 2, f"{version} with {names}", remedy, WARNING)
    for library in ("gloo",) * gloo + ("mpi",) * (mpi and shutil.which("mpirun") is not None):
        yield from problems(
            ask,
            [*horovodrun(library, 2), sys.executable, "-c", _ALL_REDUCE],
            120.0,
            f"two ranks cannot add their numbers by {library}",
            "a firewall or VPN may be in the way; num_gpus=1 works without",
        ) or [Finding(OK, f"two ranks have added their numbers by {library}")]


def examine_launcher() -> Findings:
    """Examines what would start several ranks here."""
    start = _start()
    refused = problems(start.check_launcher)
    yield from refused
    if not refused and is_installed("horovod"):  # else an earlier check has reported it
        yield Finding(OK, f"{start.num_ranks} rank(s) would be started by {start.launcher}")
