"""B14: the marker of a transaction arrives twice, the second time while the first one is still on its way to the store.

Two coordinators send it during a take-over; or one sends it again, because a slow store has kept it waiting.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor, committed_values, transactional_batch
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
NONE = Code.NONE
pytestmark = pytest.mark.parametrize("lanes", [0], ids=["chains"], indirect=True)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_B14_a_marker_that_comes_again_before_it_is_stored_does_not_end_the_next_transaction(
    start_broker: Start, commit: bool
) -> None:
    """It was appended a second time, and its ack was taken for the end of what had begun meanwhile: readers were shown the
    first batch of a transaction that was open."""
    store = GatedStore(MemoryStore())
    broker = start_broker(store)
    requests = broker.server.broker.counters.requests
    with Wire(broker.port) as wire, Wire(broker.port) as other:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add(), producer.send(b"one")] == [NONE] * 3
        [shard] = broker.server.broker.transactions.shards
        known = broker.call(lambda: shard.transactions["tx"])
        with store.hold("put", prefix="topics/t/") as gate:
            assert producer.end(commit=commit) is NONE
            gate.wait_held(PATIENCE_S)
            marker = {
                "producer_id": known.producer_id,
                "producer_epoch": known.epoch,
                "transaction_result": commit,
                "topics": [{"name": "t", "partition_indexes": [0]}],
                "coordinator_epoch": shard.log.epoch,
                "started_ms": known.started_ms,
            }
            body = messages.encode_request(Api.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
            repeated = other.send(Api.WRITE_TXN_MARKERS, 1, body)
            broker.until(lambda: requests[Api.WRITE_TXN_MARKERS] == 1)
            gate.release()
            assert producer.add() is NONE, "the first marker is stored"
            sent = []
            for sequence in (1, 2):  # the second comes when what was on its way before the first is stored
                raw = transactional_batch(
                    b"open", producer_id=producer.producer_id, epoch=producer.epoch, sequence=sequence
                )
                sent.append(producer.begin_raw(raw))
                broker.until(lambda number=sequence: requests[Api.PRODUCE] == 1 + number)  # type: ignore[misc]
                gate.wait_held(PATIENCE_S)
                gate.release()
                broker.until(lambda number=sequence: broker.log("t").durable_high_watermark == 2 + number)  # type: ignore[misc]
        assert [producer.ended_raw(number) for number in sent] == [NONE] * 2
        answer = other.answer(Api.WRITE_TXN_MARKERS, 1, repeated)
        assert answer.markers[0].topics[0].partitions[0].error_code == NONE
        kept = [b"one"] if commit else []
        assert committed_values(wire) == kept, "the second transaction is still open"
        assert producer.end(commit=False) is NONE
        assert producer.add() is NONE, "its markers are stored"
        assert committed_values(wire) == kept
