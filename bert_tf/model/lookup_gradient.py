"""The gradient of an embedding lookup, for programs that XLA compiles for a GPU: its bits are the same in every run.

An id may be looked up many times, and the gradients of all these rows are added to one row of the table. A GPU's
scatter adds them by atomic operations in any order, and so rounds differently in each run. Here sums have one order:

1. The rows are sorted by id, and among those of the same id by their number.
2. They are cut into chunks of C. In each, a matmul with ones where two ids are equal gives the sum of an id's rows.
3. An id that continues from one chunk into the next ones is the first id of each of those. So the sums at the chunks'
   first positions are added up in the same way, as a chunk of their own.
4. The sums of step 2 at all other positions are added to the table, then those of step 3. In neither set does an id
   occur twice, so the order in which the GPU adds them does not matter.

Shape letters: R rows, H hidden, V rows of the table, G chunks of C rows.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_tf.base.tensorflow import optimization_barrier, tf, xla_messages, xla_operations

# C. The chunks take 2 * R * C * H operations, and the sums of their first positions 2 * (R / C)^2 * H.
CHUNK = 128


class Sums(NamedTuple):
    """Rows to be added to a table: no id occurs twice, except V, which marks rows to be left out."""

    ids_R: tf.Tensor
    rows_RxH: tf.Tensor


def add_in_fixed_order(total_VxH: tf.Tensor, rows: tf.IndexedSlices) -> tf.Tensor:
    """total[id] + the sum of the rows with this id, for every id; float32, within a program that XLA compiles."""
    for sums in sums_in_fixed_order(rows.indices, rows.values, total_VxH.shape[0]):
        # XLA leaves out what is added at V, outside of the table.
        total_VxH = tf.tensor_scatter_nd_add(total_VxH, sums.ids_R[:, tf.newaxis], sums.rows_RxH)
    return total_VxH


def sums_in_fixed_order(ids_R: tf.Tensor, rows_RxH: tf.Tensor, num_ids: int) -> tuple[Sums, Sums]:
    """The sums of the rows with the same id, from 0 to num_ids - 1, in two parts; an id may have a sum in both."""
    num_rows, hidden_size = rows_RxH.shape
    num_chunks = -(-num_rows // CHUNK)
    num_padded = num_chunks * CHUNK
    ids = tf.pad(tf.cast(ids_R, tf.int64), [[0, num_padded - num_rows]], constant_values=num_ids)
    # No two of these keys are equal, so they have one order, whether or not XLA's sort is stable.
    ordered = xla_operations().xla_sort(ids * num_padded + tf.range(num_padded, dtype=tf.int64))
    # Behind barriers, or XLA would compute ids again for each element of a row, and would lay out the whole table like
    # the column of ids, with the rows last.
    ids, sources = optimization_barrier(ordered // num_padded, tf.minimum(ordered % num_padded, num_rows - 1))
    ids_GxC = tf.reshape(ids, [num_chunks, CHUNK])
    sums_GxCxH = _sum_equal_ids(ids_GxC, tf.reshape(tf.gather(rows_RxH, sources), [num_chunks, CHUNK, hidden_size]))
    first_ids_1xG = ids_GxC[tf.newaxis, :, 0]
    across_1xGxH = _sum_equal_ids(first_ids_1xG, sums_GxCxH[tf.newaxis, :, 0])
    ids_within, ids_across = optimization_barrier(
        tf.reshape(tf.where(_is_first(ids_GxC) & (tf.range(CHUNK) > 0), ids_GxC, num_ids), [-1]),
        tf.reshape(tf.where(_is_first(first_ids_1xG), first_ids_1xG, num_ids), [-1]),
    )
    return (
        Sums(ids_within, tf.reshape(sums_GxCxH, [num_padded, hidden_size])),
        Sums(ids_across, tf.reshape(across_1xGxH, [num_chunks, hidden_size])),
    )


def _is_first(ids_GxC: tf.Tensor) -> tf.Tensor:
    """Where one of a chunk's sorted ids differs from the one before it; a chunk's first id counts as different."""
    return ids_GxC != tf.pad(ids_GxC[:, :-1], [[0, 0], [1, 0]], constant_values=-1)


def _sum_equal_ids(ids_GxC: tf.Tensor, rows_GxCxH: tf.Tensor) -> tf.Tensor:
    """For each row, the sum of the rows of its chunk with the same id, in float32 whatever TF32 is set to.

    A row that is not finite makes all sums of its chunk NaN; an update with such a gradient is not applied anyway.
    """
    ones_GxCxC = tf.cast(ids_GxC[:, :, tf.newaxis] == ids_GxC[:, tf.newaxis, :], tf.float32)
    messages = xla_messages()
    dimensions = messages.DotDimensionNumbers(
        lhs_batch_dimensions=[0],
        rhs_batch_dimensions=[0],
        lhs_contracting_dimensions=[2],
        rhs_contracting_dimensions=[1],
    )
    exact = messages.PrecisionConfig.HIGHEST
    precision = messages.PrecisionConfig(operand_precision=[exact, exact])
    return xla_operations().xla_dot_v2(
        ones_GxCxC,
        tf.cast(rows_GxCxH, tf.float32),
        dimension_numbers=dimensions.SerializeToString(),
        precision_config=precision.SerializeToString(),
        preferred_element_type=tf.float32,
    )
