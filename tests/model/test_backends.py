"""All backends compute the same: values and gradients of each of their functions, and the bits of dropout masks."""

import ctypes
import functools
import inspect
import itertools
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.model.backends import CpuBlocks, GpuStep, Plain, PlainInStep, choose_scope, make_backend
from bert_tf.model.backends.kernel_check import require_agreement
from bert_tf.model.backends.plain import WordLogits
from bert_tf.model.elementwise import Dropout
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import KernelsUnavailable
from bert_tf.model.kernels.fused_attention import FusedAttention
from bert_tf.model.kernels.fused_blocks import AddNorm, BiasGelu, WordLoss
from bert_tf.model.kernels.fused_operation import draw_keep_bits
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.model.visibility import VisibleKeys
from bert_tf.run.device import has_fast_bf16
from tests.refusals import refused

B, S, H, N, INTERMEDIATE, P, V = 3, 8, 16, 2, 32, 4, 24
D, R, EPSILON = H // N, B * S, 1e-3
RNG = np.random.default_rng(1)
MASK = VisibleKeys(tf.constant(np.arange(S) < [[8], [5], [3]], tf.int32))
PACKED_MASK = VisibleKeys(*[tf.constant(np.sort(RNG.integers(0, 3, [B, S]), axis=1))] * 2)
POSITIONS = tf.constant(RNG.integers(0, S, [B, P]))
SEGMENTS = RNG.integers(0, 2, [B, S])
LABELS, WEIGHTS = tf.constant(RNG.integers(0, V, [R])), tf.constant(RNG.random([R]), tf.float32)
ROWS = tf.IndexedSlices(tf.constant(RNG.normal(size=[5, H]), tf.float32), tf.constant([1, 2, 1, 0, 7]))


def dropout(*shape):
    return Dropout(tf.constant(RNG.random(shape) > 0.1), 1 / 0.9)


STATES_DROPOUT, SCORES_DROPOUT, POOLED_DROPOUT = dropout(B, S, H), dropout(B, N, S, S), dropout(R, H)
HEADS = [[B, N, S, D]] * 3
# Each call of a function: its name, the shapes of the inputs in the compute type, those of the inputs in float32, the
# other arguments.
CALLS = [
    ("gather_positions", [[B, S, H]], [], [POSITIONS]),
    ("look_up_segments", [], [[2, H]], []),
    ("fan_out", [[R, H]], [], []),
    ("dense", [[R, H]], [[H, INTERMEDIATE]], []),
    ("dense", [[R, H]], [[V, H]], [True]),
    ("embedding_norm", [], [[B, S, H], [S, H], [B, S, H], [H], [H]], [EPSILON, STATES_DROPOUT]),
    ("embedding_norm", [], [[B, S, H], [B, S, H], [B, S, H], [H], [H]], [EPSILON, None]),
    ("split_heads", [[R, H]], [[H]], [S, N, 0.5]),
    ("merge_heads", [[B, N, S, D]], [], []),
    ("residual_norm", [[R, H], [R, H]], [[H], [H], [H]], [EPSILON, S, STATES_DROPOUT]),
    ("bias_gelu", [[R, INTERMEDIATE]], [[INTERMEDIATE]], [False]),
    ("bias_gelu", [[R, INTERMEDIATE]], [[INTERMEDIATE]], [True]),
    ("bias_gelu_norm", [[R, H]], [[H], [H], [H]], [EPSILON, False]),
    ("bias_tanh", [[R, H]], [[H]], []),
    ("apply_dropout", [[R, H]], [], [POOLED_DROPOUT]),
    ("bias_logits", [[R, V]], [[V]], [V - 3]),
    ("attend", HEADS, [], [MASK, SCORES_DROPOUT]),
    ("attend", HEADS, [], [PACKED_MASK, None]),
    ("attention", [[R, H]] * 3, [[H]] * 2, [MASK, SCORES_DROPOUT, N, S]),
    ("attention", [[B * P, H], [R, H], [R, H]], [[H]] * 2, [PACKED_MASK.to_queries(POSITIONS), None, N, P]),
    ("cross_entropy", [], [[R, V]], [LABELS, WEIGHTS]),
    ("word_loss", [[R, V]], [[V]], [LABELS % (V - 3), WEIGHTS]),
    ("add_looked_up", [], [], [tf.ones([8, H]), ROWS]),
]
WITH_TESTS_OF_THEIR_OWN = {"dropout", "run_layer"}


