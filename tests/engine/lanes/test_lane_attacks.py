"""Attacks on lanes: a process is killed, or suspended and woken later, at every request of what it does.

It opens partitions, adopts a lane, gives partitions up, splits, merges, deletes a topic, commits over several partitions,
closes. Then another process, with other settings, goes on: through a lane, by a name, to chains of their own; without a
grace period, with a wall clock that is years off. What anybody was acked is there, at its offset and once; nobody is stuck.

A take-over without a seal is kept as a contrast: the same attacks find what it loses.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from itertools import count, takewhile
from typing import Any

import pytest

import logstore
from logstore.engine.host.clock import SystemClock
from logstore.engine.memory.catch_up import catch_up
from logstore.engine.write import takeover
from logstore.errors import Fenced, LogStoreError
from logstore.objects import MemoryStore, ObjectStore
from tests.support.engine.dying import DiesAt, SleepsAt
from tests.support.engine.harness import background, crash, pairs, until
from tests.support.patience import PATIENCE_S

PARTITIONS = 3
STRIDE = 7
APPEND_TIMEOUT_S = 30.0  # of one that is dead and waits on in its thread; reaching it is no failure
YEARS_MS = 10 * 365 * 86_400_000
WAYS: list[dict[str, Any]] = [{"lanes": 1}, {"lanes": 2}, {"lane": "orders"}, {"lanes": 0}]
_values = count()


class SkewedClock(SystemClock):
    """Its wall clock is off."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._skew_ms


