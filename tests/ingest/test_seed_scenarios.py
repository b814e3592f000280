"""The incidents as they were reported, offsets and all: each ended with the global offset standing still
for ever.

Offsets are (commit LSN of the transaction, index of the operation in it). A sink is an `Alignment` before a
`FlushTracker`, as in the collector.
"""

from __future__ import annotations

from typing import Any

from logstore.ingest import Alignment, FlushTracker, Lease
from logstore.testing import ManualClock

Offset = tuple[int, int]


class Sink:
    """A sink with a buffer that storage flushes when it holds 64 KiB, and at no other time by itself."""

    FLUSH_BYTES = 64 * 1024

    def __init__(self, tracker: FlushTracker[Offset], name: str) -> None:
        self.tracker = tracker
        self.lease: Lease = tracker.register(name)
        self.alignment: Alignment[Offset, Offset] = Alignment()
        self.buffered_bytes = 0
        self.last: Offset | None = None

    def write(self, offset: Offset, size: int) -> None:
        self.alignment.wrote(offset)
        self.last = offset
        self.buffered_bytes += size
        if self.buffered_bytes >= self.FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self.buffered_bytes = 0
        assert self.last is not None
        self.report(self.alignment.stored(self.last))

    def commit(self, boundary: Offset) -> None:
        self.report(self.alignment.commit(boundary))

    def report(self, reached: Offset | None) -> None:
        if reached is not None:
            self.tracker.flushed(self.lease, reached)


def setup(*names: str, **settings: Any) -> Any:
    """A tracker, what it reports, and a sink for each name: how many there are, no type can say."""
    reports: list[Offset] = []
    tracker: FlushTracker[Offset] = FlushTracker((0, 0), reports.append, **settings)
    return tracker, reports, *(Sink(tracker, name) for name in names)


def test_F05_a_non_commit_fragment_over_64_KB_flushes_before_its_commit() -> None:
    """Electric #3985: the flush of fragment 1 arrives before anything is tracked; after the commit nothing
    flushes.
    """
    tracker, reports, items = setup("items")
    items.write((100, 0), 70_000)
    boundary = (100, 2)
    items.commit(boundary)
    tracker.commit(boundary, ["items"])
    assert reports == [boundary]


def test_F06_last_sent_47520_with_one_change_at_0() -> None:
    """Electric #4063: the shape's only change is at 0 and flushes at once; another table raises the end to
    47520.
    """
    tracker, reports, shape, other = setup("shape", "other")
    lsn = 335_007_449_088
    shape.write((lsn, 0), 70_000)
    for operation in range(2, 47_521, 2):
        other.write((lsn, operation), 10)
    boundary = (lsn, 47_520)
    for sink in (shape, other):
        sink.commit(boundary)
    tracker.commit(boundary, ["shape", "other"])
    assert [holder.lease.sink for holder in tracker.explain().held_by] == ["other"]
    other.flush()
    assert reports == [boundary]


def test_F07_a_commit_fragment_without_changes_for_the_sink() -> None:
    """Begin and changes came in fragment 1 and stored; the commit fragment has nothing for this sink."""
    tracker, reports, items, orders = setup("items", "orders")
    items.write((7, 0), 10)
    items.flush()
    orders.write((7, 1), 10)
    for sink in (items, orders):
        sink.commit((7, 1))
    tracker.commit((7, 1), ["items", "orders"])
    orders.flush()
    assert reports == [(7, 1)]


def test_F09_a_consumer_that_dies_during_delivery_keeps_its_debt_and_is_replayed() -> None:
    """It never got the fragment, so no flush of its own will ever come; the debt was made by routing."""
    tracker, reports, healthy = setup("healthy")
    dead = tracker.register("dead", alive=lambda: False)
    healthy.write((9, 0), 10)
    healthy.commit((9, 1))
    tracker.commit((9, 1), ["healthy", "dead"])
    healthy.flush()
    (finding,) = tracker.check()
    assert (finding.lease, finding.reason, reports) == (dead, "owner gone", [])
    replacement = tracker.hand_over(finding.lease)
    assert tracker.flushed_boundary == (
        0,
        0,
    )  # replay starts here, so the replacement sees transaction 9 whole
    tracker.commit((9, 1), ["healthy", "dead"])
    tracker.flushed(replacement, (9, 1))
    assert reports == [(9, 1)]


def test_F08_a_replacement_in_the_middle_of_a_transaction_inherits_no_claim() -> None:
    tracker, reports, _ = setup("other")
    first = tracker.register("items")
    tracker.flushed(first, (9, 4))  # two fragments stored, then it dies
    second = tracker.hand_over(first)
    tracker.commit((9, 8), ["items"])
    tracker.flushed(first, (9, 8))  # its last words, too late
    assert reports == []
    tracker.flushed(second, (9, 8))
    assert reports == [(9, 8)]


def test_F08_a_removed_sink_unpins_by_decision_and_its_queued_report_is_ignored() -> None:
    tracker, reports, kept, gone = setup("kept", "gone")
    for sink in (kept, gone):
        sink.write((3, 0), 10)
        sink.commit((3, 1))
    tracker.commit((3, 1), ["kept", "gone"])
    kept.flush()
    tracker.discard(gone.lease, "topics/decisions/17")
    assert reports == [(3, 1)]
    gone.flush()
    assert reports == [(3, 1)]


def test_F11_a_stuck_sink_pins_the_slot_and_is_named_until_it_is_handed_over() -> None:
    """33 stuck shapes, 16 GB of WAL and no word: here every period says who, since when and where."""
    clock = ManualClock()
    tracker, reports, healthy, stuck = setup("healthy", "stuck", clock=clock, grace=60.0)
    for second in range(1, 200):
        boundary = (second, 1)
        for sink in (healthy, stuck):
            sink.write((second, 0), 100)
            sink.commit(boundary)
        tracker.commit(boundary, ["healthy", "stuck"])
        healthy.flush()
        clock.advance(1.0)
    found = tracker.check() + tracker.check()
    assert [(type(finding).__name__, finding.lease.sink, finding.owes) for finding in found] == [
        ("Challenge", "stuck", (1, 1)),
        ("Stalled", "stuck", (1, 1)),
    ]
    assert reports == []
    replacement = tracker.hand_over(found[-1].lease)
    tracker.flushed(replacement, (199, 1))
    assert reports == [(199, 1)]
