"""Turns: fairness among writers that do not know each other, step by step and in whole simulated races."""

from __future__ import annotations

import random

import pytest

from logstore.engine.shared.turns import Turns
from tests.support.engine.simulated_race import simulate

PUT_S = 0.040


def turns(name: bytes) -> Turns:
    made = Turns(name, random.Random(name[0]))
    made.took(PUT_S)
    return made


def test_W11_the_one_whose_segment_is_oldest_goes_first_and_the_others_look() -> None:
    writers = {name: turns(name) for name in (b"a", b"b", b"c")}
    for seq, name in enumerate((b"b", b"c", b"a")):
        for writer in writers.values():
            writer.saw(name, seq, now=seq * PUT_S)
    assert {name: writer.ahead for name, writer in writers.items()} == {b"b": 0, b"c": 1, b"a": 2}
    assert [name for name, writer in writers.items() if writer.is_ours(3 * PUT_S)] == [b"b"]
    for name, soon in ((b"c", PUT_S / 8), (b"a", PUT_S / 4)):
        assert writers[name].wait(3 * PUT_S) == 0.0  # an upload's time has passed: look
        writers[name].found_nothing(3 * PUT_S, 3 * PUT_S)
        assert 0 < writers[name].wait(3 * PUT_S) < soon


def test_W11_nobody_looks_before_an_uploads_time_has_passed_and_the_next_in_line_looks_often_then() -> None:
    b, c = turns(b"b"), turns(b"c")
    for writer in (b, c):
        for _ in range(50):
            writer.took(PUT_S)  # it always takes the same time
        for seq, name in enumerate((b"a", b"b", b"c")):
            writer.saw(name, seq, now=0.0)
            writer.found_nothing(0.0, 0.0)
        writer.saw(b"z", 3, now=0.0)
    assert (b.ahead, c.ahead) == (1, 2)
    for writer, looks in ((b, range(2, 6)), (c, range(1, 3))):
        now, looked = 0.0, []
        while now < 1.05 * PUT_S:  # then the segment in front stands
            now += writer.wait(now)
            looked.append(now)
            writer.found_nothing(now, now)
        assert looked[0] > 0.95 * PUT_S
        assert len(looked) in looks


def test_W11_where_uploads_differ_the_looks_begin_earlier() -> None:
    b = turns(b"b")
    for number in range(50):
        b.took(PUT_S * (0.6 if number % 2 else 1.4))
    b.saw(b"a", 0, now=0.0)
    b.saw(b"b", 1, now=0.0)
    assert b.wait(0.0) < 0.1 * PUT_S


def test_W13_a_dead_writer_is_waited_for_once() -> None:
    """b is next and dead: c waits two and a half uploads, then goes, and from then on b is left out."""
    c = turns(b"c")
    c.saw(b"b", 0, now=0.0)
    c.saw(b"c", 1, now=0.0)
    assert not c.is_ours(2.4 * PUT_S)
    assert c.is_ours(2.6 * PUT_S)
    c.saw(b"d", 2, now=3 * PUT_S)
    c.saw(b"c", 3, now=4 * PUT_S)
    assert c.ahead == 1  # d, and not b
    c.saw(b"b", 4, now=5 * PUT_S)  # it was only slow: it is back, behind us
    assert c.ahead == 1


def test_W13_several_dead_writers_are_passed_one_after_the_other() -> None:
    last = turns(b"z")
    for seq, name in enumerate((b"a", b"b", b"c", b"z")):
        last.saw(name, seq, now=0.0)
    now, waited = 0.0, 0
    while not last.is_ours(now):
        now += last.wait(now)
        last.found_nothing(now, now)
        waited += 1
        assert waited < 1000
    assert 3 * 2.5 * PUT_S <= now <= 3 * 3.0 * PUT_S


def test_W13_a_newcomer_and_a_cheap_store_do_not_wait() -> None:
    newcomer = turns(b"n")
    for seq in range(10):
        newcomer.saw(b"a", seq, now=0.0)
    assert newcomer.is_ours(0.0)
    cheap = Turns(b"c", random.Random(0))
    cheap.took(0.0001)
    cheap.saw(b"c", 0, now=0.0)
    cheap.saw(b"d", 1, now=0.0)
    cheap.saw(b"c", 2, now=0.0)
    assert cheap.is_ours(0.0)


