"""What lies between the matmuls of a layer, in Triton: residual and LayerNorm with dropout, and bias and GELU.

Each kernel reads and writes every array once. Sums over rows, for the gradients of biases and of LayerNorm's
parameters, are made in two steps, in a fixed order: each program adds up its own rows, and XLA the programs' sums.

Shape letters: R rows, H hidden, I intermediate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bert_tf.model.kernels.dropout_bits import keep


@triton.jit
def _load_exact(pointers, inside):
    """Values in float32, 0 outside."""
    return tl.load(pointers, inside, 0.0).to(tl.float32)


@triton.jit
def _load_row(row, columns, H: tl.constexpr):
    """A row's values in some columns [1, COLUMNS], 0 in those that it does not have."""
    return tl.load(row + columns, columns < H, 0.0)[None, :]


@triton.jit
def _drop(x, keep_words, rows, H: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KEEP_SCALE: tl.constexpr):
    """dropout(x); the words [rows, H / 32] of bits say which elements are kept."""
    if KEEP_SCALE != 1.0:
        columns = tl.arange(0, COLUMNS // 32)
        pointers = keep_words + rows[:, None] * (H // 32) + columns[None, :]
        x = keep(tl.load(pointers, (columns < H // 32)[None, :], 0), x, ROWS, COLUMNS) * KEEP_SCALE
    return x


@triton.jit
def add_norm_forward(
    x,
    bias,
    residual,
    gamma,
    beta,
    keep_words,
    result,
    argument,
    means,
    inverses,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """LayerNorm(residual + dropout(x + bias)) [R, H]; for the backward pass LayerNorm's argument [R, H], and each row's
    mean and 1 / deviation [R]. COLUMNS is the power of two that holds H."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at, inside = rows[:, None] * H + columns[None, :], (columns < H)[None, :]
    exact = _load_exact(x + at, inside) + _load_row(bias, columns, H)
    exact = _drop(exact, keep_words, rows, H, COLUMNS, ROWS, KEEP_SCALE)
    exact += _load_exact(residual + at, inside)
    mean = tl.sum(exact, 1) / H
    centred = tl.where(inside, exact - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / H + EPSILON)
    scaled = centred * inverse[:, None] * _load_row(gamma, columns, H)
    normal = scaled + _load_row(beta, columns, H)
    tl.store(result + at, normal.to(result.dtype.element_ty), inside)
    tl.store(argument + at, exact.to(argument.dtype.element_ty), inside)
    tl.store(means + rows, mean)
    tl.store(inverses + rows, inverse)


@triton.jit
def add_norm_gradients(
    d_result,
    argument,
    means,
    inverses,
    gamma,
    keep_words,
    d_x,
    d_residual,
    sums,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
):
    """d_x and d_residual [R, H].

    And of each program's ROWS * STEPS rows the sums that make the gradients of gamma, beta and bias, [programs, 3, H].
    """
    columns = tl.arange(0, COLUMNS)
    inside = (columns < H)[None, :]
    factor = _load_row(gamma, columns, H)
    of_gamma = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_beta = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        rows = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * H + columns[None, :]
        d = _load_exact(d_result + at, inside)
        x = _load_exact(argument + at, inside)
        inverse = tl.load(inverses + rows)[:, None]
        normal = (x - tl.load(means + rows)[:, None]) * inverse
        scaled = d * factor
        mean, slope = tl.sum(scaled, 1) / H, tl.sum(scaled * normal, 1) / H
        d_argument = inverse * (scaled - mean[:, None] - normal * slope[:, None])
        tl.store(d_residual + at, d_argument.to(d_residual.dtype.element_ty), inside)
        d_x_exact = _drop(d_argument, keep_words, rows, H, COLUMNS, ROWS, KEEP_SCALE)
        rounded = d_x_exact.to(d_x.dtype.element_ty)
        tl.store(d_x + at, rounded, inside)
        of_gamma += d * normal
        of_beta += d
        of_bias += rounded.to(tl.float32)
    target = sums + tl.program_id(0) * (3 * H) + columns
    tl.store(target, tl.sum(of_gamma, 0), columns < H)
    tl.store(target + H, tl.sum(of_beta, 0), columns < H)
    tl.store(target + 2 * H, tl.sum(of_bias, 0), columns < H)


@triton.jit
def bias_gelu_forward(
    x, bias, result, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr
):
    """GELU(x + bias) [R, I]. Programs are numbered along the rows: the grid's second size could not be that large."""
    program, num_blocks = tl.program_id(0), WIDTH // COLUMNS
    rows = program // num_blocks * ROWS + tl.arange(0, ROWS)
    columns = program % num_blocks * COLUMNS + tl.arange(0, COLUMNS)
    at = rows[:, None] * WIDTH + columns[None, :]
    exact = tl.load(x + at).to(tl.float32) + tl.load(bias + columns)[None, :]
    tl.store(result + at, (exact * _share(exact, EXACT)).to(result.dtype.element_ty))


@triton.jit
def _share(x, EXACT: tl.constexpr):
    """GELU(x) / x: with erf if EXACT, else the approximation by tanh of Google's BERT."""
    if EXACT:
        return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
    # 0.5 + 0.5 * tanh(y) is 1 / (1 + exp(-2 y)); y = sqrt(2 / pi) * (x + 0.044715 x^3), in powers of two
    return 1.0 / (1.0 + tl.exp2(x * (-2.302208198144325 - 0.1029432395800235 * x * x)))


@triton.jit
def bias_gelu_gradients(
    d_result,
    x,
    bias,
    d_x,
    sums,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """d_x [R, I]; and the sums over each program's ROWS * STEPS rows that make the bias's gradient, [programs, I]."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    added = tl.load(bias + columns)[None, :]
    of_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        rows = (tl.program_id(1) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * WIDTH + columns[None, :]
        exact = tl.load(x + at).to(tl.float32) + added
        share = _share(exact, EXACT)
        if EXACT:
            slope = share + exact * 0.3989422804014327 * tl.exp2(exact * exact * -0.7213475204444817)
        else:
            slope = share + share * (1.0 - share) * exact * (1.5957691216057308 + 0.21406444881780076 * exact * exact)
        rounded = (tl.load(d_result + at).to(tl.float32) * slope).to(d_x.dtype.element_ty)
        tl.store(d_x + at, rounded)
        of_bias += rounded.to(tl.float32)
    tl.store(sums + tl.program_id(1) * WIDTH + columns, tl.sum(of_bias, 0))
