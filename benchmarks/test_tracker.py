"""The flush tracker: calls a second, and what 100,000 sinks with a stuck one cost against 10, measured in
turns.
"""

from __future__ import annotations

import gc
from typing import Any

from benchmarks.measure import Figures, in_turns
from logstore.ingest import FlushTracker

SUITE = "tracker"
EVENTS = 50_000


class Load:
    """`sinks` sinks, of which number 0 is stuck; `run` commits to another one and flushes it, in turns."""

    def __init__(self, sinks: int) -> None:
        self.reports: list[int] = []
        self.tracker: FlushTracker[int] = FlushTracker(0, self.reports.append)
        self.leases = [self.tracker.register(sink) for sink in range(sinks)]
        self.tracker.commit(1, [0])
        self.boundary = 1

    def run(self) -> None:
        commit, flushed = self.tracker.commit, self.tracker.flushed
        leases, sinks = self.leases, len(self.leases) - 1
        boundary = self.boundary
        for _ in range(EVENTS // 2):
            boundary += 1
            which = 1 + boundary * 7919 % sinks
            commit(boundary, (which,))
            flushed(leases[which], boundary)
        self.boundary = boundary

    def check(self) -> None:
        """The stuck one held everything back, and everything is free once it moves."""
        assert self.reports == []
        assert [holder.lease.sink for holder in self.tracker.explain().held_by] == [0]
        self.tracker.flushed(self.leases[0], 1)
        assert self.reports == [self.boundary]


def test_calls_per_second_and_what_a_stuck_sink_costs(figures: Figures, quick: bool) -> None:
    few, many = Load(10), Load(100_000)
    gc.collect()
    gc.freeze()  # the leases are the fixture, not the load: the collector must not walk them meanwhile
    try:
        times = in_turns({"few": few.run, "many": many.run}, turns=3 if quick else 7)
    finally:
        gc.unfreeze()
    few.check()
    many.check()
    figures.add(SUITE, "commit and flushed", EVENTS / times["few"].best / 1e3, "k calls/s", target=200)
    ratio = times["many"].best / times["few"].best
    figures.add(SUITE, "100,000 sinks, one stuck, against 10", ratio, "×", target=2.0, lower_is_better=True)


def test_explain_with_100_000_debtors(benchmark: Any, figures: Figures) -> None:
    tracker: FlushTracker[int] = FlushTracker(0, lambda _: None)
    tracker.commit(1, range(100_000))
    explanation = benchmark(tracker.explain)
    assert len(explanation.held_by) == 10
    assert explanation.owed == 100_000
    took = in_turns({"explain": tracker.explain}, 20)["explain"].median
    figures.add(SUITE, "explain() with 100,000 debtors", took * 1e6, "µs")
