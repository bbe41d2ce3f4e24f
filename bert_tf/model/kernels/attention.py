"""Attention without its scores in memory, in Triton (FlashAttention-2, arXiv 2307.08691, with BERT's dropout).

A program computes one block of queries (or, for the gradients of keys and values, one block of keys) of one head of one
row of the batch, and reads the other side block by block. Nothing is added by atomics and no sum is split over
programs, so that results depend on nothing but the inputs.

Queries, keys, values, the result and their gradients are [R, H], as the matmuls around them write and read them: the
head is a range of columns. A query sees the keys that have its own number (`visibility.VisibleKeys`). Ranges
[B, S / BLOCK, 2] say which blocks may share a number with a block, the first and the one after the last; only these
are read.

* The keys' bias is left out: it adds the same to all scores of a query, which the softmax takes away again.
* The values' bias is added to the result, times the sum of the query's dropped probabilities.
* The biased and scaled query is written for the backward pass, in place of the query. Its scale holds log2(e), too, so
  that probabilities are powers of two of the scores.
* A term that is added to all results of a matmul is the initial value of its sums.
* A matmul's result is added to a loop's sums by `tl.fma`. If the matmul accumulated into them, they would be changed
  between its instructions, and the assembler would make each of these wait for the one before (its remark C7515).
* Triton loads the matmuls' tiles ahead; all else that a block needs is loaded while the block before is computed.

Bits from `dropout_bits` say which elements the dropout keeps: for key k, bit k % 32 of word k // 32 of each query's
S / 32 words.

Shape letters: R = B*S rows, B batch, S sequence, H hidden = N heads times D head size. Q and K, the queries and keys of
a block, are both BLOCK.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bert_tf.model.kernels.dropout_bits import keep

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _keep_transposed(words, x, other, BLOCK: tl.constexpr):
    """x [K, Q] where the bits of the words [K / 32, Q] are set, else `other` [K, Q]."""
    # Bit 16 a + 8 b + c, where a thread has both b of one a and c; see `keep`.
    SHAPE: tl.constexpr = [BLOCK // 32, 2, 2, 8, BLOCK]
    shifts = (16 * tl.arange(0, 2))[None, :, None, None, None] + tl.arange(0, 8)[None, None, None, :, None]
    shifted = words[:, None, None, None, :] >> shifts
    kept = (shifted & (1 << (8 * tl.arange(0, 2)))[None, None, :, None, None]) != 0
    return tl.reshape(tl.where(kept, tl.reshape(x, SHAPE), tl.reshape(other, SHAPE)), [BLOCK, BLOCK])


@triton.jit
def _where_seen(key_numbers, query_numbers, x, PACKED: tl.constexpr):
    """x where key and query have the same number, else minus infinity. Unpacked, all queries' numbers are 1."""
    if PACKED:
        return tl.where(key_numbers == query_numbers, x, -float("inf"))
    else:
        return tl.where(key_numbers == 1, x, -float("inf"))


@triton.jit
def _load_bits(words, KEEP_SCALE: tl.constexpr):
    """The dropout's words; zeros without dropout, when there are none to load."""
    if KEEP_SCALE == 1.0:
        return tl.zeros(words.shape, tl.int32)
    else:
        return tl.load(words)


