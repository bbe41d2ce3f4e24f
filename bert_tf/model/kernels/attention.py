"""Attention without its scores in memory, in Triton (FlashAttention-2, arXiv 2307.08691, with BERT's dropout).

A program computes one block of queries (or, for the gradients of keys and values, one block of keys) of one head of one
row of the batch, and reads the other side block by block. Nothing is added by atomics and no sum is split over
programs, so that results depend on nothing but the inputs.

Queries, keys, values, the result and their gradients are [R, H], as the matmuls around them write and read them: the
head is a range of columns. A query sees the keys of its own number (`visibility.VisibleKeys`); blocks without a common
number are not read.

* The keys' bias is left out: it adds the same to all scores of a query, which the softmax takes away again.
* The values' bias is added to the result, times the sum of the query's dropped probabilities.
* The biased and scaled query is written for the backward pass, in place of the query.

Which elements the dropout keeps is said by bits, from `dropout_bits`: bit k % 32 of word k // 32 of each query's
S / 32 words.

Shape letters: R = B*S rows, B batch, S sequence, H hidden = N heads times D head size, Q and K blocks of queries and
keys, W = K / 32 words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bert_tf.model.kernels.dropout_bits import keep

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _common_range(own, others, start, S: tl.constexpr, BLOCK: tl.constexpr, OTHER_BLOCK: tl.constexpr):
    """[first, end) of the blocks of `others` [S] that may share a number with the block of `own` at `start`."""
    numbers = tl.load(own + start + tl.arange(0, BLOCK))
    lowest, highest = tl.min(numbers), tl.max(numbers)
    first = S // OTHER_BLOCK
    end = 0
    for block in tl.static_range(S // OTHER_BLOCK):
        numbers = tl.load(others + block * OTHER_BLOCK + tl.arange(0, OTHER_BLOCK))
        may_share = (tl.min(numbers) <= highest) & (tl.max(numbers) >= lowest)
        first = tl.where(may_share, tl.minimum(first, block), first)
        end = tl.where(may_share, block + 1, end)
    return first, end


@triton.jit
def _keep_transposed(words, x, Q: tl.constexpr, K: tl.constexpr):
    """x [K, Q] where the bits of the words [K / 32, Q] are set, else 0."""
    # Bit 16 a + 8 b + c, where a thread has both b of one a and c; see `keep`.
    shifts = (16 * tl.arange(0, 2))[None, :, None, None, None] + tl.arange(0, 8)[None, None, None, :, None]
    shifted = words[:, None, None, None, :] >> shifts
    kept = (shifted & (1 << (8 * tl.arange(0, 2)))[None, None, :, None, None]) != 0
    return tl.reshape(tl.where(kept, tl.reshape(x, [K // 32, 2, 2, 8, Q]), 0.0), [K, Q])


@triton.jit
def _hidden(key_numbers, query_numbers, PACKED: tl.constexpr):
    """What is added to scores: minus infinity where numbers differ, else 0. Unpacked, all queries' numbers are 1."""
    if PACKED:
        return tl.where(key_numbers == query_numbers, 0.0, -float("inf"))
    else:
        return tl.where(key_numbers == 1, 0.0, -float("inf"))


