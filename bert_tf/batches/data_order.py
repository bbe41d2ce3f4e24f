"""Which instances an update uses: a function of (files, seed, epoch), not of ranks or batch split.

Epoch e is a pass over copy e % c of the c copies of the data (records have one copy; token files have
one for each set of pairs), and positions in the global order continue from epoch to epoch. An epoch is
a permutation of *blocks* of up to 64 consecutive instances of one shard: instances were shuffled within
their shard when they were made, and reading 64 consecutive records costs one seek. Every instance
occurs exactly once per epoch. Any position is found by binary search, so resuming costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

BLOCK_RECORDS = 64


class RecordRange(NamedTuple):
    """`num_records` consecutive instances of shard number `file`, starting with instance `first`, in an epoch."""

    file: int
    first: int
    num_records: int
    epoch: int = 0


def select(ranges: Sequence[RecordRange], numbers: np.ndarray) -> list[RecordRange]:
    """The single instances with these numbers among all instances of the ranges, counted from 0."""
    ends = np.cumsum([part.num_records for part in ranges])
    parts = np.searchsorted(ends, numbers, side="right")
    return [
        ranges[part]._replace(first=ranges[part].first + ranges[part].num_records - int(before_end), num_records=1)
        for part, before_end in zip(parts, ends[parts] - numbers)
    ]


class GlobalOrder:
    """The endless order of all instances of some shards.

    It stores 4 bytes per block of an epoch, 63 MB for 10^9 instances: a block's file and first instance follow from
    its number, because all blocks of a shard but the last have the same size.

    Args:
      copies: [copies][files], number of instances of each copy of each shard, in the order of the set's files.
      seed: an epoch's permutation is a function of (seed, epoch).
    """

    def __init__(self, copies: Sequence[Sequence[int]], seed: int):
        self._copies = [np.asarray(per_file, np.int64) for per_file in copies]
        # The first position of each copy's epoch in a cycle through all copies, then the cycle's length.
        self._begins = np.cumsum([0, *(int(per_file.sum()) for per_file in self._copies)])
        assert np.all(np.diff(self._begins)), "without instances a set cannot be opened"
        self.seed = seed
        self._epoch = -1

    def ranges(self, start: int, count: int) -> list[RecordRange]:
        """The instances at positions [start, start + count), in order."""
        ranges: list[RecordRange] = []
        while count > 0:
            epoch, position = self._locate(start)
            self._start_epoch(epoch)
            # The position it would have if the short blocks before it were full.
            position += int(self._missing[np.searchsorted(self._short_ends, position, side="right")])
            number, skipped = divmod(position, BLOCK_RECORDS)
            blocks = self._permutation[number : number - (-(skipped + count) // BLOCK_RECORDS)]
            files = np.searchsorted(self._first_blocks, blocks, side="right") - 1
            firsts = (blocks - self._first_blocks[files]) * BLOCK_RECORDS
            sizes = np.minimum(BLOCK_RECORDS, self._file_sizes[files] - firsts)
            for file, first, size in zip(files.tolist(), firsts.tolist(), sizes.tolist()):
                taken = min(count, size - skipped)
                if taken > 0:
                    ranges.append(RecordRange(file, first + skipped, taken, epoch))
                start, count, skipped = start + taken, count - taken, 0
        return ranges

    def _locate(self, position: int) -> tuple[int, int]:
        """The epoch of a position, and the position within the epoch."""
        cycle, position = divmod(position, int(self._begins[-1]))
        copy = int(np.searchsorted(self._begins, position, side="right")) - 1
        return cycle * len(self._copies) + copy, position - int(self._begins[copy])

    def _start_epoch(self, epoch: int) -> None:
        """Makes the epoch's permutation and the tables that `ranges` reads, if they are not those of the last call."""
        if epoch == self._epoch:
            return
        self._file_sizes = self._copies[epoch % len(self._copies)]
        # The number of each shard's first block, then the number of blocks.
        self._first_blocks = np.cumsum([0, *-(-self._file_sizes // BLOCK_RECORDS)])
        num_blocks = int(self._first_blocks[-1])
        self._permutation = np.empty(0, np.uint32)  # frees the memory before the next one is made
        self._permutation = _permutation(self.seed, epoch, num_blocks)
        # A shard's last block may be short: where are such blocks in this epoch, and how many instances do they lack?
        file_lacks = -self._file_sizes % BLOCK_RECORDS
        block_lacks = np.zeros(num_blocks, np.uint8)
        block_lacks[self._first_blocks[1:][file_lacks > 0] - 1] = file_lacks[file_lacks > 0]
        short = np.flatnonzero(block_lacks[self._permutation])
        self._missing = np.cumsum([0, *block_lacks[self._permutation[short]]], dtype=np.int64)
        self._short_ends = (short + 1) * BLOCK_RECORDS - self._missing[1:]
        self._epoch = epoch


def _permutation(seed: int, epoch: int, num_blocks: int) -> np.ndarray:
    """The block numbers as uint32, sorted by one raw Philox word each.

    NumPy guarantees that Philox's raw stream never changes, but not that `Generator.permutation` does not.
    """
    words = np.random.Philox(key=[seed, epoch]).random_raw(num_blocks)
    return np.argsort(words, kind="stable").astype(np.uint32)
