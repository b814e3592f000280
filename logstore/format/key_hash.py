"""128-bit hashes of record keys, for many keys at once.

Two sums, modulo 2**64, of the key's 16-bit pieces and its length, each times a random number of its own. The numbers are
drawn for each hasher and leave it never, so that nobody can choose keys that meet: two different keys have the same
hash with a probability below 2**-96, whatever they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WORD = 8
_PIECES = 4
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
_SHIFTS = [np.uint64(16 * piece) for piece in range(_PIECES)]
_PIECE = np.uint64(0xFFFF)


class KeyHash:
    """`seed`: random bytes."""

    def __init__(self, seed: bytes) -> None:
        self._rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))
        self._numbers = self._draw(1 + 8 * _PIECES)

    def _draw(self, count: int) -> Any:
        return self._rng.integers(0, 1 << 64, (count, 2), np.uint64, endpoint=False)

    def of(self, joined: bytes, positions: Any, lengths: Any) -> tuple[Any, Any]:
        """Of the keys that lie there in `joined`, behind whose last one there are 8 bytes or more."""
        words = np.ndarray((len(joined) - _WORD + 1,), "<u8", joined, 0, (1,))
        longest = int(lengths.max(initial=0))
        count = -(-longest // _WORD)
        if len(self._numbers) <= count * _PIECES:
            self._numbers = np.concatenate([self._numbers, self._draw(1 + count * _PIECES)])
        sizes = lengths.astype(np.uint64)
        one, two = sizes * self._numbers[0, 0], sizes * self._numbers[0, 1]
        for word in range(count):
            left = lengths - word * _WORD
            some: Any = slice(None) if left.min() > 0 else np.flatnonzero(left > 0)
            found = words[positions[some] + word * _WORD] & _MASKS[np.minimum(left[some], _WORD)]
            for piece, shift in enumerate(_SHIFTS, 1 + word * _PIECES):
                part = (found >> shift) & _PIECE
                one[some] += part * self._numbers[piece, 0]
                two[some] += part * self._numbers[piece, 1]
        return one, two
