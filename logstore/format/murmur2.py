"""Kafka's default partitioner: the same key goes to the same partition as with every Kafka client.

>>> murmur2(b"21"), partition_for_key(b"order-17", 4)
(-973932308, 1)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

from logstore.format import kernels

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_CACHED_KEY_BYTES = 128


@lru_cache(maxsize=1 << 14)
def _cached(key: bytes) -> int:
    return plain_murmur2(key)


def plain_murmur2(key: bytes) -> int:
    """`murmur2` in plain Python."""
    size = len(key)
    h = _SEED ^ size
    whole = size & ~3
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if size != whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def _plain(key: bytes) -> int:
    # A cached key is kept alive, so only short ones are: 16,384 of them are a few MB at most.
    return _cached(key) if len(key) <= _CACHED_KEY_BYTES else plain_murmur2(key)


murmur2: Callable[[bytes], int] = _plain if kernels.speed is None else kernels.speed.murmur2
"""The signed 32-bit murmur2 hash of Kafka's clients."""


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition, of `partitions`, where Kafka's default partitioner puts `key`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
