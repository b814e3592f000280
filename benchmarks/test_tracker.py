"""The flush tracker: calls a second, and how what one costs grows with the sinks while one of them is stuck, in turns."""

from __future__ import annotations

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
    loads = {sinks: Load(sinks) for sinks in (10, 100, 1_000, 10_000, 100_000)}
    found = in_turns({str(sinks): load.run for sinks, load in loads.items()}, turns=3 if quick else 7)
    for load in loads.values():
        load.check()
    best = {sinks: found[str(sinks)].best for sinks in loads}
    figures.add(SUITE, "commit and flushed", EVENTS / best[10] / 1e3, "k calls/s", target=200)
    figures.add(
        SUITE,
        "100,000 sinks, one stuck, against 10",
        best[100_000] / best[10],
        "×",
        target=2.0,
        lower_is_better=True,
    )
    figures.add_sweep(
        SUITE,
        "time of a call, with the sinks, one of them stuck",
        "sinks",
        "seconds a call",
        [(sinks, seconds / EVENTS) for sinks, seconds in best.items()],
        target=0.15,
    )


def test_explain_with_100_000_debtors(benchmark: Any, figures: Figures) -> None:
    tracker: FlushTracker[int] = FlushTracker(0, lambda _: None)
    tracker.commit(1, range(100_000))
    explanation = benchmark(tracker.explain)
    assert len(explanation.held_by) == 10
    assert explanation.owed == 100_000
    took = in_turns({"explain": tracker.explain}, 20)["explain"].median
    figures.add(SUITE, "explain() with 100,000 debtors", took * 1e6, "µs")