@triton.jit
def _own_block(S: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """The program's block, head and row of the batch; 0 to BLOCK - 1; the block's positions in the row; the head's
    columns; and the offsets of the block's tile in [R, H]."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lanes, columns = tl.arange(0, BLOCK), head * D + tl.arange(0, D)
    positions = block * BLOCK + lanes
    return block, head, batch, lanes, positions, columns, _tile(batch * S + positions, columns, N * D)


@triton.jit
def _tile(rows, columns, H: tl.constexpr):
    """The offsets in [R, H] of a block's elements of a head."""
    return rows[:, None] * H + columns[None, :]


@triton.jit
def _load_range(ranges, block):
    """The first of the blocks that may share a number with `block`, and the one after the last."""
    range_ = ranges + block * 2
    return tl.load(range_), tl.load(range_ + 1)


@triton.jit
def _load_keys(numbers, words, block, BLOCK: tl.constexpr, KEEP_SCALE: tl.constexpr):
    """The numbers of a block of keys, and the dropout's bits."""
    return tl.load(numbers + block * BLOCK), _load_bits(words + block * (BLOCK // 32), KEEP_SCALE)


@triton.jit
def _load_queries(numbers, words, log_sums, bias_dots, means, in_head, at, S: tl.constexpr, KEEP_SCALE: tl.constexpr):
    """The numbers of a block of queries, the dropout's bits, and each query's log sum, bias dot and mean."""
    loaded, bits = tl.load(numbers + at), _load_bits(words + at * (S // 32), KEEP_SCALE)
    return (
        loaded,
        bits,
        tl.load(log_sums + in_head + at),
        tl.load(bias_dots + in_head + at),
        tl.load(means + in_head + at),
    )


@triton.jit
def _add_product(sums, a, b):
    return tl.fma(sums, tl.full(sums.shape, 1.0, tl.float32), tl.dot(a, b))


@triton.jit
def attend_forward(
    query,
    key,
    value,
    query_bias,
    value_bias,
    query_numbers,
    key_numbers,
    key_ranges,
    keep_words,
    context,
    scaled_query,
    log_sums,
    S: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """context [R, H]; the biased and scaled query [R, H]; log2 of each query's sum of exponentials [B, N, S]."""
    block, head, batch, lanes, rows, columns, offsets = _own_block(S, N, D, BLOCK)
    H: tl.constexpr = N * D
    in_head = (batch * N + head) * S + rows
    biased = tl.load(query + offsets).to(tl.float32) + tl.load(query_bias + columns)[None, :]
    q = (biased * (SCALE * LOG2_E)).to(query.dtype.element_ty)
    tl.store(scaled_query + offsets, q)

    first, end = _load_range(key_ranges, batch * (S // BLOCK) + block)
    own_numbers = tl.load(query_numbers + batch * S + rows)
    peak = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    kept_total = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([BLOCK, D], tl.float32)
    words = keep_words + in_head[:, None] * (S // 32) + tl.arange(0, BLOCK // 32)[None, :]
    numbers = key_numbers + batch * S + lanes
    following = _load_keys(numbers, words, first, BLOCK, KEEP_SCALE)
    for number in range(first, end):
        tile = _tile(batch * S + number * BLOCK + lanes, columns, H)
        k = tl.load(key + tile)
        block_numbers, bits = following
        following = _load_keys(numbers, words, tl.minimum(number + 1, end - 1), BLOCK, KEEP_SCALE)
        zeros = tl.zeros([BLOCK, BLOCK], tl.float32)
        scores = tl.dot(q, tl.trans(k), _where_seen(block_numbers[None, :], own_numbers[:, None], zeros, PACKED))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        if KEEP_SCALE != 1.0:
            weights = keep(bits, weights, BLOCK, BLOCK)
            kept_total = kept_total * shrink + tl.sum(weights, 1)
        v = tl.load(value + tile)
        sums = tl.fma(sums, tl.broadcast_to(shrink[:, None], [BLOCK, D]), tl.dot(weights.to(v.dtype), v))
        peak = new_peak
    # A query that sees no key gets zeros.
    divisor = tl.where(total == 0.0, 1.0, total)
    if KEEP_SCALE == 1.0:
        kept_total = total
    factor = KEEP_SCALE / divisor
    result = (sums + kept_total[:, None] * tl.load(value_bias + columns)[None, :]) * factor[:, None]
    tl.store(context + offsets, result.to(context.dtype.element_ty))
    tl.store(log_sums + in_head, peak + tl.log2(divisor))


@triton.jit
def _result_dots(d_result, context, value_bias, offsets, columns, KEEP_SCALE: tl.constexpr):
    """For each query: the dot product of d_result [Q, D] and the values' bias, which is a term of its probabilities'
    gradients; and the mean of these gradients, weighted by the probabilities and divided by the dropout's scale."""
    exact = d_result.to(tl.float32)
    bias_dot = tl.sum(exact * tl.load(value_bias + columns)[None, :], 1)
    mean = tl.sum(exact * tl.load(context + offsets).to(tl.float32), 1) * (1.0 / KEEP_SCALE)
    return bias_dot, mean


@triton.jit
def _transposed(q, k, v, d_result, start, bias_dot, mean, bits, BLOCK: tl.constexpr, KEEP_SCALE: tl.constexpr):
    """[K, Q]: the probabilities that the dropout keeps, else 0; and the scores' gradients.

    start [K, Q]: the term that is added to the scores.
    """
    probabilities = tl.exp2(tl.dot(k, tl.trans(q), start))
    # Gradients minus their mean, which is also subtracted for the elements that the dropout removes.
    d_kept = tl.dot(v, tl.trans(d_result), tl.broadcast_to((bias_dot - mean)[None, :], [BLOCK, BLOCK]))
    kept = probabilities
    if KEEP_SCALE != 1.0:
        kept = _keep_transposed(bits, kept, tl.zeros([BLOCK, BLOCK], tl.float32), BLOCK)
        d_kept = _keep_transposed(bits, d_kept, tl.broadcast_to(-mean[None, :], [BLOCK, BLOCK]), BLOCK)
    return kept.to(d_result.dtype), (probabilities * d_kept).to(q.dtype)


@triton.jit
def attend_query_gradient(
    scaled_query,
    key,
    value,
    value_bias,
    query_numbers,
    key_numbers,
    key_ranges,
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
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """d_query [R, H], and its sum over each block's rows [R / Q, H].

    Also the results of `_result_dots`, [B, N, S] each, which the kernel of the other gradients reads.
    """
    block, head, batch, lanes, rows, columns, offsets = _own_block(S, N, D, BLOCK)
    H: tl.constexpr = N * D
    in_head = (batch * N + head) * S + rows
    q, d_result = tl.load(scaled_query + offsets), tl.load(d_context + offsets)
    bias_dot, mean = _result_dots(d_result, context, value_bias, offsets, columns, KEEP_SCALE)
    tl.store(bias_dots + in_head, bias_dot)
    tl.store(means + in_head, mean)

    first, end = _load_range(key_ranges, batch * (S // BLOCK) + block)
    own_numbers = tl.load(query_numbers + batch * S + rows)
    log_sum = tl.load(log_sums + in_head)
    sums = tl.zeros([BLOCK, D], tl.float32)
    words = keep_words + in_head[:, None] * (S // 32) + tl.arange(0, BLOCK // 32)[None, :]
    numbers = key_numbers + batch * S + lanes
    following = _load_keys(numbers, words, first, BLOCK, KEEP_SCALE)
    for number in range(first, end):
        tile = _tile(batch * S + number * BLOCK + lanes, columns, H)
        k, v = tl.load(key + tile), tl.load(value + tile)
        block_numbers, bits = following
        following = _load_keys(numbers, words, tl.minimum(number + 1, end - 1), BLOCK, KEEP_SCALE)
        negative = tl.broadcast_to(-log_sum[:, None], [BLOCK, BLOCK])
        start = _where_seen(block_numbers[None, :], own_numbers[:, None], negative, PACKED)
        probabilities = tl.exp2(tl.dot(q, tl.trans(k), start))
        d_kept = tl.dot(d_result, tl.trans(v), tl.broadcast_to(bias_dot[:, None], [BLOCK, BLOCK]))
        if KEEP_SCALE != 1.0:
            d_kept = keep(bits, d_kept, BLOCK, BLOCK)
        d_scores = probabilities * (d_kept - mean[:, None])
        sums = _add_product(sums, d_scores.to(k.dtype), k)
    rounded = (sums * (SCALE * KEEP_SCALE)).to(d_query.dtype.element_ty)
    tl.store(d_query + offsets, rounded)
    tl.store(bias_sums + (batch * (S // BLOCK) + block) * H + columns, tl.sum(rounded.to(tl.float32), 0))


@triton.jit
def attend_key_value_gradients(
    scaled_query,
    key,
    value,
    query_numbers,
    key_numbers,
    query_ranges,
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
    BLOCK: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """d_key and d_value [R, H], and their sums over each block's rows [R / K, 2, H].

    The scores are computed transposed, keys by queries.
    """
    block, head, batch, lanes, keys, columns, offsets = _own_block(S, N, D, BLOCK)
    H: tl.constexpr = N * D
    k, v = tl.load(key + offsets), tl.load(value + offsets)

    first, end = _load_range(query_ranges, batch * (S // BLOCK) + block)
    own_numbers = tl.load(key_numbers + batch * S + keys)
    key_sums = tl.zeros([BLOCK, D], tl.float32)
    value_sums = tl.zeros([BLOCK, D], tl.float32)
    in_head = (batch * N + head) * S + lanes
    words = keep_words + in_head[None, :] * (S // 32) + (block * (BLOCK // 32) + tl.arange(0, BLOCK // 32))[:, None]
    numbers = query_numbers + batch * S + lanes
    following = _load_queries(numbers, words, log_sums, bias_dots, means, in_head, first * BLOCK, S, KEEP_SCALE)
    for number in range(first, end):
        tile = _tile(batch * S + number * BLOCK + lanes, columns, H)
        q, d_result = tl.load(scaled_query + tile), tl.load(d_context + tile)
        block_numbers, bits, log_sum, bias_dot, mean = following
        next_query = tl.minimum(number + 1, end - 1) * BLOCK
        following = _load_queries(numbers, words, log_sums, bias_dots, means, in_head, next_query, S, KEEP_SCALE)
        start = tl.broadcast_to(-log_sum[None, :], [BLOCK, BLOCK])
        if PACKED:
            start = _where_seen(own_numbers[:, None], block_numbers[None, :], start, PACKED)
        kept, d_scores = _transposed(q, k, v, d_result, start, bias_dot, mean, bits, BLOCK, KEEP_SCALE)
        value_sums = _add_product(value_sums, kept, d_result)
        key_sums = _add_product(key_sums, d_scores, q)
    if not PACKED:
        # Keys that no query sees have not been masked so far: their sums may be infinite.
        is_seen = own_numbers[:, None] == 1
        key_sums, value_sums = tl.where(is_seen, key_sums, 0.0), tl.where(is_seen, value_sums, 0.0)
    rounded_key = (key_sums * (KEEP_SCALE * LN_2)).to(d_key.dtype.element_ty)
    rounded_value = (value_sums * KEEP_SCALE).to(d_value.dtype.element_ty)
    tl.store(d_key + offsets, rounded_key)
    tl.store(d_value + offsets, rounded_value)
    target = bias_sums + (batch * (S // BLOCK) + block) * (2 * H) + columns
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
    """All gradients in one kernel, where a block holds all queries and keys of a row: d_query, d_key and d_value
    [R, H], and their sums over each row's positions [B, 3, H]."""
    head, batch = tl.program_id(1), tl.program_id(2)
    H: tl.constexpr = N * D
    rows, columns = batch * S + tl.arange(0, S), head * D + tl.arange(0, D)
    tile = _tile(rows, columns, H)
    in_head = (batch * N + head) * S + tl.arange(0, S)
    q, k, v, d_result = (
        tl.load(scaled_query + tile),
        tl.load(key + tile),
        tl.load(value + tile),
        tl.load(d_context + tile),
    )
    bias_dot, mean = _result_dots(d_result, context, value_bias, tile, columns, KEEP_SCALE)
    bits = _load_bits(keep_words + in_head[None, :] * (S // 32) + tl.arange(0, S // 32)[:, None], KEEP_SCALE)
    negative = tl.broadcast_to(-tl.load(log_sums + in_head)[None, :], [S, S])
    own_numbers, numbers = tl.load(key_numbers + rows), tl.load(query_numbers + rows)
    start = _where_seen(own_numbers[:, None], numbers[None, :], negative, PACKED)
    kept, d_scores = _transposed(q, k, v, d_result, start, bias_dot, mean, bits, S, KEEP_SCALE)
    rounded_value = (tl.dot(kept, d_result) * KEEP_SCALE).to(d_value.dtype.element_ty)
    rounded_key = (tl.dot(d_scores, q) * (KEEP_SCALE * LN_2)).to(d_key.dtype.element_ty)
    rounded_query = (tl.dot(tl.trans(d_scores), k) * (SCALE * KEEP_SCALE)).to(d_query.dtype.element_ty)
    tl.store(d_query + tile, rounded_query)
    tl.store(d_key + tile, rounded_key)
    tl.store(d_value + tile, rounded_value)
    target = bias_sums + batch * (3 * H) + columns
    tl.store(target, tl.sum(rounded_query.to(tl.float32), 0))
    tl.store(target + H, tl.sum(rounded_key.to(tl.float32), 0))
    tl.store(target + 2 * H, tl.sum(rounded_value.to(tl.float32), 0))
