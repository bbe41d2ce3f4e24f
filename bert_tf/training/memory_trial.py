"""Tries whether a micro-batch fits into a CPU's memory, in a process that may die of it.

A GPU whose memory is short says so, and `train_step` halves the micro-batch. On a CPU the process
mostly ends without a word: by std::bad_alloc (SIGABRT), at an address that is none (SIGSEGV), or by
the kernel's hand (SIGKILL). So where ranks compute on the CPU, each lets a process of its own make
the updates' like before the run begins: same model, compilation and shapes, made-up records of full
length. It inherits every limit, and it dies in the run's stead; then the size is halved. All ranks
try at the same time and hold what they took until the last one has come so far, because those of one
machine share its memory.

    fit_split() -> _Trial -> `python -m bert_tf.training.memory_trial` <settings as JSON>
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.base.progress import progress
from bert_tf.config import BertConfig, compute_dtype
from bert_tf.memory.plan import BatchSplit, Workload, halve
from bert_tf.model.blocks import Blocks
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.model.losses import PretrainingObjective, SpanObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers, in_buckets
from bert_tf.run.checkpoint import CheckpointFolder
from bert_tf.run.run_folder import CONFIG, read_config
from bert_tf.training.step import OutOfMemory, TrainStep

NUM_UPDATES = 2
# Of a trial's micro-batches: one on its way while the sums of the one before are kept.
MAX_ACCUMULATION = 2
# What a run has and a trial has not: reading ahead, the arenas of more threads, the word table's copies
# while it is saved, Horovod.
RESERVE_BYTES = 256 << 20
SHORT_OF_MEMORY = 3  # exit code of a trial that was told so
_DEATHS = (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV)
_CHECKOUT = Path(__file__).resolve().parent.parent


def fit_into_memory(config: Any, work: Workload, optimizer_type: str, model_dir: Path, workers: Workers) -> Any:
    """A PretrainingConfig or FinetuningConfig as it can be trained: a micro-batch that is to be found fits on a CPU.

    Args:
      work: what is trained; of any micro-batch.
      model_dir: where this machine has already trained with these settings, they are known to fit.
    """
    if not config.may_split_more or tf.config.list_physical_devices("GPU"):
        return config
    split = BatchSplit(config.train_batch_size, config.num_accumulation_steps, True)
    num_rows = split.micro_batch_size * split.num_accumulation_steps
    known = _size_that_fitted(config, work, model_dir) if workers.is_chief else 0
    known = int(workers.gather(np.array([known]))[0, 0])
    if 0 < known <= split.micro_batch_size:
        split = BatchSplit(known, num_rows // known, True)
        if workers.is_chief:
            print(
                f"--train_batch_size=auto: {split.num_accumulation_steps} micro-batch(es) of {known} on each rank, "
                "with which this run has trained here before",
                flush=True,
            )
    else:
        split = fit_split(split, work, optimizer_type, workers)
    return dataclasses.replace(
        config, train_batch_size=split.micro_batch_size, num_accumulation_steps=split.num_accumulation_steps
    )


def _size_that_fitted(config: Any, work: Workload, model_dir: Path) -> int:
    """The micro-batch with which the last start in this folder came to a checkpoint; 0 where nothing is known."""
    record = read_config(model_dir)
    newest = CheckpointFolder(model_dir / "checkpoints", keep=1, vocab_size=0, companions={}).list()[-1:]
    if record is None or not newest or newest[0].stat().st_mtime < (model_dir / CONFIG).stat().st_mtime:
        return 0
    settings, split = record.get("settings", {}), ("train_batch_size", "num_accumulation_steps")
    same = (
        record.get("host") == platform.node()
        and record.get("bert_config") == work.bert_config.to_dict()
        and all(settings.get(name) == value for name, value in dataclasses.asdict(config).items() if name not in split)
    )
    return settings["train_batch_size"] if same else 0


def fit_split(split: BatchSplit, work: Workload, optimizer_type: str, workers: Workers) -> BatchSplit:
    """The split with its micro-batch halved until updates with it fit into memory on all ranks.

    Args:
      work: what is trained; of any micro-batch.

    Raises:
      UserError: not even a micro-batch of 1 fits.
      RuntimeError: a trial failed of something else; holds what it said.
    """

    def say(what: str) -> None:
        if workers.is_chief:
            print(f"--train_batch_size=auto: {what}", flush=True)

    while True:
        size, num_steps = split.micro_batch_size, split.num_accumulation_steps
        say(f"trying micro-batches of {size} in another process, which may run out of memory")
        trial = _Trial(
            dataclasses.replace(work, micro_batch_size=size), optimizer_type, min(num_steps, MAX_ACCUMULATION)
        )
        try:
            code = workers.run_keeping_alive(lambda: trial.run(show_progress=workers.is_chief))  # noqa: B023 - called at once
            codes = workers.gather(np.array([code]))[:, 0]
        finally:
            words = trial.end()
        if not codes.any():
            say(f"{num_steps} micro-batch(es) of {size} on each rank fit")
            return split
        rank = int(np.flatnonzero(codes)[0])
        reason = f"rank {rank}'s trial ended with {_name(int(codes[rank]))}"
        if size == 1:
            raise UserError(
                f"there is too little memory even for a micro-batch of 1 ({reason}; {words or 'silent'}); "
                "--recompute takes less, and so do a shorter --max_seq_length, a smaller model and, where "
                "ranks share a machine, fewer of them"
            )
        split = halve(split)
        say(
            f"{size} do not fit ({reason}): going on with {split.num_accumulation_steps} micro-batches of "
            f"{split.micro_batch_size} instead of {num_steps} of {size}, the same examples in each update"
        )


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else "an error about memory"


class _Trial:
    """One try. Its process holds the memory it has taken until `end`, or until this process ends."""

    def __init__(self, work: Workload, optimizer_type: str, num_steps: int):
        settings = {"work": dataclasses.asdict(work), "optimizer_type": optimizer_type, "num_steps": num_steps}
        path = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
        self._size = work.micro_batch_size
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bert_tf.training.memory_trial", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
        )

    def run(self, show_progress: bool) -> int:
        """0 once the updates are made; where memory was short the code with which the process ended."""
        assert self._process.stdout
        num_made = 0
        with progress(
            total=NUM_UPDATES,
            unit="updates",
            description=f"trying micro-batches of {self._size}",
            disable=not show_progress,
        ) as bar:
            while num_made < NUM_UPDATES and self._process.stdout.readline():
                num_made += 1
                bar.update(1)
        if num_made == NUM_UPDATES:
            return 0
        code = self._process.wait()
        if code == SHORT_OF_MEMORY or -code in _DEATHS:
            return code
        raise RuntimeError(
            f"trying micro-batches of {self._size} ended with code {code}, which does not mean that "
            f"memory is short:\n{self._said()}"
        )

    def end(self) -> str:
        """Lets go of the memory; returns the last line that the process said."""
        self._process.kill()  # it has nothing to lose, and one that is out of memory may not listen
        self._process.wait()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        said = self._said().splitlines()
        self._errors.close()
        self._process.stdout.close()
        return said[-1] if said else ""

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()


# --- In the process of its own -------------------------------------------------------------------


class _OneOfSeveral(Workers):
    """Copies gradients as an all-reduce does, and reduces nothing."""

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return in_buckets(tensors, lambda _, flat: tf.identity(flat))


def make_step(work: Workload, optimizer_type: str, num_steps: int) -> TrainStep:
    """Updates of `num_steps` micro-batches, from random weights on, as a run makes them."""
    blocks = Blocks(work.scope, compute_dtype(work.precision), work.recompute)
    model_class, objective = (
        (PretrainingModel, PretrainingObjective()) if work.max_predictions_per_seq else (SpanModel, SpanObjective())
    )
    return TrainStep(
        model_class(work.bert_config, blocks, seed=1),
        objective,
        make_optimizer(optimizer_type, 1e-4, 1, 10, compiled=work.scope != "off"),
        _OneOfSeveral() if work.num_ranks > 1 else Workers(),
        LossScale(enabled=work.precision == "fp16"),
        num_accumulation_steps=num_steps,
        micro_batch_size=work.micro_batch_size,
        scope=work.scope,
        seed=1,
    )


def made_up_rows(work: Workload, num_steps: int) -> dict[str, tf.Tensor]:
    """Features [num_steps, micro-batch, ...] of records without padding, every prediction used."""
    rng, shape = np.random.default_rng(0), [num_steps, work.micro_batch_size]

    def whole(high: int, *more: int) -> tf.Tensor:
        return tf.constant(rng.integers(0, high, [*shape, *more]), tf.int32)

    length, num_masked = work.max_seq_length, work.max_predictions_per_seq
    features = {
        "input_ids": whole(work.bert_config.vocab_size, length),
        "input_mask": tf.ones([*shape, length], tf.int32),
        "segment_ids": whole(2, length),
        "example_weights": tf.ones(shape),
    }
    if not num_masked:
        return {**features, "start_positions": whole(length), "end_positions": whole(length)}
    return {
        **features,
        "masked_lm_positions": whole(length, num_masked),
        "masked_lm_ids": whole(work.bert_config.vocab_size, num_masked),
        "masked_lm_weights": tf.ones([*shape, num_masked]),
        "next_sentence_labels": whole(2, 1),
    }


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _offer_to_the_kernel() -> None:
    """Of all processes the kernel is to end this one first, should the machine's memory run out."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed: then the largest goes, which is this one mostly
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(settings: dict[str, Any]) -> None:
    """Makes the updates, says a line for each, and then waits until stdin ends."""
    watch = threading.Thread(target=_end_with_parent, daemon=True)
    watch.start()
    _offer_to_the_kernel()
    work = Workload(**{**settings["work"], "bert_config": BertConfig(**settings["work"]["bert_config"])})
    try:
        reserve = np.ones(RESERVE_BYTES, np.uint8)  # written to, so that it is really there
        step = make_step(work, settings["optimizer_type"], settings["num_steps"])
        features = made_up_rows(work, settings["num_steps"])
        for number in range(NUM_UPDATES):
            float(step(features, number).gradient_norm)
            print(f"update {number + 1}", flush=True)
    except (MemoryError, OutOfMemory, tf.errors.ResourceExhaustedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(SHORT_OF_MEMORY)
    watch.join()
    del reserve


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