class Book:
    """What was acked, to whomever. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acked: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]

    def append(self, store: logstore.Store, number: int) -> None:
        value = b"value %d" % next(_values)
        self.note(number, store.topic("t").partition(number).append(value).offset, value)

    def note(self, number: int, offset: int, value: bytes) -> None:
        with self._lock:
            assert offset not in self._acked[number], "an offset that was acked is given to another record"
            self._acked[number][offset] = value

    def append_to_all(self, store: logstore.Store) -> None:
        for number in range(PARTITIONS):
            self.append(store, number)

    def check(self, objects: ObjectStore, where: str) -> None:
        """By a process that was not there."""
        with logstore.open(objects, writer="read_only") as reader, self._lock:
            for number, acked in enumerate(self._acked):
                found = pairs(reader.topic("t").partition(number))
                offsets, values = [offset for offset, _ in found], [value for _, value in found]
                assert offsets == sorted(set(offsets)), f"{where}: partition {number} is out of order"
                assert len(values) == len(set(values)), f"{where}: a record is twice in partition {number}"
                missing = {one: value for one, value in acked.items() if dict(found).get(one) != value}
                assert not missing, f"{where}: acked in partition {number} and not there: {missing}"


def opened(objects: ObjectStore, rng: random.Random, way: dict[str, Any], **more: Any) -> logstore.Store:
    clock = SkewedClock(rng.choice([0, -YEARS_MS, YEARS_MS]))
    settings = {"flush_interval": 3600.0, "delete_grace": 0.0, "take_over": True, **way, **more}
    return logstore.open(objects, clock=clock, **settings)


def merge(store: logstore.Store, number: int) -> None:
    """What a partition has, in lanes and in small segments, becomes objects of its own."""
    runtime = store._runtime
    store.topic("t").partition(number)._internal.maintenance.compact(runtime.clock.now_ms(), runtime.new_id())


# What a process does. Each begins on a store that somebody else has written and left without closing.


def opens(store: logstore.Store, book: Book) -> None:
    book.append_to_all(store)
    book.append_to_all(store)


def closes(store: logstore.Store, book: Book) -> None:
    book.append_to_all(store)
    store.topic("t").partition(0).append(b"buffered %d" % next(_values), ack="buffered")
    store.close()


def gives_up(store: logstore.Store, book: Book) -> None:
    book.append_to_all(store)
    store.topic("t").partition(1).reopen()
    book.append(store, 0)
    book.append(store, 1)


def splits(store: logstore.Store, book: Book) -> None:
    for _ in range(3):
        book.append_to_all(store)
    merge(store, 0)
    store.collect_garbage()
    book.append_to_all(store)
    store.collect_garbage()


def deletes_another_topic(store: logstore.Store, book: Book) -> None:
    book.append(store, 0)
    store.create_topic("other", 2, exist_ok=True).append(b"x", partition=1)
    store.delete_topic("other")
    store.collect_garbage()
    book.append_to_all(store)


def commits_over_partitions(store: logstore.Store, book: Book) -> None:
    values = [b"value %d" % next(_values) for _ in range(PARTITIONS)]
    with store.atomic() as tx:
        for number, value in enumerate(values):
            tx.append("t", value, partition=number)
    for receipt, value in zip(tx.receipts, values, strict=True):
        book.note(receipt.partition, receipt.offset, value)
    book.append_to_all(store)


Deed = Callable[[logstore.Store, Book], None]
DEEDS: list[Deed] = [
    opens,
    closes,
    gives_up,
    splits,
    deletes_another_topic,
    commits_over_partitions,
]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and splits after a few entries."""
    from logstore.engine.write.lanes import lane_checkpoints

    monkeypatch.setattr(lane_checkpoints, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(lane_checkpoints, "SPLIT_EVERY", 6)


def before(rng: random.Random, book: Book) -> MemoryStore:
    """Somebody has written all partitions, through a lane or not, and was killed."""
    objects = MemoryStore()
    store = opened(objects, rng, rng.choice(WAYS))
    store.create_topic("t", PARTITIONS)
    book.append_to_all(store)
    book.append(store, 0)
    crash(store)
    return objects


def go_on(objects: ObjectStore, rng: random.Random, book: Book) -> None:
    """Another process comes, and does all there is to do."""
    with opened(objects, rng, rng.choice(WAYS)) as heir:
        book.append_to_all(heir)
        if rng.random() < 0.5:
            merge(heir, rng.randrange(PARTITIONS))
            heir.collect_garbage()
        book.append_to_all(heir)


def ways_of(deed: Deed) -> list[dict[str, Any]]:
    return [{"lanes": 1}, {"lane": "orders"}] if deed is commits_over_partitions else WAYS


def killed(deed: Deed, request: int, after: bool) -> bool:
    """One attack. Whether there was such a request."""
    rng, book = random.Random(f"{deed.__name__} {after} {request}"), Book()
    objects = before(rng, book)
    dying, way = DiesAt(objects), rng.choice(ways_of(deed))
    store = opened(dying, rng, way, append_timeout=APPEND_TIMEOUT_S)
    dying.die_at(request, after=after)
    doing = background(deed, store, book)
    until(partial(is_over, doing, dying.has_died))
    died, where = dying.died, f"{deed.__name__} of {way}, request {request}"
    crash(store, hanging=True)
    if not died:
        assert doing.exception() is None, where
    book.check(objects, where)
    go_on(objects, rng, book)
    book.check(objects, where)
    return died


def suspended(deed: Deed, request: int) -> bool:
    """One attack: another takes all over, splits, merges and collects without a grace period, while it sleeps. Whether
    there was such a request."""
    rng, book = random.Random(f"{deed.__name__} {request}"), Book()
    objects = before(rng, book)
    sleeper, way = SleepsAt(objects), rng.choice(ways_of(deed))
    store = opened(sleeper, rng, way, append_timeout=APPEND_TIMEOUT_S)
    sleeper.sleep_at(request)
    doing = background(deed, store, book)
    until(partial(is_over, doing, sleeper.asleep.is_set))
    slept, where = sleeper.asleep.is_set(), f"{deed.__name__} of {way}, request {request}"
    try:
        go_on(objects, rng, book)
    finally:
        sleeper.wake()
    end(doing, where)
    crash(store)
    book.check(objects, where)
    go_on(objects, rng, book)
    book.check(objects, where)
    return slept


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: str(deed.__name__))
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_N06_L01_killed_at_any_request_a_process_has_lost_nothing_that_it_acked(
    deed: Deed, after: bool
) -> None:
    """A part of the requests, each time another one in the other half: `make soak` has them all."""
    first = 0 if after else STRIDE // 2
    made = sum(1 for _ in takewhile(lambda n: killed(deed, n, after), count(first, STRIDE)))
    assert made > 1, "the test is not what it was meant to be"


