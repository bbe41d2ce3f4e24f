"""Pre-trains a small model many times over, each time in a folder of its own.

Hundreds of trials can be interrupted at any time and continued elsewhere with their folder's `finished.jsonl`. An
interrupted trial resumes from its checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import math
import multiprocessing
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.finished import Finished
from benchmarks.frame import Bench, existing_path, read_scores
from benchmarks.results import number
from bert_tf.base.files import sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.bert_config import BertConfig
from bert_tf.memory.plan import Workload
from bert_tf.run.events import read_events
from bert_tf.run.gpus import flops_per_row
from bert_tf.settings.training import PretrainingConfig
from bert_tf.text.vocabulary import load_pieces

MICRO_BATCH = 128
UPDATES_PER_LINE = 10
MORE_RATES = 2  # tried beyond an end of a search that is nearly as good as the best
NEARLY_BEST = 1.01
DIVERGED = 3  # exit code of a trial whose gradients are no longer finite


class Trial(NamedTuple):
    """What a run depends on, besides model, data and number of examples."""

    seed: int
    precision: str = "fp32"
    optimizer: str = "lamb"
    rate: float = 0.01
    batch_size: int = 32
    warmup_share: float = 0.1
    clips: bool = True  # whether gradients are clipped to a global norm of 1
    short_share: float = 0.0  # the share of the compute for short sequences, in a phase before

    @property
    def name(self) -> str:
        return "_".join(str(value) for value in self)


class Phase(NamedTuple):
    """One pre-training of a trial; a trial with short sequences has two."""

    folder: Path
    max_seq_length: int
    num_examples: int
    batch_size: int
    rate: float
    start: Path | None  # the folder of the phase whose weights it starts from


class TrialResult(NamedTuple):
    """The result of a trial: on held-out instances, and its training loss over time."""

    mlm_loss: float
    nsp_loss: float
    curve: list[tuple[int, float]]  # update, masked-word loss of the updates since the one before


def add_options(parser: argparse.ArgumentParser, num_examples: int, max_seq_length: int = 64) -> None:
    parser.add_argument(
        "--data", type=existing_path, required=True, help="token files of a dataset: training/ and test/"
    )
    parser.add_argument("--trials", type=Path, required=True, help="folder of what is finished, and of the runs")
    parser.add_argument("--max_seq_length", type=int, default=max_seq_length)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument(
        "--num_examples", type=int, default=num_examples, help="instances of full length that each trial reads"
    )
    parser.add_argument("--seeds", type=int, default=3)


def run_trials(bench: Bench, trials: Iterable[Trial]) -> dict[Trial, TrialResult]:
    """The results of all trials; those that are not finished are run, one after the other."""
    options, results = bench.options, {}
    finished = Finished(options.trials / "finished.jsonl", _facts(options))
    for trial in Progress(list(dict.fromkeys(trials)), unit="trials", description="training"):
        line = finished.find(list(trial))
        if line is None:
            # In a separate process, because TensorFlow would keep about 100 MB of each.
            process = multiprocessing.get_context("spawn").Process(
                target=_train, args=(options, trial, options.trials / trial.name)
            )
            process.start()
            process.join()
            if process.exitcode not in (0, DIVERGED):
                raise SystemExit(process.exitcode)
            is_finite = process.exitcode == 0
            learned = _read_run(options.trials / trial.name) if is_finite else TrialResult(math.inf, math.inf, [])
            line = finished.add(list(trial), learned._asdict())
        results[trial] = TrialResult(*(line[name] for name in TrialResult._fields))
    return results


def with_all_seeds(bench: Bench, trials: Iterable[Trial]) -> dict[Trial, list[TrialResult]]:
    """The results of each trial with every seed from 1 on, in the seeds' order."""
    trials, seeds = list(trials), range(1, bench.options.seeds + 1)
    results = run_trials(bench, [trial._replace(seed=seed) for trial in trials for seed in seeds])
    return {trial: [results[trial._replace(seed=seed)] for seed in seeds] for trial in trials}


