"""Consumers that wait: how their waits end, and what a fetch that is asked again and again may take for granted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from broker_shim.auth.acls import Acl, Operation, Pattern, Permission, Resource
from broker_shim.net.deadlines import GRID_S, GRID_SHARE, Deadlines
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, owned, values

Start = Callable[..., LocalBroker]


@dataclass
class Timer:
    when: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class HandLoop:
    """An event loop whose time the test moves."""

    now: float = 1000.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, function: Callable[..., None], *arguments: object) -> Timer:
        timer = Timer(when, lambda: function(*arguments))
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> int:
        """Let time pass; returns how often the loop had to wake up."""
        self.now += seconds
        due = [timer for timer in self.timers if timer.when <= self.now]
        self.timers = [timer for timer in self.timers if timer.when > self.now]
        for timer in due:
            if not timer.cancelled:
                timer.call()
        return sum(not timer.cancelled for timer in due)


@dataclass(eq=False)
class Waiter:
    ended: int = 0

    def time_up(self) -> None:
        self.ended += 1


def deadlines_on(loop: HandLoop) -> Deadlines:
    return Deadlines(cast(Any, loop))


@pytest.mark.parametrize("wait_s", [0.0, 0.001, 0.01, 0.1, 0.5, 30.0])
def test_a_wait_ends_after_its_time_and_at_most_a_sixteenth_later(wait_s: float) -> None:
    loop = HandLoop()
    waits = deadlines_on(loop)
    for _ in range(100):
        loop.advance(0.00137)  # every place on the grid
        waiter = Waiter()
        waits.add(waiter, wait_s)
        assert loop.advance(max(wait_s - 1e-6, 0.0)) == 0 or wait_s == 0
        assert waiter.ended == (wait_s == 0)
        loop.advance(min(GRID_S, wait_s / GRID_SHARE) + 2e-6)
        assert waiter.ended == 1
    assert len(waits) == 0


def test_a_hundred_waits_that_began_at_different_moments_end_in_few_wake_ups() -> None:
    loop = HandLoop()
    waits = deadlines_on(loop)
    waiters = [Waiter() for _ in range(100)]
    for waiter in waiters:
        waits.add(waiter, 0.5)
        loop.advance(0.005)
    wake_ups = sum(loop.advance(0.001) for _ in range(600))
    assert [waiter.ended for waiter in waiters] == [1] * 100
    assert wake_ups <= 0.5 / GRID_S + 1


def test_who_was_answered_early_is_not_called_and_leaves_no_timer() -> None:
    loop = HandLoop()
    waits = deadlines_on(loop)
    first, second = Waiter(), Waiter()
    place = waits.add(first, 0.5)
    assert waits.add(second, 0.5) == place
    waits.remove(first, place)
    assert len(waits) == 1
    waits.remove(second, place)
    assert len(waits) == 0
    assert loop.advance(1.0) == 0
    assert (first.ended, second.ended) == (0, 0)


def test_the_same_fetch_again_brings_what_was_appended_and_trimmed_meanwhile(broker: LocalBroker) -> None:
    with Wire(broker.port) as client, Wire(broker.port) as writer:
        owned(writer, broker)
        for _ in range(3):
            assert values(client.fetch("t", 1)) == []
        writer.produce("t", batch(b"second"))
        for _ in range(2):
            answer = client.fetch("t", 1)
            assert values(answer) == [(1, b"second")]
            assert (answer.high_watermark, answer.log_start_offset) == (2, 0)
        partitions = [{"partition_index": 0, "offset": 2}]
        writer.ask(Api.DELETE_RECORDS, 1, topics=[{"name": "t", "partitions": partitions}], timeout=10_000)
        answer = client.fetch("t", 1)
        assert answer.error_code == Code.OFFSET_OUT_OF_RANGE
        assert answer.log_start_offset == 2


def test_the_same_fetch_again_of_a_topic_made_again_reads_the_new_one(broker: LocalBroker) -> None:
    with Wire(broker.port) as client, Wire(broker.port) as admin:
        owned(admin, broker)
        assert values(client.fetch("t", 0)) == [(0, b"first")]
        gone = admin.ask(Api.DELETE_TOPICS, 4, topic_names=["t"], timeout=10_000)
        assert gone.responses[0].error_code == Code.NONE
        assert client.fetch("t", 0).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        make_topic(admin)
        assert admin.produce("t", batch(b"of the new one")).base_offset == 0
        assert values(client.fetch("t", 0)) == [(0, b"of the new one")]


def test_the_same_fetch_again_of_a_partition_that_another_broker_leads_now_is_refused(
    start_broker: Start,
) -> None:
    first = start_broker(node_id=1)
    with Wire(first.port) as client, Wire(first.port) as writer:
        owned(writer, first)
        assert values(client.fetch("t", 1)) == []
        second = start_broker(first.server.store.objects, node_id=2)
        with Wire(second.port) as newcomer:
            assert newcomer.produce("t", batch(b"there")).base_offset == 1
        assert writer.produce("t", batch(b"here")).error_code == Code.NOT_LEADER_OR_FOLLOWER
        assert client.fetch("t", 1).error_code == Code.NOT_LEADER_OR_FOLLOWER


def test_the_same_fetch_again_after_the_right_to_read_was_withdrawn_is_refused(start_broker: Start) -> None:
    broker = start_broker(acls=True)
    authorizer = broker.server.broker.authorizer
    everything = [
        Acl(resource, name, Pattern.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
        for resource, name in ((Resource.TOPIC, "*"), (Resource.CLUSTER, "kafka-cluster"))
    ]
    broker.call(lambda: setattr(authorizer, "rules", frozenset(everything)))
    with Wire(broker.port) as client, Wire(broker.port) as writer:
        owned(writer, broker)
        for _ in range(2):
            assert values(client.fetch("t", 0)) == [(0, b"first")]
        broker.call(lambda: setattr(authorizer, "rules", frozenset()))
        answer = client.fetch("t", 0)
        assert answer.error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert values(answer) == []


def test_what_was_fetched_is_not_kept_for_the_case_that_it_is_asked_for_again(broker: LocalBroker) -> None:
    with Wire(broker.port) as client, Wire(broker.port) as writer:
        make_topic(writer)
        assert writer.produce("t", batch(b"x" * 100_000)).base_offset == 0
        waiting = client.send_fetch("t", 1, wait_ms=600_000)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        writer.produce("t", batch(b"x" * 100_000))
        assert len(values(client.fetched(11, waiting))) == 1
        remembered = broker.call(lambda: list(broker.server.broker._fetch.kept._kept))
        assert [entry.data.parts for fetch in remembered for entry in fetch._entries.values()] == [()]
