"""B14: a broker that reads a partition of another one for `read_committed` consumers, while that one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker_shim.partitions.hosted_partition import HostedPartition, Stable
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.markers import Marker
from logstore.format.batches.transactions import Transactions
from logstore.objects.homes.memory import MemoryStore
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, list_offset, make_topic, values
from tests.support.broker.transactions import Transactor, again, committed_values, fetch_committed

Start = Callable[..., LocalBroker]
NONE = Code.NONE


def test_B14_who_follows_goes_on_where_records_are_deleted_beyond_its_place(start_broker: Start) -> None:
    """It asked for them again and again, was told that they are gone, and said so to every consumer."""
    store = MemoryStore()
    writer = start_broker(store, node_id=1)
    reader = start_broker(store, node_id=2)
    with Wire(writer.port) as old, Wire(reader.port) as new:
        make_topic(old)
        producer = Transactor(old)
        assert [producer.init(), producer.add(), producer.send(b"first"), producer.end()] == [NONE] * 4
        assert again(producer.add) is NONE, "its marker is stored"
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        assert committed_values(new) == [b"first"]
        assert [producer.send(b"gone"), producer.end(), again(producer.add)] == [NONE] * 3
        assert old.produce("t", batch(b"gone")).error_code == NONE
        rows = [{"partition_index": 0, "offset": 5}]
        deleted = old.ask(
            Api.DELETE_RECORDS, 1, topics=[{"name": "t", "partitions": rows}], timeout_ms=10_000
        )
        assert deleted.topics[0].partitions[0].error_code == NONE
        assert old.produce("t", batch(b"kept")).error_code == NONE
        assert list_offset(new, -1, isolation=1) == 6
        answer = fetch_committed(new, 5)
        assert (Code(answer.error_code), answer.last_stable_offset, values(answer)) == (
            NONE,
            6,
            [(5, b"kept")],
        )


def test_B14_an_aborted_record_that_is_deleted_while_it_is_read_is_not_shown(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read, and then nothing was known of its transaction any more."""
    store = MemoryStore()
    writer, reader = (start_broker(store, node_id=number) for number in (1, 2))
    learn = HostedPartition.learn_stable
    with Wire(writer.port) as old, Wire(reader.port) as new:
        make_topic(old)
        producer = Transactor(old)
        assert [producer.init(), producer.add(), producer.send(b"aborted")] == [NONE] * 3
        assert producer.end(commit=False) is NONE
        assert again(producer.add) is NONE, "its marker is stored"
        assert old.produce("t", batch(b"kept")).error_code == NONE
        new.ask(Api.METADATA, 9, topics=[{"name": "t"}])

        async def deleted_before(hosted: HostedPartition) -> Stable:
            monkeypatch.undo()
            await asyncio.to_thread(hosted.log.delete_before, 2)
            return await learn(hosted)

        monkeypatch.setattr(HostedPartition, "learn_stable", deleted_before)
        answer = fetch_committed(new, 0)
        assert (Code(answer.error_code), answer.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, 2)
        assert not answer.records
        assert values(fetch_committed(new, 2)) == [(2, b"kept")]


class Watched:
    """A column of the index of aborted transactions, and somebody who looks at the index before and after each change."""

    def __init__(self, column: Any, look: Callable[[], object]) -> None:
        self._column, self._look = column, look

    def append(self, value: int) -> None:
        self._look()
        self._column.append(value)
        self._look()

    def __getitem__(self, row: int) -> Any:
        return self._column[row]

    def __len__(self) -> int:
        return len(self._column)


def test_B14_an_aborted_transaction_is_listed_when_all_of_it_is_known() -> None:
    """A worker learns of it while another fetch of the partition is answered."""
    known = Transactions()
    seen = []
    for column in ("_producers", "_firsts", "_markers", "_stable"):
        watched = Watched(getattr(known, column), lambda: seen.append(known.aborted(0, 100)))
        setattr(known, column, watched)
    known.began(7, 0, 3)
    known.ended(Marker(7, 0, False, 0, 1), 5)
    assert [each for some in seen for each in some] == known.aborted(0, 100) == [(7, 3, 5)]
