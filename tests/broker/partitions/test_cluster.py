"""B09: who leads, computed by brokers that share nothing but the store; time is moved by hand."""

from __future__ import annotations

from broker_shim.partitions.cluster import NOBODY, Cluster, Node, rendezvous
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import FaultyStore

PLACES = [("t", index) for index in range(200)]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def node(number: int, started_ms: int = 0) -> Node:
    return Node(number, "127.0.0.1", 9000 + number, f"life-{number}-{started_ms}", started_ms)


def join(store: MemoryStore | FaultyStore, time: Time, number: int, *, interval: float = 1.0) -> Cluster:
    started = Node(
        number, "127.0.0.1", 9000 + number, f"life-{number}-{time.now}", int(time.now * 1000) + number
    )
    cluster = Cluster(store, started, interval_s=interval, timeout_s=6.0, monotonic=time)
    cluster.adopt(cluster.register())
    return cluster


def led(cluster: Cluster) -> set[tuple[str, int]]:
    return {place for place in PLACES if cluster.leads(*place)}


def test_B09_brokers_that_see_each_other_share_the_partitions_without_overlap() -> None:
    store, time = MemoryStore(), Time()
    one = join(store, time, 1)
    assert led(one) == set(PLACES)
    two = join(store, time, 2)
    assert led(two) == set(), "a newcomer waits until the others have seen it"
    time.now = 1.0
    one.adopt(one.beat())
    two.adopt(two.beat())
    time.now = 2.0
    assert led(one) | led(two) == set(PLACES)
    assert not led(one) & led(two)
    assert 60 < len(led(one)) < 140


def test_B09_a_silent_broker_loses_its_partitions_after_the_timeout_and_not_before() -> None:
    store, time = MemoryStore(), Time()
    one, two = join(store, time, 1), join(store, time, 2)
    for second in range(1, 7):
        time.now = float(second)
        two.adopt(two.beat())
    assert set(two.view.nodes) == {1, 2}
    time.now = 6.1
    two.adopt(two.beat())
    assert set(two.view.nodes) == {2}
    assert led(two) == set(PLACES)
    assert led(one) == set(), "it could not say that it lives, so it no longer believes that it leads"


def test_B09_a_broker_that_says_good_bye_is_replaced_at_once() -> None:
    store, time = MemoryStore(), Time()
    one, two = join(store, time, 1), join(store, time, 2)
    one.leave()
    time.now = 2.5
    two.adopt(two.beat())
    assert led(two) == set(PLACES)


def test_B09_only_the_share_of_the_one_who_left_moves() -> None:
    three = {number: node(number) for number in (1, 2, 3)}
    two = {number: node(number) for number in (1, 2)}
    for index in range(300):
        before, after = rendezvous(three, f"t/{index}"), rendezvous(two, f"t/{index}")
        assert before in (after, 3)


def test_B09_a_second_broker_with_the_same_id_puts_the_first_one_out() -> None:
    store, time = MemoryStore(), Time()
    old = join(store, time, 1)
    time.now = 1.0
    new = join(store, time, 1)
    old.adopt(old.beat())
    new.adopt(new.beat())
    assert old.replaced
    assert led(old) == set()
    assert led(new) == set(PLACES)


def test_B09_a_heartbeat_whose_answer_was_lost_is_not_taken_for_a_rival() -> None:
    from logstore.testing import Fault

    store, time = FaultyStore(MemoryStore(), seed=1), Time()
    one = join(store, time, 1)
    store.fail("put", times=1, with_=Fault.LOSE_ANSWER)
    one.adopt(one.beat())
    assert not one.replaced
    assert led(one) == set(PLACES)


def test_B09_alone_a_fenced_broker_points_to_the_one_that_came_after_it() -> None:
    store, time = MemoryStore(), Time()
    one = join(store, time, 1, interval=0.0)
    assert led(one) == set(PLACES)
    one.fenced("t", 0)
    assert one.leader("t", 0) == NOBODY
    time.now = 1.0
    join(store, time, 2, interval=0.0)
    one.adopt(one.look_around())
    assert one.leader("t", 0) == 2
    assert one.leads("t", 1), "what nobody has taken stays"
    time.now = 1000.0
    one.adopt(one.look_around())
    assert one.leader("t", 0) == 2


def test_B09_alone_what_no_broker_has_taken_stays_led() -> None:
    """A service or the command line has written there. It leads nothing, so nobody would."""
    store, time = MemoryStore(), Time()
    join(store, time, 7, interval=0.0)  # has died, and did not sign off
    time.now = 1.0
    one = join(store, time, 1, interval=0.0)
    one.fenced("t", 0)
    assert not one.leads("t", 0), "not before it has looked who is there"
    one.adopt(one.look_around())
    assert one.leads("t", 0)


def test_B09_alone_a_newcomer_that_is_gone_again_leaves_what_it_had_taken() -> None:
    store, time = MemoryStore(), Time()
    one = join(store, time, 1, interval=0.0)
    time.now = 1.0
    two = join(store, time, 2, interval=0.0)
    one.fenced("t", 0)
    one.adopt(one.look_around())
    assert one.leader("t", 0) == 2
    two.leave()
    one.fenced("t", 1)
    one.adopt(one.look_around())
    assert led(one) == set(PLACES)


def test_B09_alone_a_newcomer_with_the_same_id_is_found_when_it_fences() -> None:
    """Two brokers that were given one id would take the partitions from each other for ever."""
    store, time = MemoryStore(), Time()
    one = join(store, time, 1, interval=0.0)
    time.now = 1.0
    two = join(store, time, 1, interval=0.0)
    one.fenced("t", 0)
    one.adopt(one.look_around())
    assert (one.replaced, led(one)) == (True, set())
    two.adopt(two.look_around())
    assert (two.replaced, led(two)) == (False, set(PLACES))


def test_B09_alone_and_idle_no_request_is_made() -> None:
    store, time = FaultyStore(MemoryStore(), seed=1), Time()
    one = join(store, time, 1, interval=0.0)
    store.forget_calls()
    time.now = 10_000.0
    assert led(one) == set(PLACES)
    assert store.calls == []
