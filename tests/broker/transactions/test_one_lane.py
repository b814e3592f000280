"""B14, the short cut: coordinator and partitions are in one lane. What a transaction costs there, and what becomes of it
when the coordinator's log, or a partition, turns out to be another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from broker_shim.transactions import transaction_shard
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.layout.broker import TRANSACTION_TOPIC
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import list_offset, make_topic
from tests.support.broker.transactions import (
    Transactor,
    again,
    committed_offset,
    committed_values,
    transactional_batch,
)

Start = Callable[..., LocalBroker]
NONE = Code.NONE
pytestmark = pytest.mark.parametrize("lanes", [1], ids=["lane"], indirect=True)


@pytest.fixture(autouse=True)
def however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two requests any time may pass on a busy machine."""
    monkeypatch.setattr(transaction_shard, "PROVED_FOR_S", float("inf"))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def first(store: MemoryStore, start_broker: Start) -> LocalBroker:
    return start_broker(store, node_id=1, offsets_partitions=1)


@pytest.fixture
def wire(first: LocalBroker) -> Iterator[Wire]:
    with Wire(first.port) as client:
        make_topic(client, partitions=2)
        yield client


def entries(store: MemoryStore) -> int:
    return sum(info.key.endswith(".seg") for info in store.list("lanes/"))


def warmed_up(wire: Wire) -> Transactor:
    """One that has committed a transaction in both partitions: what is done once is done."""
    producer = Transactor(wire)
    assert [producer.init(), producer.add("t", 0, 1)] == [NONE] * 2
    assert [producer.send(b"first", partition=p) for p in (0, 1)] == [NONE] * 2
    assert producer.add_offsets() is NONE
    assert producer.commit_offset(1) is NONE
    assert producer.end() is NONE
    return producer


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_B14_a_transaction_in_one_lane_is_two_entries(store: MemoryStore, wire: Wire, commit: bool) -> None:
    """One with the records, and that the partition is part of it; one with the decision, and the marker."""
    producer = warmed_up(wire)
    before = entries(store)
    assert producer.add("t", 0) is NONE
    assert entries(store) == before, "it is in memory"
    assert producer.send(*(b"%d" % number for number in range(100))) is NONE
    assert entries(store) == before + 1
    assert producer.end(commit=commit) is NONE
    assert entries(store) == before + 2
    wanted = [b"first", *(b"%d" % number for number in range(100) if commit)]
    assert committed_values(wire) == wanted, "its marker stands as soon as it is decided"
    assert producer.add("t", 0) is NONE
    assert entries(store) == before + 2, "and there is nothing left to do"


def test_B14_offsets_and_two_partitions_are_decided_with_one_entry(store: MemoryStore, wire: Wire) -> None:
    producer = warmed_up(wire)
    assert producer.add("t", 0, 1) is NONE
    assert [producer.send(b"more", partition=p) for p in (0, 1)] == [NONE] * 2
    assert producer.add_offsets() is NONE
    assert producer.commit_offset(7) is NONE
    assert committed_offset(wire, stable=False) == (NONE, 1)
    before = entries(store)
    assert producer.end() is NONE
    assert entries(store) == before + 1
    assert committed_offset(wire) == (NONE, 7)
    assert [committed_values(wire, partition=p) for p in (0, 1)] == [[b"first", b"more"]] * 2


def test_B14_a_transaction_that_was_begun_in_memory_is_lost_with_its_coordinator(
    store: MemoryStore, start_broker: Start, wire: Wire
) -> None:
    """The next one refuses its batches, and tells its producer that it is aborted; then it goes on, in a new epoch: the
    number of the batch that was refused is missing in the old one, where librdkafka would wait until its messages expire."""
    producer = warmed_up(wire)
    assert producer.add("t", 0) is NONE
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.wire = new
        assert producer.send(b"lost") is Code.UNKNOWN_PRODUCER_ID
        assert again(lambda: producer.end(commit=False)) is NONE
        assert producer.end() is Code.INVALID_TXN_STATE, "it is aborted"
        assert producer.init(again=True) is NONE
        assert producer.add("t", 0) is NONE
        assert producer.send(b"kept") is NONE
        assert producer.end() is NONE
        assert committed_values(new) == [b"first", b"kept"]


