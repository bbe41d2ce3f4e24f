"""Which instances an update uses: a function of (files, seed, epoch), not of ranks or batch split.

Position p of the order, counted from the first update, lies in epoch p // n at place p % n. An
epoch is a permutation of *blocks* of up to 64 consecutive records of one shard: instances were
shuffled within their shard when they were made, and reading 64 neighbours costs one seek. Every
instance comes exactly once an epoch, and finding any position takes a binary search, so going on
after a restart costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError

BLOCK_RECORDS = 64


class RecordRange(NamedTuple):
    """`num_records` consecutive records of shard number `file`, from record `first` on, in an epoch."""

    file: int
    first: int
    num_records: int
    epoch: int = 0


class GlobalOrder:
    """The endless order of all records of some shards.

    Args:
      records_per_file: number of records of each shard, in the order of the manifest.
      seed: of the permutations; each epoch draws another one from (seed, epoch).

    Raises:
      UserError: there is no record at all.
    """

    def __init__(self, records_per_file: Sequence[int], seed: int):
        records = np.asarray(records_per_file, np.int64)
        self.num_instances = int(records.sum())
        if self.num_instances == 0:
            raise UserError(f"the {len(records)} shard(s) hold no instances; prepare the data again")
        self.seed = seed
        blocks_per_file = -(-records // BLOCK_RECORDS)
        self._block_file = np.repeat(np.arange(len(records)), blocks_per_file)
        first_block = np.repeat(np.cumsum(blocks_per_file) - blocks_per_file, blocks_per_file)
        self._block_first = (np.arange(len(self._block_file)) - first_block) * BLOCK_RECORDS
        self._block_count = np.minimum(BLOCK_RECORDS, records[self._block_file] - self._block_first)
        self._epoch = -1
        self._permutation = self._ends = np.empty(0, np.int64)

    def ranges(self, start: int, count: int) -> list[RecordRange]:
        """The records at positions [start, start + count), in order."""
        found: list[RecordRange] = []
        while count > 0:
            epoch, place = divmod(start, self.num_instances)
            self._draw(epoch)
            number = int(np.searchsorted(self._ends, place, side="right"))
            block = self._permutation[number]
            skipped = place - (int(self._ends[number]) - int(self._block_count[block]))
            taken = min(count, int(self._block_count[block]) - skipped)
            first = int(self._block_first[block]) + skipped
            found.append(RecordRange(int(self._block_file[block]), first, taken, epoch))
            start += taken
            count -= taken
        return found

    def _draw(self, epoch: int) -> None:
        if epoch != self._epoch:
            # Sorting raw Philox words: their stream is fixed for good, which NumPy does not promise
            # of Generator.permutation.
            words = np.random.Philox(key=[self.seed, epoch]).random_raw(len(self._block_file))
            self._permutation = np.argsort(words, kind="stable")
            self._ends = np.cumsum(self._block_count[self._permutation])
            self._epoch = epoch
