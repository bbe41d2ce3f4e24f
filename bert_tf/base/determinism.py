"""Bitwise reproducible runs; on GPUs the fastest operations are not deterministic."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from bert_tf.base.machine import rank_number


def make_deterministic(run_folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Asks TensorFlow and XLA for the same bits in every run. Must be called before TensorFlow is imported.

    On GPUs XLA chooses among matmul kernels by timing them. So each rank's choices are kept in the run folder
    (`keep_autotune_results`) and reused when the run is started again.
    """
    known, unfinished = _autotune_files(run_folder, environ)
    options = ["--xla_gpu_deterministic_ops=true"]
    if known.exists():
        options.append(f"--xla_gpu_load_autotune_results_from={known}")
    else:
        options.append(f"--xla_gpu_dump_autotune_results_to={unfinished}")
    environ["XLA_FLAGS"] = " ".join([environ.get("XLA_FLAGS", ""), *options]).strip()
    environ["TF_DETERMINISTIC_OPS"] = "1"


def keep_autotune_results(run_folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Keeps XLA's choices on this rank so far for the next start; must be called before a checkpoint is saved.

    XLA rewrites its file in place at each compilation; renaming leaves a complete file for the next start.
    Does nothing if XLA has not written one.
    """
    known, unfinished = _autotune_files(run_folder, environ)
    with contextlib.suppress(FileNotFoundError):
        unfinished.replace(known)


def _autotune_files(run_folder: Path, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """This rank's file for the next start, and the one that XLA writes (as text, because of the suffix .txt)."""
    rank = rank_number(environ)
    return (run_folder / f"xla_autotune_results_{rank}.txt", run_folder / f"xla_autotune_results_{rank}.unfinished.txt")
