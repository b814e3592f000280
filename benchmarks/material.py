"""The records that everybody stores: 100 random bytes under a short key, which no codec can make smaller."""

from __future__ import annotations

import random

Row = tuple[bytes, bytes]
"""Key and value."""

VALUE_SIZE = 100
KEY_SIZE = 10
ROW_SIZE = KEY_SIZE + VALUE_SIZE


def rows(count: int, seed: int = 7) -> list[Row]:
    rng = random.Random(seed)
    return [(b"key-%06d" % number, rng.randbytes(VALUE_SIZE)) for number in range(count)]
