"""Where the system has no thread left, one append may fail. The next ones, once there are threads again, do not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import logstore
from logstore.config import Ack
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import StoreUnavailable
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.extras import Claim
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.harness import running
from tests.support.lanes.entries import seen
from tests.support.patience import PATIENCE_S


def refused(name: str, call: Callable[[], object]) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("ack", ["durable", "buffered"])
@pytest.mark.parametrize("lanes", [0, 1])
def test_L28_a_writer_that_no_thread_could_open_is_opened_by_the_next_append(
    monkeypatch: pytest.MonkeyPatch, lanes: int, ack: Ack
) -> None:
    objects = MemoryStore()
    with running(objects, ManualClock(), lanes=lanes) as store:
        topic = store.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        monkeypatch.setattr(store._runtime, "spawn", refused)
        acked = 0
        with suppress(RuntimeError):
            acked += logs[0].submit(b"0", ack=ack).result(PATIENCE_S).offset + 1
        monkeypatch.undo()
        assert [log.submit(b"1", ack=ack).result(PATIENCE_S).offset for log in logs] == [acked, 0]
    assert len(seen(objects)) == acked + 1


def test_L28_who_is_outrun_by_another_claim_and_has_no_thread_left_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer was opened ahead of its claim, and would have to be opened again behind the other."""
    objects = MemoryStore()
    with running(objects, ManualClock(), lanes=1) as store:
        log = store.create_topic("t").partition(0)
        with running(objects, ManualClock(), lanes=1) as other:
            other.topic("t").partition(0).append(b"theirs")
        spawn = store._runtime.spawn

        def only_claims(name: str, call: Callable[[], object]) -> None:
            (spawn if name == "claim" else refused)(name, call)

        monkeypatch.setattr(store._runtime, "spawn", only_claims)
        with pytest.raises(StoreUnavailable, match="thread"):
            log.submit(b"no").result(PATIENCE_S)
        monkeypatch.undo()
        found: logstore.PartitionLog = log.reopen()
        assert found.append(b"ours").offset == 1
    assert seen(objects) == [(0, b"theirs"), (1, b"ours")]


def test_L28_what_was_opened_ahead_in_vain_does_not_hold_up_the_next_writer_of_that_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody has sealed the partition, and no more: the next writer's fence is of the epoch that the claim was to have."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, lanes=1) as store:
        log = store.create_topic("t").partition(0)
        paths, spawn = log._internal.paths, store._runtime.spawn
        assert paths.birth_lane is not None
        LaneReader(objects).end_claim(
            Claim(paths.birth_lane, 0), ClaimKey(paths.prefix, 0), lambda: bytes(16), 0
        )

        def only_claims(name: str, call: Callable[[], object]) -> None:
            (spawn if name == "claim" else refused)(name, call)

        monkeypatch.setattr(store._runtime, "spawn", only_claims)
        with pytest.raises(StoreUnavailable, match="thread"):
            log.submit(b"no").result(PATIENCE_S)
        monkeypatch.undo()
        clock.advance(60.0)  # what is remembered of the lane is too old to open a writer by
        assert log.reopen().submit(b"ours").result(PATIENCE_S).offset == 0
    assert seen(objects) == [(0, b"ours")]