def call(backend, name, inputs, others):
    """A function with its arguments in their order: a residual comes after the bias, segments before the table."""
    if name == "look_up_segments":
        return backend.look_up_segments(SEGMENTS, *inputs)
    if name == "residual_norm":
        x, residual, bias, *norm = inputs
        inputs = [x, bias, residual, *norm]
    if name == "word_loss":
        return backend.word_loss(WordLogits(*inputs, V - 3), *others)
    if name == "attention":
        *states, query_bias, value_bias = inputs
        inputs = [list(zip(states, (query_bias, tf.zeros([H]), value_bias)))]  # the keys' has no gradient but rounding
    return getattr(backend, name)(*inputs, *others)


def make_inputs(states, parameters, dtype):
    """The same numbers whatever the type, but for the rounding of states to it."""
    rng = np.random.default_rng(2)
    made = [2 * rng.normal(size=shape) for shape in [*states, *parameters]]
    rounded = [tf.cast(tf.constant(value, tf.float32), dtype) for value in made[: len(states)]]
    return [*rounded, *(tf.constant(value, tf.float32) for value in made[len(states) :])]


def results(backend, function, inputs):
    """What a function gives, and the gradients of its inputs for a made-up gradient: float32."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = tf.stack(function(*inputs))
        factor = tf.reshape(tf.sin(tf.range(float(result.shape.num_elements()))), result.shape)
        loss = tf.reduce_sum(tf.cast(result, tf.float32) * factor)
    return [tf.cast(value, tf.float32) for value in [result, *tape.gradient(loss, inputs)]]


def all_results(backend, dtype):
    """Of all calls, compiled as a whole if the scope is "step"; `dtype` is that of the inputs."""

    def run():
        return [
            results(
                backend,
                lambda *inputs, name=name, others=others: call(backend, name, inputs, others),
                [tf.cast(each, backend.compute_dtype) if each.dtype == dtype else each for each in made],
            )
            for (name, *_, others), made in zip(CALLS, inputs)
        ]

    inputs = [make_inputs(states, parameters, dtype) for _, states, parameters, _ in CALLS]
    return tf.function(run, jit_compile=True, autograph=False)() if backend.scope == "step" else run()


def test_every_function_is_compared():
    functions = {name for name, _ in inspect.getmembers(Plain, inspect.isfunction) if not name.startswith("_")}
    assert functions == {name for name, *_ in CALLS} | WITH_TESTS_OF_THEIR_OWN
    for backend in CpuBlocks, PlainInStep, GpuStep:
        assert {name for name in dir(backend) if not name.startswith("_")} == {
            name for name in dir(Plain) if not name.startswith("_")
        }


TOLERANCES = {"float32": 5e-6, "float16": 5e-3, "bfloat16": 3e-2}
# Without a GPU every backend in float32, and in the smaller type that it is for.
ON_A_CPU = {CpuBlocks: ("float32", "bfloat16"), PlainInStep: ("float32", "bfloat16"), GpuStep: ("float32", "float16")}
HAS_GPU = bool(tf.config.list_physical_devices("GPU"))


@pytest.mark.gpu
@pytest.mark.computes
@pytest.mark.parametrize(
    "backend, dtype",
    [
        pair
        for pair in itertools.product([Plain, CpuBlocks, PlainInStep, GpuStep], TOLERANCES)
        if HAS_GPU or pair[1] in ON_A_CPU.get(pair[0], ["float16"])
    ],
)
def test_backends_agree(backend, dtype):
    """With TensorFlow's own operations in float32, on the same rounded inputs."""
    if dtype == "bfloat16" and not has_fast_bf16():
        pytest.skip("the programs refuse bfloat16 on this processor")
    with tf.device("/CPU:0"):
        expected = all_results(Plain(), dtype)
    found = all_results(backend(dtype), dtype)
    for (name, *_), theirs, mine in zip(CALLS, expected, found):
        for number, (one, other) in enumerate(zip(mine, theirs)):
            difference = np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-3)
            assert difference < TOLERANCES[dtype], f"{name}: result {number}: {difference}"


