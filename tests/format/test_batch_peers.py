"""Our batches are Kafka's: other clients' builders and readers agree with ours, in both directions."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka import codec as kafka_codec
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder
from kafka.record.memory_records import MemoryRecords as KafkaRecords

from logstore.format.batches.batch import encode_batch, split, validate
from logstore.format.batches.codecs import CODEC_NAMES
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from tests.support.format.material import CODECS, NOW_MS, log_of, stored, varied

pytestmark = pytest.mark.usefixtures("kernel")
LIMIT = 1 << 24

PEERS = {"aiokafka": (AioBuilder, AioRecords), "kafka-python": (KafkaBuilder, KafkaRecords)}
# kafka-python needs a package for each of its codecs, and some may not be installed; aiokafka has all five.
CASES = [
    (peer, codec_id)
    for peer in PEERS
    for codec_id in CODECS
    if peer == "aiokafka" or codec_id == 0 or getattr(kafka_codec, f"has_{CODEC_NAMES[codec_id]}")()
]


def build_theirs(peer: str, records: list[Record], codec_id: int, **producer: int) -> bytes:
    ids = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1} | producer
    builder = PEERS[peer][0](magic=2, compression_type=codec_id, is_transactional=0, batch_size=LIMIT, **ids)
    for index, record in enumerate(records):
        added = builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
        assert added is not None
    return bytes(builder.build())


def read_theirs(peer: str, raw: bytes) -> list[Record]:
    batches = PEERS[peer][1](raw)
    found = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += [Record(r.value, r.key, tuple(map(tuple, r.headers)), r.timestamp, r.offset) for r in batch]
    return found


@pytest.mark.parametrize("count", [1, 7, 150])
@pytest.mark.parametrize(("peer", "codec_id"), CASES)
def test_B01_they_read_what_we_write(peer: str, codec_id: int, count: int) -> None:
    batches = [varied(count, seed) for seed in range(3)]
    raw = log_of(batches, codec_id, base_offset=500)
    expected = [record for batch in batches for record in batch]
    assert read_theirs(peer, raw) == stored(expected, 500)


@pytest.mark.parametrize("count", [1, 7, 150])
@pytest.mark.parametrize(("peer", "codec_id"), CASES)
def test_L27_we_read_what_they_write(peer: str, codec_id: int, count: int) -> None:
    records = varied(count)
    raw = build_theirs(peer, records, codec_id, producer_id=12, producer_epoch=1, base_sequence=3)
    (info,) = validate(raw, max_batch_bytes=LIMIT)
    assert decode_records(raw, info) == stored(records)
    stamps = [record.timestamp_ms for record in records]
    assert (info.min_timestamp_ms, info.max_timestamp_ms) == (min(stamps), max(stamps))  # type: ignore[type-var]
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (12, 1, 3)


@pytest.mark.parametrize("count", [1, 7, 150, 9000])
@pytest.mark.parametrize("peer", PEERS)
def test_uncompressed_batches_are_the_same_bytes(peer: str, count: int) -> None:
    records = varied(count) if count < 1000 else [Record(b"%d" % i, None, (), NOW_MS) for i in range(count)]
    ours, _ = encode_batch(records, now_ms=0, codec_id=0)
    theirs = build_theirs(peer, records, 0)
    # The leader epoch lies outside of the CRC and is a broker's to set: a producer may leave anything there.
    assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


def test_a_record_set_of_several_producers_batches() -> None:
    parts = [build_theirs(peer, varied(4, seed=codec_id), codec_id) for peer, codec_id in CASES]
    raw = b"".join(parts)
    infos = validate(raw, max_batch_bytes=LIMIT)
    assert infos == [
        info._replace(min_timestamp_ms=found.min_timestamp_ms)
        for info, found in zip(split(raw), infos, strict=True)
    ]
    for (_, codec_id), info in zip(CASES, infos, strict=True):
        assert decode_records(raw, info) == stored(varied(4, seed=codec_id))
