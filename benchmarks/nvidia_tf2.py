r"""Whether NVIDIA's own TF2 code and this project make the same updates.

TensorFlow2/LanguageModeling/BERT from a clone of https://github.com/NVIDIA/DeepLearningExamples runs unchanged, in its
own environment with TensorFlow 2.15, from the same weights and batches as this project. The known differences are
removed one after another, until only rounding is left. --text is the output of text_formatting, one document per line;
the batches are records made from it.

    python -m benchmarks nvidia_tf2 --checkout DeepLearningExamples --vocab_file vocab.txt \\
        --text data/formatted_one_article_per_line/*.txt
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.frame import Bench, Variant, existing_path
from benchmarks.preparation import write_text
from benchmarks.variants.nvidia_tf2 import SWITCHES, checkout_folder, describe
from bert_tf.base.tensorflow import tf
from bert_tf.batches.data_sets import RecordSet
from bert_tf.batches.masking import MaskingRules
from bert_tf.bert_config import BertConfig
from bert_tf.model.backends import make_backend
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer import update_rules
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.prepare.instances.instances import RecordSettings, TokenSettings, make_shard
from bert_tf.ranks.workers import Workers
from bert_tf.records.pairs import PairSettings
from bert_tf.records.token_file import Shard
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep

NEEDS = "peer nvidia_tf2; --checkout of NVIDIA/DeepLearningExamples, --text with a document a line, --vocab_file"
ROUNDS = 1
NUM_UPDATES, BATCH_SIZE, NUM_MICRO_BATCHES, WARMUP_STEPS = 20, 32, 4, 4
# Our name of an optimizer -> theirs, and its learning rate.
OPTIMIZERS = {"lamb": ("LAMB", 6e-3), "adamw": ("adam", 1e-4)}
# The gradient of a key's bias is 0 (softmax ignores what is added to all scores), so it changes by rounding alone.
NO_GRADIENT = "/attention/self/key/bias"
Arrays = dict[str, np.ndarray]


class OurUpdate(NamedTuple):
    """How this project updates: arguments of `make_optimizer`, rounding, micro-batches per batch."""

    optimizer_type: str
    learning_rate: float
    bias_correction: bool = False
    decay_start: int = 0
    float32_coefficients: bool = False
    num_accumulation_steps: int = NUM_MICRO_BATCHES


class Run(NamedTuple):
    """The result of a run: the loss of each update, the final weights, the updates that were applied."""

    losses: np.ndarray
    weights: Arrays
    num_updates: int


# Its title, names of `variants.nvidia_tf2.SWITCHES`, and how ours updates.
Stage = tuple[str, tuple[str, ...], OurUpdate]
ROUNDING = "ours: 1 - b and 1 - b^t in float32"


def stages_of_lamb() -> list[Stage]:
    """The first stage has all differences; each further one has one difference less."""
    ours, names = OurUpdate("lamb", OPTIMIZERS["lamb"][1]), tuple(SWITCHES)
    theirs = [(f"theirs: {name}", names[:number], ours) for number, name in enumerate(names, 1)]
    rounded = (ROUNDING, names, ours._replace(float32_coefficients=True))
    return [("both as they are", (), ours), *theirs, rounded]


def stages_of_adam() -> list[Stage]:
    rate, names = OPTIMIZERS["adamw"][1], tuple(SWITCHES)
    ours = OurUpdate("adamw", rate, decay_start=WARMUP_STEPS)
    corrected = ours._replace(bias_correction=True)
    dropped = corrected._replace(decay_start=0, learning_rate=rate / (1 - WARMUP_STEPS / NUM_UPDATES))
    return [
        ("the three of LAMB's table are off", names, ours),
        ("ours: --adam_bias_correction", names, corrected),
        ("ours: --nocontinuous_join and their raised peak, rate / (1 - w/T)", names, dropped),
        (ROUNDING, names, dropped._replace(float32_coefficients=True)),
    ]


@contextmanager
def float32_coefficients() -> Iterator[None]:
    """Our update with 1 - beta and 1 - beta^t computed in float32, as tensorflow-addons and Keras compute them."""

    def weight_sum(beta: float, step: tf.Tensor) -> tf.Tensor:
        return 1.0 - tf.pow(tf.constant(beta), tf.cast(step, tf.float32))

    def running_mean(mean: tf.Tensor, new: tf.Tensor, beta: float, is_finite: tf.Tensor) -> tf.Tensor:
        del is_finite  # all are
        return mean * tf.constant(beta) + new * (1.0 - tf.constant(beta))

    with mock.patch.multiple(update_rules, _weight_sum=weight_sum, _running_mean=running_mean):
        yield


def make_batches(bench: Bench) -> Arrays:
    """Features [instances, ...] of all updates: records of the text, with varying numbers of masked tokens."""
    options, text, file = bench.options, bench.folder / "batches.txt", bench.folder / "batches.tfrecord"
    number = NUM_UPDATES * BATCH_SIZE
    write_text(options.text, number * options.seq_length * 3, text, is_split=True)
    tokens, rules = (
        TokenSettings(str(options.vocab_file), Casing.from_flags(True)),
        MaskingRules(0.15, options.predictions),
    )
    make_shard(text, file, Shard(0, 0), settings=RecordSettings(tokens, PairSettings(options.seq_length), rules))
    records = RecordSet(str(file), "--text")
    ranges = records.ranges_in_file_order(0, number)
    features = {name: np.asarray(values) for name, values in records.features(ranges).items()}
    counted = np.random.default_rng(0).integers(1, options.predictions + 1, [number, 1])
    weights = features["masked_lm_weights"] * (np.arange(options.predictions) < counted)
    return {**features, "masked_lm_weights": weights, "example_weights": np.ones(number, np.float32)}


class Comparison:
    """Runs of both programs from the same weights, on the same batches; each run is made once."""

    def __init__(self, bench: Bench, config: BertConfig, batches: Arrays):
        self._bench, self._batches = bench, batches
        self._config = dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self._model = PretrainingModel(self._config, make_backend("blocks"), seed=1)
        self.start = self._weights()
        self._start_values = [variable.numpy() for variable in self._model.trainable_variables]
        self.theirs, self.ours = functools.cache(self._run_theirs), functools.cache(self._run_ours)
        np.savez(bench.folder / "weights.npz", **self.start)
        np.savez(bench.folder / "batches.npz", **{k: v for k, v in batches.items() if k != "example_weights"})

    def _weights(self) -> Arrays:
        """Our weights by name, without the rows that only pad the word table."""
        size, padded = self._config.vocab_size, self._config.padded_vocab_size
        arrays = {variable.name.split(":")[0]: variable.numpy() for variable in self._model.trainable_variables}
        return {name: array[:size] if len(array) == padded else array for name, array in arrays.items()}

    def _run_theirs(self, optimizer_type: str, switches: tuple[str, ...]) -> Run:
        options, folder = self._bench.options, self._bench.folder
        name, rate = OPTIMIZERS[optimizer_type]
        settings = {
            **vars(options),
            "optimizer_type": name,
            "learning_rate": rate,
            "switches": switches,
            "bert_config": self._config.to_dict(),
            "micro_batch_size": BATCH_SIZE // NUM_MICRO_BATCHES,
            "num_accumulation_steps": NUM_MICRO_BATCHES,
            **{name: str(folder / f"{name}.npz") for name in ("weights", "batches", "output")},
            "num_updates": NUM_UPDATES,
            "steps_per_loop": NUM_UPDATES,
            "warmup_steps": WARMUP_STEPS,
        }
        sample = self._bench.single_turn(Variant("benchmarks.variants.nvidia_tf2:updates", settings, "nvidia_tf2"))
        weights = dict(np.load(folder / "output.npz"))
        losses = weights.pop("losses").mean(axis=1)
        return Run(losses, weights, int(sample.figures["updates"]))

    def _run_ours(self, how: OurUpdate) -> Run:
        for variable, value in zip(self._model.trainable_variables, self._start_values):
            variable.assign(value)
        shape, losses = (how.num_accumulation_steps, BATCH_SIZE // how.num_accumulation_steps), []
        with float32_coefficients() if how.float32_coefficients else nullcontext():
            corrects = {"bias_correction": True} if how.bias_correction else {}
            schedule = (how.learning_rate, WARMUP_STEPS, NUM_UPDATES, how.decay_start)
            optimizer = make_optimizer(how.optimizer_type, *schedule, **corrects)
            state = TrainState(self._model, optimizer, LossScale(enabled=False))
            step = TrainStep(state, PretrainingObjective(), Workers(), seed=1)
            for number in range(NUM_UPDATES):
                rows = slice(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
                batch = {
                    name: values[rows].reshape(*shape, *values.shape[1:]) for name, values in self._batches.items()
                }
                metrics = step({name: tf.constant(values) for name, values in batch.items()}, number).metrics
                losses.append(float(metrics[0]) + float(metrics[1]))
        return Run(np.array(losses), self._weights(), int(optimizer.iterations))


def differences(one: Run, other: Run, start: Arrays) -> list[float]:
    """The largest relative differences: in a loss, in a variable, and in the change of all weights together."""
    loss = np.max(np.abs(one.losses - other.losses) / np.abs(other.losses))
    names = [name for name in start if not name.endswith(NO_GRADIENT)]
    apart = {name: np.linalg.norm(one.weights[name] - other.weights[name]) for name in names}
    largest = max(apart[name] / np.linalg.norm(other.weights[name]) for name in names)
    changed = np.linalg.norm([np.linalg.norm(other.weights[name] - start[name]) for name in names])
    return [float(loss), float(largest), float(np.linalg.norm(list(apart.values())) / changed)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkout", type=checkout_folder, required=True, help="of NVIDIA/DeepLearningExamples")
    parser.add_argument("--text", type=existing_path, nargs="+", required=True, help="files with a document a line")
    parser.add_argument("--vocab_file", type=existing_path, required=True)
    parser.add_argument("--bert_model", default="mini")
    parser.add_argument("--seq_length", type=int, default=32)
    parser.add_argument("--predictions", type=int, default=5)


def run(bench: Bench) -> None:
    options = bench.options
    with open(options.vocab_file, encoding="utf-8") as file:
        config = BertConfig.preset(options.bert_model, sum(1 for _ in file))
    bench.note(describe(options.checkout))
    compared = Comparison(bench, config, make_batches(bench))

    def compare(title: str, stages: Sequence[Stage], further: Sequence[Sequence[Any]] = ()) -> None:
        lines: list[Sequence[Any]] = []
        for name, switches, ours in stages:
            theirs = compared.theirs(ours.optimizer_type, switches)
            lines.append([name, *differences(theirs, compared.ours(ours), compared.start), theirs.num_updates])
            print(*lines[-1], flush=True)
        columns = ["and without this", "loss", "a variable", "change of all weights", "updates there"]
        bench.table(f"Relative differences after {NUM_UPDATES} updates: {title}", columns, [*lines, *further])

    _, _, ours = stages_of_lamb()[0]
    one, four = (compared.ours(ours._replace(num_accumulation_steps=steps)) for steps in (1, NUM_MICRO_BATCHES))
    rounding = differences(one, four, compared.start)
    other_split = ["(for comparison: ours, one micro-batch of 32, beside ours, 4 of 8)", *rounding, ""]
    compare("LAMB, 4 micro-batches of 8", stages_of_lamb(), [other_split])
    compare("Adam, 4 of 8", stages_of_adam())