@pytest.mark.gpu
@pytest.mark.parametrize("sharpness", [0.05, 6.0])
def test_attention_for_a_gpu_is_attention_in_float16(sharpness):
    """With weights that are alike, or nearly all on one key; some of the gradients are subnormal."""
    rng = np.random.default_rng(1)
    shape, length = [2, 2, 256, 32], 256
    states = [factor * rng.normal(size=shape) for factor in (sharpness / np.sqrt(32), 1, 1)]
    visible = VisibleKeys(tf.constant(np.arange(length) < [[length], [50]], tf.int32))
    kept = Dropout(tf.constant(rng.random([2, 2, length, length]) > 0.1), 1 / 0.9)
    of_result = tf.constant(rng.normal(size=[2 * length, 64]) * 1e-3, tf.float16)

    def run(backend):
        inputs = [tf.cast(tf.constant(each, tf.float16), backend.compute_dtype) for each in states]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = backend.attend(*inputs, visible, kept)
        return [result, *tape.gradient(result, inputs, tf.cast(of_result, result.dtype))]

    with tf.device("/CPU:0"):
        expected = run(Plain())
    # A processor with float16 arithmetic may keep its sums in it (XLA of TensorFlow 2.20): each of the additions then
    # rounds by at least half of the smallest subnormal, a standard deviation of 2^-24 / sqrt(12). A GPU's are float32.
    in_half = 0.0 if HAS_GPU else 2.0**-24 * np.sqrt(length * np.prod(shape) / 12)
    for mine, theirs in zip(tf.function(run, jit_compile=True, autograph=False)(GpuStep("float16")), expected):
        difference = np.linalg.norm(tf.cast(mine, tf.float32) - theirs)
        assert difference < 5e-3 * np.linalg.norm(theirs) + in_half


@pytest.mark.parametrize("shape, positions", [([B, 5], None), ([B, N, S, 7], POSITIONS), ([B, S, H], POSITIONS)])
def test_dropout_masks_have_the_same_bits(shape, positions):
    def draw(backend, key, row):
        return backend.dropout(DropoutKey(key, row), 3, 0.3, shape, positions).keep

    arguments = tf.constant(update_key(5, 7)), tf.constant(11, tf.int64)
    expected = draw(Plain(), *arguments)
    for backend in CpuBlocks(), PlainInStep(), GpuStep():
        run = tf.function(draw, jit_compile=backend.scope == "step" or None, autograph=False)
        np.testing.assert_array_equal(run(backend, *arguments), expected)
    assert Plain().dropout(None, 3, 0.3, shape) is None
    assert Plain().dropout(DropoutKey(*arguments), 3, 0.0, shape) is None


def test_the_scope_that_the_flags_choose_and_its_backend():
    assert choose_scope(False, "auto", False) == "off"
    with pytest.raises(UserError, match="^--xla_scope=blocks has no effect without --enable_xla: give that too, or"):
        choose_scope(False, "blocks", False)
    assert choose_scope(True, "step", False) == "step"
    assert choose_scope(True, "auto", True) == choose_scope(True, "blocks", True) == "blocks"
    refused("--recompute saves no memory .* leave out --xla_scope=step", choose_scope, True, "step", True)
    assert choose_scope(True, "auto", False, for_gpu=True) == "step"
    assert choose_scope(True, "auto", False) == ("step" if HAS_GPU else "blocks")
    kinds = [type(make_backend(scope, for_gpu=True)) for scope in ("off", "blocks", "step")]
    assert kinds == [Plain, CpuBlocks, GpuStep] and type(make_backend("step", for_gpu=False)) is PlainInStep
    assert all(make_backend(scope, for_gpu=True).for_gpu for scope in ("off", "blocks"))


@pytest.mark.gpu
@pytest.mark.computes
@pytest.mark.parametrize("backend", [Plain, CpuBlocks])
def test_lookups_are_added_on_a_gpu_as_on_a_cpu(backend):
    expected = Plain().add_looked_up(tf.ones([8, H]), ROWS)
    np.testing.assert_allclose(backend(for_gpu=True).add_looked_up(tf.ones([8, H]), ROWS), expected, rtol=1e-6)


