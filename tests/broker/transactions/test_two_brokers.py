"""B14 with several brokers: a transaction spans partitions of two, a broker goes in the middle, a former one wakes up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from broker_shim.transactions import transaction_shard
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.errors import Closed, Fenced
from logstore.format.batches.markers import Marker
from logstore.format.batches.record import Record
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import list_offset, make_topic
from tests.support.broker.transactions import Moved, Transactor, again, committed_values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
CLUSTER: dict[str, Any] = {"heartbeat_interval": 0.05, "heartbeat_timeout": 60.0}
PARTITIONS = 6
NONE = Code.NONE


def both_know_each_other(*brokers: LocalBroker) -> None:
    for broker in brokers:
        cluster = broker.server.broker.cluster
        broker.until(lambda each=cluster: len(each.view.nodes) == len(brokers))  # type: ignore[misc]
        broker.until(
            lambda each=cluster: each.leads(*next(p for p in places() if each.leader(*p) == each.me.node_id))  # type: ignore[misc]
        )


def places() -> list[tuple[str, int]]:
    return [("t", partition) for partition in range(PARTITIONS)]


def read_committed(address: str, ends: int) -> list[bytes]:
    options = {"bootstrap.servers": address, "group.id": f"g-{time.monotonic()}", "log_level": "0"}
    options |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer(options)
    consumer.subscribe(["t"])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while found.count(b"end") < ends:
            assert time.monotonic() < deadline, f"only {found} came"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


def test_B14_a_transaction_spans_the_partitions_of_two_brokers(start_broker: Start) -> None:
    """The coordinator asks the other broker for its markers, and that one asks the coordinator about first batches."""
    store = MemoryStore()
    first = start_broker(store, node_id=1, **CLUSTER)
    second = start_broker(store, node_id=2, **CLUSTER)
    both_know_each_other(first, second)
    leaders = {first.server.broker.cluster.leader(*place) for place in places()}
    assert leaders == {1, 2}, "both lead some"
    with Wire(first.port) as wire:
        make_topic(wire, partitions=PARTITIONS)
    options = {"bootstrap.servers": second.address, "transactional.id": "tx", "log_level": 0}
    producer = confluent_kafka.Producer(options)
    producer.init_transactions(PATIENCE_S)
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("t", b"%d-%d" % (number, partition), partition=partition)
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("t", b"end", partition=partition)
    producer.commit_transaction(PATIENCE_S)
    found = read_committed(first.address, PARTITIONS)
    wanted = [b"%d-%d" % (number, partition) for number in (0, 2) for partition in range(PARTITIONS)]
    assert sorted(value for value in found if value != b"end") == sorted(wanted)
    assert any(broker.server.broker.counters.requests[Api.WRITE_TXN_MARKERS] for broker in (first, second))


@contextmanager
def replaced(start_broker: Start, sent: bytes) -> Iterator[tuple[MemoryStore, LocalBroker, Transactor, Wire]]:
    """Two brokers. The first has an open transaction with one batch; the second has taken everything over, and the first,
    which lives, does not know. Gives the store, the first broker, its producer, and a connection to the second."""
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as old:
        make_topic(old)
        producer = Transactor(old)
        assert [producer.init(), producer.add(), producer.send(sent)] == [NONE] * 3
        second = start_broker(store, node_id=2)
        with Wire(second.port) as new:
            new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            yield store, first, producer, new


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_B14_another_broker_takes_over_in_the_middle(start_broker: Start, commit: bool) -> None:
    """The first one still lives, and does not know: what it says about the transaction no longer counts."""
    with replaced(start_broker, b"one") as (_, _, producer, new):
        old, producer.wire = producer.wire, new
        assert producer.send(b"two") is NONE, "the second one has read that it goes on"
        assert producer.end(commit=commit) is NONE
        assert producer.add() is NONE, "its markers are stored"
        producer.wire = old
        assert producer.end(commit=not commit) is not NONE
        assert producer.send(b"three") is not NONE
        assert committed_values(new) == ([b"one", b"two"] if commit else [])


def test_B14_a_reader_is_not_shown_what_comes_while_it_is_answered(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for open transactions and the read a worker learns of more: as when it takes the partition."""
    store = MemoryStore()
    first, second = (start_broker(store, node_id=number) for number in (1, 2))
    with Wire(first.port) as old, Wire(second.port) as new:
        make_topic(old)
        producer = Transactor(old)
        assert [producer.init(), producer.add(), producer.send(b"kept"), producer.end()] == [NONE] * 4
        assert producer.add() is NONE, "its markers are stored"
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert committed_values(new) == [b"kept"]
        assert producer.send(b"open") is NONE
        inner = second.log("t")._internal
        read_cached = inner.read_cached
        grown: list[int] = []

        def read_of_a_log_that_grows(*args: Any, **options: Any) -> Any:
            inner.refresh()
            second.log("t").read(0, visibility="durable")
            grown.append(second.log("t").durable_high_watermark)
            return read_cached(*args, **options)

        monkeypatch.setattr(inner, "read_cached", read_of_a_log_that_grows)
        assert committed_values(new) == [b"kept"]
        assert grown, "the log has grown in between"


