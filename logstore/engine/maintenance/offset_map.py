"""Which offset is the last of each key: what compaction by key learns from the part of the log that it has not seen.

A hash table with open addressing, 24 bytes a slot: a key's 128-bit hash and its offset. At most half of the slots are
in use. When it is full, the rest is for the next pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logstore.format import kernels

KEYS_MAX = 1 << 21
"""So many keys are 96 MiB, and half of that more while the table grows for the last time."""
_SLOTS_MIN = 1 << 12


class OffsetMap:
    """Records are added; then it is asked. `expected`: so many records at the most. Unless more than half of them have a key
    of their own, it need not grow."""

    def __init__(self, keys_max: int = KEYS_MAX, expected: int = 0) -> None:
        self._keys_max = keys_max
        slots = max(_SLOTS_MIN, min(expected, 2 * keys_max))
        self._table: Any = np.zeros((1 << (slots - 1).bit_length(), 3), np.uint64)
        self._keys = 0

    def __len__(self) -> int:
        return self._keys

    @property
    def full(self) -> bool:
        """Whether it should take no more."""
        return self._keys >= self._keys_max

    def add(self, one: Any, two: Any, offsets: Any) -> None:
        """Both halves of the keys' hashes. Of a key that is added again the larger offset counts."""
        while 2 * (self._keys + len(offsets)) > len(self._table):
            self._grow()
        self._keys += kernels.active.remember(self._table, one, two, offsets)

    def _grow(self) -> None:
        used = self._table[self._table[:, 2] > 0]
        self._table = np.zeros((2 * len(self._table), 3), np.uint64)
        one, two, ends = (np.ascontiguousarray(used[:, column]) for column in range(3))
        kernels.active.remember(self._table, one, two, ends.astype(np.int64) - 1)

    def offsets(self) -> Any:
        """Of the last record of each key, in their order."""
        ends = self._table[:, 2]
        return np.sort(ends[ends > 0].astype(np.int64) - 1)

    def latest(self, one: Any, two: Any) -> Any:
        """The last offset of each key; -1 of one that is not here."""
        return np.frombuffer(kernels.active.recall(self._table, one, two), np.int64)
