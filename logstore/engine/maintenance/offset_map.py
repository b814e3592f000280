"""Which offset is the last of each key: what compaction by key learns from the part of the log that it has not seen.

24 bytes a key, its 128-bit hash and an offset, in sorted columns. When it is full, the rest is for the next pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

KEYS_MAX = 1 << 21
"""So many keys are 48 MiB, and up to four times that while they are sorted."""
_SORT_FROM = 1 << 17


class OffsetMap:
    """Records are added in the order of their offsets; then it is asked."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._one: Any = np.empty(0, np.uint64)
        self._two: Any = np.empty(0, np.uint64)
        self._offset: Any = np.empty(0, np.int64)
        self._same = 1
        """How many entries in a row have the same first half: one, unless there are very many keys."""
        self._new: list[tuple[Any, Any, Any]] = []
        self._new_rows = 0

    def __len__(self) -> int:
        self._sort()
        return len(self._offset)

    def add(self, one: Any, two: Any, offsets: Any) -> None:
        self._new.append((one, two, offsets))
        self._new_rows += len(offsets)
        if self._new_rows > max(_SORT_FROM, len(self._offset) // 2):
            self._sort()

    @property
    def full(self) -> bool:
        """Whether it should take no more."""
        return len(self._offset) + self._new_rows >= self._keys_max and len(self) >= self._keys_max

    def _sort(self) -> None:
        if not self._new:
            return
        columns = zip((self._one, self._two, self._offset), *self._new, strict=True)
        one, two, offset = (np.concatenate(column) for column in columns)
        self._new, self._new_rows = [], 0
        order = np.argsort(one, kind="stable")
        one, two, offset = one[order], two[order], offset[order]
        same = one[1:] == one[:-1]
        if (same & (two[1:] != two[:-1])).any():
            order = np.lexsort((offset, two, one))
            one, two, offset = one[order], two[order], offset[order]
            same = one[1:] == one[:-1]
        last = np.append(~(same & (two[1:] == two[:-1])), True)
        self._one, self._two, self._offset = one[last], two[last], offset[last]
        self._same = _longest_run(self._one)

    def offsets(self) -> Any:
        """Of the last record of each key, in their order."""
        self._sort()
        return np.sort(self._offset)

    def latest(self, one: Any, two: Any) -> Any:
        """The last offset of each key; -1 of one that is not here."""
        self._sort()
        found = np.full(len(one), -1, np.int64)
        if not len(self._offset):
            return found
        order = np.argsort(
            one
        )  # neighbours are looked up one after the other, which the processor's cache likes
        one, two = one[order], two[order]
        at = np.searchsorted(self._one, one)
        for _ in range(self._same):
            place = np.minimum(at, len(self._one) - 1)
            hit = (self._one[place] == one) & (self._two[place] == two)
            found[order[hit]] = self._offset[place[hit]]
            at = at + 1
        return found


def _longest_run(column: Any) -> int:
    same = column[1:] == column[:-1]
    if not same.any():
        return 1
    starts = np.flatnonzero(np.append(True, ~same))
    return int(np.diff(np.append(starts, len(column))).max())