def test_B14_a_broker_whose_writer_has_stopped_does_not_answer_by_what_it_knew(start_broker: Start) -> None:
    """It has not written to the partition since it was taken, so nobody has told it; but its log follows the new writer."""
    store = MemoryStore()
    first, second = (start_broker(store, node_id=number) for number in (1, 2))
    with Wire(first.port) as old, Wire(second.port) as new:
        make_topic(old)
        producer = Transactor(old)
        assert [producer.init(), producer.add(), producer.send(b"kept"), producer.end()] == [NONE] * 4
        assert producer.add() is NONE, "its markers are stored"
        log = first.log("t")
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        other = Transactor(new, "other")
        assert [other.init(), other.add(), other.send(b"open")] == [NONE] * 3
        with pytest.raises(Fenced):  # past the broker's own queue, which would be told
            log.submit([Record(b"meets the fence")], ack="durable").result(PATIENCE_S)
        log.refresh()
        assert log.durable_high_watermark > 2, "it follows the new writer"
        log.read(0, visibility="durable")
        try:
            assert committed_values(old) == [b"kept"]
        except Moved:
            assert not first.call(lambda: first.server.broker.cluster.leads("t", 0))


def test_B14_a_coordinator_that_was_replaced_does_not_say_that_a_later_transaction_is_committed(
    start_broker: Start,
) -> None:
    """It knows one of this producer that is: the one before."""
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as old:
        make_topic(old)
        producer = Transactor(old)
        assert [producer.init(), producer.add(), producer.send(b"one"), producer.end()] == [NONE] * 4
        assert producer.add() is NONE, "its markers are stored"
        assert producer.end() is NONE
        second = start_broker(store, node_id=2)
        with Wire(second.port) as new:
            new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            producer.wire = new
            assert again(producer.add) is NONE
            assert producer.send(b"two") is NONE
            producer.wire = old
            assert producer.end() is not NONE
            assert committed_values(new) == [b"one"]
            producer.wire = new
            assert again(producer.end) is NONE
            assert again(producer.add) is NONE, "its markers are stored"
            assert committed_values(new) == [b"one", b"two"]


def test_B14_a_marker_that_is_repeated_late_ends_no_later_transaction(start_broker: Start) -> None:
    """As a former coordinator sends it, or a connection that was thought lost delivers it."""
    broker = start_broker()
    with Wire(broker.port) as wire:
        make_topic(wire)
        producer = Transactor(wire)
        assert producer.init() is NONE
        assert producer.add() is NONE
        assert producer.send(b"first") is NONE
        [shard] = broker.server.broker.transactions.shards
        known = broker.call(lambda: shard.transactions["tx"])
        marker = Marker(known.producer_id, known.epoch, True, shard.log.epoch, known.started_ms)
        assert producer.end() is NONE
        assert producer.add() is NONE
        assert producer.send(b"second") is NONE
        sender = broker.server.broker.transactions.markers
        assert broker.run(sender.write_here(marker, "t", 0)) is NONE
        assert committed_values(wire) == [b"first"], "the second one is still open"
        assert producer.end(commit=False) is NONE
        assert producer.add() is NONE
        assert committed_values(wire) == [b"first"]


