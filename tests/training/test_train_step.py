"""The update does not depend on how it is split or compiled; a golden update pins its numbers."""

import atexit
import collections
import dataclasses
import functools
import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from bert_tf.model.backends import make_backend
from bert_tf.model.heads import MaskedWordModel, PretrainingModel
from bert_tf.model.losses import MaskedWordObjective, PretrainingObjective
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.training import step as module
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep
from bert_tf.training.tensor_list import pack, unpack
from tests import processes
from tests.refusals import refused
from tests.small_models import small_config

CONFIG = small_config(layers=1)
GOLDEN = Path(__file__).parents[1] / "golden" / "update.json"


def global_batch(size=8, length=16, num_predictions=4, seed=0):
    """A batch in which rows have different numbers of masked tokens, and one has none."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(8, length + 1, [size, 1])).astype(np.int32)
    num_masked = rng.integers(1, num_predictions + 1, [size, 1])
    num_masked[0] = 0
    return {
        "input_ids": (rng.integers(5, 101, [size, length]) * mask).astype(np.int32),
        "input_mask": mask,
        "segment_ids": ((np.arange(length) > 5) * mask).astype(np.int32),
        "masked_lm_positions": rng.integers(1, 8, [size, num_predictions]).astype(np.int32),
        "masked_lm_ids": rng.integers(5, 101, [size, num_predictions]).astype(np.int32),
        "masked_lm_weights": (np.arange(num_predictions) < num_masked).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, [size, 1]).astype(np.int32),
        "example_weights": np.ones([size], np.float32),
    }


class Rank(Workers):
    """Rank `rank` of several that run one after the other in this process.

    The first pass records what each rank would send, the second one has everybody's.
    """

    def __init__(self, rank, size, mail):
        self.rank, self.size, self._mail = rank, size, mail

    def gather(self, vector):
        self._mail.setdefault("gather", {})[self.rank] = np.asarray(vector)
        return np.stack([self._mail["gather"].get(rank, vector) for rank in range(self.size)])

    def mean(self, tensors):
        sent = self._mail.setdefault("tensors", {})
        sent[self.rank] = [tensor.numpy() for tensor in tensors]
        everyone = [sent.get(rank, sent[self.rank]) for rank in range(self.size)]
        return [tf.constant(sum(each) / self.size) for each in zip(*everyone)]


# A model and its objective.
PAIRS, WORDS = (PretrainingModel, PretrainingObjective()), (MaskedWordModel, MaskedWordObjective())


def make_step(
    workers, scope="off", dtype="float32", config=CONFIG, precision="fp32", kind=PAIRS, seed=1, backend=None, **of_step
):
    model = kind[0](config, backend or make_backend(scope, dtype), seed=seed)
    optimizer = make_optimizer("lamb", 0.01, 1, 10, compiled=scope != "off")
    loss_scale = LossScale(enabled=precision == "fp16")
    step = TrainStep(TrainState(model, optimizer, loss_scale), kind[1], workers, 5, **of_step)
    return step, model, optimizer, loss_scale


@functools.cache
def _made_once(*options):
    made = make_step(Workers(), *options)
    return made, values(*made[1:])


atexit.register(_made_once.cache_clear)  # later TensorFlow's functions would complain that modules are gone


def begin(scope="off", dtype="float32", config=CONFIG, precision="fp32", kind=PAIRS):
    """What `make_step` gives one rank, with its first values; made, traced and compiled once for all tests."""
    made, begun = _made_once(scope, dtype, config, precision, kind)
    assign(begun, *made[1:])
    return made


def _state(model, optimizer, loss_scale=None):
    return [*model.variables, *optimizer.slot_variables, optimizer.iterations, *getattr(loss_scale, "variables", ())]


def values(*state):
    """Those of the model's weights, of the optimizer, and of the loss scale if it is given."""
    return [variable.numpy() for variable in _state(*state)]


def assign(begun, *state):
    for variable, value in zip(_state(*state), begun):
        variable.assign(value)


def traced_sums(step, features, num_micro_batches=None):
    """An update's first function, traced but neither compiled nor run."""
    numbers = tf.zeros([2]), tf.constant(1.0), tf.constant(1, tf.uint64), tf.constant(0, tf.int64)
    return step._accumulate.get_concrete_function(features, *numbers, num_micro_batches)


