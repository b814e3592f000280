"""Buffered appends fill the uploads that a lane may have in flight: what one of them waits for is no PUT of 4 MiB."""

from __future__ import annotations

import threading

import pytest

from logstore.engine.write.lanes import lane_queue
from logstore.objects import MemoryStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import GatedStore
from tests.support.engine.harness import parts_in_lanes, running, until
from tests.support.engine.virtual_load import limit_of, run_load
from tests.support.lanes.entries import seen
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("partitions", [1, 4])
def test_N02_one_lane_carries_what_its_uploads_in_flight_can(partitions: int) -> None:
    """With the defaults, from the first append on, which nobody knows the rate of, to the last upload's end."""
    load = run_load(partitions, 256)
    assert load.most == 8, "uploads_max"
    assert load.rate >= 150 * (1 << 20)
    assert load.rate >= 0.75 * limit_of(8)
    assert len(load.sizes) <= 1.25 * load.appended / lane_queue.ENTRY_BYTES, "few are for a reservation alone"
    assert max(load.sizes) < 1.1 * lane_queue.ENTRY_BYTES


def test_N02_what_an_entry_has_no_room_for_goes_with_another_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody appends any more: the rest need not wait until the first one is committed."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 10_000)
    monkeypatch.setattr(lane_queue, "SMALL_BYTES", 2_500)
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1, compression="none", max_batch_bytes=5_000) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"first")
        with gated.hold("put", prefix="lanes/") as gate:
            values = [b"%d" % number + b"x" * 4_000 for number in range(9)]
            with store._lanes.held():
                waiting = [log.submit([value]) for value in values]
            until(lambda: len(gate.held) == 4)  # of two each; the last one alone fills none
            gate.open()
            assert [future.result(PATIENCE_S).offset for future in waiting] == list(range(1, 10))
    assert seen(objects) == [(0, b"first"), *enumerate(values, 1)]


def test_N02_a_partition_that_does_not_fit_shares_the_entry_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 10_000)
    monkeypatch.setattr(lane_queue, "SMALL_BYTES", 2_500)
    objects = MemoryStore()
    with running(objects, lanes=1, compression="none", max_batch_bytes=4_000) as store:
        topic = store.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        for log in logs:
            log.append(b"first")
        with store._lanes.held():
            waiting = [log.submit([b"x" * 3_000]) for log in logs for _ in range(3)]
        assert [future.result(PATIENCE_S).offset for future in waiting] == [1, 2, 3] * 2
        by_entry: dict[str, int] = {}
        for key, _ in parts_in_lanes(objects):
            entry, _, size = key.partition("@")
            by_entry[entry] = by_entry.get(entry, 0) + int(size.partition("+")[2])
    assert len([size for size in by_entry.values() if size > 5_000]) == 2, "of 18,000 bytes"
    assert max(by_entry.values()) < 11_000


class LargeHeld(MemoryStore):
    """Entries with much in them wait."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.small = 0

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if len(data) > 100_000:
            assert self.may_go.wait(PATIENCE_S)
        else:
            self.small += key.startswith("lanes/")
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


def test_N02_L17_an_append_waits_for_a_reservation_and_not_for_the_records_before_it() -> None:
    """Those go with an upload of their own. And it is asked for as soon as the next append like the last one would wait."""
    objects = LargeHeld()
    with running(objects, lanes=1, ack="buffered", compression="none", flush_interval=3600.0) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"first")
        store.flush()
        blocks = [[b"%d" % turn + b"x" * 1_200] * 500 for turn in range(5)]
        for block in blocks[:4]:
            log.append(block)
        until(lambda: objects.small == 3)  # the first record, what its next ones needed, and what comes now
        assert log.append(blocks[4], timeout=PATIENCE_S).offset == 2_001
        objects.may_go.set()
        store.flush()
    assert seen(objects) == list(enumerate([b"first", *(value for block in blocks for value in block)]))