def rates_around(middle: float, num_rates: int) -> list[float]:
    """Learning rates, rising by factors of 2."""
    return [round(middle * 2.0 ** (step - (num_rates - 1) / 2), 6) for step in range(num_rates)]


def search(bench: Bench, grid: Mapping[Any, list[Trial]]) -> tuple[dict[Any, Trial], dict[Any, str]]:
    """The best of each list of trials, and the rates and losses of all of them.

    The trials of a list differ in their rates, which rise by factors of 2. Beyond an end that is nearly as good as the
    best of its list the search continues; the new trials are added to it.
    """
    for more in range(MORE_RATES + 1):
        losses = {
            trial: result.mlm_loss for trial, result in run_trials(bench, itertools.chain(*grid.values())).items()
        }
        best = {key: min(candidates, key=losses.__getitem__) for key, candidates in grid.items()}
        for key, candidates in grid.items() if more < MORE_RATES else ():
            for end, position, factor in ((candidates[0], 0, 0.5), (candidates[-1], len(candidates) + 1, 2.0)):
                if losses[end] <= NEARLY_BEST * losses[best[key]]:
                    candidates.insert(position, end._replace(rate=round(end.rate * factor, 6)))
    tried = {
        key: ", ".join(f"{number(trial.rate)}: {losses[trial]:.3f}" for trial in candidates)
        for key, candidates in grid.items()
    }
    return best, tried


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    """The model, the data and the length, which all trials of a folder have in common."""
    names = ("max_seq_length", "layers", "hidden_size", "num_examples")
    return {"data": data_digest(options.data), **{name: getattr(options, name) for name in names}}


def data_digest(data: Path) -> str:
    """A digest of a dataset's token files and its vocabulary."""
    files = [*sorted(data.rglob("*.tokens")), data / "vocab.txt"]
    return hashlib.sha256("".join(map(sha256_of_file, files)).encode()).hexdigest()


def _read_run(folder: Path) -> TrialResult:
    held_out, events = read_scores(folder), read_events(folder)
    curve = [(event["update"], event["mlm_loss"]) for event in events if event["event"] == "train"]
    return TrialResult(held_out["masked_lm_loss"], held_out["next_sentence_loss"], curve)