def traced_apply(step):
    """Its last one, for two micro-batches."""
    sums = pack([tf.zeros(variable.shape) for variable in step.variables])
    return step._apply.get_concrete_function(sums, tf.zeros([4]), tf.zeros([4]), 2)


def rows_of(batch, rank, num_accumulation_steps, micro_batch_size):
    split = num_accumulation_steps, micro_batch_size
    part = slice(rank * math.prod(split), (rank + 1) * math.prod(split))
    return {name: tf.constant(values[part].reshape(*split, *values.shape[1:])) for name, values in batch.items()}


def num_traces(step):
    return np.array([step._accumulate.experimental_get_tracing_count(), step._apply.experimental_get_tracing_count()])


def whole_batch(number, micro_batch_size):
    return global_batch(seed=number), None


@functools.cache
def train(num_accumulation_steps, micro_batch_size, num_updates=2, make_batch=whole_batch, **options):
    """The results of updates, and weights and moments after them.

    `make_batch` gives the batch of an update, and how many of its micro-batches count (None: all).
    """
    step, model, optimizer, _ = begin(**options)
    results, before = [], num_traces(step)
    for number in range(num_updates):
        batch, num_micro_batches = make_batch(number, micro_batch_size)
        rows = rows_of(batch, 0, num_accumulation_steps, micro_batch_size)
        results.append(step(rows, number, num_micro_batches=num_micro_batches))
    assert max(num_traces(step) - before) <= 1, "of one shape a function is traced once"
    return results, values(model, optimizer)


def train_ranks(num_ranks, num_accumulation_steps, micro_batch_size, batch, num_micro_batches=None):
    """One update, eagerly, so that ranks can take turns: all send in the first passes, all update in the last one.

    Returns the weights, moments and number of updates of each rank.
    """
    tf.config.run_functions_eagerly(True)
    try:
        mail = {}
        ranks = [make_step(Rank(rank, num_ranks, mail)) for rank in range(num_ranks)]
        begun = [values(*state) for _, *state in ranks]
        for _ in range(3):  # denominators, then gradients, then the real thing
            for rank, (step, *state) in enumerate(ranks):
                assign(begun[rank], *state)
                features = rows_of(batch, rank, num_accumulation_steps, micro_batch_size)
                step(features, 0, num_micro_batches=num_micro_batches)
        return [values(model, optimizer) for _, model, optimizer, _ in ranks]
    finally:
        tf.config.run_functions_eagerly(False)


def assert_same_weights(mine, theirs, tolerance=2e-6):
    for one, other in zip(mine, theirs):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=1e-7 if tolerance else 0)


def assert_same_training(mine, theirs, tolerance=2e-6):
    for result, other in zip(mine[0], theirs[0]):
        np.testing.assert_allclose(result.metrics, other.metrics, rtol=1e-5)
        np.testing.assert_allclose(result.gradient_norm, other.gradient_norm, rtol=1e-5)
        np.testing.assert_allclose(result.norm_by_variable, other.norm_by_variable, rtol=2e-5, atol=1e-7)
    assert_same_weights(mine[1], theirs[1], tolerance)


@pytest.mark.computes
@pytest.mark.parametrize("split, kind", [((8, 1), PAIRS), ((2, 4), PAIRS), ((4, 2), WORDS)])
def test_the_split_into_micro_batches_does_not_matter_with_dropout_on(split, kind):
    assert_same_training(train(*split, kind=kind), train(1, 8, kind=kind))


@pytest.mark.computes
def test_the_number_of_ranks_does_not_matter_with_dropout_on():
    """One update; real ranks make more in test_distributed."""
    first, second = train_ranks(2, 2, 2, global_batch(seed=0))
    assert_same_weights(first, train(1, 8, num_updates=1)[1])
    assert_same_weights(first, second, 0)