def test_W13_an_upload_in_which_the_process_was_stopped_for_days_is_not_waited_for_afterwards() -> None:
    writer = turns(b"a")
    for seq, name in enumerate((b"b", b"a")):
        writer.saw(name, seq, now=0.0)
    writer.took(1_000_000.0)
    now = 1_000_000.0
    writer.saw(b"b", 2, now)
    writer.saw(b"a", 3, now)
    for _ in range(200):
        if writer.is_ours(now):
            break
        now += writer.wait(now) + PUT_S
        writer.found_nothing(now, now)
    assert writer.is_ours(now)
    assert now < 1_000_060.0


def test_W13_one_that_seems_alone_pauses_now_and_then() -> None:
    alone = turns(b"a")
    pauses = []
    for seq in range(12):
        now = seq * PUT_S
        alone.saw(b"a", seq, now)
        pauses.append(not alone.is_ours(now))
        if pauses[
            -1
        ]:  # it looks whether somebody came, then waits as long as that one needs to read what stands
            assert alone.wait(now) == 0.0
            alone.found_nothing(now, now + 0.1 * PUT_S)
            assert 0.2 * PUT_S < alone.wait(now) < 0.5 * PUT_S
            assert not alone.is_ours(now + 0.2 * PUT_S)
            assert alone.is_ours(now + 0.5 * PUT_S)
    assert pauses == [True, False, False, False] * 3


def test_the_names_of_those_who_left_are_forgotten() -> None:
    watcher = turns(b"w")
    for seq in range(1000):
        watcher.saw(b"%d" % seq, seq, now=0.0)
    watcher.saw(b"w", 1000, now=0.0)
    assert watcher.ahead <= 65


def test_W11_one_that_lost_twice_waits_for_the_upload_under_way_half_of_the_time() -> None:
    sat_out = 0
    for seed in range(200):
        loser = Turns(b"l", random.Random(seed))
        loser.took(PUT_S)
        loser.saw(b"w", 0, now=0.0)
        loser.caught_up(now=0.0)
        sat_out += not loser.is_ours(0.0)
        assert loser.is_ours(2.5 * PUT_S)  # nothing came: it does not wait for ever
        loser.saw(b"w", 1, now=PUT_S)
        assert loser.is_ours(PUT_S)
    assert 70 < sat_out < 130


@pytest.mark.parametrize("get_share", [0.0, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("writers", [2, 8])
def test_W11_W13_whatever_a_read_costs_all_have_their_turn_and_hardly_an_upload_is_wasted(
    writers: int, get_share: float
) -> None:
    race = simulate(writers, put_s=PUT_S, get_s=get_share * PUT_S, until_s=20.0)
    assert max(race.commits.values()) - min(race.commits.values()) <= 2  # the first rounds are a scramble
    assert race.lost <= writers * writers  # in those, none later
    assert race.looks < 30 * race.segments
    # A turn is an upload and two reads at the most, of which the first may have begun just before the segment came.
    assert race.wait_put_times(0.99) < writers * (1.05 + 2 * get_share)


def test_W11_eight_writers_wait_hardly_longer_than_eight_uploads() -> None:
    race = simulate(8, put_s=PUT_S, get_s=0.0, until_s=60.0)
    assert race.wait_put_times(0.5) < 8.15
    assert race.wait_put_times(0.99) < 8.3


@pytest.mark.parametrize("seed", range(3))
def test_W13_uploads_that_hang_now_and_then_starve_nobody(seed: int) -> None:
    """One upload in a hundred takes up to five times as long."""
    race = simulate(8, put_s=PUT_S, get_s=0.0002, until_s=60.0, hang_s=4 * PUT_S, seed=seed)
    assert race.wait_put_times(0.5) < 9
    assert race.wait_put_times(0.99) < 14
    assert race.wait_put_times(1.0) < 80
    assert race.lost < race.segments / 5
    assert min(race.commits.values()) > 0.8 * max(race.commits.values())
