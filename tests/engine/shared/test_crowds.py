"""What several shared writers reach together, at S3's latency for every request: the product's own code in virtual time."""

from __future__ import annotations

from random import Random

import pytest

from logstore.engine.shared.chain_cursor import READ_MAX
from logstore.engine.shared.pace import Pace
from tests.support.engine.virtual_race import Race, run_race

SLOW = 8
SLOW_PUT_S = SLOW * 0.030  # on the average


@pytest.fixture(scope="module")
def alone() -> Race:
    return run_race(1, seconds=10)


def test_W15_a_writer_that_is_alone_makes_no_request_more_than_a_put_and_now_and_then_a_listing(
    alone: Race,
) -> None:
    """The manifests, one for 64 segments, are apart."""
    assert alone.counts["aside"] == 0
    assert alone.counts["put"] < 1.1 * alone.appends
    assert alone.counts["list"] < 0.27 * alone.appends
    assert alone.quantile_s(0.5) < 0.030


def test_W15_two_writers_are_as_fast_as_one(alone: Race) -> None:
    race = run_race(2, seconds=10)
    assert race.rate > 0.9 * alone.rate
    assert race.quantile_s(0.99) < 0.4


def test_W15_eight_writers_are_faster_than_one_and_cost_a_few_reads_an_append(alone: Race) -> None:
    race = run_race(8, seconds=4)
    assert race.rate > 1.4 * alone.rate
    assert race.quantile_s(0.99) < 0.450
    assert race.counts["get"] < 8 * race.appends
    assert race.races_lost < 30  # while they find each other
    assert min(map(len, race.latencies)) > 10


@pytest.mark.parametrize("seed", [31, 32])
def test_W16_one_that_is_eight_times_slower_is_acked_within_eight_of_its_puts_and_holds_nobody_up(
    seed: int,
) -> None:
    three, four = run_race(3, seconds=6), run_race([1, 1, 1, SLOW], seconds=24, seed=seed)
    others = sum(map(len, four.latencies[:3])) / four.seconds
    assert others > 0.8 * three.rate
    assert four.quantile_s(0.5, writer=3) < 5 * SLOW_PUT_S
    assert four.quantile_s(1.0, writer=3) < 8 * SLOW_PUT_S


def test_W13_W16_one_slow_writer_that_was_first_does_not_lead_faster_ones() -> None:
    race = run_race([SLOW, 1], seconds=10)
    assert len(race.latencies[1]) > 200


def test_W15_eight_writers_with_pauses_do_not_read_as_if_the_others_were_faster(alone: Race) -> None:
    """Several segments come while one of them has nothing to append: that says nothing about how fast they come. Taken for
    that, 48 places were read at once, and an append cost thirty GETs."""
    race = run_race(8, seconds=20, pause_s=1.0)
    assert race.counts["get"] < 17 * race.appends


def test_W15_near_a_store_writers_follow_as_soon_as_they_do_far_from_it() -> None:
    """Where a request takes a millisecond, a lost race is cheap; to lose eight in a row was not."""
    one, eight = run_race([0.03], seconds=1), run_race([0.03] * 8, seconds=1, warm_up=0.5)
    assert eight.rate > 0.9 * one.rate
    assert eight.counts["get"] < 8 * eight.appends


@pytest.mark.soak
def test_W15_sixty_four_writers_reach_six_and_a_half_times_what_one_does(alone: Race) -> None:
    assert run_race(64, seconds=5).rate > 6.5 * alone.rate


def test_W16_a_writer_to_whom_others_were_faster_looks_at_one_place_when_nothing_comes() -> None:
    """One upload of ours took long, a stall perhaps, and we wait for others as long as that allows: not with dozens of
    requests for each look."""
    pace = Pace(Random(1), now=0.0)
    pace.upload.took(8.0)
    pace.lost()
    pace.read(40, now=1.0)
    assert pace.ahead == READ_MAX, "they are much faster"
    pace.read(0, now=1.01)
    assert pace.ahead == READ_MAX, "one look may have come between two segments"
    pace.read(0, now=1.02)
    assert pace.ahead == 1
    pace.read(1, now=1.03)
    assert pace.ahead == READ_MAX, "they are back"


def test_W16_who_waits_for_others_waits_no_longer_than_its_patience() -> None:
    """The last segments came an hour apart."""
    pace = Pace(Random(1), now=0.0)
    pace.upload.took(0.03)
    pace.lost()
    pace.read(1, now=3600.0)
    waits = pace.wait(now=3600.01)
    assert waits is not None
    assert waits <= 1.2 * pace.patience_s
    assert pace.wait(now=3600.01 + pace.patience_s) is None


def test_C06_W16_a_clock_that_is_below_zero_is_waited_for_no_longer() -> None:
    pace = Pace(Random(1), now=-3600.0)
    pace.upload.took(0.03)
    pace.lost()
    assert pace.wait(now=-3600.0 + 1.01 * pace.patience_s) is None


@pytest.mark.parametrize("seed", [41, 42])
def test_C06_W11_clocks_that_differ_by_years_and_jump_neither_lose_a_record_nor_slow_anybody_down(
    seed: int,
) -> None:
    """Everything that was acked is found where its ack says, once: `run_race` looks. A jump past the grace brings forward
    what is collected, a PUT for each segment's header; a clock that is off and does not jump costs no request."""
    alike, skewed = (run_race(4, seconds=6, seed=seed, skewed=skewed) for skewed in (False, True))
    assert skewed.rate > 0.85 * alike.rate
    assert min(map(len, skewed.latencies)) > 0.5 * min(map(len, alike.latencies))