@pytest.mark.parametrize("scope", [pytest.param("blocks", marks=pytest.mark.computes), "step"])  # no oneDNN in "step"
def test_what_is_compiled_does_not_matter(scope):
    """In float32; what is learned in bfloat16: test_convergence."""
    _, expected = train(2, 4)
    _, weights = train(2, 4, scope=scope)
    assert_same_weights(weights, expected)


def sum_gradients(step, features):
    """An update without its last stage, which compiles much: the variables' gradients, and the metrics."""
    sums = step.sum_gradients(step.agree_on_update(features, 0))
    return unpack(sums.gradients, tf.float32, [variable.shape for variable in step.variables]), sums.metrics_M


def test_the_sums_are_the_gradients_of_the_whole_batch():
    """Those of one pass without what an update does once for all of its micro-batches: the word table is read twice."""
    step, model, *_ = make_step(Workers())
    features = rows_of(global_batch(), 0, 2, 4)
    update = step.agree_on_update(features, 0)
    with tf.GradientTape() as tape:
        whole = {name: tf.reshape(values, [8, *values.shape[2:]]) for name, values in features.items()}
        key = DropoutKey(tf.constant(update_key(5, 0)), tf.constant(0, tf.int64))
        losses, _ = PretrainingObjective()(model, whole, key)
        loss = tf.reduce_sum(losses * tf.constant(2 / update.totals_K, tf.float32))
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, step.variables)]
    assert_same_weights(sum_gradients(step, features)[0], gradients)


def test_micro_batches_computed_at_the_same_time_change_no_bit(monkeypatch):
    digests = set()
    features = rows_of(global_batch(), 0, 4, 2)
    for num_at_once in (1, 2):
        monkeypatch.setattr(module, "micro_batches_at_once", lambda _, number=num_at_once: number)
        step, *_ = make_step(Workers(), "blocks")
        loops = [each for each in traced_sums(step, features).graph.get_operations() if "While" in each.type]
        assert [loop.get_attr("parallel_iterations") for loop in loops] == [num_at_once]
        gradients, metrics = sum_gradients(step, features)
        digests.add(b"".join(each.numpy().tobytes() for each in [*gradients, metrics]))
    assert len(digests) == 1