def test_B14_one_that_is_lost_behind_one_that_took_two_steps_is_told_from_it(
    first: LocalBroker, store: MemoryStore, start_broker: Start, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says that the one before is decided, and not that its markers stand: the next coordinator sends them again."""
    producer = warmed_up(wire)
    [shard] = first.server.broker.transactions.shards
    assert producer.add("t", 0) is NONE
    assert producer.send(b"second") is NONE
    with monkeypatch.context() as once:
        once.setattr(shard._markers, "at_once", lambda *_: False)
        assert producer.end() is NONE
    assert again(lambda: producer.add("t", 0)) is NONE
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.wire = new
        assert producer.send(b"lost") is Code.UNKNOWN_PRODUCER_ID
        assert again(lambda: producer.end(commit=False)) is NONE
        assert producer.init(again=True) is NONE
        assert producer.add("t", 0) is NONE
        assert producer.send(b"kept") is NONE
        assert producer.end() is NONE
        assert committed_values(new) == [b"first", b"second", b"kept"]


def test_B14_a_partition_that_was_added_in_memory_is_lost_with_the_coordinator(
    store: MemoryStore, start_broker: Start, wire: Wire
) -> None:
    """The transaction goes on, and its producer ends it: but in a new epoch, because the number of the batch that is refused
    is missing in this one."""
    producer = warmed_up(wire)
    assert producer.add("t", 0) is NONE
    assert producer.send(b"aborted") is NONE
    assert producer.add("t", 1) is NONE
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.wire = new
        assert again(lambda: producer.add("t", 0)) is NONE
        assert producer.send(b"lost", partition=1) is Code.UNKNOWN_PRODUCER_ID
        assert again(lambda: producer.end(commit=False)) is NONE
        assert again(lambda: producer.init(again=True)) is NONE
        assert producer.add("t", 0, 1) is NONE
        assert [producer.send(b"kept", partition=p) for p in (0, 1)] == [NONE] * 2
        assert producer.end() is NONE
        assert [committed_values(new, partition=p) for p in (0, 1)] == [[b"first", b"kept"]] * 2


def test_B14_what_was_committed_is_never_said_to_be_aborted(
    store: MemoryStore, start_broker: Start, wire: Wire
) -> None:
    """Also not by a coordinator that cannot know whether another transaction was begun since."""
    producer = warmed_up(wire)
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        producer.wire = new
        assert again(lambda: producer.end(commit=False)) is Code.INVALID_TXN_STATE
        assert producer.end() is NONE


def test_B14_a_batch_is_not_stored_without_the_coordinator_that_was_replaced(
    store: MemoryStore, start_broker: Start, wire: Wire
) -> None:
    """Another broker has the coordinator's log; the first one still has the partition, and does not know. If the batch were
    stored, a transaction would be open that nobody ends."""
    producer = warmed_up(wire)
    assert producer.add("t", 0) is NONE
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        assert Transactor(new, "somebody else").init() is NONE
        assert producer.send(b"zombie") is not NONE
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert committed_values(new) == [b"first"]
        assert list_offset(new, -1, isolation=1) == list_offset(new, -1), "nothing is open"


def test_B14_an_end_is_not_stored_by_a_coordinator_that_was_replaced(
    store: MemoryStore, start_broker: Start, wire: Wire
) -> None:
    """Neither the decision nor a marker. The next one aborts it, because its producer begins again."""
    producer = warmed_up(wire)
    assert producer.add("t", 0, 1) is NONE
    assert [producer.send(b"open", partition=p) for p in (0, 1)] == [NONE] * 2
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        assert Transactor(new, "somebody else").init() is NONE
        assert producer.end() is not NONE
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert [committed_values(new, partition=p) for p in (0, 1)] == [[b"first"]] * 2
        after = Transactor(new)
        assert again(after.init) is NONE
        assert [committed_values(new, partition=p) for p in (0, 1)] == [[b"first"]] * 2
        assert list_offset(new, -1, isolation=1) == list_offset(new, -1), "nothing is open"


def test_B14_an_end_goes_on_where_a_partition_was_taken(
    store: MemoryStore, start_broker: Start, wire: Wire
) -> None:
    """A partition of the transaction is another broker's: nothing is stored. The coordinator still has its log, and its
    producer, which asks again, hears that it is decided."""
    producer = warmed_up(wire)
    assert producer.add("t", 0, 1) is NONE
    assert [producer.send(b"both", partition=p) for p in (0, 1)] == [NONE] * 2
    second = start_broker(store, node_id=2, offsets_partitions=1)
    with Wire(second.port) as new:
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        raw = transactional_batch(b"x", producer_id=-1, epoch=-1, sequence=-1)
        assert new.produce("t", raw, partition=1).error_code != NONE, (
            "which takes the partition, and refuses it"
        )
        assert again(producer.end) is NONE
        assert [committed_values(new, partition=p) for p in (0, 1)] == [[b"first", b"both"]] * 2


def test_B14_two_batches_of_a_transaction_that_begins_are_stored_in_their_order(wire: Wire) -> None:
    """The second one comes while the first one is on its way with the record of the transaction."""
    producer = warmed_up(wire)
    assert producer.add("t", 0) is NONE
    numbers = []
    for sequence, value in enumerate((b"one", b"two", b"three"), start=1):
        raw = transactional_batch(
            value, producer_id=producer.producer_id, epoch=producer.epoch, sequence=sequence
        )
        numbers.append(producer.begin_raw(raw))
    assert [producer.ended_raw(number) for number in numbers] == [NONE] * 3
    assert producer.end() is NONE
    assert committed_values(wire) == [b"first", b"one", b"two", b"three"]


def test_B14_the_coordinators_log_is_compacted_between_ends(first: LocalBroker, wire: Wire) -> None:
    """A mirror of it is appended while transactions end: none is lost, and none is half there."""
    producer = warmed_up(wire)
    [shard] = first.server.broker.transactions.shards

    async def compact() -> None:
        shard.log._records_in_log = 10_000
        shard.log._compact_if_long()
        assert shard.log.compacting is not None

    for number in range(5):
        assert producer.add("t", 0) is NONE
        first.run(compact())
        assert producer.send(b"%d" % number) is NONE
        first.run(compact())
        assert again(producer.end) is NONE
        first.until(lambda: shard.log.compacting is None)
    assert again(lambda: producer.add("t", 0)) is NONE, (
        "which waits for markers, if the last end took two steps"
    )
    assert committed_values(wire) == [b"first", *(b"%d" % number for number in range(5))]
    assert first.log(TRANSACTION_TOPIC).low_watermark > 0
