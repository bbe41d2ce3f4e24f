"""Cross-entropy over a vocabulary, in Triton: the logits are read once for the loss, and once for their gradient.

Shape letters: R rows, V vocabulary, W its size including the columns that pad it.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def word_loss(
    logits, bias, labels, losses, are_correct, log_sums, V: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr
):
    """For each row the label's cross-entropy, whether it has the largest logit, and the log of the sum of exponentials.

    All are float32 [R]. The logits [R, W] come without their bias [W].
    """
    row = tl.program_id(0).to(tl.int64)
    highest = tl.full([COLUMNS], -1e30, tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, W, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        values = tl.load(logits + row * W + columns, columns < W, 0.0).to(tl.float32)
        values = tl.where(columns < V, values + tl.load(bias + columns, columns < W, 0.0), -float("inf"))
        higher = tl.maximum(highest, values)
        total = total * tl.exp2((highest - higher) * LOG2_E) + tl.exp2((values - higher) * LOG2_E)
        highest = higher
    peak = tl.max(highest)
    log_sum = tl.log(tl.sum(total * tl.exp2((highest - peak) * LOG2_E))) + peak
    label = tl.load(labels + row)
    label_logit = tl.load(logits + row * W + label).to(tl.float32) + tl.load(bias + label)
    tl.store(losses + row, log_sum - label_logit)
    tl.store(are_correct + row, (label_logit >= peak).to(tl.float32))
    tl.store(log_sums + row, log_sum)


@triton.jit
def word_loss_gradient(
    logits,
    bias,
    labels,
    log_sums,
    d_losses,
    d_logits,
    sums,
    V: tl.constexpr,
    W: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """d_logits [R, W], zero in the columns that pad.

    Also its sums over each program's ROWS * STEPS rows, [programs, W], which add up to the bias's gradient.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (columns < W)[None, :]
    bias_values = tl.load(bias + columns, columns < W, 0.0)[None, :]
    bias_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        rows = (tl.program_id(1) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        offsets = rows.to(tl.int64)[:, None] * W + columns[None, :]
        values = tl.load(logits + offsets, inside, 0.0).to(tl.float32) + bias_values
        probabilities = tl.exp2((values - tl.load(log_sums + rows)[:, None]) * LOG2_E)
        is_label = columns[None, :] == tl.load(labels + rows)[:, None]
        difference = tl.where(is_label, probabilities - 1.0, probabilities) * tl.load(d_losses + rows)[:, None]
        difference = tl.where((columns < V)[None, :], difference, 0.0)
        tl.store(d_logits + offsets, difference.to(d_logits.dtype.element_ty), inside)
        bias_sums += difference
    tl.store(sums + tl.program_id(1) * W + columns, tl.sum(bias_sums, 0), columns < W)
