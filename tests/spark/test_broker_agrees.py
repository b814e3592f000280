"""The same records through the Kafka protocol and through Spark's source: equal, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from logstore.objects import LocalStore
from tests.support.broker.harness import LocalBroker
from tests.support.spark.material import COLUMNS, START_MS, at, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]
RECORDS = 200


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_S10_what_a_kafka_producer_sent_is_what_a_kafka_consumer_and_spark_both_read(
    tmp_path: Path, codec: str | None
) -> None:
    with LocalBroker(LocalStore(tmp_path), auto_create_topics=True, num_partitions=2) as broker:
        server = broker.address
        producer = KafkaProducer(bootstrap_servers=server, compression_type=codec, linger_ms=20)
        for n in range(RECORDS):
            producer.send(
                "orders",
                None if n % 7 == 0 else b"value %d" % n * (n % 9),
                key=None if n % 5 == 0 and n % 7 else b"key %d" % n,
                headers=[("n", b"%d" % n), ("empty", b"")] if n % 3 == 0 else [],
                partition=n % 2,
                timestamp_ms=START_MS + n,
            )
        producer.flush()
        producer.close()
        consumer = KafkaConsumer(
            bootstrap_servers=server, consumer_timeout_ms=20_000, auto_offset_reset="earliest"
        )
        consumer.assign([TopicPartition("orders", 0), TopicPartition("orders", 1)])
        consumed = []
        for record in consumer:
            consumed.append(
                (
                    record.partition,
                    record.offset,
                    record.key,
                    record.value,
                    at(record.timestamp),
                    [(key, bytes(value)) for key, value in record.headers] or None,
                )
            )
            if len(consumed) == RECORDS:
                break
        consumer.close()
    scanned = [
        (
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            row["timestamp"],
            row["headers"] and [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in rows(str(tmp_path), COLUMNS, subscribe="orders")
    ]
    assert len(scanned) == RECORDS
    assert scanned == sorted(consumed, key=lambda row: row[:2])