@pytest.mark.soak
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: str(deed.__name__))
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_N06_L01_killed_at_each_request_a_process_has_lost_nothing_that_it_acked(
    deed: Deed, after: bool
) -> None:
    assert sum(1 for _ in takewhile(lambda n: killed(deed, n, after), count())) > 5


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: str(deed.__name__))
def test_W05_W06_N02_suspended_at_any_request_a_process_does_no_harm_when_it_wakes(deed: Deed) -> None:
    assert sum(1 for _ in takewhile(lambda n: suspended(deed, n), count(1, STRIDE))) > 1


@pytest.mark.soak
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: str(deed.__name__))
def test_W05_W06_N02_suspended_at_each_request_a_process_does_no_harm_when_it_wakes(deed: Deed) -> None:
    assert sum(1 for _ in takewhile(lambda n: suspended(deed, n), count())) > 5


def no_seal(patch: pytest.MonkeyPatch) -> None:
    """A taker claims behind what it has read of the lane, and seals nothing."""

    def looks_only(runtime: Any, chain: Any, state: Any, judged: bytes, deadline: float) -> bool:
        known = state.tail
        catch_up(chain, state, by_owner=True)
        return bool(state.tail != known)

    patch.setattr(takeover, "_end_claim", looks_only)


def test_N05_contrast_without_a_seal_the_attacks_find_records_that_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_seal(monkeypatch)
    with pytest.raises((AssertionError, LogStoreError)):
        for request in range(60):
            suspended(opens, request)
            suspended(gives_up, request)


def test_N05_contrast_where_a_seal_was_deleted_its_owner_acks_what_nobody_reads() -> None:
    """It slept, and its next upload finds an empty place. So seals are never deleted."""
    objects, book = MemoryStore(), Book()
    former = logstore.open(objects, take_over=True)
    former.create_topic("t", PARTITIONS)
    book.append_to_all(former)
    lane = former._lanes.overviews()[0].name
    known = {info.key for info in objects.list(f"lanes/{lane}/")}
    with logstore.open(objects, take_over=True) as other:
        book.append(other, 1)
    (seal,) = {info.key for info in objects.list(f"lanes/{lane}/")} - known
    book.check(objects, "with its seal")
    objects.delete(seal)
    with pytest.raises(AssertionError, match="an offset that was acked is given to another record"):
        book.append(former, 1)
    crash(former)


@pytest.mark.parametrize("mine", WAYS, ids=str)
@pytest.mark.parametrize("theirs", [{"lanes": 1}, {"lanes": 0}], ids=str)
def test_W13_N10_two_that_live_take_partitions_from_each_other_and_lose_nothing(
    mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """Through lanes and not, with clocks ten years apart, one of them merging and collecting without a grace period."""
    objects, book, rng = MemoryStore(), Book(), random.Random(str((mine, theirs)))
    with opened(objects, rng, theirs) as maker:
        maker.create_topic("t", PARTITIONS)

    turns = threading.Barrier(2)

    def write(way: dict[str, Any], seed: int) -> int:
        own, acked = random.Random(seed), 0
        with opened(objects, own, way) as store:
            for turn in range(30):
                turns.wait(PATIENCE_S)
                number = own.randrange(PARTITIONS)
                try:
                    book.append(store, number)
                    acked += 1
                except Fenced:
                    store.topic("t").partition(number).reopen()
                if turn % 5 == 4 and seed:
                    merge(store, number)
                    store.collect_garbage()
        return acked

    both = [background(write, mine, 0), background(write, theirs, 1)]
    acked = [one.result(PATIENCE_S) for one in both]
    assert sum(acked) >= 10, "of 60: only who is overtaken is refused"
    book.check(objects, f"{mine} beside {theirs}")
    go_on(objects, rng, book)
    book.check(objects, f"{mine} beside {theirs}")


def is_over(doing: Future[None], is_stopped: Callable[[], bool]) -> bool:
    return is_stopped() or doing.done()


def end(doing: Future[None], where: str) -> None:
    """It goes on, or is told by an error of ours why not."""
    assert wait([doing], PATIENCE_S).done, f"{where}: it never ends"
    assert isinstance(doing.exception(), LogStoreError | None), f"{where}: {doing.exception()!r}"
