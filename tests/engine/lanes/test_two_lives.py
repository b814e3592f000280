"""A process whose lane another adopts, and that adopts it back: what its first life has under way comes to an end in the
second one, when the other has written, and split, behind it."""

from __future__ import annotations

import pytest

import logstore
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.write.lanes import lane_checkpoints
from logstore.engine.write.lanes.lane_checkpoints import LaneCheckpoints
from logstore.errors import Fenced, OutcomeUnknown
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import GatedStore
from tests.support.engine.harness import background, crash, open_store, running
from tests.support.lanes.entries import seen, values
from tests.support.patience import PATIENCE_S


def another_life(objects: ObjectStore) -> logstore.Store:
    return open_store(objects, lane="x", take_over=True, delete_grace=0.0)


def checkpoints_of(store: logstore.Store) -> LaneCheckpoints:
    lane = store._lanes.of(store.topic("t").partition(0)._internal.paths)
    assert lane is not None
    return lane.checkpoints


def adopt_back(store: logstore.Store, number: int) -> None:
    log = store.topic("t").partition(number)
    with pytest.raises(Fenced):
        log.append(b"no")
    log.reopen().append(b"back")


def test_W05_L17_a_claim_that_is_answered_late_is_not_begun_again_behind_what_another_life_has_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to a transfer is lost for long. Meanwhile the other life goes on with the claim, and nothing of it is in
    the lane any more when the process adopts that back: it would give the other's offsets to records of its own."""
    monkeypatch.setattr(lane_checkpoints, "SPLIT_EVERY", 3)
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(objects, lanes=1) as creator:
        creator.create_topic("t", 2)
    first = another_life(gated)
    first.topic("t").partition(1).append(b"first")
    with gated.hold("put", prefix="lanes/born", after=True) as gate:
        opening = background(first.topic("t").partition(0).open_writer)
        gate.wait_held(PATIENCE_S)
        other = another_life(objects)
        for number in range(8):
            assert other.topic("t").partition(0).append(b"%d" % number).offset == number
        other.topic("t").partition(1).append(b"the newest entry, which stays")
        checkpoints_of(other).write()
        crash(other)
        adopt_back(first, 1)
        gate.open()
    opening.result(PATIENCE_S)
    with pytest.raises(OutcomeUnknown, match="reopen it"):
        first.topic("t").partition(0).append(b"no")
    assert first.topic("t").partition(0).reopen().append(b"8").offset == 8
    first.close()
    assert [value for _, value in seen(objects)] == [b"%d" % number for number in range(9)]


def test_C02_N06_what_the_life_before_says_last_of_its_splits_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its checkpoint is on its way while another life begins and ends, and stands when the next one of this process has
    begun, which does not know it. A reader that stands where entries are gone would take the empty place for the end."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = another_life(gated)
    log = store.create_topic("t", 2).partition(0)
    log.append(b"0")
    checkpoints, lane = checkpoints_of(store), LaneLog(objects, LanePaths("x.0"))
    with running(objects, writer="read_only") as reader:
        assert values(reader.topic("t").partition(0)) == [b"0"]
        for number in range(1, 8):
            log.append(b"%d" % number)
        checkpoints.write()
        monkeypatch.setattr(lane_checkpoints, "SPLIT_EVERY", 3)
        with gated.hold("put", prefix=lane.paths.checkpoint) as gate:
            writing = background(checkpoints.write)
            gate.wait_held(PATIENCE_S)
            gate.release(1)
            gate.wait_held(PATIENCE_S)  # the one that says that all was split
            other = another_life(objects)
            other.topic("t").partition(1).append(b"other")
            crash(other)
            adopt_back(store, 0)
            gate.open()
        writing.result(PATIENCE_S)
        split_until = lane.split_until()
        assert split_until > 7
        monkeypatch.undo()
        checkpoints.write()
        assert lane.split_until() == split_until
        found = reader.topic("t").partition(0)
        found.refresh()
        assert values(found) == [*(b"%d" % number for number in range(8)), b"back"]
    store.close()
