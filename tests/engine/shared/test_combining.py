"""The winner commits for all: what one writer has put aside is stored by another's segment, once, whatever comes between.

A follower is held at its look into the chain, so the test says what stands there when it looks.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

import logstore
from logstore.cli import main
from logstore.engine.chain.link import Link
from logstore.engine.garbage import remains
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.shared import pace as pace_module
from logstore.engine.shared.shared_writer import SharedWriter
from logstore.errors import Closed, Fenced
from logstore.format.stored.segment import SegmentFlags, SegmentHeader, collected
from logstore.layout.paths import PENDING_WINDOW, PendingName
from logstore.objects import LocalStore, MemoryStore
from logstore.objects.wrappers.wrapped import WrappedStore
from logstore.producer import Producer
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from logstore.testing.gated import Gate
from tests.support.engine.actors import TOPIC, contents
from tests.support.engine.dying import DiesAt
from tests.support.engine.harness import background, headers
from tests.support.engine.shared_schedules import run_retries, run_writers
from tests.support.patience import PATIENCE_S
from tests.support.scheduler import RandomChoices

PUT_S = 0.04
T = TypeVar("T")


class Fleet:
    """Shared writers of one partition, each in a store of its own."""

    def __init__(self, objects: Any) -> None:
        self.objects = objects
        self.clock = ManualClock()
        self.stores: list[logstore.Store] = []
        self.ways: dict[PartitionLog, GatedStore] = {}

    def log(self, home: Any = None, **settings: Any) -> PartitionLog:
        given: dict[str, Any] = {"writer": "shared", "delete_grace": 100.0, **settings}
        way = GatedStore(self.objects if home is None else home)
        rng = random.Random(len(self.stores))
        store = logstore.open(way, clock=self.clock, rng=rng, **given)
        self.stores.append(store)
        log = store.create_topic(TOPIC, exist_ok=True).partition(0)
        self.ways[log] = way
        log.open_writer()
        return log

    @contextmanager
    def aside(
        self, log: PartitionLog, submit: Callable[[], Future[Receipt]]
    ) -> Iterator[tuple[Future[Receipt], Gate]]:
        """As after two lost races it lets others commit: it has put its append aside and is about to look for it."""
        pace = writer_of(log)._pace
        for _ in range(30):
            pace.upload.took(PUT_S)
        pace._losses, pace._leads, pace._moved_at = 2, False, self.clock.monotonic()
        with self.ways[log].hold("get", suffix=".seg") as looks:
            future = submit()
            looks.wait_held()
            yield future, looks

    def pass_time_until(self, *futures: Future[Any]) -> None:
        while wait(futures, timeout=0.005).not_done:
            self.clock.advance(PUT_S / 4)

    def pending(self, log: PartitionLog) -> list[str]:
        return [info.key for info in self.objects.list(log._internal.paths.pending_prefix)]

    def close(self) -> None:
        self.pass_time_until(*(background(store.close) for store in self.stores))


def writer_of(log: PartitionLog) -> SharedWriter:
    writer = log._internal._writer
    assert isinstance(writer, SharedWriter)
    return writer


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(MemoryStore())
    yield made
    made.close()


def commit(log: PartitionLog, count: int, name: bytes = b"leader") -> None:
    for number in range(count):
        log.append(name + b"-%d" % number)


def values(fleet: Fleet) -> list[bytes]:
    return [value or b"" for _, value in contents(fleet.objects)]


def combined(fleet: Fleet) -> list[SegmentHeader]:
    return [header for header in headers(fleet.objects) if header.has_extras]


def test_W15_what_was_put_aside_is_stored_by_the_next_segment_of_another(fleet: Fleet) -> None:
    leader, follower = fleet.log(), fleet.log()
    leader.append(b"first")
    with fleet.aside(follower, lambda: follower.submit([b"aside-0", b"aside-1"])) as (future, _):
        commit(leader, 4)
        assert not future.done()
    receipt = future.result(PATIENCE_S)
    assert (receipt.offset, receipt.last_offset) == (5, 6)
    assert values(fleet)[4:7] == [b"leader-3", b"aside-0", b"aside-1"]
    assert len(values(fleet)) == 7
    assert [record.value for record in follower.read(5).records()] == [b"aside-0", b"aside-1"]
    assert [header.end_offset - header.base_offset for header in combined(fleet)] == [3]
    assert len(headers(fleet.objects)) == 5


def test_W15_each_of_many_appends_of_several_writers_gets_its_own_offset(fleet: Fleet) -> None:
    leader, a, b = fleet.log(), fleet.log(), fleet.log()
    leader.append(b"first")
    with (
        fleet.aside(a, lambda: a.submit(b"a")) as (of_a, _),
        fleet.aside(b, lambda: b.submit([b"b-0", b"b-1"])) as (of_b, _),
    ):
        commit(leader, 4)
    stored = values(fleet)
    assert stored[of_a.result(PATIENCE_S).offset] == b"a"
    first, last = of_b.result(PATIENCE_S).offset, of_b.result(0).last_offset
    assert stored[first : last + 1] == [b"b-0", b"b-1"]
    assert len(stored) == 5 + 3
    assert len(combined(fleet)) == 1


def test_W15_nobody_commits_any_more_so_one_who_waits_commits_for_all(fleet: Fleet) -> None:
    leader, a, b = fleet.log(), fleet.log(), fleet.log()
    leader.append(b"last of the leader")
    with (
        fleet.aside(a, lambda: a.submit(b"a")) as (of_a, _),
        fleet.aside(b, lambda: b.submit(b"b")) as (of_b, _),
    ):
        pass
    fleet.pass_time_until(of_a, of_b)
    assert len(headers(fleet.objects)) == 2
    stored = values(fleet)
    assert (stored[of_a.result(0).offset], stored[of_b.result(0).offset]) == (b"a", b"b")
    assert len(stored) == 3


def test_W15_one_who_opens_later_does_not_know_where_it_was_born_so_it_is_put_aside_again(
    fleet: Fleet,
) -> None:
    leader, follower = fleet.log(), fleet.log()
    leader.append(b"first")
    with fleet.aside(follower, lambda: follower.submit(b"aside")) as (future, looks):
        leader.append(b"second")
        newcomer = fleet.log()
        commit(newcomer, 8)
        assert not combined(fleet)
        while not future.done():
            commit(newcomer, 8, b"on")
            looks.release()
            fleet.clock.advance(PUT_S / 4)
            wait([future], timeout=0.005)
    assert values(fleet).count(b"aside") == 1
    assert values(fleet)[future.result(0).offset] == b"aside"
    assert combined(fleet)


def slept_through_a_collection(fleet: Fleet) -> Receipt:
    """While a follower sleeps, its append is stored by another's segment, which is merged and collected."""
    leader, follower = fleet.log(), fleet.log()
    leader.append(b"first")
    with fleet.aside(follower, lambda: follower.submit(b"aside")) as (future, looks):
        commit(leader, 9)
        upkeep = leader._internal.maintenance
        assert upkeep.compact(fleet.clock.now_ms(), bytes(16)) > 4
        assert upkeep.collect(fleet.clock.now_ms() + 200_000)
        assert [header.flags for header in combined(fleet)] in ([SegmentFlags.COLLECTED], [])
        looks.open()
        fleet.pass_time_until(future)
    receipt = future.result(0)
    assert [record.value for record in follower.read(receipt.offset, 1).records()] == [b"aside"]
    fleet.pass_time_until(follower.submit(b"goes on"))
    return receipt


