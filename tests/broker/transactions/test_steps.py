"""B14, request by request: what a transaction shows at each step, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.codecs import ZSTD
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, list_offset, make_topic
from tests.support.broker.transactions import (
    Transactor,
    again,
    committed_offset,
    committed_values,
    fetch_committed,
    transactional_batch,
)

Start = Callable[..., LocalBroker]
NONE = Code.NONE


@pytest.fixture
def wire(broker: LocalBroker) -> Iterator[Wire]:
    with Wire(broker.port) as client:
        make_topic(client, partitions=2)
        yield client


def begun(wire: Wire, name: str = "tx", *partitions: int) -> Transactor:
    producer = Transactor(wire, name)
    assert producer.init() is NONE
    assert producer.add("t", *partitions) is NONE
    return producer


def test_B14_nothing_of_an_open_transaction_is_seen_nor_what_comes_behind_it(wire: Wire) -> None:
    wire.produce("t", batch(b"before"))
    producer = begun(wire)
    assert producer.send(b"one", b"two") is NONE
    wire.produce("t", batch(b"behind"))
    assert committed_values(wire) == [b"before"]
    answer = fetch_committed(wire, 1)
    assert (answer.error_code, answer.last_stable_offset, answer.high_watermark) == (NONE, 1, 4)
    assert list_offset(wire, -1, isolation=1) == 1, "the end is the last stable offset"
    assert list_offset(wire, -1) == 4
    assert wire.fetch("t", 0).last_stable_offset == 1, "who reads everything is told, too"
    assert producer.end() is NONE
    wait_until_stable(wire, 5)
    assert committed_values(wire) == [b"before", b"one", b"two", b"behind"]
    assert list_offset(wire, -1, isolation=1) == 5


def wait_until_stable(wire: Wire, offset: int, partition: int = 0) -> None:
    """A fetch at the stable end waits until a marker moves it."""
    while True:
        number = wire.send_fetch("t", offset - 1, partition=partition, isolation=1, wait_ms=5_000)
        if wire.fetched(11, number).last_stable_offset >= offset:
            return


def test_B14_a_waiting_reader_is_woken_by_the_marker(broker: LocalBroker, wire: Wire) -> None:
    producer = begun(wire)
    assert producer.send(b"one") is NONE
    with Wire(broker.port) as reader:
        waiting = reader.send_fetch("t", 0, isolation=1, wait_ms=60_000)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        assert producer.end() is NONE
        answer = reader.fetched(11, waiting)
    assert answer.last_stable_offset == 2
    assert answer.records


def test_B14_an_aborted_transaction_is_named_only_where_it_lies(wire: Wire) -> None:
    for number in range(3):
        producer = begun(wire, f"tx{number}")
        assert producer.send(b"%d" % number) is NONE
        assert producer.end(commit=number == 1) is NONE
        wait_until_stable(wire, 2 * (number + 1))
    assert committed_values(wire) == [b"1"]
    named = [fetch_committed(wire, offset).aborted_transactions for offset in (0, 2, 4, 5)]
    assert [[each.first_offset for each in some] for some in named] == [[0, 4], [4], [4], [4]]
    assert fetch_committed(wire, 6).aborted_transactions == []
    assert wire.fetch("t", 0).aborted_transactions is None


def test_B14_two_partitions_are_decided_together(wire: Wire) -> None:
    producer = begun(wire, "tx", 0, 1)
    assert producer.send(b"a") is NONE
    assert producer.send(b"b", partition=1) is NONE
    assert producer.end() is NONE
    for partition in (0, 1):
        wait_until_stable(wire, 2, partition)
    assert committed_values(wire) + committed_values(wire, partition=1) == [b"a", b"b"]


def test_B14_a_compressed_batch_that_is_checked_apart_opens_its_transaction(wire: Wire) -> None:
    producer = begun(wire)
    large = [bytes([number]) * 40_000 for number in range(60)]
    raw = transactional_batch(
        *large, producer_id=producer.producer_id, epoch=producer.epoch, sequence=0, codec_id=ZSTD
    )
    assert producer.send_raw(raw) is NONE
    assert committed_values(wire) == []
    assert producer.end() is NONE
    wait_until_stable(wire, 61)
    assert committed_values(wire) == large


def test_B14_batches_behind_a_first_one_that_waits_for_its_coordinator_are_in_order(wire: Wire) -> None:
    """As librdkafka and Java send them: five without waiting. The first one ever in a partition waits for a snapshot; those
    behind it were told that their number is out of order, which is fatal once the first one is acked."""
    producer = Transactor(wire)
    assert [producer.init(), producer.add()] == [NONE] * 2
    values = [b"%d" % number for number in range(5)]
    sent = [
        producer.begin_raw(
            transactional_batch(
                value, producer_id=producer.producer_id, epoch=producer.epoch, sequence=number
            )
        )
        for number, value in enumerate(values)
    ]
    assert [producer.ended_raw(number) for number in sent] == [NONE] * 5
    assert producer.end() is NONE
    assert again(producer.add) is NONE, "its marker is stored"
    assert committed_values(wire) == values


def test_B14_a_partition_that_is_not_part_of_it_takes_nothing(wire: Wire) -> None:
    producer = Transactor(wire)
    assert producer.init() is NONE
    assert producer.send(b"too early") is Code.INVALID_TXN_STATE
    assert producer.add("t", 0) is NONE
    assert producer.send(b"elsewhere", partition=1) is Code.INVALID_TXN_STATE
    assert producer.send(b"here") is NONE
    assert producer.end() is NONE
    wait_until_stable(wire, 2)
    assert producer.send(b"too late") is Code.INVALID_TXN_STATE, "nobody would ever end it"
    assert producer.send_raw(batch(b"no producer")) is NONE, "plain records need no transaction"
    assert wire.produce("t", transactional_batch(b"x", producer_id=9, epoch=0, sequence=0)).error_code == (
        Code.INVALID_RECORD
    ), "a transactional batch without a transactional id"


def test_B14_a_batch_outside_of_the_open_transaction_of_its_producer_is_refused(wire: Wire) -> None:
    from tests.support.broker import idempotence

    producer = begun(wire)
    assert producer.send(b"in it") is NONE
    plain = idempotence.batch(1, pid=producer.producer_id, epoch=producer.epoch)
    assert wire.produce("t", plain).error_code == Code.INVALID_TXN_STATE


def test_B14_ending_twice_is_ending_once_and_never_the_other_way(wire: Wire) -> None:
    producer = begun(wire)
    assert producer.send(b"one") is NONE
    assert [producer.end(), producer.end()] == [NONE, NONE]
    assert producer.end(commit=False) is Code.INVALID_TXN_STATE
    wait_until_stable(wire, 2)
    assert producer.end() is NONE
    assert producer.end(commit=False) is Code.INVALID_TXN_STATE
    assert committed_values(wire) == [b"one"]


def test_B14_a_producer_is_fenced_by_its_next_life(wire: Wire) -> None:
    old = begun(wire)
    assert old.send(b"old") is NONE
    new = Transactor(wire)
    assert new.init() is NONE
    assert new.epoch == old.epoch + 2, "one for the marker that fences it, one for the new life"
    assert old.send(b"more") is Code.INVALID_PRODUCER_EPOCH
    assert old.add() is Code.PRODUCER_FENCED
    assert old.end() is Code.PRODUCER_FENCED
    assert old.init(again=True) is Code.PRODUCER_FENCED
    assert new.add() is NONE
    assert new.send(b"new") is NONE
    assert new.end() is NONE
    wait_until_stable(wire, 4)
    assert committed_values(wire) == [b"new"]


def test_B14_an_old_client_is_told_of_the_fence_by_the_code_it_knows(wire: Wire) -> None:
    old, new = Transactor(wire), Transactor(wire)
    assert [old.init(), new.init()] == [NONE, NONE]
    assert old.init(version=3, again=True) is Code.INVALID_PRODUCER_EPOCH


def test_B14_a_producer_goes_on_in_a_new_epoch_and_may_ask_twice(wire: Wire) -> None:
    """KIP-360: its answer was lost, so it asks again with what it has."""
    producer = begun(wire)
    assert producer.send(b"one") is NONE
    assert producer.end(commit=False) is NONE
    wait_until_stable(wire, 2)
    before = producer.epoch
    assert producer.init(again=True) is NONE
    assert producer.epoch == before + 1
    producer.epoch = before
    assert producer.init(again=True) is NONE
    assert producer.epoch == before + 1
    assert producer.add() is NONE
    assert producer.send(b"two") is NONE
    assert producer.end() is NONE
    wait_until_stable(wire, 4)
    assert committed_values(wire) == [b"two"]


def test_B14_a_time_out_that_makes_no_sense_is_refused(wire: Wire) -> None:
    assert Transactor(wire, timeout_ms=0).init() is Code.INVALID_TRANSACTION_TIMEOUT
    assert Transactor(wire, timeout_ms=10**9).init() is Code.INVALID_TRANSACTION_TIMEOUT


def test_B14_the_broker_aborts_what_takes_too_long(broker: LocalBroker, wire: Wire) -> None:
    producer = begun(wire)
    assert producer.send(b"slow") is NONE
    wire.produce("t", batch(b"behind"))
    now = broker.server.broker.transactions.now_ms()
    broker.server.broker.transactions.now_ms = lambda: now + 59_000
    assert committed_values(wire) == []
    broker.server.broker.transactions.now_ms = lambda: now + 61_000
    wait_until_stable(wire, 3)
    assert committed_values(wire) == [b"behind"]
    assert producer.end() is Code.PRODUCER_FENCED
    assert producer.send(b"more") is Code.INVALID_PRODUCER_EPOCH
    assert producer.init() is NONE, "its next life begins"


def test_B14_offsets_of_a_transaction_are_seen_when_it_is_committed(wire: Wire) -> None:
    producer = Transactor(wire)
    assert producer.init() is NONE
    assert producer.commit_offset(3) is Code.INVALID_TXN_STATE, "the group is not part of it yet"
    assert producer.add_offsets() is NONE
    assert producer.commit_offset(3) is NONE
    assert committed_offset(wire) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    assert committed_offset(wire, stable=False) == (NONE, -1)
    assert producer.end() is NONE
    assert producer.add_offsets() is NONE, "which waits for the markers of the one before"
    assert committed_offset(wire) == (NONE, 3)
    assert producer.commit_offset(7) is NONE
    assert producer.end(commit=False) is NONE
    assert producer.add_offsets() is NONE
    assert committed_offset(wire) == (NONE, 3)


def test_B14_everything_is_there_after_a_restart(start_broker: Start) -> None:
    """Open, committed and aborted transactions, pending offsets, epochs: another broker knows them from the store."""
    store = MemoryStore()
    first = start_broker(store)
    with Wire(first.port) as wire:
        make_topic(wire)
        for name, commit in (("committed", True), ("aborted", False)):
            producer = begun(wire, name)
            assert producer.send(name.encode()) is NONE
            assert producer.end(commit=commit) is NONE
        is_open = begun(wire, "open")
        assert is_open.send(b"open") is NONE
        assert is_open.add_offsets() is NONE
        assert is_open.commit_offset(5) is NONE
    second = start_broker(store, node_id=2)
    with Wire(second.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert committed_values(wire) == [b"committed"], "read before anybody has taken the partition"
        assert list_offset(wire, -1, isolation=1) == 4
        assert committed_offset(wire) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
        wire.produce("t", batch(b"behind"))
        assert committed_values(wire) == [b"committed"]
        is_open.wire = wire
        assert is_open.send(b"more") is NONE
        assert is_open.end() is NONE
        wait_until_stable(wire, 8)
        assert committed_values(wire) == [b"committed", b"open", b"behind", b"more"]
        assert is_open.add_offsets() is NONE
        assert committed_offset(wire) == (NONE, 5)


def test_B14_admins_see_transactions_and_producers(wire: Wire) -> None:
    producer = begun(wire, "seen")
    assert producer.send(b"one") is NONE
    [found] = wire.ask(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["seen"]).transaction_states
    assert (found.transaction_state, found.producer_id) == ("Ongoing", producer.producer_id)
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", [0])]
    listed = wire.ask(Api.LIST_TRANSACTIONS, 1, state_filters=["Ongoing", "Nonsense"])
    assert [each.transactional_id for each in listed.transaction_states] == ["seen"]
    assert listed.unknown_state_filters == ["Nonsense"]
    assert not wire.ask(Api.LIST_TRANSACTIONS, 1, duration_filter=10**9).transaction_states
    topics = [{"name": "t", "partition_indexes": [0]}]
    [row] = wire.ask(Api.DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions
    [active] = row.active_producers
    assert (active.producer_id, active.last_sequence, active.current_txn_start_offset) == (
        producer.producer_id,
        0,
        0,
    )


def test_B14_an_admin_ends_a_transaction_that_hangs(wire: Wire) -> None:
    producer = begun(wire)
    assert producer.send(b"one") is NONE
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": False,
        "coordinator_epoch": 1,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    answer = wire.ask(Api.WRITE_TXN_MARKERS, 1, markers=[marker])
    assert answer.markers[0].topics[0].partitions[0].error_code == NONE
    assert list_offset(wire, -1, isolation=1) == 2
    assert committed_values(wire) == []


def test_B14_markers_are_no_records_for_embedded_readers(broker: LocalBroker, wire: Wire) -> None:
    producer = begun(wire)
    assert producer.send(b"one", b"two") is NONE
    assert producer.end() is NONE
    wait_until_stable(wire, 3)
    wire.produce("t", batch(b"behind"))
    log = broker.log("t")
    assert [(each.offset, each.value) for each in log.records()] == [(0, b"one"), (1, b"two"), (3, b"behind")]
    assert log.lost_ranges() == []
    table = broker.server.store.topic("t").to_arrow()
    assert table.column("offset").to_pylist() == [0, 1, 3]
    assert table.column("value").to_pylist() == [b"one", b"two", b"behind"]
