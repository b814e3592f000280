"""Kafka's default partitioner over a column of keys at once: `format.murmur2` for each, done by columns of four
bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logstore.format.murmur2 import partition_for_key

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_COLUMNS_MAX = 64  # longer keys are hashed one by one: the columns would mostly be empty

Numbers = npt.NDArray[np.int64]


def partitions_of(keys: Any, partitions: int) -> Numbers:
    """The partition of each key of an Arrow binary array; 0 for null."""
    rows = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + rows + 1].astype(
        np.int64
    )
    lengths = np.diff(offsets)
    nulls = keys.is_null().to_numpy(zero_copy_only=False)
    lengths[nulls] = 0  # what lies in the buffer for a null is undefined
    if rows == 0 or int(lengths.max()) > 4 * _COLUMNS_MAX:
        found = (0 if key is None else partition_for_key(key, partitions) for key in keys.to_pylist())
        return np.fromiter(found, np.int64, rows)
    hashed = _murmur2(_words(keys.buffers()[2], int(offsets[-1])), offsets[:-1], lengths)
    places = (hashed & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    places[nulls] = 0
    return places


def _words(data: Any, size: int) -> npt.NDArray[np.uint32]:
    """The four bytes from every position on, as a number; past the end come zeros."""
    padded = np.zeros(size + 4, np.uint8)
    if data is not None:
        padded[:size] = np.frombuffer(data, np.uint8, size)
    return np.ndarray((size + 1,), "<u4", padded, strides=(1,))


def _murmur2(words: npt.NDArray[np.uint32], starts: Numbers, lengths: Numbers) -> npt.NDArray[np.uint32]:
    h = _SEED ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for column in range(int(whole.max())):
        has = whole > column
        everywhere = bool(has.all())
        k = words[starts + 4 * column] if everywhere else words[starts[has] + 4 * column]
        k = k * _M
        k = (k ^ k >> np.uint32(24)) * _M
        if everywhere:
            h = h * _M ^ k
        else:
            h[has] = h[has] * _M ^ k
    left = lengths & 3
    has = left > 0
    mask = (np.uint32(1) << (8 * left[has]).astype(np.uint32)) - np.uint32(1)
    h[has] = (h[has] ^ words[(starts + 4 * whole)[has]] & mask) * _M
    h = (h ^ h >> np.uint32(13)) * _M
    return h ^ h >> np.uint32(15)
