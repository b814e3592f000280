"""B14: what a snapshot of a partition's producers says of transactions is in the log below it, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from broker_shim.partitions import producer_recovery
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire, produce_body
from tests.support.broker.steps import batch, list_offset, make_topic
from tests.support.broker.transactions import Transactor, committed_values, transactional_batch
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
NONE = Code.NONE


def snapshot(store: MemoryStore) -> dict[str, Any]:
    [key] = [info.key for info in store.list("") if "producers" in info.key and "/t/" in info.key]
    found: dict[str, Any] = json.loads(store.get(key))
    return found


def test_B14_a_snapshot_knows_no_transaction_whose_first_batch_may_not_be_stored(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """It was written while that batch was on its way, and the broker died. The next one took the transaction for open:
    nobody ends one that was begun in memory, and readers of committed records would come no further, ever."""
    monkeypatch.setattr(producer_recovery, "SNAPSHOT_EVERY_BYTES", 1)
    store = MemoryStore()
    gated = GatedStore(store)
    first = start_broker(gated, node_id=1)
    requests = first.server.broker.counters.requests
    prefix = "lanes/" if lanes else "topics/t/"
    with Wire(first.port) as wire, Wire(first.port) as other:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add(), producer.send(b"one"), producer.end()] == [NONE] * 4
        assert producer.add() is NONE, "its markers are stored"
        with gated.hold("put", prefix=prefix, suffix=".seg") as gate:
            plain = other.send(Api.PRODUCE, 9, produce_body("t", batch(b"plain"), 0, -1, 9, 20_000))
            gate.wait_held(PATIENCE_S)
            raw = transactional_batch(
                b"on its way", producer_id=producer.producer_id, epoch=producer.epoch, sequence=1
            )
            opening = producer.begin_raw(raw)
            first.until(lambda: requests[Api.PRODUCE] == 3)
            gate.release()
            assert other.produced(9, plain).error_code == NONE
            gate.wait_held(PATIENCE_S)
            first.until(lambda: snapshot(store)["offset"] == 3)
            second = start_broker(store, node_id=2)
            with Wire(second.port) as new:
                new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
                assert new.produce("t", batch(b"behind")).error_code == NONE
                assert committed_values(new) == [b"one", b"plain", b"behind"]
                assert list_offset(new, -1, isolation=1) == list_offset(new, -1)
        assert producer.ended_raw(opening) is not NONE
