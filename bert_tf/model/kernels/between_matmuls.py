"""What lies between the matmuls of a layer, in Triton: residual and LayerNorm with dropout, and bias and GELU.

Each kernel reads and writes every array once. Sums over rows, for the gradients of biases and of LayerNorm's
parameters, are made in two steps, in a fixed order: each program sums its own rows, then XLA the programs' sums.

Shape letters: R rows, H hidden, I intermediate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bert_tf.model.kernels.dropout_bits import keep


@triton.jit
def _load_exact(pointers, inside):
    """The values in float32, 0 where not `inside`."""
    return tl.load(pointers, inside, 0.0).to(tl.float32)


@triton.jit
def _load_row(row, columns, H: tl.constexpr):
    """The values of one row [H] in these columns, [1, COLUMNS]; 0 in columns past its end."""
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
    mean and 1 / deviation [R]. COLUMNS is the smallest power of two that holds H."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    offsets, inside = rows[:, None] * H + columns[None, :], (columns < H)[None, :]
    exact = _load_exact(x + offsets, inside) + _load_row(bias, columns, H)
    exact = _drop(exact, keep_words, rows, H, COLUMNS, ROWS, KEEP_SCALE)
    exact += _load_exact(residual + offsets, inside)
    mean = tl.sum(exact, 1) / H
    centred = tl.where(inside, exact - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / H + EPSILON)
    scaled = centred * inverse[:, None] * _load_row(gamma, columns, H)
    normal = scaled + _load_row(beta, columns, H)
    tl.store(result + offsets, normal.to(result.dtype.element_ty), inside)
    tl.store(argument + offsets, exact.to(argument.dtype.element_ty), inside)
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

    Also sums over each program's ROWS * STEPS rows, [programs, 3, H], for the gradients of gamma, beta and bias.
    """
    columns = tl.arange(0, COLUMNS)
    inside = (columns < H)[None, :]
    factor = _load_row(gamma, columns, H)
    gamma_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    beta_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    bias_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        rows = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        offsets = rows[:, None] * H + columns[None, :]
        d = _load_exact(d_result + offsets, inside)
        x = _load_exact(argument + offsets, inside)
        inverse = tl.load(inverses + rows)[:, None]
        normal = (x - tl.load(means + rows)[:, None]) * inverse
        scaled = d * factor
        mean, slope = tl.sum(scaled, 1) / H, tl.sum(scaled * normal, 1) / H
        d_argument = inverse * (scaled - mean[:, None] - normal * slope[:, None])
        tl.store(d_residual + offsets, d_argument.to(d_residual.dtype.element_ty), inside)
        d_x_exact = _drop(d_argument, keep_words, rows, H, COLUMNS, ROWS, KEEP_SCALE)
        rounded = d_x_exact.to(d_x.dtype.element_ty)
        tl.store(d_x + offsets, rounded, inside)
        gamma_sums += d * normal
        beta_sums += d
        bias_sums += rounded.to(tl.float32)
    target = sums + tl.program_id(0) * (3 * H) + columns
    tl.store(target, tl.sum(gamma_sums, 0), columns < H)
    tl.store(target + H, tl.sum(beta_sums, 0), columns < H)
    tl.store(target + 2 * H, tl.sum(bias_sums, 0), columns < H)


@triton.jit
def bias_gelu_forward(
    x, bias, result, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr
):
    """GELU(x + bias) [R, I]. The grid has one dimension, row block by row block: a second could not be large enough."""
    program, num_blocks = tl.program_id(0), WIDTH // COLUMNS
    rows = program // num_blocks * ROWS + tl.arange(0, ROWS)
    columns = program % num_blocks * COLUMNS + tl.arange(0, COLUMNS)
    offsets = rows[:, None] * WIDTH + columns[None, :]
    exact = tl.load(x + offsets).to(tl.float32) + tl.load(bias + columns)[None, :]
    tl.store(result + offsets, (exact * _share(exact, EXACT)).to(result.dtype.element_ty))


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
    """d_x [R, I]; and its sums over each program's ROWS * STEPS rows, [programs, I], for the bias's gradient."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    bias_values = tl.load(bias + columns)[None, :]
    bias_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        rows = (tl.program_id(1) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        offsets = rows[:, None] * WIDTH + columns[None, :]
        exact = tl.load(x + offsets).to(tl.float32) + bias_values
        share = _share(exact, EXACT)
        if EXACT:
            slope = share + exact * 0.3989422804014327 * tl.exp2(exact * exact * -0.7213475204444817)
        else:
            slope = share + share * (1.0 - share) * exact * (1.5957691216057308 + 0.21406444881780076 * exact * exact)
        rounded = (tl.load(d_result + offsets).to(tl.float32) * slope).to(d_x.dtype.element_ty)
        tl.store(d_x + offsets, rounded)
        bias_sums += rounded.to(tl.float32)
    tl.store(sums + tl.program_id(1) * WIDTH + columns, tl.sum(bias_sums, 0))
