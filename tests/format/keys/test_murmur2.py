"""Keys go to the partition where Kafka's own clients put them."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import murmur2 as theirs

from logstore.format import murmur2 as ours
from logstore.format.murmur2 import partition_for_key

# From the tests of Kafka's Java client (UtilsTest.testMurmur2).
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.fixture(params=["built", "plain"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the C kernels, where they are built, and without."""
    if request.param == "plain":
        monkeypatch.setattr(ours, "murmur2", ours._plain)


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_the_vectors_of_kafkas_own_test(key: bytes, expected: int) -> None:
    assert ours.murmur2(key) == expected


def test_every_length_and_tail_hashes_as_in_another_client() -> None:
    rng = random.Random(7)
    for size in [*range(40), 127, 128, 129, 1000]:
        key = rng.randbytes(size)
        for _ in range(2):  # the second time it may come out of the cache
            assert ours.murmur2(key) & 0xFFFFFFFF == theirs(key) & 0xFFFFFFFF
        for partitions in (1, 2, 7, 64):
            assert partition_for_key(key, partitions) == (theirs(key) & 0x7FFFFFFF) % partitions
