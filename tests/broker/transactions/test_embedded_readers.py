"""B14: who reads the store itself, with `visibility="committed"`, sees what a `read_committed` consumer sees."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest

import logstore
from broker_shim.wire.codes import Code
from logstore.objects import LocalStore, ObjectStore
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.confluent_transactions import read, transactional
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor, again, committed_values
from tests.support.patience import PATIENCE_S

StartBroker = Callable[..., LocalBroker]


def embedded(objects: ObjectStore, partition: int = 0) -> list[bytes]:
    """What another process finds in the store: as records and, a moment later, as columns."""
    with logstore.open(objects, writer="read_only") as store:
        topic = store.topic("t")
        found = [each.value or b"" for each in topic.partition(partition).records(visibility="committed")]
        table = topic.to_arrow(["partition", "value"], visibility="committed").to_pylist()
        later = [row["value"] for row in table if row["partition"] == partition]
        assert found == later[: len(found)]
        return later


def agree(objects: ObjectStore, wire: Wire, partition: int) -> None:
    """Markers may follow a transaction's end. What is committed only grows, so who looks later sees the same and maybe more;
    and all of them see the same when no marker comes between."""
    before, deadline = embedded(objects, partition), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        told = committed_values(wire, "t", partition)
        after = embedded(objects, partition)
        assert before == told[: len(before)]
        assert told == after[: len(told)]
        if before == after:
            return
        before = after
    raise AssertionError("markers came all the time")


@pytest.mark.parametrize("seed", range(3))
def test_B14_any_history_is_read_as_the_brokers_read_committed_fetch_reads_it(
    start_broker: StartBroker, seed: int
) -> None:
    """Producers that interleave, commit, abort, begin again under the same id, and leave transactions open; a broker that is
    replaced by another in between."""
    rng, objects = random.Random(seed), MemoryStore()
    names = ["a", "b", "c"]
    for life in range(3):
        broker = start_broker(objects, node_id=life + 1)
        with Wire(broker.port) as wire:
            if not life:
                make_topic(wire, partitions=2)
            producers = {name: Transactor(wire, name) for name in names}
            began: set[str] = set()
            for producer in producers.values():
                assert again(producer.init) is Code.NONE, "it aborts what its former life has left open"
            for turn in range(24):
                name = rng.choice(names)
                producer = producers[name]
                if rng.random() < 0.7 or name not in began:
                    partition = rng.randrange(2)
                    assert again(partial(producer.add, "t", partition)) is Code.NONE
                    values = [b"%d-%d-%d" % (life, turn, n) for n in range(rng.randrange(1, 4))]
                    assert producer.send(*values, partition=partition) is Code.NONE
                    began.add(name)
                else:
                    assert again(partial(producer.end, commit=rng.random() < 0.6)) is Code.NONE
                    began.discard(name)
                if turn % 8 == 7:
                    for partition in range(2):
                        agree(objects, wire, partition)


def test_B14_a_real_consumer_and_an_embedded_reader_agree(start_broker: StartBroker, tmp_path: Path) -> None:
    objects = LocalStore(tmp_path)
    broker = start_broker(objects, auto_create_topics=True)
    first, second = transactional(broker, "one"), transactional(broker, "two")

    def begin(producer: confluent_kafka.Producer, *values: bytes) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce("t", value)
        producer.flush(PATIENCE_S)

    begin(first, b"1", b"2")
    begin(second, b"gone")
    first.commit_transaction(PATIENCE_S)
    second.abort_transaction(PATIENCE_S)
    begin(second, b"3")
    begin(first, b"gone too")
    second.commit_transaction(PATIENCE_S)
    first.abort_transaction(PATIENCE_S)
    begin(first, b"end")
    first.commit_transaction(PATIENCE_S)
    begin(second, b"open")
    assert embedded(objects) == read(broker, "t", b"end") == [b"1", b"2", b"3", b"end"]
    with logstore.open(objects, writer="read_only") as store:
        everything = [
            each.value or b"" for each in store.topic("t").partition(0).records(visibility="durable")
        ]
    assert sorted(everything) == sorted([b"1", b"2", b"gone", b"3", b"gone too", b"end", b"open"]), (
        "no marker"
    )
    second.abort_transaction(PATIENCE_S)


def test_B14_a_transaction_that_timed_out_is_not_read(start_broker: StartBroker) -> None:
    objects = MemoryStore()
    broker = start_broker(objects)
    with Wire(broker.port) as wire:
        make_topic(wire)
        late, other = Transactor(wire, "late", timeout_ms=1500), Transactor(wire, "other")
        for producer, value in ((late, b"late"), (other, b"kept")):
            assert again(producer.init) is Code.NONE
            assert again(producer.add) is Code.NONE
            assert producer.send(value) is Code.NONE
        assert again(other.end) is Code.NONE
        assert embedded(objects) == [], "the first one is open"
        log = broker.log("t")
        broker.until(lambda: log.durable_high_watermark == 4)  # its marker, and the other's
        assert embedded(objects) == [b"kept"]
        assert committed_values(wire) == [b"kept"]
