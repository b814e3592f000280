"""F01–F11, F13, F15, F16: each promise of the tracker by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from logstore.errors import BufferFull, Fenced, StraddlingTransaction
from logstore.ingest import FlushTracker, flush_tracker
from logstore.ingest.ledger import Debt, Ledger
from logstore.testing import ManualClock


def tracked(*sinks: str, start: Any = 0, **settings: Any) -> Any:
    """A tracker, what it reports, and a lease for each sink: how many there are, no type can say."""
    reports: list[Any] = []
    tracker: FlushTracker[Any] = FlushTracker(start, reports.append, **settings)
    return tracker, reports, *(tracker.register(sink) for sink in sinks)


def test_F01_only_committed_boundaries_are_reported_never_a_predecessor() -> None:
    tracker, reports, a = tracked("a")
    tracker.commit(42, ["a"])
    tracker.flushed(a, 41)  # inside the transaction
    assert reports == []
    tracker.commit(50, ["a"])
    tracker.flushed(a, 45)  # past 42, inside 50
    assert reports == [42]
    tracker.flushed(a, 1_000)
    assert reports == [42, 50]


def test_F02_one_sink_that_owes_holds_everybody_back() -> None:
    tracker, reports, a, b, c = tracked("a", "b", "c")
    tracker.commit(10, ["a", "b", "c"])
    tracker.flushed(a, 10)
    tracker.flushed(b, 10)
    assert reports == []
    tracker.flushed(c, 10)
    assert reports == [10]


def test_F03_the_report_is_the_largest_boundary_allowed_not_the_one_before() -> None:
    tracker, reports, a, _b = tracked("a", "b")
    tracker.commit(10, ["a"])
    tracker.commit(11, [])
    tracker.commit(12, ["b"])
    tracker.flushed(a, 10)
    assert reports == [11]  # 11 owes nothing to anybody; 12 does


def test_F03_alternating_sinks_under_endless_traffic_do_not_starve_the_report() -> None:
    """A and B take turns, so that at no moment nothing is owed."""
    tracker, reports, a, b = tracked("a", "b")
    tracker.commit(1, ["a"])
    for boundary, previous in zip(range(2, 50), itertools.cycle([a, b]), strict=False):
        tracker.commit(boundary, ["b" if previous is a else "a"])
        tracker.flushed(previous, boundary - 1)
        assert reports[-1] == boundary - 1
        assert tracker.outstanding == 1


def test_F03_every_order_of_reports_ends_at_the_same_boundary() -> None:
    for order in itertools.permutations([(0, 10), (0, 30), (1, 20), (2, 30)]):
        tracker, reports, *leases = tracked("a", "b", "c")
        for boundary, sinks in [(10, ["a"]), (20, ["a", "b"]), (30, ["a", "c"])]:
            tracker.commit(boundary, sinks)
        for which, up_to in order:
            tracker.flushed(leases[which], up_to)
        assert reports[-1] == 30


def test_F04_reports_rise_strictly_and_repeat_nothing() -> None:
    tracker, reports, a = tracked("a")
    tracker.commit(5, ["a"])
    for up_to in (5, 5, 3, 5):
        tracker.flushed(a, up_to)
    tracker.commit(6, [])
    tracker.check()
    assert reports == [5, 6]


def test_F04_a_callback_that_raises_corrupts_nothing_and_is_tried_again() -> None:
    refusing, reports = True, []

    def on_flushed(boundary: int) -> None:
        if refusing:
            raise ConnectionError("the source is away")
        reports.append(boundary)

    tracker = FlushTracker(0, on_flushed)
    a = tracker.register("a")
    tracker.commit(5, ["a"])
    with pytest.raises(ConnectionError):
        tracker.flushed(a, 5)
    assert tracker.flushed_boundary == 5
    with pytest.raises(ConnectionError):
        tracker.commit(6, [])
    refusing = False
    tracker.commit(6, [])  # repeating the call that raised is harmless
    assert reports == [6]


def test_F04_a_callback_that_raises_takes_no_lease_and_no_finding_along() -> None:
    """The source is away when a stuck sink is challenged and handed over: once it is back, the same calls do both."""
    refusing, reports, clock = True, [], ManualClock()

    def on_flushed(boundary: int) -> None:
        if refusing:
            raise ConnectionError("the source is away")
        reports.append(boundary)

    tracker = FlushTracker(0, on_flushed, grace=60, clock=clock)
    a = tracker.register("a")
    tracker.commit(5, ["a"])
    tracker.commit(6, ["a"])
    with pytest.raises(ConnectionError):
        tracker.flushed(a, 5)
    clock.advance(61)
    for call in (tracker.check, lambda: tracker.register("b"), lambda: tracker.hand_over(a)):
        with pytest.raises(ConnectionError):
            call()
    refusing = False
    assert [type(finding).__name__ for finding in tracker.check()] == ["Challenge"]
    assert tracker.register("b").sink == "b"
    tracker.flushed(tracker.hand_over(a), 6)
    assert reports == [5, 6]


def test_F04_a_callback_that_calls_back_is_not_entered_twice() -> None:
    depth, seen = 0, []

    def on_flushed(boundary: int) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1
        seen.append(boundary)
        if boundary < 5:
            tracker.commit(boundary + 1, [])
        depth -= 1

    tracker = FlushTracker(0, on_flushed)
    tracker.commit(1, [])
    assert seen == [1, 2, 3, 4, 5]


def test_F05_a_flush_before_the_commit_pays_the_debt_when_it_is_made() -> None:
    tracker, reports, a = tracked("a")
    tracker.flushed(a, 7)
    tracker.commit(7, ["a"])
    assert reports == [7]
    assert tracker.outstanding == 0


def test_F06_a_report_past_the_boundary_pays_it() -> None:
    """Equality would wait for 18 for ever: the sink wrote a control record of its own after it."""
    tracker, reports, a = tracked("a", start=(0, 0))
    tracker.commit((9, 18), ["a"])
    tracker.flushed(a, (9, 19))
    assert reports == [(9, 18)]


def test_F07_a_transaction_that_touches_no_sink_is_reported_at_once_or_when_its_elders_are() -> None:
    tracker, reports, a = tracked("a")
    tracker.commit(1, [])
    assert reports == [1]
    tracker.commit(2, ["a"])
    tracker.commit(3)
    assert reports == [1]
    tracker.flushed(a, 2)
    assert reports == [1, 3]


def test_F08_a_replaced_incarnation_has_no_say() -> None:
    tracker, reports, old = tracked("a")
    tracker.commit(5, ["a"])
    new = tracker.hand_over(old)
    tracker.flushed(old, 5)
    assert reports == []
    tracker.flushed(new, 5)
    assert reports == [5]


def test_F08_what_the_old_incarnation_claimed_early_does_not_count_for_the_new_one() -> None:
    tracker, reports, old = tracked("a")
    tracker.flushed(old, 5)
    new = tracker.hand_over(old)
    tracker.commit(5, ["a"])
    assert reports == []
    tracker.flushed(new, 5)
    assert reports == [5]


def test_F08_late_reports_of_a_removed_sink_are_ignored_also_when_its_name_is_used_again() -> None:
    tracker, reports, old = tracked("a")
    tracker.discard(old, "decision-1")
    tracker.flushed(old, 100)
    new = tracker.register("a")
    tracker.commit(5, ["a"])
    tracker.flushed(old, 100)
    assert reports == []
    assert new.generation > old.generation
    tracker.flushed(new, 5)
    assert reports == [5]


def test_F08_a_stale_lease_cannot_hand_over_or_discard() -> None:
    tracker, _, old = tracked("a")
    tracker.hand_over(old)
    with pytest.raises(Fenced, match="generation 2"):
        tracker.hand_over(old)
    with pytest.raises(Fenced, match="generation 1 has no say"):
        tracker.discard(old, "decision-1")


def test_F08_registering_a_sink_that_has_an_owner_is_refused() -> None:
    tracker, _, _ = tracked("a")
    with pytest.raises(ValueError, match="hand_over"):
        tracker.register("a")


def test_F09_a_sink_that_nobody_registered_owes_all_the_same() -> None:
    tracker, reports, a = tracked("a")
    tracker.commit(5, ["a", "nobody"])
    tracker.flushed(a, 5)
    assert reports == []
    (finding,) = tracker.check()
    assert (finding.lease.sink, finding.reason) == ("nobody", "owner gone")
    tracker.flushed(tracker.register("nobody"), 5)
    assert reports == [5]


def test_F10_a_dead_owner_is_seen_at_once_and_keeps_its_debt() -> None:
    clock, alive = ManualClock(), True
    tracker, reports, *_ = tracked(clock=clock)
    lease = tracker.register("a", alive=lambda: alive)
    tracker.commit(5, ["a"])
    assert tracker.check() == []
    alive = False
    (finding,) = tracker.check()
    assert (finding.lease, finding.owes, finding.reason) == (lease, 5, "owner gone")
    assert reports == []
    replacement = tracker.hand_over(lease)
    assert tracker.check() == []
    tracker.flushed(replacement, 5)
    assert reports == [5]


def test_F10_everybody_dies_in_a_shutdown_and_nothing_is_reported_or_forgotten() -> None:
    alive = True
    tracker, reports, *_ = tracked()
    for sink in "abc":
        tracker.register(sink, alive=lambda: alive)
    tracker.commit(5, ["a", "b", "c"])
    alive = False
    assert len(tracker.check()) == 3
    assert (reports, tracker.outstanding) == ([], 3)


def test_F11_challenge_then_verdict_then_again_each_period() -> None:
    clock = ManualClock()
    tracker, reports, a = tracked("a", clock=clock, grace=60.0)
    tracker.commit(5, ["a"])
    clock.advance(60.0)
    assert tracker.check() == []  # not longer than the grace period
    clock.advance(0.5)
    assert [type(finding).__name__ for finding in tracker.check()] == ["Challenge"]
    (verdict,) = tracker.check()
    assert (verdict.lease, verdict.reason, verdict.idle_s) == (a, "no progress", 60.5)
    clock.advance(60.0)
    assert tracker.check() == []
    clock.advance(0.5)
    assert tracker.check() == [type(verdict)(a, 5, 121.0, "no progress")]
    assert reports == []  # the watchdog never moves the report


def test_F11_a_partial_flush_is_progress_and_new_transactions_are_not() -> None:
    clock = ManualClock()
    tracker, _, a = tracked("a", clock=clock, grace=60.0)
    tracker.commit(50, ["a"])
    clock.advance(59.0)
    tracker.flushed(a, 10)  # pays nothing, but the watermark rose
    clock.advance(59.0)
    tracker.commit(60, ["a"])
    assert tracker.check() == []
    clock.advance(2.0)
    tracker.commit(70, ["a"])
    tracker.flushed(a, 10)  # the same report again is no progress
    assert len(tracker.check()) == 1


def test_F11_a_sink_that_says_what_it_waits_for_is_left_alone() -> None:
    clock = ManualClock()
    tracker, _, a = tracked("a", clock=clock, grace=60.0)
    tracker.commit(5, ["a"])
    clock.advance(61.0)
    tracker.check()
    tracker.waiting(a, "the snapshot")
    assert tracker.check() == []
    assert tracker.explain().held_by[0].waiting_for == "the snapshot"
    clock.advance(61.0)
    assert [type(finding).__name__ for finding in tracker.check()] == ["Challenge"]


def test_F11_idle_time_before_there_was_a_debt_is_not_held_against_a_sink() -> None:
    clock = ManualClock()
    tracker, _, _ = tracked("a", clock=clock, grace=60.0)
    clock.advance(10_000.0)
    tracker.commit(5, ["a"])
    assert tracker.check() == []


def test_F11_a_clock_that_is_set_back_grants_no_extra_time() -> None:
    clock = ManualClock()
    tracker, _, _ = tracked("a", clock=clock, grace=60.0)
    clock.advance(1_000.0)
    tracker.commit(5, ["a"])
    clock.advance(-900.0)
    assert tracker.check() == []
    clock.advance(61.0)
    assert len(tracker.check()) == 1


def test_F13_heartbeats_count_only_while_nothing_is_owed() -> None:
    tracker, reports, a = tracked("a")
    assert tracker.heartbeat(3)
    tracker.commit(5, ["a"])
    assert not tracker.heartbeat(9)
    assert reports == [3]
    tracker.flushed(a, 5)
    assert reports == [3, 5]  # the refused heartbeat was not kept
    assert tracker.heartbeat(10)
    assert not tracker.heartbeat(10)
    assert reports == [3, 5, 10]


def test_F13_a_single_fragment_transaction_stops_heartbeats_as_any_other_does() -> None:
    """Theirs kept a flag that only multi-fragment transactions cleared: keepalives overtook data."""
    tracker, reports, a = tracked("a")
    for boundary in (10, 20, 30):
        tracker.commit(boundary, ["a"])
        assert not tracker.heartbeat(boundary + 5)
        tracker.flushed(a, boundary)
        assert tracker.heartbeat(boundary + 6)
    assert reports == [10, 16, 20, 26, 30, 36]


def test_F14_a_replayed_boundary_changes_nothing() -> None:
    tracker, reports, a, _b = tracked("a", "b")
    tracker.commit(5, ["a"])
    tracker.commit(6, ["a", "b"])
    tracker.flushed(a, 5)
    tracker.commit(5, ["a"])
    tracker.commit(6, ["a", "b"])
    assert (reports, tracker.outstanding) == ([5], 2)


def test_F14_a_boundary_out_of_order_that_would_make_a_new_debt_raises() -> None:
    tracker, reports, _a = tracked("a")
    tracker.commit(6, [])
    with pytest.raises(StraddlingTransaction, match="boundary 5 is not above 6, yet sink 'a'"):
        tracker.commit(5, ["a"])
    assert (reports, tracker.outstanding) == ([6], 0)


def test_F15_past_the_limit_a_commit_is_refused_whole_and_may_be_repeated() -> None:
    tracker, reports, a, _b = tracked("a", "b", max_outstanding=3)
    tracker.commit(1, ["a"])
    tracker.commit(2, ["a"])
    with pytest.raises(BufferFull, match=r"a owes 1 and 1 more") as refused:
        tracker.commit(3, ["a", "b"])
    assert refused.value.retriable
    assert (tracker.outstanding, tracker.explain().newest) == (2, 2)
    tracker.flushed(a, 1)
    tracker.commit(3, ["a", "b"])
    assert (reports, tracker.outstanding) == ([1], 3)


def test_F15_a_commit_wider_than_the_limit_passes_alone() -> None:
    tracker, reports, *leases = tracked("a", "b", "c", max_outstanding=2)
    tracker.commit(1, ["a", "b", "c"])
    for lease in leases:
        tracker.flushed(lease, 1)
    assert reports == [1]


def test_F15_one_stuck_sink_lets_the_others_run_for_ever_in_constant_memory() -> None:
    tracker, reports, stuck, busy = tracked("stuck", "busy", max_outstanding=10)
    tracker.commit(1, ["stuck"])
    for boundary in range(2, 5_000):
        tracker.commit(boundary, ["busy"] if boundary % 2 else [])
        tracker.flushed(busy, boundary)
    assert (reports, tracker.outstanding, sum(1 for _ in tracker._ledger)) == ([], 1, 1)
    tracker.flushed(stuck, 1)
    assert reports == [4_999]


def test_F15_explain_names_sinks_ages_and_offsets() -> None:
    clock = ManualClock()
    tracker, _, a, b = tracked("orders-0", "orders-1", clock=clock)
    tracker.commit(100, ["orders-0", "orders-1"])
    clock.advance(30.0)
    tracker.commit(200, ["orders-1"])
    tracker.flushed(a, 100)
    tracker.flushed(b, 40)
    clock.advance(5.0)
    explanation = tracker.explain()
    (holder,) = explanation.held_by
    assert (explanation.flushed, explanation.newest, explanation.owed) == (0, 200, 2)
    assert (holder.lease, holder.owes, holder.debts, holder.stored) == (b, 100, 2, 40)
    assert (holder.owed_for_s, holder.idle_s) == (35.0, 5.0)
    assert str(explanation) == (
        "flushed up to 0, newest 200, 2 owed; held back by\n"
        "  orders-1 owes 100 and 1 more (stored up to 40), owed for 35.0 s, no progress for 5.0 s"
    )
    tracker.flushed(b, 200)
    assert str(tracker.explain()) == "flushed up to 200: nothing is owed"


def test_F16_one_stuck_among_100_000_is_named_at_once() -> None:
    tracker, reports, *_ = tracked()
    leases = [tracker.register(sink) for sink in range(100_000)]
    tracker.commit(1, range(100_000))
    for lease in leases:
        if lease.sink != 77_777:
            tracker.flushed(lease, 1)
    for boundary in range(2, 1_000):
        tracker.commit(boundary, [boundary])
        tracker.flushed(leases[boundary], boundary)
    assert [holder.lease.sink for holder in tracker.explain().held_by] == [77_777]
    assert reports == []
    tracker.flushed(leases[77_777], 1)
    assert reports == [999]


def test_F16_one_that_owes_much_is_named_without_looking_at_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked = []

    class Walked(Ledger[Any]):
        def __iter__(self) -> Iterator[Debt[Any]]:
            for debt in super().__iter__():
                walked.append(debt.boundary)
                yield debt

    monkeypatch.setattr(flush_tracker, "Ledger", Walked)
    tracker, _, _ = tracked("a")
    for boundary in range(1, 1_000):
        tracker.commit(boundary, ["a"])
    (holder,) = tracker.explain().held_by
    assert (holder.lease.sink, holder.owes, holder.debts) == ("a", 1, 999)
    assert walked == [1]


def test_F02_discarding_needs_the_place_where_the_decision_is_stored() -> None:
    tracker, reports, a = tracked("a")
    tracker.commit(5, ["a"])
    with pytest.raises(ValueError, match="needs the place"):
        tracker.discard(a, None)

    class Receipt:
        durability = "buffered"

    with pytest.raises(ValueError, match="not durable yet"):
        tracker.discard(a, Receipt())
    assert reports == []
    Receipt.durability = "durable"
    tracker.discard(a, Receipt())
    assert reports == [5]
