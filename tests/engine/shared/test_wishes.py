"""Wishes: a writer whose uploads take longer than those of the others gets its turn all the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import logstore
from logstore.cli import main
from logstore.engine.chain.chain import Chain
from logstore.engine.shared.turns import Turns
from logstore.engine.shared.wishes import Wishes
from logstore.layout.paths import PartitionPaths, WishName
from logstore.objects import LocalStore, MemoryStore
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.actors import TOPIC, Dead, contents
from tests.support.engine.simulated_race import simulate
from tests.support.patience import PATIENCE_S

PUT_S = 0.040
SLOW_S = 0.400


def turns(name: bytes, put_s: float = PUT_S) -> Turns:
    made = Turns(name, random.Random(name[0]))
    for _ in range(50):
        made.took(put_s)
    return made


def wish_of(name: bytes, seq: int, put_s: float = SLOW_S) -> WishName:
    return WishName(name, seq, int(put_s * 1000), 1_700_000_000_000)


# Step by step


def test_W13_three_losses_in_a_row_make_a_wish_and_a_commit_ends_it() -> None:
    loser = turns(b"l", SLOW_S)
    for seq in range(3):
        assert not loser.should_wish
        loser.lost(now=seq * SLOW_S)
        loser.saw(b"w", seq, now=seq * SLOW_S)
    assert loser.should_wish
    wish = loser.wish(3, 2 * SLOW_S, 1_700_000_000_000)
    assert (wish.writer, wish.seq, wish.wished_at_ms) == (b"l", 3, 1_700_000_000_000)
    assert 400 <= wish.upload_ms < 440
    assert not loser.should_wish
    for seq in range(3, 19):
        assert not loser.should_wish
        loser.lost(now=seq * SLOW_S)
        loser.saw(b"w", seq, now=seq * SLOW_S)
    assert loser.should_wish  # again: the others may have thought it dead
    loser.saw(b"l", 19, now=20 * SLOW_S)
    assert not loser.should_wish


def test_W13_one_that_others_pass_faster_than_it_can_read_wishes_too() -> None:
    loser = turns(b"l")
    for seq in range(100):
        loser.saw(b"w", seq, now=0.0)
    assert not loser.should_wish  # it only read: it has lost nothing
    loser.lost(now=0.0)
    for seq in range(100, 148):
        assert not loser.should_wish
        loser.saw(b"w", seq, now=0.0)
    assert loser.should_wish
    wish = loser.wish(148, now=48 * PUT_S, now_ms=1_700_000_000_000)
    assert wish.upload_ms > 48 * PUT_S * 1000  # so long it reads already: one upload is not enough


def test_W13_who_hears_of_a_wish_lets_its_turn_pass_until_the_wisher_has_committed() -> None:
    a = turns(b"a")
    a.saw(b"b", 0, now=0.0)
    a.saw(b"a", 1, now=0.0)
    a.saw(b"b", 2, now=PUT_S)
    assert a.is_ours(PUT_S)
    a.heard([wish_of(b"s", 2)], now=PUT_S)
    for now in (PUT_S, 2.6 * PUT_S, 3.9 * SLOW_S):
        assert not a.is_ours(now)
    a.saw(b"b", 3, now=PUT_S)  # somebody who has not heard of it: the wish stands all the same
    assert not a.is_ours(2 * PUT_S)
    a.saw(b"s", 4, now=SLOW_S)
    assert a.is_ours(SLOW_S)
    # From now on it is waited for as long as its uploads take.
    a.saw(b"a", 5, now=SLOW_S)
    a.saw(b"b", 6, now=SLOW_S)
    assert a.ahead == 1
    assert not a.is_ours(SLOW_S + 2.4 * SLOW_S)
    assert a.is_ours(SLOW_S + 2.6 * SLOW_S)


def test_W13_dead_wishers_are_waited_for_once_and_all_at_once() -> None:
    a = turns(b"a")
    a.saw(b"a", 0, now=0.0)
    dead = [wish_of(b"%d" % number, 0) for number in range(100)]
    a.heard(dead, now=0.0)
    assert not a.is_ours(3.9 * SLOW_S)
    assert a.is_ours(4.1 * SLOW_S)
    a.heard(dead, now=5 * SLOW_S)
    assert a.is_ours(5 * SLOW_S)
    a.heard([*dead, wish_of(b"7", 1)], now=6 * SLOW_S)  # that one has wished again: it lives
    assert not a.is_ours(6 * SLOW_S)


def test_W13_nobody_waits_longer_than_a_minute_for_a_wish() -> None:
    a = turns(b"a")
    a.saw(b"a", 0, now=0.0)
    a.heard([wish_of(b"s", 0, put_s=500.0)], now=0.0)
    assert not a.is_ours(59.0)
    assert a.is_ours(61.0)


@pytest.mark.parametrize("wish", [wish_of(b"b", 5), wish_of(b"c", 900), wish_of(b"a", 6000)])
def test_W13_a_wish_that_was_answered_or_is_outdated_or_ours_is_not_waited_for(wish: WishName) -> None:
    a = turns(b"a")
    a.saw(b"b", 5_999, now=0.0)
    a.saw(b"a", 6_000, now=0.0)
    a.heard([wish], now=PUT_S)
    assert a.is_ours(3 * PUT_S)


def test_W13_where_uploads_are_cheap_a_wish_is_heard_too() -> None:
    cheap = turns(b"c", 0.0001)
    cheap.saw(b"c", 0, now=0.0)
    assert cheap.is_ours(0.0)
    cheap.heard([wish_of(b"s", 1)], now=0.0)
    assert not cheap.is_ours(0.0)
    cheap.found_nothing(0.0, 0.0)
    assert SLOW_S / 32 < cheap.wait(0.0) < SLOW_S / 8  # and it does not look all the time
    cheap.saw(b"s", 1, now=SLOW_S)
    assert cheap.is_ours(SLOW_S)


def test_wishes_are_asked_for_once_in_about_sixteen_segments_of_ours() -> None:
    a = turns(b"a")
    asked_at = []
    for seq in range(400):
        a.saw(b"a", seq, now=seq * PUT_S)
        if a.should_hear(seq * PUT_S):
            asked_at.append(seq)
            a.heard([], now=seq * PUT_S)
    gaps = [later - earlier for earlier, later in zip([-1, *asked_at], asked_at, strict=False)]
    assert 12 <= min(gaps) < max(gaps) <= 20


def test_wishes_are_asked_for_once_when_a_segment_is_late_and_not_after_a_quiet_time_of_our_own() -> None:
    a = turns(b"a")
    a.saw(b"b", 0, now=0.0)
    a.saw(b"a", 1, now=0.0)
    assert not a.should_hear(1000.0)  # it had nothing to commit itself: nobody is late
    a.found_nothing(1.5 * PUT_S, 1.5 * PUT_S)
    assert not a.should_hear(1.5 * PUT_S)
    a.found_nothing(2.1 * PUT_S, 2.1 * PUT_S)
    assert a.should_hear(2.1 * PUT_S)
    a.heard([], now=2.2 * PUT_S)
    a.found_nothing(2.3 * PUT_S, 2.3 * PUT_S)
    assert not a.should_hear(2.3 * PUT_S)


def test_a_writer_that_is_often_idle_is_not_taken_for_a_slow_one() -> None:
    """Whatever the pauses between its segments, it is never waited for longer than seven and a half of our uploads."""
    a, now, rng = turns(b"a"), 0.0, random.Random(7)
    for seq in range(0, 400, 2):
        now += rng.uniform(1, 20) * PUT_S
        a.found_nothing(now, now)
        a.saw(b"b", seq, now)
        a.saw(b"a", seq + 1, now)
        assert not a.is_ours(now + 2.4 * PUT_S)
        assert turns_after(a, now) <= 7.6 * PUT_S


def turns_after(a: Turns, now: float) -> float:
    return a._idle_at(b"b") - now


# Whole races, in simulated time


def mixed(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.uniform(0.5, 3.0) for _ in range(16)]


MIXES: list[Sequence[float]] = [
    (1, 1, 1, 2),
    (0.5, 1, 1, 1),
    (1, 1, 1, 1, 8),
    (0.25, 4),
    (0.25, 8, 1),
    (0.25, 0.5, 1, 2, 4, 8),
    mixed(1),
    mixed(2),
]


@pytest.mark.parametrize("get_share", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: f"{len(mix)}-{max(mix):.2g}")
def test_W13_however_unequal_the_uploads_each_commits_within_200_segments(
    mix: Sequence[float], get_share: float
) -> None:
    """That long at the beginning, while nobody knows the slow ones; then each has its turn in every round."""
    race = simulate(mix, put_s=PUT_S, get_s=get_share * PUT_S, until_s=60.0)
    assert max(race.longest_absence(b"%d" % number) for number in range(len(mix))) <= 200
    assert max(race.commits.values()) - min(race.commits.values()) <= 3
    if get_share < 0.5:
        assert race.asked <= race.segments / 4


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: f"{len(mix)}-{max(mix):.2g}")
def test_W13_where_uploads_are_cheap_each_commits_within_400_segments(mix: Sequence[float]) -> None:
    race = simulate(mix, put_s=0.002, get_s=0.0004, until_s=6.0)
    assert race.segments > 800
    assert max(race.longest_absence(b"%d" % number) for number in range(len(mix))) <= 400


def test_W13_eight_equal_writers_ask_for_one_listing_in_sixteen_segments() -> None:
    race = simulate(8, put_s=PUT_S, get_s=0.2 * PUT_S, until_s=60.0)
    assert race.asked <= race.segments / 14
    assert race.wished <= 16  # while they find each other


# The writer itself


class _Plain(random.Random):
    """Dice that never make a loser wait, and let a writer ask after exactly twenty segments."""

    def random(self) -> float:
        return 0.999

    def randint(self, a: int, b: int) -> int:
        return b


def test_W13_a_slow_writers_append_is_acked_among_two_fast_ones_that_never_pause() -> None:
    objects, clock = MemoryStore(), ManualClock()
    slow_way, ways = GatedStore(objects), [GatedStore(objects), GatedStore(objects)]
    stores = [
        logstore.open(way, writer="shared", clock=clock, rng=_Plain(number))
        for number, way in enumerate([slow_way, *ways])
    ]
    slow, *fast = [store.create_topic(TOPIC, exist_ok=True).partition(0) for store in stores]
    prefix = slow._internal.paths.wishes_prefix
    try:
        with slow_way.hold("put", suffix=".seg") as uploads:
            waiting = slow.submit(b"slow")
            for number in range(3):
                uploads.wait_held()
                fast[number % 2].append(b"a faster one")
                clock.advance(1.0)
                uploads.release()
            uploads.wait_held()
            (info,) = objects.list(prefix)
            wish = slow._internal.paths.wish_name(info.key)
            assert wish is not None
            assert (wish.seq, wish.upload_ms >= 1000) == (3, True)

            held_up = []
            for log, way in zip(fast, ways, strict=True):
                with way.hold("list", prefix=prefix) as asks:
                    for _ in range(20 - log._internal._writer.stats.commits):  # type: ignore[union-attr]
                        log.append(b"a fast one")
                    asks.wait_held()  # behind the ack: nobody waits for this
            with ways[0].hold("get", suffix=".seg") as look, ways[1].hold("get", suffix=".seg") as other_look:
                for log, looks in zip(fast, (look, other_look), strict=True):
                    held_up.append(log.submit(b"after the slow one"))
                    looks.wait_held()  # it looks for the slow one's segment, instead of uploading its own
                stored = len(contents(objects))
                uploads.release()  # this one loses yet: its place was taken long ago
                uploads.wait_held()
                uploads.release()
                assert waiting.result(PATIENCE_S).offset == stored
                assert not any(future.done() for future in held_up)
        clock.advance(1.0)
        assert sorted(future.result(PATIENCE_S).offset for future in held_up) == [stored + 1, stored + 2]
    finally:
        for store in stores:
            store.close()
    assert list(objects.list(prefix)) == []
    assert contents(objects)[stored] == (stored, b"slow")


def test_W13_wishes_that_fail_change_nothing() -> None:
    wishes = Wishes(Chain(Dead(), PartitionPaths(TOPIC, "0" * 16, 0)))
    wishes.leave(wish_of(b"12345678", 3))
    assert wishes.standing() == []
    wishes.take_back()


def test_a_wish_that_was_renewed_stands_once_and_strangers_are_not_read_as_one() -> None:
    objects = MemoryStore()
    chain = Chain(objects, PartitionPaths(TOPIC, "0" * 16, 0))
    wishes = Wishes(chain)
    wishes.leave(wish_of(b"12345678", 3))
    wishes.leave(wish_of(b"12345678", 40))
    objects.put(chain.paths.wishes_prefix + "of-a-later-release", b"?")
    assert wishes.standing() == [wish_of(b"12345678", 40)]
    wishes.take_back()
    assert wishes.standing() == []


# What a dead writer leaves


def test_gc_takes_a_wish_after_the_grace_period_and_a_deleted_topic_leaves_none() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with logstore.open(objects, writer="shared", clock=clock, delete_grace=3600.0) as store:
        log = store.create_topic(TOPIC).partition(0)
        log.append(b"x")
        key = log._internal.paths.wish(WishName(b"deadbeef", 1, 40, clock.now_ms()))
        objects.put(key, b"\x01")
        clock.advance(3599.0)
        assert store.collect_garbage() == []
        clock.advance(2.0)
        assert [item.key for item in store.collect_garbage(dry_run=True)] == [key]
        assert [item.key for item in store.collect_garbage()] == [key]
        assert objects.head(key) is None
        objects.put(key, b"\x01")
        store.delete_topic(TOPIC)
        assert objects.head(key) is None


def test_a_wish_is_no_damage_and_no_part_of_the_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    objects = LocalStore(root)
    with logstore.open(objects, writer="shared") as store:
        log = store.create_topic(TOPIC).partition(0)
        log.append(b"x")
        objects.put(log._internal.paths.wish(WishName(b"deadbeef", 1, 40, 1_700_000_000_000)), b"\x01")
    assert contents(objects) == [(0, b"x")]
    assert main(["verify", "--store", str(root)]) == 0
    with logstore.open(objects, writer="exclusive") as store:
        assert store.topic(TOPIC).append(b"y").offset == 1
    assert main(["verify", "--store", str(root)]) == 0
