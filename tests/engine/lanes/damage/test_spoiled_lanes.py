"""A place of a lane that holds what its owner cannot read, or did not expect: the owner moves to another lane.

It may have been a seal, so nobody goes on behind it. The owner's writers stop, and say why; `reopen` claims the partitions
again, without a restart, and nothing that was acked is lost.

Of topics that begin in chains of their own. In a lane of others it may have been a transfer, and `reopen` is refused:
`test_lost_transfers.py`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import logstore
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.whole_lane import whole_state
from logstore.engine.write.lanes.lane import Lane
from logstore.errors import CorruptData, Fenced
from logstore.format.stored.entry import EntryHeader, EntryKind, build_entry
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import FaultyStore, GatedStore
from tests.support.engine.harness import crash, open_store, pairs, running, until
from tests.support.lanes.entries import seen
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("begin_in_own_chains")
JUNK = b"nothing that anybody has written here" * 9


def lane_of(store: logstore.Store) -> Lane:
    lane = store._lanes.of(store.topic("t").partition(0)._internal.paths)
    assert lane is not None
    return lane


def next_place(store: logstore.Store) -> str:
    lane = lane_of(store)
    return LanePaths(lane.name).entry(lane.claim().since)


def opened(objects: ObjectStore, **settings: Any) -> tuple[logstore.Store, logstore.Topic]:
    store = open_store(objects, **settings)
    topic = store.create_topic("t", 4)
    for number in range(3):
        topic.partition(number).append(b"a%d" % number)
    return store, topic


@pytest.mark.parametrize("settings", [{"lanes": 1}, {"lane": "x"}], ids=["unnamed", "named"])
def test_N07_an_owner_moves_from_a_place_that_cannot_be_read_without_a_restart(
    settings: dict[str, Any],
) -> None:
    objects = MemoryStore()
    store, topic = opened(objects, **settings)
    key, before = next_place(store), lane_of(store).name
    objects.put(key, JUNK)
    with pytest.raises(CorruptData, match=key):
        topic.partition(0).append(b"never acked")
    with pytest.raises(CorruptData, match=key):
        topic.partition(1).append(b"nor this")
    for number in range(3):
        log = topic.partition(number).reopen()
        assert log.append(b"b%d" % number).offset == 1, "nothing was acked, and nothing is lost"
        assert pairs(log) == [(0, b"a%d" % number), (1, b"b%d" % number)]
    assert topic.partition(3).append(b"first").offset == 0, "one that was not open needs no reopen"
    assert (lane_of(store).name == before) == ("lane" in settings)
    store.close()
    for number in range(3):
        assert seen(objects, number) == [(0, b"a%d" % number), (1, b"b%d" % number)]
    with running(objects, **settings) as again:
        for number in range(3):
            assert again.topic("t").partition(number).append(b"c").offset == 2


def test_N07_those_who_read_are_in_no_doubt_once_the_owner_has_moved() -> None:
    """One seal ends all claims, also of partitions that nobody reopens."""
    objects = MemoryStore()
    store, topic = opened(objects, lanes=1)
    lane, key = lane_of(store).name, next_place(store)
    objects.put(key, JUNK)
    with pytest.raises(CorruptData, match=key):
        topic.partition(0).append(b"never acked")
    until(lambda: whole_state(LaneLog(objects, LanePaths(lane))).has_ended_whole)
    for number in range(3):
        assert seen(objects, number) == [(0, b"a%d" % number)]
    with running(objects, lanes=1) as other:
        for number in range(3):
            assert other.topic("t").partition(number).append(b"b").offset == 1
    crash(store)


def test_N07_what_was_shown_before_it_was_stored_is_given_to_no_other_record() -> None:
    objects = MemoryStore()
    store, topic = opened(objects, lanes=1)
    log = topic.partition(0)
    log.append(b"shown", ack="buffered")
    log.flush()
    shown = log.append(b"shown, too", ack="buffered").offset
    objects.put(next_place(store), JUNK)
    with pytest.raises(CorruptData):
        log.flush()
    again = log.reopen()
    receipt = again.append(b"b")
    assert receipt.offset > shown
    assert again.lost_ranges() == [(shown, receipt.offset)]
    crash(store)


def test_N07_another_process_that_writes_the_same_lane_is_left_alone_with_it() -> None:
    """A copy of a virtual machine, say: both believe that they own the lane. What it has put there counts."""
    objects = MemoryStore()
    store, topic = opened(objects, lanes=1)
    stored = LaneLog(objects, LanePaths(lane_of(store).name))
    last = stored.entry_at(2)
    assert last is not None
    header = EntryHeader(EntryKind.DATA, 3, b"x" * 16, last.header.id, 0)
    stored.commit(header, build_entry(header, [])[0])
    with pytest.raises(CorruptData, match="another process puts records into this lane"):
        topic.partition(0).append(b"no")
    assert topic.partition(0).reopen().append(b"b").offset == 1
    store.close()
    assert seen(objects, 0) == [(0, b"a0"), (1, b"b")]


def test_N07_a_seal_that_was_damaged_still_stops_its_partition() -> None:
    """The taker's seal cannot be read any more when the owner meets it. The taker has the partition all the same."""
    objects = MemoryStore()
    store, topic = opened(objects, lanes=1)
    key = next_place(store)
    with running(objects, lanes=1) as taker:
        assert taker.topic("t").partition(1).append(b"taken").offset == 1
        objects.put(key, JUNK)
        with pytest.raises(CorruptData, match=key):
            topic.partition(0).append(b"no")
        assert topic.partition(0).reopen().append(b"b").offset == 1
        assert taker.topic("t").partition(1).append(b"still its own").offset == 2
        log = topic.partition(1).reopen()
        assert pairs(log) == [(0, b"a1"), (1, b"taken"), (2, b"still its own")]
        assert log.append(b"taken back").offset == 3
        with pytest.raises(Fenced):
            taker.topic("t").partition(1).append(b"no")
    store.close()
    assert seen(objects, 1)[1:] == [(1, b"taken"), (2, b"still its own"), (3, b"taken back")]