def until_stable(wire: Wire, offset: int) -> None:
    """A reader that waits, and asks nobody but the partition."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        number = wire.send_fetch("t", offset - 1, isolation=1, wait_ms=500)
        if wire.fetched(11, number).last_stable_offset >= offset:
            return
    raise AssertionError("the transaction hangs")


def test_B14_a_decision_is_carried_out_though_only_readers_come(start_broker: Start) -> None:
    """The coordinator decides, and is gone before it tells anybody; its producer does not come back either."""
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as wire:
        decided_and_not_told(first, wire)
    second = start_broker(store, node_id=2)
    with Wire(second.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        until_stable(wire, 2)
        assert committed_values(wire) == [b"decided"]


def test_B14_what_nobody_ends_times_out_though_only_readers_come(start_broker: Start) -> None:
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as wire:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add(), producer.send(b"open")] == [NONE] * 3
    second = start_broker(store, node_id=2)
    later = second.server.broker.transactions.now_ms() + 61_000
    second.server.broker.transactions.now_ms = lambda: later
    with Wire(second.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        until_stable(wire, 2)
        assert committed_values(wire) == []


def decided_and_not_told(broker: LocalBroker, wire: Wire) -> Transactor:
    make_topic(wire)
    producer = Transactor(wire)
    assert [producer.init(), producer.add(), producer.send(b"decided")] == [NONE] * 3

    async def nobody_is_told(marker: Marker, places: frozenset[tuple[str, int]]) -> None:
        raise RuntimeError("gone before the first marker")

    [shard] = broker.server.broker.transactions.shards
    shard._markers.at_once = lambda *_: False  # type: ignore[method-assign]
    shard._markers.send = nobody_is_told  # type: ignore[method-assign]
    assert producer.end() is NONE
    assert committed_values(wire) == []
    return producer


def test_B14_a_decision_is_carried_out_by_whoever_comes_next(start_broker: Start) -> None:
    """The same, and the producer comes back."""
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as wire:
        producer = decided_and_not_told(first, wire)
    second = start_broker(store, node_id=2)
    with Wire(second.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.wire = wire
        assert producer.add() is NONE
        assert committed_values(wire) == [b"decided"]


def test_B14_the_next_transaction_is_recorded_and_nobody_was_told_of_the_one_before(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is gone before the markers and before its answer. Its successor tells them; the producer goes on."""
    monkeypatch.setattr(transaction_shard, "MARKER_PATIENCE_S", 0.0)
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as wire:
        producer = decided_and_not_told(first, wire)
        assert producer.add() is Code.CONCURRENT_TRANSACTIONS, "nobody goes on before the markers stand"
        assert producer.end() is Code.CONCURRENT_TRANSACTIONS, "it is not clear what that would end"
    second = start_broker(store, node_id=2)
    with Wire(second.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.wire = wire
        assert again(producer.add) is NONE
        assert producer.send(b"next") is NONE
        assert committed_values(wire) == [b"decided"]
        assert producer.end() is NONE
        assert again(producer.add) is NONE, "its markers are stored"
        assert committed_values(wire) == [b"decided", b"next"]


def test_B14_a_broker_that_was_replaced_refuses_nothing_for_what_it_remembers(start_broker: Start) -> None:
    """The first one has the old life's transaction open, and has written nothing since another took everything over. What
    it would say ends the new life's transaction for its producer; it looks first, and sends the producer on."""
    with replaced(start_broker, b"old") as (_, _, former, new):
        old = former.wire
        producer = Transactor(new)
        while (code := producer.init()) is Code.CONCURRENT_TRANSACTIONS:
            pass
        assert [code, producer.add()] == [NONE] * 2
        producer.wire = old
        assert producer.send(b"new") is Code.NOT_LEADER_OR_FOLLOWER
        producer.wire = new
        assert producer.send(b"new") is NONE
        assert producer.end() is NONE
        assert producer.add() is NONE
        assert committed_values(new) == [b"new"]


def test_B14_a_coordinator_that_was_replaced_lets_no_batch_in(start_broker: Start) -> None:
    """It believes that a transaction goes on which another one has aborted; the partition is taken back, so its state is
    newer than what this one remembers."""
    with replaced(start_broker, b"old") as (store, first, former, new):
        after = Transactor(new)
        while after.init() is Code.CONCURRENT_TRANSACTIONS:
            pass
        hosted = first.server.broker.partitions.hosted("t", 0)
        assert hosted is not None

        async def taken_back() -> None:
            hosted.lose(Closed("as after an error"))
            await hosted.take()

        first.run(taken_back())
        assert former.send(b"zombie") is not NONE
    third = start_broker(store, node_id=3)
    with Wire(third.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        until_stable(wire, list_offset(wire, -1))
        assert committed_values(wire) == []


def test_B09_the_first_of_three_brokers_learns_who_has_replaced_the_second(start_broker: Start) -> None:
    """None of them has heartbeats. The first one was told of the second; a client that knows no other asks it again."""
    store = MemoryStore()
    first = start_broker(store, node_id=1)
    with Wire(first.port) as wire:
        make_topic(wire)
        assert Transactor(wire, "a").init() is NONE
    for node_id in (2, 3):
        later = start_broker(store, node_id=node_id)
        with Wire(later.port) as wire:
            wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            assert Transactor(wire, "a").init() is NONE
            with Wire(first.port) as old:
                Transactor(old, "a").init()  # which meets the fence, if it has not before
                deadline = time.monotonic() + PATIENCE_S
                while old.ask(Api.FIND_COORDINATOR, 3, key="a", key_type=1).node_id != node_id:
                    assert time.monotonic() < deadline, "it still names the one before"