def test_W15_an_append_is_found_in_what_collection_has_left(fleet: Fleet) -> None:
    receipt = slept_through_a_collection(fleet)
    assert values(fleet)[receipt.offset] == b"aside"
    assert values(fleet).count(b"aside") == 1
    assert values(fleet)[-1] == b"goes on"


def test_W15_without_the_ids_in_what_is_left_it_would_be_stored_twice(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remains, "collected", lambda header, extras: collected(header))
    slept_through_a_collection(fleet)
    assert values(fleet).count(b"aside") == 2


def test_W15_behind_a_fence_nobody_stores_what_was_put_aside_before_it(fleet: Fleet) -> None:
    leader, follower = fleet.log(), fleet.log()
    leader.append(b"first")
    with fleet.aside(follower, lambda: follower.submit(b"aside")) as (future, _):
        fleet.log(writer="exclusive", take_over=True).append(b"owned")
        assert len(fleet.pending(leader)) == 1
        later = fleet.log()
        commit(later, 12, b"later")
    with pytest.raises(Fenced, match="not stored"):
        future.result(PATIENCE_S)
    assert b"aside" not in values(fleet)
    assert len(fleet.pending(leader)) == 1


def test_W15_a_lost_answer_of_what_was_put_aside_and_a_lost_commit_store_it_once(fleet: Fleet) -> None:
    faulty = FaultyStore(fleet.objects)
    leader, follower = fleet.log(), fleet.log(faulty, probe_interval=0.001)
    leader.append(b"first")
    faulty.fail("put", prefix=follower._internal.paths.pending_prefix, with_=Fault.LOSE_ANSWER)
    with fleet.aside(follower, lambda: follower.submit(b"aside")) as (future, _):
        commit(leader, 3)
    faulty.fail("put", suffix=".seg", with_=Fault.LOSE_ANSWER)
    fleet.pass_time_until(future)
    assert values(fleet).count(b"aside") == 1
    assert values(fleet)[future.result(0).offset] == b"aside"


