"""A change of one key at one time, as a record of the log.

    record key     the key
    record value   flags 1 byte | time 8 bytes | length of the old value 4 bytes | old value | new value      (big endian)

Flag 1: there is an old value, and this change takes it back (−1). Flag 2: there is a new value (+1). So an insertion has 2,
a deletion 1, an update both; the two halves of an update are one record, because they must not be seen apart. Summed up over
a key the halves give 0 or 1 at every time, and the last record of a key tells its value: flag 2 and the rest, or none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

HAS_OLD = 1
HAS_NEW = 2
FRONT = struct.Struct(">BQI")
FRONT_SIZE = FRONT.size

_pack, _unpack = FRONT.pack, FRONT.unpack_from


def encode_change(old: bytes | None, new: bytes | None, time: int) -> bytes:
    """The record value that says: at `time` the key's value went from `old` to `new`; None is no value."""
    if old is None:
        return _pack(HAS_NEW, time, 0) + new if new is not None else _pack(0, time, 0)
    if new is None:
        return _pack(HAS_OLD, time, len(old)) + old
    return b"".join((_pack(HAS_OLD | HAS_NEW, time, len(old)), old, new))


def encode_changes(
    old_values: Sequence[bytes | None], new_values: Sequence[bytes | None], time: int
) -> list[bytes]:
    """`encode_change` for each pair, faster: at one time the fronts differ by the length of the old value alone."""
    fronts, insertion = _Fronts(time), _pack(HAS_NEW, time, 0)
    return [
        b"".join((fronts[len(old)], old, new))
        if old is not None and new is not None
        else insertion + new
        if new is not None
        else encode_change(old, new, time)
        for old, new in zip(old_values, new_values, strict=True)
    ]


class _Fronts(dict[int, bytes]):
    """Length of the old value → the front of an update of it."""

    def __init__(self, time: int) -> None:
        super().__init__()
        self._time = time

    def __missing__(self, size: int) -> bytes:
        self[size] = front = _pack(HAS_OLD | HAS_NEW, self._time, size)
        return front


def decode_change(value: bytes | None) -> tuple[bytes | None, bytes | None, int]:
    """`(old, new, time)` of a record value. Raises ValueError if it is no change."""
    if value is None or len(value) < FRONT_SIZE:
        raise ValueError("a value that is too short for a change")
    flags, time, old_size = _unpack(value)
    split = FRONT_SIZE + old_size
    if flags == 3 and split <= len(value):
        return value[FRONT_SIZE:split], value[split:], time
    if flags == HAS_NEW and not old_size:
        return None, value[FRONT_SIZE:], time
    if flags == HAS_OLD and split == len(value):
        return value[FRONT_SIZE:], None, time
    raise ValueError(f"flags {flags} with an old value of {old_size} bytes in {len(value)} are no change")