def peak_and_sums(recompute, num_layers=5, size=4, length=64):
    """TensorFlow's allocator's peak in an update's forward and backward passes, and a digest of what they give."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=num_layers, max_position_embeddings=length)
    step, *_ = make_step(Workers(), config=config, backend=make_backend("blocks", recompute=recompute))
    features = rows_of(global_batch(size, length), 0, 1, size)
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    gradients, metrics = sum_gradients(step, features)
    sums = [value.numpy().tobytes() for value in (metrics, *gradients)]
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    return peak, hashlib.sha256(b"".join(sums)).hexdigest()


def test_recomputing_layers_needs_the_memory_of_about_one_and_changes_no_bit():
    """Whoever merges the second computation with the first one keeps all layers after all.

    In a process with oneDNN, whose allocator alone counts what it hands out; TensorFlow leaves it off on some
    processors.
    """
    program = "from tests.training.test_train_step import peak_and_sums as run; print(*run(True), *run(False))"
    variables = {"PYTHONPATH": str(processes.ROOT), "TF_ENABLE_ONEDNN_OPTS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = processes.answer(sys.executable, "-c", program, **variables)
    assert done.returncode == 0, done.stderr
    recomputing, sums, keeping, expected = done.stdout.split()
    assert 0 < int(recomputing) < 0.6 * int(keeping) and sums == expected


def test_out_of_memory_is_a_message_with_the_ways_out(monkeypatch):
    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    step, *_ = make_step(Workers())
    monkeypatch.setattr(step, "_accumulate", fail)
    refused("out of memory with a micro-batch of 8 .*--recompute", step, rows_of(global_batch(), 0, 1, 8), 0)


def test_a_batch_without_masked_tokens_is_legal():
    step, *_ = begin()
    batch = global_batch()
    batch["masked_lm_weights"][:] = 0
    result = step(rows_of(batch, 0, 1, 8), 0)
    assert bool(result.is_finite) and np.isfinite(result.metrics.numpy()).all()


@pytest.mark.parametrize("scope", ["off", "step"])
def test_non_finite_gradient_changes_nothing(scope):
    step, model, optimizer, _ = begin(scope)
    good, bad = global_batch(), global_batch()
    bad["masked_lm_weights"][6, 0] = np.nan
    step(rows_of(good, 0, 2, 4), 0)
    before = values(model, optimizer)
    assert not bool(step(rows_of(bad, 0, 2, 4), 1).is_finite)
    assert_same_weights(values(model, optimizer), before, 0)
    assert bool(step(rows_of(good, 0, 2, 4), 2).is_finite)


def test_a_nan_of_one_rank_is_skipped_by_all_ranks():
    batch, (_, model, optimizer, _) = global_batch(), begin()
    batch["masked_lm_weights"][4:] = np.nan  # the second rank's
    before = values(model, optimizer)
    for found in train_ranks(2, 1, 4, batch):
        assert_same_weights(found, before, 0)


def test_norms_by_variable_make_up_the_global_one():
    (first, _), _ = train(2, 4)
    norms = first.norm_by_variable.numpy()
    assert len(norms) == len(begin()[0].variables) and (norms > 0).all()
    assert np.sqrt(np.sum(norms.astype(np.float64) ** 2)) == pytest.approx(float(first.gradient_norm), rel=1e-6)
    assert first.own_secs > 0 and first.waited_secs >= 0


def test_float16_scales_and_recovers_from_overflow():
    step, model, optimizer, loss_scale = begin(dtype="float16", precision="fp16")
    loss_scale.scale.assign(2.0**24)
    outcomes = [bool(step(rows_of(global_batch(seed=number), 0, 2, 4), number).is_finite) for number in range(14)]
    assert outcomes[0] is False and outcomes[-1] is True
    assert float(loss_scale.scale) == 2.0**24 / 2 ** outcomes.count(False)
    assert int(optimizer.iterations) == outcomes.count(True)
    assert_same_weights(train(2, 4, dtype="float16", precision="fp16")[1], train(2, 4)[1], 3e-3)


def test_ranks_that_disagree_are_named():
    mail, features = {}, rows_of(global_batch(), 0, 1, 4)
    one, other = (make_step(Rank(rank, 2, mail))[0] for rank in range(2))
    one.agree_on_update(features, 0)
    refused("rank 1 has another position in the data than rank 0", other.agree_on_update, features, 1)


def test_no_sum_depends_on_what_is_ready_first():
    """Looks at the graphs that TensorFlow's optimiser makes, since a sum in another order is seen only now and then.

    It makes one AddN of sums of sums, and, where much memory is used, of that a variable to which terms are added
    when they are there. AddN itself begins with the first of its inputs that nothing else reads any more.
    """
    step = make_step(Workers())[0]
    with context.collect_graphs(optimized=True) as graphs:
        step(rows_of(global_batch(), 0, 2, 4), 0)
    long_sums = 0
    functions = [function.node_def for graph in graphs for function in graph.library.function]
    for nodes in [*(graph.node for graph in graphs), *functions]:
        num_readers = collections.Counter(name for node in nodes for name in node.input)
        for node in nodes:
            if node.op == "AddN" and node.attr["N"].i > 2:  # two can be added either way
                long_sums += 1
                assert "AddOpsRewrite" not in node.name
                assert any(num_readers[name] == 1 for name in node.input[:2]), node.name
    assert long_sums, "of query, key, value and residual; without them this test sees nothing"


def golden_update():
    results, trained = train(2, 4)
    weights = trained[: len(begin()[1].variables)]
    return {
        "metrics": results[-1].metrics.numpy().tolist(),
        "gradient_norm": float(results[-1].gradient_norm),
        "weights_rms": float(np.sqrt(np.mean(np.concatenate([weight.ravel() for weight in weights]) ** 2))),
        "word_0": weights[0][7, :4].tolist(),
    }


@pytest.mark.computes
def test_golden_update():
    """Pins two updates. New numbers are legitimate only when the model, the optimiser, the masks or
    the initial weights were changed on purpose; then run this file as a program and say so in the
    commit. A refactoring must leave them as they are."""
    expected, found = json.loads(GOLDEN.read_text()), golden_update()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-7, err_msg=name)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_update(), indent=2) + "\n")
