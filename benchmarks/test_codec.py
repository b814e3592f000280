"""The record codec: batches a second, against the codecs of aiokafka (compiled) and kafka-python (plain Python).

Same records for all: 100-byte random values, short keys, uncompressed, so that the codec itself is measured and not a
compressor. Every result is verified before it counts. Ratios are taken in turns (A B A B …) and the median of the turns
counts, so that a machine that is busy for a while does not decide.

Targets: C kernels 2 × aiokafka both ways; plain Python 3 × kafka-python both ways.
"""

from __future__ import annotations

import math
import random
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder
from kafka.record.memory_records import MemoryRecords as KafkaRecords

from benchmarks.measure import Figures
from logstore.format import kernels
from logstore.format.batches.batch import BatchInfo, encode_batch, split, validate
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.columns import column_chunks
from logstore.format.batches.record import Record
from logstore.format.batches.records import decode_records
from tests.support.format.columns import decode_columns

SUITE = "codec"
NOW_MS = 1_700_000_000_000
BATCH = 1000
TURNS = 15

Run = Callable[[], Any]
KERNELS = {one.name: one for one in kernels.ALL}
needs_speed = pytest.mark.skipif("speed" not in KERNELS, reason="the C kernels are not built")


def make_records(count: int, value_size: int = 100) -> list[Record]:
    rng = random.Random(3)
    return [Record(rng.randbytes(value_size), b"key-%06d" % index) for index in range(count)]


RECORDS = make_records(BATCH)
RAW, INFO = encode_batch(RECORDS, now_ms=NOW_MS, codec_id=0)
RAW_TEN = RAW * 10
TEN = split(RAW_TEN)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernels, "active", KERNELS[request.param])
    way: str = request.param
    return way