def test_W11_W15_a_numbered_append_that_another_has_stored_is_not_taken_along(fleet: Fleet) -> None:
    leader, follower, retrier = fleet.log(), fleet.log(), fleet.log()
    producer = Producer(follower, 17)
    producer.append(b"n-0", sequence=0)
    leader.append(b"first")
    with fleet.aside(follower, lambda: producer.submit(b"n-1", sequence=1)) as (future, looks):
        assert len(fleet.pending(leader)) == 1
        assert Producer(retrier, 17).append(b"n-1", sequence=1).offset == 2
        commit(leader, 12)
        assert not combined(fleet)
        looks.open()
        fleet.pass_time_until(future)
    assert future.result(0).offset == 2
    assert values(fleet).count(b"n-1") == 1


def test_W11_W15_numbered_appends_are_taken_along_and_recognised_afterwards(fleet: Fleet) -> None:
    leader, follower = fleet.log(), fleet.log()
    producer = Producer(follower, 17)
    producer.append(b"n-0", sequence=0)
    leader.append(b"first")
    with fleet.aside(follower, lambda: producer.submit([b"n-1", b"n-2"], sequence=1)) as (future, looks):
        commit(leader, 4)
        looks.open()
        assert future.result(PATIENCE_S).offset == 6
    assert len(combined(fleet)) == 1
    assert Producer(leader, 17).append([b"n-1", b"n-2"], sequence=1).offset == 6
    assert Producer(fleet.log(), 17).append(b"n-3", sequence=3).offset == 8
    assert values(fleet)[6:] == [b"n-1", b"n-2", b"n-3"]