def small_model(data: Path, layers: int, hidden_size: int) -> BertConfig:
    """The configuration of a model with attention heads of width 64, for the vocabulary of a dataset."""
    num_pieces = len(load_pieces(data / "vocab.txt"))
    return BertConfig(num_pieces, hidden_size, layers, max(1, hidden_size // 64), 4 * hidden_size)


def _train(options: argparse.Namespace, trial: Trial, folder: Path) -> None:
    model = small_model(options.data, options.layers, options.hidden_size)
    for phase in phases_of(trial, model, options.max_seq_length, options.num_examples, folder):
        _train_phase(options.data, model, trial, phase)


def phases_of(trial: Trial, model: BertConfig, max_seq_length: int, num_examples: int, folder: Path) -> list[Phase]:
    """The phases of a trial. All trials of `num_examples` take the same compute, as counted by `bert_tf.run.gpus`.

    As in the recipe, short sequences are a quarter as long, their batch is twice as large, and the rate of the
    second phase is two thirds of the first one's.
    """
    if not trial.short_share:
        return [Phase(folder, max_seq_length, num_examples, trial.batch_size, trial.rate, None)]
    short = max_seq_length // 4
    cost = [
        flops_per_row(Workload(model, length, num_predictions(length), "off")) for length in (short, max_seq_length)
    ]
    num_long = round((1 - trial.short_share) * num_examples)
    num_short = round((num_examples - num_long) * cost[1] / cost[0])
    first = Phase(folder / "first_phase", short, num_short, 2 * trial.batch_size, trial.rate, None)
    return [first, Phase(folder, max_seq_length, num_long, trial.batch_size, trial.rate * 2 / 3, first.folder)]


def num_predictions(max_seq_length: int) -> int:
    """The largest number of masked words in a sequence."""
    return max(1, round(0.15 * max_seq_length))


def _train_phase(data: Path, model: BertConfig, trial: Trial, phase: Phase) -> None:
    from bert_tf.ranks.workers import Workers
    from bert_tf.settings.programs import PretrainingOptions
    from bert_tf.tasks.job import Job, run_job
    from bert_tf.tasks.pretraining.task import PretrainingTask
    from bert_tf.training.record import DivergedError

    length = phase.max_seq_length
    num_updates = phase.num_examples // phase.batch_size
    is_emulated = trial.precision in EMULATED
    config = PretrainingConfig(
        learning_rate=phase.rate,
        train_batch_size=min(MICRO_BATCH, phase.batch_size),
        num_accumulation_steps=max(1, phase.batch_size // MICRO_BATCH),
        precision="fp32" if is_emulated else trial.precision,
        xla_scope="blocks",
        seed=trial.seed,
        num_train_steps=num_updates,
        warmup_steps=round(trial.warmup_share * num_updates),
        max_seq_length=length,
        max_predictions_per_seq=num_predictions(length),
        optimizer_type=trial.optimizer,
        eval_batch_size=32,
        max_eval_steps=0,
        save_checkpoint_steps=num_updates,
        display_loss_steps=min(UPDATES_PER_LINE, num_updates),
    )
    with contextlib.ExitStack() as changes:
        if is_emulated:
            changes.enter_context(rounded_matmuls(trial.precision))
        if not trial.clips:
            changes.enter_context(_without_clipping())
        model_file = phase.folder.parent / f"{phase.folder.name}.json"
        model_file.parent.mkdir(parents=True, exist_ok=True)
        model_file.write_text(model.to_json())
        options = PretrainingOptions(
            model_dir=str(phase.folder),
            bert_config_file=str(model_file),
            input_files=str(data / "training"),
            eval_files=str(data / "test"),
            init_checkpoint=str(phase.start) if phase.start else None,
            enable_xla=True,
        )
        try:
            is_finished = run_job(Job(config, options, PretrainingTask.from_settings(config, options)), Workers())
        except DivergedError:
            raise SystemExit(DIVERGED) from None
        if not is_finished:
            raise SystemExit("stopped by a signal; the same command goes on from here")


def _without_clipping() -> contextlib.AbstractContextManager[object]:
    """Has `run_job` make optimizers whose limit of the gradient's norm is infinite."""
    from unittest import mock

    from bert_tf.tasks import job

    make = functools.partial(job.make_optimizer, global_clipnorm=math.inf)
    return mock.patch.object(job, "make_optimizer", make)


@contextlib.contextmanager
def rounded_matmuls(precision: str):
    """Rounds both operands of every matmul, forward and backward, as tensor cores see them; sums stay float32."""
    from unittest import mock

    from bert_tf.base.tensorflow import tf

    exact = tf.matmul
    rounding = EMULATED[precision]

    def matmul(a, b, transpose_a=False, transpose_b=False):
        @tf.custom_gradient
        def run(a, b):
            operands = [rounding(tf.convert_to_tensor(each), 1.0) for each in (a, b)]

            def gradient(upstream):
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(operands)
                    product = exact(*operands, transpose_a=transpose_a, transpose_b=transpose_b)
                return tape.gradient(product, operands, rounding(upstream, LOSS_SCALE))

            return exact(*operands, transpose_a=transpose_a, transpose_b=transpose_b), gradient

        return run(a, b)

    with mock.patch.object(tf, "matmul", matmul):
        yield


def _tf32(x, _: float):
    """Rounded to 10 bits of mantissa, ties to even."""
    from bert_tf.base.tensorflow import tf

    bits = tf.bitcast(x, tf.int32)
    odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 13), 1)
    return tf.bitcast(tf.bitwise.bitwise_and(bits + 0xFFF + odd, ~0x1FFF), tf.float32)


def _fp16(x, scale: float):
    """Rounded to float16 and back; gradients with a loss scale, without which small ones become 0."""
    from bert_tf.base.tensorflow import tf

    return tf.cast(tf.cast(x * scale, tf.float16), tf.float32) / scale


LOSS_SCALE = 2.0**15
EMULATED = {"tf32": _tf32, "fp16": _fp16}


def mean_and_spread(values: Iterable[float]) -> str:
    values = list(values)
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"
