"""128-bit hashes of record keys, for many keys at once.

Two sums, modulo 2**64, of the key's 16-bit pieces and its length, each times a random number of its own. The numbers are
drawn for each hasher and leave it never, so that nobody can choose keys that meet: two different keys have the same
hash with a probability below 2**-96, whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from logstore.format import kernels
from logstore.format.batches.area import Area

_PIECE = 2
_HAS_KEY, _IS_TOMBSTONE = 1, 2


class Hashed(NamedTuple):
    """One entry a record. `deltas`: their offsets from that of their batch. Of a record without a key the hash is 0."""

    deltas: Any
    has_key: Any
    is_tombstone: Any
    one: Any
    two: Any


class KeyHash:
    """`seed`: random bytes."""

    def __init__(self, seed: bytes) -> None:
        self._rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))
        self._factors = self._draw(32)

    def _draw(self, count: int) -> Any:
        return self._rng.integers(0, 1 << 64, (count, 2), np.uint64, endpoint=False)

    def of(self, areas: Sequence[Area], spans: Sequence[int]) -> Hashed:
        """Of the keys of all records. `spans`: how many offsets each area's batch covers."""
        found = kernels.active.keys(areas, spans, self._factors)
        more = 1 + -(-found[4] // _PIECE) - len(self._factors)
        if more > 0:
            self._factors = np.concatenate([self._factors, self._draw(more)])
            found = kernels.active.keys(areas, spans, self._factors)
        flags = np.frombuffer(found[1], np.uint8)
        return Hashed(
            np.frombuffer(found[0], np.int64),
            flags & _HAS_KEY != 0,
            flags & _IS_TOMBSTONE != 0,
            np.frombuffer(found[2], np.uint64),
            np.frombuffer(found[3], np.uint64),
        )


def all_have_keys(area: Area, span: int) -> bool:
    """Whether there is no record without a key."""
    flags = kernels.active.keys([area], [span], np.empty((0, 2), np.uint64))[1]
    return bool((np.frombuffer(flags, np.uint8) & _HAS_KEY).all())