def peer_encode(builder_type: Any, records: Sequence[Record]) -> bytes:
    builder = builder_type(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    append = builder.append
    for index, (value, key, _, _, _) in enumerate(records):
        append(index, NOW_MS, key, value, [])
    return bytes(builder.build())


def peer_decode(reader_type: Any, raw: bytes) -> list[tuple[bytes, bytes]]:
    return [(record.key, record.value) for record in reader_type(raw).next_batch()]


def ours_with(name: str, run: Run) -> Run:
    """The same call with one kernel in place; the switch costs nothing next to a batch."""

    def wrapped() -> Any:
        before, kernels.active = kernels.active, KERNELS[name]
        try:
            return run()
        finally:
            kernels.active = before

    return wrapped


def encode_ours() -> bytes:
    return encode_batch(RECORDS, now_ms=NOW_MS, codec_id=0)[0]


def columns_ours() -> Any:
    return decode_columns(RAW, [INFO], columns=("key", "value"))


def columns_of_ten() -> Any:
    """Ten batches in one call, as a reader of segments decodes them."""
    return decode_columns(RAW_TEN, TEN, columns=("key", "value"))


def verify_columns(batch: Any) -> None:
    assert batch.column("key").to_pylist() == [record.key for record in RECORDS]
    assert batch.column("value").to_pylist() == [record.value for record in RECORDS]


def seconds(run: Run, repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    for _ in range(repeats):
        run()
    return (clock() - started) / repeats


def ratio_in_turns(ours: Run, theirs: Run, repeats: int) -> float:
    """How many times as fast ours is: the median over turns."""
    ours(), theirs()
    return statistics.median(seconds(theirs, repeats) / seconds(ours, repeats) for _ in range(TURNS))


def best_rate(run: Run, repeats: int, quick: bool, batches: int = 1) -> float:
    """Millions of records for each second of the CPU, in the best of the turns that fit into two seconds: the core itself
    is slow for a second, now and then, when a neighbour is at work."""
    best, until = math.inf, time.perf_counter() + (0.3 if quick else 2.0)
    while time.perf_counter() < until:
        best = min(best, seconds(run, repeats, time.thread_time))
    return batches * BATCH / best / 1e6


def report(benchmark: Any, records: int, size: int) -> None:
    """Records and megabytes a second beside pytest-benchmark's own figures."""
    if benchmark.stats is None:  # --benchmark-disable
        return
    took = benchmark.stats.stats.median
    benchmark.extra_info |= {"records_per_s": round(records / took), "MB_per_s": round(size / took / 1e6)}


def gain_of_two_threads(call: Run, repeats: int) -> float:
    """How many times as much two threads do as one, in the same time."""

    def work() -> None:
        for _ in range(repeats):
            call()

    with ThreadPoolExecutor(2) as pool:
        return ratio_in_turns(lambda: list(pool.map(lambda _: work(), range(2))), lambda: (work(), work()), 1)


@needs_speed
def test_two_threads_side_by_side(figures: Figures) -> None:
    """No target: where other work has the second core there is none to gain. What the machine gives at the time to a loop
    that needs nothing of the interpreter (zlib's checksum of 8 MiB) says how to read the rest."""
    blob = bytes(8 << 20)
    given = gain_of_two_threads(lambda: zlib.crc32(blob), 3)
    figures.add(SUITE, "two threads to one: what the machine gives to a checksum", given, "×")
    for count in (BATCH, 20 * BATCH):
        records = make_records(count)
        raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=0)
        assert len(decode_columns(raw, [info])) == count
        calls: dict[str, Run] = {
            "encode": lambda records=records: encode_batch(records, now_ms=NOW_MS, codec_id=0),  # type: ignore[misc]
            "decode to columns": lambda raw=raw, info=info: decode_columns(  # type: ignore[misc]
                raw, [info], columns=("key", "value")
            ),
        }
        for what, call in calls.items():
            gain = gain_of_two_threads(call, 80 * BATCH // count)
            figures.add(SUITE, f"two threads to one: {what}, {count:,} records a batch", gain, "×")


@needs_speed
def test_c_kernels(figures: Figures, quick: bool) -> None:
    theirs = peer_encode(AioBuilder, RECORDS)
    assert encode_ours()[16:] == theirs[16:]
    encode, columns = ours_with("speed", encode_ours), ours_with("speed", columns_ours)
    ten = ours_with("speed", columns_of_ten)
    assert ten().column("value").to_pylist() == [record.value for record in RECORDS] * 10
    verify_columns(columns())
    assert peer_decode(AioRecords, RAW) == [(record.key, record.value) for record in RECORDS]
    ratio = ratio_in_turns(encode, lambda: peer_encode(AioBuilder, RECORDS), 20)
    figures.add(SUITE, "C kernels: encode, to aiokafka's compiled builder", ratio, "×", target=2.0)
    ratio = ratio_in_turns(columns, lambda: peer_decode(AioRecords, RAW), 20)
    figures.add(SUITE, "C kernels: decode to columns, to aiokafka's compiled reader", ratio, "×", target=2.0)
    figures.add(SUITE, "C kernels: encode", best_rate(encode, 50, quick), "M records/s a core", target=10.0)
    figures.add(
        SUITE,
        "C kernels: decode to columns",
        best_rate(columns, 50, quick),
        "M records/s a core",
        target=30.0,
    )
    rate = best_rate(ten, 10, quick, 10)
    figures.add(
        SUITE, "C kernels: decode to columns, ten batches at a time", rate, "M records/s a core", target=30.0
    )


def test_plain_python(figures: Figures, quick: bool) -> None:
    theirs = peer_encode(KafkaBuilder, RECORDS)
    encode, columns = ours_with("plain", encode_ours), ours_with("plain", columns_ours)
    ten = ours_with("plain", columns_of_ten)
    assert ten().column("value").to_pylist() == [record.value for record in RECORDS] * 10
    assert encode()[16:] == theirs[16:]
    verify_columns(columns())
    assert peer_decode(KafkaRecords, RAW) == [(record.key, record.value) for record in RECORDS]
    ratio = ratio_in_turns(encode, lambda: peer_encode(KafkaBuilder, RECORDS), 2)
    figures.add(SUITE, "plain Python: encode, to kafka-python", ratio, "×", target=3.0)
    ratio = ratio_in_turns(columns, lambda: peer_decode(KafkaRecords, RAW), 2)
    figures.add(SUITE, "plain Python: decode to columns, to kafka-python", ratio, "×", target=3.0)
    figures.add(SUITE, "plain Python: encode", best_rate(encode, 10, quick), "M records/s a core", target=2.0)
    rate = best_rate(ten, 2, quick, 10)
    figures.add(
        SUITE,
        "plain Python: decode to columns, ten batches at a time",
        rate,
        "M records/s a core",
        target=3.0,
    )


@pytest.mark.parametrize("count", [1, 10, 100, 1000, 10_000])
def test_encode(benchmark: Any, kernel: str, count: int) -> None:
    records = make_records(count)
    raw, info = benchmark(encode_batch, records, now_ms=NOW_MS, codec_id=0)
    assert [(r.key, r.value) for r in decode_records(raw, info)] == [(r.key, r.value) for r in records]
    report(benchmark, count, info.size)


@pytest.mark.parametrize("peer", [AioBuilder, KafkaBuilder], ids=["aiokafka", "kafka-python"])
def test_encode_by_peers(benchmark: Any, peer: Any) -> None:
    raw = benchmark(peer_encode, peer, RECORDS)
    assert raw[16:] == RAW[16:]
    report(benchmark, BATCH, len(raw))


@pytest.mark.parametrize("count", [1, 10, 100, 1000, 10_000])
def test_decode_records(benchmark: Any, kernel: str, count: int) -> None:
    records = make_records(count)
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=0)
    found = benchmark(decode_records, raw, info)
    assert [(r.key, r.value) for r in found] == [(r.key, r.value) for r in records]
    report(benchmark, count, info.size)


@pytest.mark.parametrize("peer", [AioRecords, KafkaRecords], ids=["aiokafka", "kafka-python"])
def test_decode_by_peers(benchmark: Any, peer: Any) -> None:
    found = benchmark(peer_decode, peer, RAW)
    assert found == [(r.key, r.value) for r in RECORDS]
    report(benchmark, BATCH, len(RAW))


@pytest.mark.parametrize("columns", [("value",), ("key", "value"), None], ids=["value", "key-value", "all"])
def test_decode_columns(benchmark: Any, kernel: str, columns: Sequence[str] | None) -> None:
    records = make_records(10_000)
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=0)
    chosen = {} if columns is None else {"columns": columns}
    batch = benchmark(decode_columns, raw, [info], **chosen)
    assert batch.column("value").to_pylist() == [record.value for record in records]
    report(benchmark, len(records), info.size)


