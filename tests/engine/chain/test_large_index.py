"""A segment of so many batches that its index does not fit into the one request that reads its tail."""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from logstore.engine.chain import segment_reader
from logstore.errors import CorruptData
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from logstore.format.stored.segment import INDEX_ROW_SIZE, TAIL_SIZE
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore

BATCHES = 2 * TAIL_SIZE // INDEX_ROW_SIZE


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """One segment, of one record a batch, that is read by its index."""
    for name in ("WHOLE_BYTES", "SCAN_WHOLE_BYTES"):
        monkeypatch.setattr(segment_reader, name, 0)
    made = MemoryStore()
    batches = [encode_batch([Record(b"v%d" % n)], now_ms=n, codec_id=0)[0] for n in range(BATCHES)]
    with logstore.open(made, lanes=0) as store:
        store.create_topic("t").partition(0).append_batches(b"".join(batches))
    return made


def test_L26_an_index_that_is_larger_than_the_tail_is_read_whole(objects: MemoryStore) -> None:
    with logstore.open(objects, writer="read_only") as store:
        log = store.topic("t").partition(0)
        assert [next(log.read(at, 0).records()).value for at in (0, BATCHES // 2, BATCHES - 1)] == [
            b"v0",
            b"v%d" % (BATCHES // 2),
            b"v%d" % (BATCHES - 1),
        ]
        assert log.offset_for_timestamp(BATCHES // 3) == BATCHES // 3
        assert [record.offset for record in log.records()] == list(range(BATCHES))


def test_L20_a_store_that_gives_fewer_bytes_than_were_asked_for_is_found_out(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = FaultyStore(objects)
    with logstore.open(short, writer="read_only") as store:
        log = store.topic("t").partition(0)
        log.read(0, 0)  # from here on the index is in the cache
        store._runtime.cache.clear()
        (ref,) = log._internal.state.segments.all()
        loaded = store._runtime.reader.index(ref)
        real = short.get

        def cut(key: str, start: int | None = None, end: int | None = None) -> Any:
            return real(key, start, end)[: -1 if end is not None else None]

        monkeypatch.setattr(store._runtime.reader, "_store", _Cut(cut))
        with pytest.raises(CorruptData, match=r"the store gave \d+ of \d+ bytes") as caught:
            store._runtime.reader._load_block(ref, loaded, 0)
        assert (caught.value.key, caught.value.offset) == (ref.key, 0)


class _Cut:
    def __init__(self, get: Any) -> None:
        self.get = get
