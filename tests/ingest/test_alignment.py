"""F06, F07: a sink's flushes aligned to boundaries, looked at on the flush *and* at the commit."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from logstore.ingest import Alignment


def test_F06_a_flush_pays_every_pair_it_covers_and_nothing_more() -> None:
    sink: Alignment[int, int] = Alignment()
    for written, boundary in [(10, 19), (20, 29), (30, 39)]:
        sink.wrote(written)
        assert sink.commit(boundary) is None
    assert sink.stored(25) == 29
    assert sink.waiting == 1
    assert sink.stored(30) == 39


def test_F06_a_flush_between_the_last_write_and_the_boundary_pays_it() -> None:
    """Wrote 16, boundary 18, storage reports 17 because of a record of its own: 18 is reached, not 17."""
    sink: Alignment[tuple[int, int], tuple[int, int]] = Alignment()
    sink.wrote((5, 16))
    assert sink.commit((5, 18)) is None
    assert sink.stored((5, 17)) == (5, 18)


def test_F07_size_triggered_flush_before_the_commit_then_silence() -> None:
    sink: Alignment[int, int] = Alignment()
    sink.wrote(1)
    assert sink.stored(1) is None
    assert sink.commit(9) == 9


def test_F07_nothing_to_write_is_reached_at_once_or_together_with_what_is_unstored() -> None:
    sink: Alignment[int, int] = Alignment()
    assert sink.commit(5) == 5
    sink.wrote(6)
    assert sink.commit(7) is None
    assert sink.commit(8) is None
    assert sink.waiting == 1  # one pair: nothing was written between 7 and 8
    assert sink.stored(6) == 8


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.just("write"), st.just("commit"), st.tuples(st.just("store"), st.integers(0, 30))),
        max_size=40,
    )
)
def test_F06_F07_reports_equal_a_recount_of_all_events(events: list[Any]) -> None:
    """After each event: the newest boundary all of whose earlier writes are stored. Nothing waits for a later
    event.
    """
    sink: Alignment[int, int] = Alignment()
    reported = 0
    stored, writes, boundaries = 0, list[int](), list[int]()
    for now, event in enumerate(events, 1):
        if event == "write":
            writes.append(now)
            sink.wrote(now)
            reached = None
        elif event == "commit":
            boundaries.append(now)
            reached = sink.commit(now)
        else:
            stored = max(stored, min(event[1], now))
            reached = sink.stored(min(event[1], now))
        reported = reached if reached is not None else reported
        unstored = [position for position in writes if position > stored]
        expected = [b for b in boundaries if not any(position < b for position in unstored)]
        assert reported == (expected or [0])[-1]


def test_F06_what_a_boundary_waits_for() -> None:
    sink: Alignment[int, int] = Alignment()
    assert sink.awaited(5) is None
    sink.wrote(1)
    sink.commit(10)
    sink.wrote(2)
    sink.commit(20)
    sink.commit(21)
    assert [sink.awaited(boundary) for boundary in (10, 20, 21, 30)] == [1, 2, 2, None]
    sink.stored(1)
    assert [sink.awaited(boundary) for boundary in (5, 10, 20)] == [None, None, 2]
    sink.stored(2)
    assert sink.awaited(21) is None