def one_record_batches(count: int) -> tuple[bytes, list[BatchInfo]]:
    raw = b"".join(encode_batch([record], now_ms=NOW_MS, codec_id=0)[0] for record in make_records(count))
    return raw, [info._replace(base_offset=offset) for offset, info in enumerate(split(raw))]


def test_chunks_of_one_record_batches(benchmark: Any, kernel: str) -> None:
    raw, infos = one_record_batches(2000)
    batches = [(raw, info) for info in infos]
    chunks = benchmark(lambda: list(column_chunks(batches)))
    assert [len(chunk) for chunk in chunks] == [2000]
    assert chunks[0].column("value").to_pylist() == [record.value for record in make_records(2000)]
    report(benchmark, len(infos), len(raw))


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_validate_foreign_batches(benchmark: Any, kernel: str, codec: str) -> None:
    records = [Record(b'{"id": %d, "state": "paid", "total": 12.5}' % index, b"k") for index in range(BATCH)]
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=CODEC_IDS[codec])
    assert benchmark(validate, raw, max_batch_bytes=1 << 20) == [info]
    report(benchmark, BATCH, info.size)


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_encode_with_compression(benchmark: Any, kernel: str, codec: str) -> None:
    records = [Record(b'{"id": %d, "state": "paid", "total": 12.5}' % index, b"k") for index in range(BATCH)]
    raw, info = benchmark(encode_batch, records, now_ms=NOW_MS, codec_id=CODEC_IDS[codec])
    assert [r.value for r in decode_records(raw, info)] == [r.value for r in records]
    report(benchmark, BATCH, sum(len(record.value or b"") for record in records))
