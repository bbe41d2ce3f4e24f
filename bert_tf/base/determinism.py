"""The same bits in every run, where GPUs have faster operations that do not give them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from bert_tf.base.machine import rank_number


def make_deterministic(run_folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Asks TensorFlow and XLA for the same bits in every run. To be called before TensorFlow is imported.

    On GPUs XLA chooses among matmuls by timing them. So what a rank's XLA chose is kept in the run's folder
    (`keep_autotune_results`), and used when the run is started again.
    """
    own, unfinished = _autotune_files(run_folder, environ)
    options = ["--xla_gpu_deterministic_ops=true"]
    # The second name is of runs that were begun when all ranks wrote one file.
    known = next((file for file in (own, run_folder / "xla_autotune_results.txt") if file.exists()), None)
    if known:
        options.append(f"--xla_gpu_load_autotune_results_from={known}")
    else:
        options.append(f"--xla_gpu_dump_autotune_results_to={unfinished}")
    environ["XLA_FLAGS"] = " ".join([environ.get("XLA_FLAGS", ""), *options]).strip()
    environ["TF_DETERMINISTIC_OPS"] = "1"


def keep_autotune_results(run_folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Makes what this rank's XLA has chosen so far the run's choice; to be called before a checkpoint is saved.

    XLA writes its file anew with each compilation, in place. Under its name for the next start it is there
    as a whole, or not at all. Does nothing where XLA has written none.
    """
    known, unfinished = _autotune_files(run_folder, environ)
    with contextlib.suppress(FileNotFoundError):
        unfinished.replace(known)


def _autotune_files(run_folder: Path, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """One for the next start and one that XLA writes, of this rank. XLA writes text where a name ends with .txt."""
    rank = rank_number(environ)
    return (run_folder / f"xla_autotune_results_{rank}.txt", run_folder / f"xla_autotune_results_{rank}.unfinished.txt")
