"""The flush tracker against its oracle: a state machine that the tracker passes and its mutants do not."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.ingest import FlushTracker, Lease
from tests.support.ingest.oracle import Oracle

SINKS = ("a", "b", "c")
sinks = st.sampled_from(SINKS)
subsets = st.sets(sinks)


class TrackerMachine(RuleBasedStateMachine):
    """Drives one tracker and the oracle side by side; old leases stay in the pool, to report late."""

    tracker_class: type[FlushTracker[int]] = FlushTracker

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[int] = []
        self.callback_broken = False
        self.newest = 0
        self.oracle = Oracle(0)
        self.present: dict[str, Lease] = {}
        self.leases: list[Lease] = []
        self.tracker: Any = self.tracker_class(0, self.on_flushed)

    def on_flushed(self, boundary: int) -> None:
        if self.callback_broken:
            raise ConnectionError("the source does not listen")
        self.reports.append(boundary)

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.tracker, name)(*arguments)
        except ConnectionError:
            assert self.callback_broken
            return None

    def own(self, lease: Lease) -> None:
        self.present[str(lease.sink)] = lease
        self.leases.append(lease)
        self.oracle.add("own", lease.sink, lease.generation)

    @initialize(first=subsets)
    def registered_at_first(self, first: set[str]) -> None:
        for sink in sorted(first):
            self.own(self.tracker.register(sink))

    @precondition(lambda self: not self.callback_broken)
    @rule(sink=sinks)
    def register(self, sink: str) -> None:
        if sink not in self.present:
            self.own(self.tracker.register(sink))

    @rule(step=st.integers(1, 3), to=subsets)
    def commit(self, step: int, to: set[str]) -> None:
        self.newest += step
        self.oracle.add("commit", self.newest, tuple(sorted(to)))
        self.call("commit", self.newest, sorted(to))

    @rule(back=st.integers(0, 6))
    def commit_again(self, back: int) -> None:
        """A replay of something that everybody owes or has; it makes no difference."""
        for _, boundary, to in self.oracle.commits()[-1 - back :][:1]:
            if all(self.tracker._covered(sink, boundary) for sink in to):
                self.call("commit", boundary, to)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), ahead=st.integers(-4, 4))
    def flushed(self, data: st.DataObject, ahead: int) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        up_to = self.newest + ahead
        self.oracle.add("flushed", lease.sink, lease.generation, up_to)
        self.call("flushed", lease, up_to)

    @precondition(lambda self: self.present and not self.callback_broken)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        self.own(self.tracker.hand_over(data.draw(st.sampled_from(sorted(self.present.values(), key=str)))))

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.present.values(), key=str)))
        self.oracle.add("discard", lease.sink)
        del self.present[str(lease.sink)]
        self.call("discard", lease, "decision-7")

    @rule(ahead=st.integers(-2, 3))
    def heartbeat(self, ahead: int) -> None:
        position = self.newest + ahead
        if not self.oracle.unpaid() and ahead > 0:
            self.oracle.add("heartbeat", position)
            self.newest = position
        self.call("heartbeat", position)

    @rule()
    def source_stops_or_resumes_listening(self) -> None:
        self.callback_broken = not self.callback_broken

    @invariant()
    def exact(self) -> None:
        assert self.tracker.flushed_boundary == self.oracle.answer()
        assert self.tracker.outstanding == len(self.oracle.unpaid())

    @invariant()
    def reports_rise_and_keep_up(self) -> None:
        assert all(left < right for left, right in zip(self.reports, self.reports[1:], strict=False))
        if self.callback_broken:
            return
        self.tracker.check()  # any call retries a report that the callback refused
        assert (self.reports or [0])[-1] == self.tracker.flushed_boundary

    @invariant()
    def explained(self) -> None:
        unpaid = self.oracle.unpaid()
        holders = {(holder.owes, holder.lease.sink) for holder in self.tracker.explain().held_by}
        assert holders == {min(pair for pair in unpaid if pair[1] == sink) for _, sink in unpaid}

    def teardown(self) -> None:
        """Drain: every sink stores what it was sent, then silence. The report reaches the last boundary."""
        self.callback_broken = False
        for sink in SINKS:
            lease = self.present.get(sink) or self.tracker.register(sink)
            self.tracker.flushed(lease, self.newest)
        assert self.tracker.flushed_boundary == self.newest
        assert (self.reports or [0])[-1] == self.newest
        assert self.tracker.explain().held_by == ()
