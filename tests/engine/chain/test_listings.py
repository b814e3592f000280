"""A listing is no snapshot: of many files, read while a writer commits, it shows a segment and not the one before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

import logstore
from logstore.engine.memory.catch_up import reload
from logstore.errors import CorruptData
from logstore.format.stored.segment import SegmentHeader, collected
from logstore.objects import MemoryStore
from logstore.objects.protocol import ObjectInfo
from logstore.testing import FaultyStore
from tests.support.engine.harness import open_store, pairs, running
from tests.support.patience import PATIENCE_S


class Leaky(MemoryStore):
    """Leaves objects out of its listings that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: set[str] = set()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix, start_after) if info.key not in self.left_out)


def filled(store: logstore.Store, count: int) -> logstore.PartitionLog:
    log = store.create_topic("t").partition(0)
    for number in range(count):
        log.append(b"%d" % number)
    return log


def leave_out(objects: Leaky, log: logstore.PartitionLog, *places: int) -> None:
    objects.left_out = {log._internal.paths.segment(seq) for seq in places}
    assert all(objects.head(key) for key in objects.left_out)


def whole(count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(count)]


@pytest.mark.usefixtures("own_chain")
def test_L20_a_reader_that_opens_meanwhile_misses_no_record() -> None:
    objects = Leaky()
    with open_store(objects) as store:
        log = filled(store, 10)
        leave_out(objects, log, 1, 4, 5)
        with open_store(objects, writer="read_only") as other:
            assert pairs(other.topic("t").partition(0)) == whole(10)


@pytest.mark.usefixtures("own_chain")
def test_L11_the_writers_own_look_at_the_store_hides_nothing_that_was_acked() -> None:
    """Maintenance looks again which objects hold the records; the guess at what a missing one held took their place."""
    objects = Leaky()
    with open_store(objects) as store:
        log = filled(store, 10)
        leave_out(objects, log, 4, 5)
        reload(log._internal._chain, log._internal.state)
        assert pairs(log) == whole(10)
        assert log._internal.state.segments.is_complete


@pytest.mark.usefixtures("own_chain")
def test_L20_a_segment_that_is_gone_is_still_missed_by_name() -> None:
    objects = Leaky()
    with open_store(objects) as store:
        log = filled(store, 10)
        objects.delete(log._internal.paths.segment(4))
        with open_store(objects, writer="read_only") as other:
            with pytest.raises(CorruptData, match="missing") as caught:
                pairs(other.topic("t").partition(0))
            assert caught.value.key == log._internal.paths.segment(4)
            assert pairs(other.topic("t").partition(0), start=5) == whole(10)[5:]


def test_L21_a_wide_gap_costs_no_request_for_each_that_is_missing() -> None:
    objects = Leaky()
    with open_store(objects) as store:
        log = filled(store, 3)
        far = log._internal.paths.segment(1_000_000)
    objects.put(far, b"not a segment")
    counted = FaultyStore(objects)
    with open_store(counted, writer="read_only") as other:
        assert pairs(other.topic("t").partition(0), stop=3) == whole(3)
    assert len(counted.calls) < 50


@pytest.mark.parametrize("left", ["collected", "unreadable"])
def test_L21_places_without_records_are_looked_at_once_each(left: str) -> None:
    """Of a chain whose beginning was collected, or is damaged, and whose manifest is gone. They do not move the end that is
    known, so each was asked for again before the next one."""
    objects = MemoryStore()
    with open_store(objects, writer="shared") as store:
        log = filled(store, 40)
        keys = [log._internal.paths.segment(seq) for seq in range(30)]
    for key in keys:
        header = SegmentHeader.parse(objects.get(key))
        objects.put(key, collected(header) if left == "collected" else b"not a segment")
    counted = FaultyStore(objects)
    with open_store(counted, writer="read_only") as other:
        assert pairs(other.topic("t").partition(0), start=30) == whole(40)[30:]
    assert len(counted.calls) < 300, "the store was looked at twice, because something is missing"


class Together(FaultyStore):
    """From the third segment on it answers no look before all that are left are under way."""

    def __init__(self, inner: MemoryStore, segments: int) -> None:
        super().__init__(inner)
        self._looks = count()
        self._together = threading.Barrier(segments - 2, timeout=PATIENCE_S)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key.endswith(".seg") and next(self._looks) >= 2:
            self._together.wait()
        return super().get(key, start, end)


def test_L21_a_few_segments_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening waits for the manifest, a listing and three looks, not for one look after the other."""
    monkeypatch.setattr("logstore.objects.fan_out.QUICK_S", 0.0)  # the store is far away
    objects = MemoryStore()
    with running(objects, lanes=0) as writer:
        log = writer.create_topic("t").partition(0)
        for number in range(5):
            log.append(b"%d" % number)
        with running(Together(objects, 6), writer="read_only") as reader:  # the fence is one, too
            assert reader.topic("t").partition(0).durable_high_watermark == 5
