"""B14: the next transaction of a producer is recorded while the markers of the one before are on their way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from broker_shim.transactions import transaction, transaction_shard
from broker_shim.transactions.transaction import State, Transaction
from broker_shim.transactions.transaction_records import decode, encode
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.layout.broker import TRANSACTION_TOPIC
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor, again, committed_values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
DECIDED = Transaction(7, 0, 60_000, State.PREPARE_COMMIT, frozenset({("t", 0), ("u", 3)}), 1_000, 1_001)


def begun_over() -> Transaction:
    decision = transaction.add(DECIDED, 7, 0, [("t", 1)], 1_000)
    assert decision.code is Code.NONE
    assert decision.next is not None
    return decision.next


def test_B14_the_next_one_takes_along_what_is_still_to_be_told() -> None:
    begun = begun_over()
    assert begun.ending == DECIDED
    assert (begun.state, begun.places) == (State.ONGOING, frozenset({("t", 1)}))
    assert begun.started_ms > DECIDED.started_ms, "its markers are told apart"
    assert decode(encode(begun)) == begun
    also = replace(begun, last_epoch=3)
    assert decode(encode(also)) == also


def test_B14_nothing_is_decided_while_the_one_before_is_ending() -> None:
    begun = begun_over()
    told = [
        transaction.add(begun, 7, 0, [("t", 1)], 2_000),
        transaction.end(begun, 7, 0, True, 2_000),
        transaction.init(begun, 7, 0, 60_000, 2_000, 8),
    ]
    assert told == [transaction.Decision(Code.CONCURRENT_TRANSACTIONS)] * 3
    assert transaction.time_out(begun, 1_000_000) is None
    ended = transaction.complete(begun, 2_000)
    assert ended == replace(begun, ending=None)
    assert transaction.add(ended, 7, 0, [("t", 1)], 2_000).code is Code.NONE
    assert transaction.time_out(ended, 1_000_000) is not None


@pytest.mark.parametrize("first", ["record", "marker"])
def test_B14_record_and_markers_are_stored_beside_each_other_and_both_before_the_answer(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(transaction_shard, "MARKER_PATIENCE_S", PATIENCE_S)
    store = GatedStore(MemoryStore())
    broker = start_broker(store, lanes=0)
    with Wire(broker.port) as wire, ThreadPoolExecutor(1) as pool:
        make_topic(wire)
        producer = Transactor(wire)
        assert [producer.init(), producer.add(), producer.send(b"one")] == [Code.NONE] * 3
        with store.hold("put", prefix="topics/t/") as marker:
            assert producer.end() is Code.NONE
            marker.wait_held(PATIENCE_S)
            with store.hold("put", prefix=f"topics/{TRANSACTION_TOPIC}/") as record:
                added = pool.submit(producer.add)
                record.wait_held(PATIENCE_S)
                (record if first == "record" else marker).open()
                known = next(iter(broker.server.broker.transactions.shards)).transactions
                if first == "record":
                    broker.until(lambda: known["tx"].ending is not None)
                else:
                    broker.until(lambda: known["tx"].state is State.COMPLETE_COMMIT)
                assert not added.done()
        assert added.result(PATIENCE_S) is Code.NONE
        assert known["tx"].ending is None
        assert [producer.send(b"two"), producer.end(), producer.add()] == [Code.NONE] * 3
        assert committed_values(wire) == [b"one", b"two"]


@pytest.mark.parametrize("how", ["new life", "time-out"])
def test_B14_one_that_is_fenced_while_the_one_before_is_ending_is_ended_behind_it(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its record stands, the markers of the one before do not. It is ended when they do, and they say what was decided."""
    monkeypatch.setattr(transaction_shard, "MARKER_PATIENCE_S", 0.0)
    store = GatedStore(MemoryStore())
    broker = start_broker(store, lanes=0)
    coordinator = broker.server.broker.transactions
    with Wire(broker.port) as wire, Wire(broker.port) as other:
        make_topic(wire)
        former, new = Transactor(wire), Transactor(other)
        assert [former.init(), former.add(), former.send(b"one")] == [Code.NONE] * 3
        [shard] = coordinator.shards
        known = shard.transactions
        with store.hold("put", prefix="topics/t/") as marker:
            assert former.end() is Code.NONE
            marker.wait_held(PATIENCE_S)
            assert former.add() is Code.CONCURRENT_TRANSACTIONS
            [found] = wire.ask(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx"]).transaction_states
            assert (found.transaction_state, len(found.topics)) == ("Ongoing", 1)
            [listed] = wire.ask(Api.LIST_TRANSACTIONS, 1).transaction_states
            assert (listed.transactional_id, listed.transaction_state) == ("tx", "Ongoing")
            if how == "time-out":
                later = coordinator.now_ms() + 61_000
                monkeypatch.setattr(coordinator, "now_ms", lambda: later)
                broker.call(shard._look_at_times)
            else:
                assert new.init() is Code.CONCURRENT_TRANSACTIONS
            assert former.send(b"too early") is Code.NOT_ENOUGH_REPLICAS, (
                "nobody knows yet whether it goes on"
            )
        if how == "time-out":
            broker.until(lambda: known["tx"].state is State.COMPLETE_ABORT)
        assert again(new.init) is Code.NONE
        assert new.epoch == former.epoch + 2
        assert former.send(b"zombie") is Code.INVALID_PRODUCER_EPOCH
        assert former.end() is Code.PRODUCER_FENCED
        assert [new.add(), new.send(b"new"), new.end()] == [Code.NONE] * 3
        assert again(new.add) is Code.NONE, "its markers are stored"
        assert committed_values(other) == [b"one", b"new"]