def gpu_program(name, dtype):
    """XLA's program, not yet optimized, of the first call of that name and its gradients."""
    states, parameters, others = next(rest for each, *rest in CALLS if each == name)
    inputs, backend = make_inputs(states, parameters, dtype), GpuStep(dtype.name, kernels="none")
    run = functools.partial(results, backend, lambda *inputs: call(backend, name, inputs, others), inputs)
    return tf.function(run, jit_compile=True, autograph=False).experimental_get_compiler_ir()(stage="hlo")


@pytest.mark.parametrize("name", ["embedding_norm", "residual_norm"])
def test_the_gradients_of_a_norm_on_a_gpu_keep_no_normalised_rows(name):
    """They read the rows, means and deviations from behind a barrier, or XLA would share what both passes compute."""
    behind = rf"f(16|32)\[{R},{H}\]\S* f32\[{R},1\]\S* f32\[{R},1\]\S* opt-barrier\("
    assert len(re.findall(behind, gpu_program(name, tf.float16))) == 1


def test_the_gradients_of_positions_on_a_gpu_are_sums_of_flat_rows():
    """A sum over the first of three dimensions makes XLA for GPUs transpose the embeddings."""
    summed = re.findall(r"reduce\(f32\[([\d,]+)\]\S* .*dimensions=\{0\}", gpu_program("embedding_norm", tf.float32))
    assert f"{B},{S * H}" in summed and f"{B},{S},{H}" not in summed


# --- The GPU's own kernels, beside XLA -----------------------------------------------------------

# What calls kernels, and those of its kernels that are spoilt in turn. Dropout takes XLA long to compile.
HALF = tf.float16
FUSED = {
    "attention": (lambda: FusedAttention(128, 64, 2, 32, 0.0, False, HALF), "attend_forward attend_gradients"),
    "packed attention with dropout": (lambda: FusedAttention(128, 64, 1, 32, 0.1, True, HALF), ""),
    "attention in blocks": (
        lambda: FusedAttention(384, 192, 1, 32, 0.0, False, HALF),
        "attend_query_gradient attend_key_value_gradients",
    ),
    "norm": (lambda: AddNorm(64, 64, 32, 0.0, EPSILON, HALF), "add_norm_forward add_norm_gradients"),
    "norm of short sequences with dropout": (lambda: AddNorm(64, 32, 32, 0.1, EPSILON, HALF), "draw_keep_bits"),
    "wide norm with dropout": (lambda: AddNorm(64, 64, 2080, 0.1, EPSILON, HALF), ""),
    "gelu": (lambda: BiasGelu(128, 128, True, HALF), "bias_gelu_forward bias_gelu_gradients"),
    "word loss": (lambda: WordLoss(64, 300, 320, HALF), "word_loss word_loss_gradient"),
}


def require(made, dtype="float16"):
    require_agreement(made, GpuStep(dtype, "unchecked"), GpuStep(dtype, "none"))


@pytest.mark.parametrize("name", FUSED)
def test_kernels_that_agree_with_xla(stand_in, caplog, name):
    make, functions = FUSED[name]
    require(make())
    assert stand_in.num_calls and set(functions.split()) <= set(stand_in.num_calls)
    assert not caplog.records


@pytest.mark.parametrize(
    "name, function, byte, error",
    [
        *((name, each, 0, r"\d+\.\d") for name in FUSED for each in FUSED[name][1].split()),
        ("gelu", "bias_gelu_gradients", 255, "nan"),
    ],
)
def test_a_wrong_kernel_is_not_used(stand_in, name, function, byte, error):
    """Its last result begins with zeros, or with what is no number."""
    from tests.model.kernels.interpreted import launch

    def spoil(function, grid, addresses, types, constants):
        launch(function, grid, addresses, types, constants)
        ctypes.memset(addresses[-1], byte, 256)

    stand_in.instead[function] = spoil
    with pytest.raises(KernelsUnavailable, match=f"^on this device they differ from XLA's results by {error} %$"):
        require(FUSED[name][0]())


