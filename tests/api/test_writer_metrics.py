"""Every writer in numbers: which one, how far it is, and what holds it."""

from __future__ import annotations

import pytest

import logstore
from logstore.config import WriterKind
from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from logstore.writers import WriterMetrics
from tests.support.patience import PATIENCE_S


def of(store: logstore.Store, name: str = "") -> WriterMetrics:
    (found,) = [writer for writer in store.writer_metrics() if writer.writer == name]
    return found


def test_W09_metrics_of_an_exclusive_writer() -> None:
    with logstore.open(MemoryStore(), clock=(clock := ManualClock())) as store:
        topic = store.create_topic("t", partitions=2)
        assert store.writer_metrics() == []
        for value in (b"a", b"b"):
            topic.append(value, partition=1)
        clock.advance(2.5)
        assert store.writer_metrics() == [
            WriterMetrics("t", 1, "", "exclusive", "writing", 1, 2, 0, 0, 0, 2.5, None)
        ]


def test_W11_metrics_of_a_shared_writer_show_races_and_the_offset_that_stalls_it() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with (
        logstore.open(gated, writer="shared", clock=clock, stall_after=60.0) as store,
        logstore.open(objects, writer="shared") as other,
    ):
        log = store.create_topic("t").partition(0)
        log.append(b"first")
        for _ in range(2):
            other.topic("t").append(b"from another process")
        log.append(b"lost a race twice")
        seen = of(store)
        assert (seen.mode, seen.state, seen.frontier, seen.lag) == ("shared", "writing", 4, 0)
        assert (seen.races_lost >= 1, seen.stalled_at) == (True, None)
        with gated.hold("put", suffix=".seg") as gate:
            waiting = log.submit(b"held up")
            gate.wait_held()
            clock.advance(61.0)
            seen = of(store)
            assert (seen.state, seen.stalled_at, seen.last_progress_seconds_ago) == ("stalled", 4, 61.0)
        waiting.result(PATIENCE_S)
        assert (of(store).state, of(store).stalled_at, of(store).frontier) == ("writing", None, 5)


@pytest.mark.usefixtures("begin_in_own_chains")
def test_W07_W09_metrics_of_replicated_writers_show_lag_and_what_a_peer_had_stored() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with logstore.open(objects, clock=clock, stall_after=60.0) as store, logstore.open(objects) as other:
        log = store.create_topic("t").partition(0)
        ahead = other.topic("t").partition(0).replicated("ahead")
        mine = log.replicated("mine")
        ahead.compare_and_append([b"%d" % number for number in range(10)], 0, 10)
        mine.compare_and_append([b"0", b"1", b"2"], 0, 3)
        seen = of(store, "mine")
        assert (seen.mode, seen.state, seen.frontier, seen.lag) == ("replicated", "writing", 10, 7)
        assert (seen.dropped_below_upper, seen.races_lost, seen.stalled_at) == (3, 1, None)
        waiting = mine.submit([b"20"], 20, 21)
        clock.advance(61.0)
        assert (of(store, "mine").state, of(store, "mine").stalled_at) == ("stalled", 10)
        ahead.compare_and_append([], 10, 20)
        clock.advance(1.0)
        assert waiting.result(PATIENCE_S).by == "us"
        assert of(store, "mine")[6:8] == (21, 0)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_W05_a_fenced_writer_is_shown_as_stopped(mode: WriterKind) -> None:
    objects = MemoryStore()
    with logstore.open(objects, writer=mode) as store, logstore.open(objects, take_over=True) as other:
        log = store.create_topic("t").partition(0)
        log.append(b"a")
        other.topic("t").append(b"b")
        with pytest.raises(logstore.Fenced):
            log.append(b"c")
        assert (of(store).mode, of(store).state, of(store).stalled_at) == (mode, "stopped", None)
