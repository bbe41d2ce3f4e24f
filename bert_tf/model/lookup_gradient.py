"""The gradient of an embedding lookup, for programs that XLA compiles for a GPU: its bits are the same in every run.

The same id occurs many times among the rows that were looked up, and the gradients of all of these are added to one row
of the table. A GPU's scatter adds them by atomic operations in any order, and so with other roundings in each run. Here
every sum has one order:

1. The rows are sorted by id, and among those of the same id by their number.
2. They are cut into chunks of C. In each, a matmul with ones where two ids are alike gives the sum of an id's rows.
3. An id that goes on from one chunk to others is the first of each of these. So the sums at the chunks' first places
   are added up in the same way, as a chunk of their own.
4. What 2 found elsewhere is added to the table, and then what 3 found. In neither does an id occur twice, so that the
   order in which the GPU adds them does not matter.

Shape letters: R rows, H hidden, V rows of the table, G chunks of C rows.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_tf.base.tensorflow import optimization_barrier, tf, xla_messages, xla_operations

# C. The chunks take 2 * R * C * H operations, and the sums of their first places 2 * (R / C)^2 * H.
CHUNK = 128


class Sums(NamedTuple):
    """Rows to be added to a table, of which no two belong to the same id but to V, which stands for none."""

    ids_R: tf.Tensor
    rows_RxH: tf.Tensor


def add_in_fixed_order(total_VxH: tf.Tensor, rows: tf.IndexedSlices) -> tf.Tensor:
    """total[id] + the sum of the rows with this id, for every id; float32, within a program that XLA compiles."""
    for sums in sums_in_fixed_order(rows.indices, rows.values, total_VxH.shape[0]):
        # XLA leaves out what is added at V, outside of the table.
        total_VxH = tf.tensor_scatter_nd_add(total_VxH, sums.ids_R[:, tf.newaxis], sums.rows_RxH)
    return total_VxH


def sums_in_fixed_order(ids_R: tf.Tensor, rows_RxH: tf.Tensor, num_ids: int) -> tuple[Sums, Sums]:
    """The sums of the rows with the same id, of 0 to num_ids - 1, in two parts; an id may have a sum in each."""
    num_rows, hidden_size = rows_RxH.shape
    num_chunks = -(-num_rows // CHUNK)
    num_padded = num_chunks * CHUNK
    ids = tf.pad(tf.cast(ids_R, tf.int64), [[0, num_padded - num_rows]], constant_values=num_ids)
    # No two of these numbers are alike: so they have one order, whether or not XLA's sort is stable.
    ordered = xla_operations().xla_sort(ids * num_padded + tf.range(num_padded, dtype=tf.int64))
    # Behind barriers, or XLA would compute ids again for each element of a row, and would lay out the whole table as it
    # lays out the column of ids, with the rows last.
    ids, sources = optimization_barrier(ordered // num_padded, tf.minimum(ordered % num_padded, num_rows - 1))
    ids_GxC = tf.reshape(ids, [num_chunks, CHUNK])
    sums_GxCxH = _sum_alike(ids_GxC, tf.reshape(tf.gather(rows_RxH, sources), [num_chunks, CHUNK, hidden_size]))
    heads_1xG = ids_GxC[tf.newaxis, :, 0]
    across_1xGxH = _sum_alike(heads_1xG, sums_GxCxH[tf.newaxis, :, 0])
    ids_within, ids_across = optimization_barrier(
        tf.reshape(tf.where(_is_first(ids_GxC) & (tf.range(CHUNK) > 0), ids_GxC, num_ids), [-1]),
        tf.reshape(tf.where(_is_first(heads_1xG), heads_1xG, num_ids), [-1]),
    )
    return (
        Sums(ids_within, tf.reshape(sums_GxCxH, [num_padded, hidden_size])),
        Sums(ids_across, tf.reshape(across_1xGxH, [num_chunks, hidden_size])),
    )


def _is_first(ids_GxC: tf.Tensor) -> tf.Tensor:
    """Where a chunk's sorted ids differ from the one before; the first one always does."""
    return ids_GxC != tf.pad(ids_GxC[:, :-1], [[0, 0], [1, 0]], constant_values=-1)


def _sum_alike(ids_GxC: tf.Tensor, rows_GxCxH: tf.Tensor) -> tf.Tensor:
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