def step_of(backend):
    """A result that needs kernels, compiled, with its gradients."""
    inputs = make_inputs([[128, 32], [128, 32]], [[32], [32], [32]], backend.compute_dtype)

    def norm(*inputs):
        x, residual, *others = inputs
        epsilon = 0.5  # so large that a result without it differs
        return backend.residual_norm(x, others[0], residual, *others[1:], epsilon, 64, None)

    return tf.function(lambda: results(backend, norm, inputs), jit_compile=True, autograph=False)()


@functools.cache
def step_by_xla():
    return step_of(GpuStep("float16", "none"))


def test_a_step_with_kernels_says_so(stand_in):
    backend = GpuStep("float16")
    found = step_of(backend)
    (remark,) = backend.remarks
    assert "kernels of our own: " in remark and "no kernels" not in remark
    for one, other in zip(found, step_by_xla()):
        np.testing.assert_allclose(one, other, rtol=5e-3, atol=5e-3)
    assert stand_in.num_calls["add_norm_forward"] == 2, "in the check and in the step"


@pytest.mark.parametrize(
    "capability, reason", [((9, 0), "they fail on this device: "), ((7, 0), "they need compute capability 8.0")]
)
def test_a_step_without_kernels_computes_as_xla_and_says_why(stand_in, monkeypatch, capability, reason):
    error = ValueError("too many resources\nrequested")
    stand_in.instead["add_norm_gradients"] = mock.Mock(side_effect=error)
    monkeypatch.setattr(launching, "compute_capability", lambda: capability)
    backend = GpuStep("float16")
    found = step_of(backend)
    (remark,) = backend.remarks
    assert "kernels of our own" in remark and reason in remark and "\n" not in remark
    for one, other in zip(found, step_by_xla()):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_exact", [False, True])
def test_kernels_of_gelu_are_those_of_its_form(stand_in, is_exact):
    """The two forms differ by less than a kernel's check allows."""
    kernels = BiasGelu(128, 128, is_exact, HALF).kernels
    assert [dict(kernel.constants)["EXACT"] for kernel in kernels] == [is_exact] * 2


def test_a_large_micro_batch_of_a_small_model_has_kernels(stand_in):
    assert BiasGelu(1024 * 512, 512, True, HALF).kernels
    assert WordLoss(1 << 17, 30_522, 30_528, HALF).kernels, "its offsets are 64 bits"


@pytest.mark.parametrize(
    "made, reason",
    [
        (lambda: FusedAttention(128, 64, 2, 48, 0.1, False, HALF), "heads have 48 elements, not 32, 64, 128"),
        (lambda: FusedAttention(192, 96, 2, 32, 0.1, False, HALF), "the length of the sequences, 96, is no mult"),
        (lambda: FusedAttention(128, 64, 2, 32, 0.1, False, tf.float32), "they compute in bfloat16 and float16, not "),
        (lambda: AddNorm(60, 60, 32, 0.1, EPSILON, HALF), "60 rows are no multiple of 64"),
        (lambda: AddNorm(64, 64, 40, 0.1, EPSILON, HALF), "a hidden size of 40 is no multiple of 32, or over"),
        (lambda: BiasGelu(64, 128, True, HALF), "64 rows are no multiple of 128"),
        (lambda: BiasGelu(128, 96, True, HALF), "an intermediate size of 96 is no multiple of 128"),
        (lambda: AddNorm(1 << 23, 32, 128, 0.1, EPSILON, HALF), "8388608 rows are too many for a launch"),
        (lambda: AddNorm(1 << 21, 512, 1024, 0.0, EPSILON, HALF), f"2097152 rows have {1 << 31} elements, too "),
        (lambda: BiasGelu(1 << 19, 4096, True, HALF), f"524288 rows have {1 << 31} elements, too many for off"),
        (lambda: FusedAttention(1 << 21, 512, 16, 64, 0.0, True, HALF), f"2097152 rows have {1 << 31} elements"),
        (lambda: draw_keep_bits(0.1, 1, 128), "a row's 128 dropouts do not fill words of bits"),
    ],
)
def test_shapes_without_kernels(stand_in, made, reason):
    with pytest.raises(KernelsUnavailable, match=f"^{reason}"):
        made()