@triton.jit
def attend_forward(
    query,
    key,
    value,
    query_bias,
    value_bias,
    query_numbers,
    key_numbers,
    keep_words,
    context,
    scaled_query,
    log_sums,
    S: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    SCALE: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """context [R, H]; the biased and scaled query [R, H]; log2 of each query's sum of exponentials [B, N, S]."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    H: tl.constexpr = N * D
    rows, columns = block * Q + tl.arange(0, Q), head * D + tl.arange(0, D)
    own = (batch * S + rows)[:, None] * H + columns[None, :]
    biased = tl.load(query + own).to(tl.float32) + tl.load(query_bias + columns)[None, :]
    q = (biased * SCALE).to(query.dtype.element_ty)
    tl.store(scaled_query + own, q)

    first, end = _common_range(query_numbers + batch * S, key_numbers + batch * S, block * Q, S, Q, K)
    own_numbers = tl.load(query_numbers + batch * S + rows)
    peak = tl.full([Q], -1e30, tl.float32)
    total = tl.zeros([Q], tl.float32)
    kept_total = tl.zeros([Q], tl.float32)
    sums = tl.zeros([Q, D], tl.float32)
    words = keep_words + ((batch * N + head) * S + rows)[:, None] * (S // 32) + tl.arange(0, K // 32)[None, :]
    for number in range(first, end):
        keys = number * K + tl.arange(0, K)
        tile = (batch * S + keys)[:, None] * H + columns[None, :]
        k = tl.load(key + tile)
        hidden = _hidden(tl.load(key_numbers + batch * S + keys)[None, :], own_numbers[:, None], PACKED)
        scores = tl.dot(q, tl.trans(k)) * LOG2_E + hidden
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        if KEEP_SCALE != 1.0:
            weights = keep(tl.load(words + number * (K // 32)), weights, Q, K)
            kept_total = kept_total * shrink + tl.sum(weights, 1)
        v = tl.load(value + tile)
        sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None])
        peak = new_peak
    # A query that sees no key gets zeros.
    divisor = tl.where(total == 0.0, 1.0, total)
    if KEEP_SCALE == 1.0:
        kept_total = total
    factor = KEEP_SCALE / divisor
    result = (sums + kept_total[:, None] * tl.load(value_bias + columns)[None, :]) * factor[:, None]
    tl.store(context + own, result.to(context.dtype.element_ty))
    tl.store(log_sums + (batch * N + head) * S + rows, peak + tl.log2(divisor))


@triton.jit
def _result_dots(d_result, context, value_bias, own, columns, KEEP_SCALE: tl.constexpr):
    """Of each query: the product of d_result [Q, D] and the values' bias, and the mean of its probabilities' gradients,
    weighted by the probabilities and divided by the dropout's scale. The first is a part of these gradients."""
    exact = d_result.to(tl.float32)
    bias_dot = tl.sum(exact * tl.load(value_bias + columns)[None, :], 1)
    mean = tl.sum(exact * tl.load(context + own).to(tl.float32), 1) * (1.0 / KEEP_SCALE)
    return bias_dot, mean


@triton.jit
def _transposed(
    q, k, v, d_result, hidden, log_sum, bias_dot, words, Q: tl.constexpr, K: tl.constexpr, KEEP_SCALE: tl.constexpr
):
    """[K, Q]: the probabilities, those that the dropout keeps, and the gradients of the latter; else 0."""
    probabilities = tl.exp2(tl.dot(k, tl.trans(q)) * LOG2_E + hidden - log_sum[None, :])
    d_kept = tl.dot(v, tl.trans(d_result)) + bias_dot[None, :]
    kept = probabilities
    if KEEP_SCALE != 1.0:
        bits = tl.load(words)
        kept = _keep_transposed(bits, kept, Q, K)
        d_kept = _keep_transposed(bits, d_kept, Q, K)
    return probabilities, kept, d_kept


@triton.jit
def attend_query_gradient(
    scaled_query,
    key,
    value,
    value_bias,
    query_numbers,
    key_numbers,
    keep_words,
    context,
    log_sums,
    d_context,
    d_query,
    bias_dots,
    means,
    bias_sums,
    S: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    SCALE: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """d_query [R, H], and its sum over each block's rows [R / Q, H].

    And for the other gradients what `_result_dots` says, [B, N, S].
    """
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    H: tl.constexpr = N * D
    rows, columns = block * Q + tl.arange(0, Q), head * D + tl.arange(0, D)
    own = (batch * S + rows)[:, None] * H + columns[None, :]
    in_head = (batch * N + head) * S + rows
    q, d_result = tl.load(scaled_query + own), tl.load(d_context + own)
    bias_dot, mean = _result_dots(d_result, context, value_bias, own, columns, KEEP_SCALE)
    tl.store(bias_dots + in_head, bias_dot)
    tl.store(means + in_head, mean)

    first, end = _common_range(query_numbers + batch * S, key_numbers + batch * S, block * Q, S, Q, K)
    own_numbers = tl.load(query_numbers + batch * S + rows)
    log_sum = tl.load(log_sums + in_head)
    sums = tl.zeros([Q, D], tl.float32)
    words = keep_words + in_head[:, None] * (S // 32) + tl.arange(0, K // 32)[None, :]
    for number in range(first, end):
        keys = number * K + tl.arange(0, K)
        tile = (batch * S + keys)[:, None] * H + columns[None, :]
        k, v = tl.load(key + tile), tl.load(value + tile)
        hidden = _hidden(tl.load(key_numbers + batch * S + keys)[None, :], own_numbers[:, None], PACKED)
        probabilities = tl.exp2(tl.dot(q, tl.trans(k)) * LOG2_E + hidden - log_sum[:, None])
        d_kept = tl.dot(d_result, tl.trans(v)) + bias_dot[:, None]
        if KEEP_SCALE != 1.0:
            d_kept = keep(tl.load(words + number * (K // 32)), d_kept, Q, K)
        d_scores = probabilities * (d_kept - mean[:, None])
        sums = tl.dot(d_scores.to(k.dtype), k, sums)
    rounded = (sums * (SCALE * KEEP_SCALE)).to(d_query.dtype.element_ty)
    tl.store(d_query + own, rounded)
    tl.store(bias_sums + (batch * (S // Q) + block) * H + columns, tl.sum(rounded.to(tl.float32), 0))


@triton.jit
def attend_key_value_gradients(
    scaled_query,
    key,
    value,
    query_numbers,
    key_numbers,
    keep_words,
    log_sums,
    d_context,
    bias_dots,
    means,
    d_key,
    d_value,
    bias_sums,
    S: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """d_key and d_value [R, H], and their sums over each block's rows [R / K, 2, H].

    The scores are computed transposed, keys by queries.
    """
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    H: tl.constexpr = N * D
    keys, columns = block * K + tl.arange(0, K), head * D + tl.arange(0, D)
    own = (batch * S + keys)[:, None] * H + columns[None, :]
    k, v = tl.load(key + own), tl.load(value + own)

    first, end = _common_range(key_numbers + batch * S, query_numbers + batch * S, block * K, S, K, Q)
    own_numbers = tl.load(key_numbers + batch * S + keys)
    key_sums = tl.zeros([K, D], tl.float32)
    value_sums = tl.zeros([K, D], tl.float32)
    of_block = block * (K // 32) + tl.arange(0, K // 32)[:, None]
    for number in range(first, end):
        rows = number * Q + tl.arange(0, Q)
        tile = (batch * S + rows)[:, None] * H + columns[None, :]
        in_head = (batch * N + head) * S + rows
        q, d_result = tl.load(scaled_query + tile), tl.load(d_context + tile)
        hidden = _hidden(own_numbers[:, None], tl.load(query_numbers + batch * S + rows)[None, :], PACKED)
        log_sum, bias_dot = tl.load(log_sums + in_head), tl.load(bias_dots + in_head)
        words = keep_words + in_head[None, :] * (S // 32) + of_block
        probabilities, kept, d_kept = _transposed(q, k, v, d_result, hidden, log_sum, bias_dot, words, Q, K, KEEP_SCALE)
        value_sums = tl.dot(kept.to(d_result.dtype), d_result, value_sums)
        d_scores = probabilities * (d_kept - tl.load(means + in_head)[None, :])
        key_sums = tl.dot(d_scores.to(q.dtype), q, key_sums)
    rounded_key = (key_sums * KEEP_SCALE).to(d_key.dtype.element_ty)
    rounded_value = (value_sums * KEEP_SCALE).to(d_value.dtype.element_ty)
    tl.store(d_key + own, rounded_key)
    tl.store(d_value + own, rounded_value)
    target = bias_sums + (batch * (S // K) + block) * (2 * H) + columns
    tl.store(target, tl.sum(rounded_key.to(tl.float32), 0))
    tl.store(target + H, tl.sum(rounded_value.to(tl.float32), 0))


@triton.jit
def attend_gradients(
    scaled_query,
    key,
    value,
    value_bias,
    query_numbers,
    key_numbers,
    keep_words,
    context,
    log_sums,
    d_context,
    d_query,
    d_key,
    d_value,
    bias_sums,
    S: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """All gradients in one kernel, where a program holds all queries and keys of a row: d_query, d_key and d_value
    [R, H], and their sums over each row's positions [B, 3, H]."""
    head, batch = tl.program_id(1), tl.program_id(2)
    H: tl.constexpr = N * D
    rows, columns = batch * S + tl.arange(0, S), head * D + tl.arange(0, D)
    tile = rows[:, None] * H + columns[None, :]
    in_head = (batch * N + head) * S + tl.arange(0, S)
    q, k, v, d_result = (
        tl.load(scaled_query + tile),
        tl.load(key + tile),
        tl.load(value + tile),
        tl.load(d_context + tile),
    )
    bias_dot, mean = _result_dots(d_result, context, value_bias, tile, columns, KEEP_SCALE)
    hidden = _hidden(tl.load(key_numbers + rows)[:, None], tl.load(query_numbers + rows)[None, :], PACKED)
    words = keep_words + in_head[None, :] * (S // 32) + tl.arange(0, S // 32)[:, None]
    log_sum = tl.load(log_sums + in_head)
    probabilities, kept, d_kept = _transposed(q, k, v, d_result, hidden, log_sum, bias_dot, words, S, S, KEEP_SCALE)
    d_scores = (probabilities * (d_kept - mean[None, :])).to(k.dtype)
    rounded_value = (tl.dot(kept.to(v.dtype), d_result) * KEEP_SCALE).to(d_value.dtype.element_ty)
    rounded_key = (tl.dot(d_scores, q) * KEEP_SCALE).to(d_key.dtype.element_ty)
    rounded_query = (tl.dot(tl.trans(d_scores), k) * (SCALE * KEEP_SCALE)).to(d_query.dtype.element_ty)
    tl.store(d_query + tile, rounded_query)
    tl.store(d_key + tile, rounded_key)
    tl.store(d_value + tile, rounded_value)
    target = bias_sums + batch * (3 * H) + columns
    tl.store(target, tl.sum(rounded_query.to(tl.float32), 0))
    tl.store(target + H, tl.sum(rounded_key.to(tl.float32), 0))
    tl.store(target + 2 * H, tl.sum(rounded_value.to(tl.float32), 0))