class SilentOnce(WrappedStore):
    """From `begin` on, the first GET of a segment is not answered until the test ends."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.asked: list[str] = []
        self.ended = threading.Event()
        self.ended.set()

    def begin(self) -> None:
        self.asked.clear()
        self.ended.clear()

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation == "get" and key.endswith(".seg"):
            self.asked.append(key)
            if len(self.asked) == 1:
                self.ended.wait()
        return call()


def test_W16_a_place_whose_read_is_not_answered_is_asked_for_once_more(fleet: Fleet) -> None:
    """One read in a hundred takes three times as long, and a writer that is slow reads thirty places for each append."""
    silent = SilentOnce(fleet.objects)
    follower, leader = fleet.log(silent), fleet.log()
    commit(leader, 3)
    writer, seen = writer_of(follower), list[int]()
    cursor, pool = writer._cursor, writer._runtime.side_pool

    def saw(link: Link) -> bool:
        seen.append(link.header.base_offset)
        return len(seen) == 3

    silent.begin()
    try:
        reading = background(lambda: cursor.read(1, saw, collected=False, pool=pool, patience_s=0.0))
        assert reading.result(PATIENCE_S) == 3
        assert seen == [0, 1, 2]
        first = follower._internal.paths.segment(0)
        assert silent.asked[:2] == [first, first]
    finally:
        silent.ended.set()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_W11_W15_who_commits_for_all_is_killed_at_any_request_and_all_is_stored_once(after: bool) -> None:
    """Killed before a request is carried out, or right after: the follower's append goes with somebody else, and the next
    life of the dead one sends its own again."""
    died = list[int]()
    for request in range(14):
        fleet = Fleet(MemoryStore())
        dies = DiesAt(fleet.objects)
        leader, follower = fleet.log(dies), fleet.log()
        producer = Producer(leader, 17)
        producer.append(b"n-0", sequence=0)
        with fleet.aside(follower, lambda follower=follower: follower.submit(b"aside")) as (future, _):  # type: ignore[misc]
            dies.die_at(request, after=after)
            for number in range(1, 9):
                one = producer.submit(b"n-%d" % number, sequence=number)
                while not (dies.has_died() or one.done()):
                    wait([one], timeout=0.005)
            if dies.has_died():
                died.append(request)
                writer_of(leader).stop(Closed("killed"))
            again = Producer(fleet.log(), 17)
            retried = [again.append(b"n-%d" % number, sequence=number) for number in range(1, 9)]
            commit(again._log, 8)
        fleet.pass_time_until(future)
        stored = values(fleet)
        numbered = [b"n-%d" % number for number in range(1, 9)]
        others = [b"n-0", b"aside", *(b"leader-%d" % number for number in range(8))]
        assert sorted(stored) == sorted(numbered + others)
        assert stored[future.result(0).offset] == b"aside"
        assert [stored[one.offset] for one in retried] == numbered
        fleet.close()
    assert died[:6] == [0, 1, 2, 3, 4, 5]


# What is left


def test_W15_the_owner_deletes_what_was_stored(fleet: Fleet) -> None:
    leader, follower = fleet.log(), fleet.log()
    leader.append(b"first")
    with fleet.aside(follower, lambda: follower.submit(b"aside")) as (future, looks):
        commit(leader, 4)
        with fleet.ways[follower].hold("delete", after=True) as deletes:
            looks.open()
            future.result(PATIENCE_S)
            deletes.wait_held()
            assert fleet.pending(leader) == []


def test_W15_what_is_dead_is_swept_by_whoever_commits_and_by_gc_and_nothing_else_is(fleet: Fleet) -> None:
    leader = fleet.log()
    paths = leader._internal.paths
    names = [paths.pending(PendingName(born, b"d" * 16)) for born in (0, 5, 2 * PENDING_WINDOW)]
    commit(leader, PENDING_WINDOW + 1)
    for key in names:
        fleet.objects.put(key, b"whatever")
    store = fleet.stores[0]
    assert [item.key for item in store.collect_garbage(dry_run=True)] == names[:1]
    assert [item.key for item in store.collect_garbage()] == names[:1]
    assert fleet.pending(leader) == names[1:]
    commit(leader, 8)
    assert fleet.pending(leader) == names[2:]
    store.delete_topic(TOPIC)
    assert fleet.pending(leader) == []


def test_W15_what_cannot_be_read_there_changes_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    fleet = Fleet(LocalStore(root))
    leader = fleet.log()
    paths = leader._internal.paths
    leader.append(b"first")
    for key in (paths.pending(PendingName(1, b"d" * 16)), paths.pending_prefix + "of-a-later-release"):
        fleet.objects.put(key, b"?")
    commit(leader, 8)
    assert len(values(fleet)) == 9
    fleet.close()
    assert main(["verify", "--store", str(root)]) == 0


# What it costs, and every order of requests


def test_W15_a_writer_that_is_alone_commits_with_one_put_and_a_quarter_of_a_listing(fleet: Fleet) -> None:
    log = fleet.log()
    log.append(b"first")
    counts = {"put": 0, "get": 0, "list": 0, "delete": 0, "head": 0}
    way = fleet.ways[log]

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kw: Any) -> Any:
            counts[name] += 1
            return call(*args, **kw)

        return count

    for name in counts:
        setattr(way.inner, name, counted(name, getattr(way.inner, name)))
    commit(log, 40)
    assert counts == {"put": 40, "get": 0, "list": 10, "delete": 0, "head": 0}
    assert not combined(fleet)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lost race is enough to follow, and every commit looks for others."""
    monkeypatch.setattr(pace_module, "_LOSSES", 1)
    monkeypatch.setattr(pace_module, "_LOOK_EVERY", 1)


@pytest.mark.usefixtures("quiet", "hasty")
@pytest.mark.parametrize("seed", range(60))
def test_W04_W15_random_schedules_of_writers_that_commit_for_each_other(seed: int) -> None:
    run_writers(RandomChoices(seed), writers=3, appends=3, faults_max=12, reads_fail=True)


@pytest.mark.usefixtures("quiet", "hasty")
@pytest.mark.parametrize("seed", range(40))
def test_W11_W15_numbered_appends_of_writers_that_commit_for_each_other(seed: int) -> None:
    run_retries(RandomChoices(seed))
