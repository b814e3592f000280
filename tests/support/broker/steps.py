"""What most broker tests do: make a topic, send a batch, read back which records are there."""

from __future__ import annotations

from typing import Any

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import encode_batch, split
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from tests.support.broker.harness import LocalBroker, Wire


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    records = [Record(value, b"k", (), timestamp_ms + i) for i, value in enumerate(values)]
    return encode_batch(records, now_ms=timestamp_ms, codec_id=0)[0]


def offset_of(record: Record) -> int:
    assert record.offset is not None, "it was read"
    return record.offset


def values(answer: Any) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record in a fetch answer."""
    raw = bytes(answer.records or b"")
    return [(offset_of(r), r.value) for info in split(raw) for r in decode_records(raw, info)]


def read_all(client: Wire, topic: str = "t", **options: Any) -> list[tuple[int, bytes | None]]:
    """Everything up to the high watermark. One fetch may stop where the next segment is not in memory."""
    found: list[tuple[int, bytes | None]] = []
    while True:
        answer = client.fetch(topic, found[-1][0] + 1 if found else 0, **options)
        assert answer.error_code == Code.NONE
        found += values(answer)
        if not answer.records:
            return found


def make_topic(client: Wire, name: str = "t", partitions: int = 1) -> None:
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
    made = client.ask(Api.CREATE_TOPICS, 5, topics=topics, timeout=10_000)
    assert made.topics[0].error_code == Code.NONE
    client.ask(Api.METADATA, 9, topics=[{"name": name}])


def owned(client: Wire, broker: LocalBroker) -> None:
    """A topic `t` whose partition is taken already, with one durable record at offset 0."""
    make_topic(client)
    assert client.produce("t", batch(b"first")).base_offset == 0
    assert broker.log("t").durable_high_watermark == 1


def owned_buffered(client: Wire) -> None:
    make_topic(client)
    assert client.produce("t", batch(b"first")).base_offset == 0


def list_offset(client: Wire, timestamp: int, isolation: int = 0) -> int:
    partitions = [{"partition_index": 0, "timestamp": timestamp}]
    answer = client.ask(
        Api.LIST_OFFSETS,
        5,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": "t", "partitions": partitions}],
    )
    found = answer.topics[0].partitions[0]
    assert found.error_code == Code.NONE
    return int(found.offset)