def test_N07_a_read_that_was_damaged_on_its_way_stops_nobody() -> None:
    """The answer to an upload is lost, and the look at it brings other bytes than are there; the next look does not."""
    objects = MemoryStore()

    class Garbling(FaultyStore):
        left = 0

        def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
            data = super().get(key, start, end)
            if key.startswith("lanes/") and self.left and data:
                self.left -= 1
                return bytes(len(data))
            return data

    garbling = Garbling(objects)
    store, topic = opened(garbling, lanes=1, probe_interval=0.001)
    garbling.fail("put", prefix="lanes/", times=1, with_=logstore.testing.Fault.LOSE_ANSWER)
    garbling.left = 2  # both ends of it
    assert topic.partition(0).append(b"b").offset == 1
    store.close()
    assert seen(objects, 0) == [(0, b"a0"), (1, b"b")]


def test_N07_claims_that_cannot_be_ended_at_once_are_when_a_partition_is_reopened() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    store, topic = opened(faulty, lanes=1, probe_interval=0.001, append_timeout=1.0)
    objects.put(next_place(store), JUNK)
    faulty.fail("put", prefix="lanes/", times=8, with_=logstore.testing.Fault.LOSE_REQUEST)
    with pytest.raises((CorruptData, logstore.AppendTimeout)):
        topic.partition(0).append(b"no", timeout=PATIENCE_S)
    faulty.heal()
    log = topic.partition(0).reopen()
    assert log.append(b"b", timeout=PATIENCE_S).offset == 1
    store.close()
    assert seen(objects, 0) == [(0, b"a0"), (1, b"b")]


def test_N07_uploads_that_were_under_way_never_land_in_the_next_lane() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store, topic = opened(gated, lanes=1)
    key = next_place(store)
    with gated.hold("put", prefix="lanes/", suffix=key[-24:]) as gate:
        waiting = topic.partition(0).submit(b"under way")
        gate.wait_held()
        objects.put(key, JUNK)
        gate.open()
        with pytest.raises(CorruptData):
            waiting.result(PATIENCE_S)
    for turn in range(3):
        log = topic.partition(0)
        assert (log.reopen() if turn == 0 else log).append(b"%d" % turn).offset == 1 + turn
    store.close()
    assert seen(objects, 0) == [(0, b"a0"), *((1 + turn, b"%d" % turn) for turn in range(3))]


class _Dying(FaultyStore):
    """Answers so many more requests, and none after that."""

    left: int | None = None

    def _one_more(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.down()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._one_more()
        return super().get(key, start, end)

    def put(self, key: str, data: Any, **conditions: Any) -> Any:
        self._one_more()
        return super().put(key, data, **conditions)


@pytest.mark.parametrize("requests", [2, 8, 12, 14, 17, 20, 26])
@pytest.mark.parametrize("settings", [{"lanes": 1}, {"lane": "x"}], ids=["unnamed", "named"])
def test_N06_killed_while_it_moves_an_owner_has_lost_nothing_that_it_acked(
    settings: dict[str, Any], requests: int
) -> None:
    """Before the seal stands everything is in doubt for others, and refused; behind it they go on."""
    objects = MemoryStore()
    dying = _Dying(objects)
    store, topic = opened(dying, append_timeout=0.3, probe_interval=0.01, **settings)
    key = next_place(store)
    objects.put(key, JUNK)
    dying.left = requests
    acked = {number: [b"a%d" % number] for number in range(3)}
    for number in range(3):
        with suppress(logstore.LogStoreError):
            topic.partition(number).append(b"never acked")
        with suppress(logstore.LogStoreError):
            topic.partition(number).reopen(0.3).append(b"b%d" % number)
            acked[number].append(b"b%d" % number)
    crash(store, dying, hanging=True)
    again = open_store(objects, **settings)
    for number in range(3):
        log = again.topic("t").partition(number)
        values: list[bytes] = []
        with suppress(CorruptData):
            log.append(b"next")
            values = [value for _, value in pairs(log)]
        if values:
            assert [value for value in values if value in acked[number]] == acked[number]
            assert values[-1] == b"next"
        else:
            assert acked[number] == [b"a%d" % number], "it is refused, so nobody has gone on"
    crash(again, hanging=True)
