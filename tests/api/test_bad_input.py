"""L27 and what a caller may get wrong: a typed error that says what to do, nothing stored, no offset taken."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c

import logstore
from logstore.errors import (
    Closed,
    InvalidRecord,
    OffsetOutOfRange,
    ReadOnly,
    RecordTooLarge,
)
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.codecs import CODEC_IDS
from logstore.format.batches.record import Record
from logstore.objects import MemoryStore
from tests.support.engine.harness import at, open_store, pairs, partition, running

# Records

UNTAKEN: list[Any] = [
    None,
    "text",
    42,
    1.5,
    [],
    [b"good", None],
    [b"good", "text"],
    [Record(b"good"), Record("text")],  # type: ignore[arg-type]
    Record(b"v", key="text"),  # type: ignore[arg-type]
    Record(b"v", headers=[("h",)]),  # type: ignore[arg-type]
    Record(b"v", headers=[(b"h", b"v")]),  # type: ignore[arg-type]
    Record(b"v", headers=[("h", "text")]),  # type: ignore[arg-type]
    Record(b"v", headers=5),  # type: ignore[arg-type]
    Record(b"v", headers=[("\ud800", b"")]),  # type: ignore[arg-type]
    Record(b"v", timestamp_ms="now"),  # type: ignore[arg-type]
    Record(b"v", timestamp_ms=-5),
    Record(b"v", timestamp_ms=2**63),
    Record(b"v", timestamp_ms=1.5),  # type: ignore[arg-type]
]


@pytest.fixture
def store() -> Iterator[logstore.Store]:
    with running(MemoryStore(), max_batch_bytes=4096, max_buffered_bytes=65536) as store:
        yield store


def assert_untouched(store: logstore.Store) -> None:
    log = partition(store)
    assert store.health()["buffered_bytes"] == 0
    assert pairs(log) == []
    assert log.append(b"the first").offset == 0
    assert pairs(log) == [(0, b"the first")]


@pytest.mark.parametrize("given", UNTAKEN, ids=lambda given: repr(given)[:40])
@pytest.mark.parametrize("ack", ["durable", "buffered"])
def test_L27_what_is_no_record_takes_no_offset(store: logstore.Store, given: Any, ack: Any) -> None:
    with pytest.raises(InvalidRecord):
        partition(store).append(given, ack=ack)
    assert_untouched(store)


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": "text"},
        {"value": 5},
        {"value": b"v", "key": "text"},
        {"value": b"v", "key": 5},
        {"value": b"v", "headers": {"h": b"v"}},
        {"value": b"v", "headers": [("h", 1)]},
        {"value": b"v", "timestamp_ms": "now"},
        {"value": b"v", "timestamp_ms": True},
    ],
    ids=repr,
)
def test_L27_the_same_for_a_topic(store: logstore.Store, arguments: dict[str, Any]) -> None:
    partition(store)
    with pytest.raises(InvalidRecord):
        store.topic("t").append(**arguments)
    assert_untouched(store)


def test_L27_an_iterable_that_raises_in_the_middle_appends_nothing(store: logstore.Store) -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        partition(store).append(broken())
    assert_untouched(store)


def test_L27_a_record_that_fits_and_one_that_is_a_byte_too_large(store: logstore.Store) -> None:
    log = partition(store)
    size = 4096
    with pytest.raises(RecordTooLarge, match="max_batch_bytes=4096"):
        log.append(bytes(size))
    while log.buffered_high_watermark == 0:
        size -= 1
        with suppress(RecordTooLarge):
            log.append(bytes(size))
    assert 4096 - 120 < size < 4096, "most of the limit is for the record"
    with pytest.raises(RecordTooLarge):
        log.append(bytes(size + 1))
    with pytest.raises(RecordTooLarge):
        store.topic("t").append(bytes(size + 1))
    with pytest.raises(RecordTooLarge):
        log.append([b"small", bytes(size + 1)])
    with pytest.raises(RecordTooLarge):
        log.append(Record(b"v", headers=(("h", bytes(size)),)))
    with pytest.raises(RecordTooLarge):
        log.append(Record(b"v", key=bytes(size)))
    assert pairs(log) == [(0, bytes(size))]
    assert log.append(b"next").offset == 1


def test_L27_an_append_that_can_never_fit_the_buffer_is_refused_at_once(store: logstore.Store) -> None:
    with pytest.raises(RecordTooLarge, match="max_buffered_bytes=65536"):
        partition(store).append([os.urandom(3000) for _ in range(40)])
    assert_untouched(store)


# Batches that somebody else encoded


def batch(values: list[bytes], codec: str = "none") -> bytes:
    return encode_batch([Record(value) for value in values], now_ms=1, codec_id=CODEC_IDS[codec])[0]


def changed(raw: bytes, at: int, fmt: str, value: int, *, mend: bool = True) -> bytes:
    """One field of the header changed, and the checksum made right again."""
    data = bytearray(raw)
    struct.pack_into(fmt, data, at, value)
    if mend:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


GOOD = batch([b"a", b"b"])


BAD_BATCHES = {
    "empty": b"",
    "a byte": b"\0",
    "junk": os.urandom(100),
    "cut": GOOD[:-1],
    "a byte more": GOOD + b"\0",
    "magic 1": changed(GOOD, 16, ">b", 1),
    "bad checksum": changed(GOOD, len(GOOD) - 2, ">b", 7, mend=False),
    "length too large": changed(GOOD, 8, ">i", len(GOOD) + 5),
    "length negative": changed(GOOD, 8, ">i", -1),
    "count too large": changed(GOOD, 57, ">i", 3),
    "count zero": changed(GOOD, 57, ">i", 0),
    "count negative": changed(GOOD, 57, ">i", -2),
    "last delta wrong": changed(GOOD, 23, ">i", 9),
    "unknown codec": changed(GOOD, 21, ">h", 7),
    "not what its codec says": changed(GOOD, 21, ">h", 4),
    "control batch": changed(GOOD, 21, ">h", 0x20),
    "base offset negative": changed(GOOD, 0, ">q", -1),
    "timestamp beyond time": changed(GOOD, 27, ">q", 2**63 - 1),
    "good, then bad": GOOD + changed(GOOD, 57, ">i", 3),
    "too large": batch([os.urandom(3000), os.urandom(3000)]),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
@pytest.mark.parametrize("ack", ["durable", "buffered"])
def test_L27_a_bad_batch_takes_no_offset(store: logstore.Store, name: str, ack: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"nothing was appended|does not fit"):
        partition(store).append_batches(BAD_BATCHES[name], ack=ack)
    assert_untouched(store)


@pytest.mark.parametrize("given", [None, "text", [GOOD], 5])
def test_L27_batches_are_bytes(store: logstore.Store, given: Any) -> None:
    with pytest.raises(InvalidRecord, match="as bytes"):
        partition(store).append_batches(given)
    assert_untouched(store)


def test_L27_several_batches_of_every_codec_get_the_right_offsets(store: logstore.Store) -> None:
    values = [[b"%s-%d" % (codec.encode(), number) * 20 for number in range(5)] for codec in CODEC_IDS]
    raw = b"".join(batch(some, codec) for some, codec in zip(values, CODEC_IDS, strict=True))
    log = partition(store)
    log.append(b"before")
    receipt = log.append_batches(raw)
    assert (receipt.offset, receipt.last_offset) == (1, 25)
    assert log.append(b"after").offset == 26
    assert pairs(log, start=1, stop=26) == at(1, [value for some in values for value in some])


def test_L27_a_buffer_of_any_shape_is_its_bytes(store: logstore.Store) -> None:
    raw = batch([b"mine"], "none")
    raw = batch([b"mine" + bytes(-len(raw) % 4)], "none")  # can be seen as numbers of four bytes
    spread = bytes(byte for each in raw for byte in (each, 0))
    log = partition(store)
    log.append_batches(memoryview(raw).cast("i"))
    log.append_batches(memoryview(spread)[::2])
    assert [value.rstrip(bytes(1)) for _, value in pairs(log) if value] == [b"mine", b"mine"]


def test_L27_a_callers_buffer_may_be_used_again(store: logstore.Store) -> None:
    buffer = bytearray(batch([b"mine"]))
    log = partition(store)
    log.append_batches(buffer, ack="buffered")
    buffer[:] = bytes(len(buffer))
    assert pairs(log) == [(0, b"mine")]
    log.flush()
    assert pairs(log, visibility="durable") == [(0, b"mine")]


def test_L27_extreme_times_in_one_batch_are_stored_as_they_are(store: logstore.Store) -> None:
    """Their difference is as large as it can be; an encoder that overflows would lose the batch after its ack."""
    log = partition(store)
    times = [0, 9_223_372_036_854_774, 1, 9_223_372_036_854_774]
    log.append([Record(b"x", timestamp_ms=time) for time in times], ack="buffered")
    log.append(Record(b"y", timestamp_ms=0), ack="buffered")
    log.flush()
    assert [record.timestamp_ms for record in log.records(visibility="durable")] == [*times, 0]


# Offsets, partitions, acks


@pytest.mark.parametrize("offset", [-1, 3, 2**63, -(2**63)])
def test_an_offset_out_of_range_has_both_marks_in_its_error(store: logstore.Store, offset: int) -> None:
    log = partition(store)
    log.append([b"a", b"b"])
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(offset)
    assert (caught.value.low, caught.value.high, caught.value.offset) == (0, 2, offset)


@pytest.mark.parametrize("offset", ["0", None, 1.0, True, b"0"])
def test_an_offset_is_an_int(store: logstore.Store, offset: Any) -> None:
    with pytest.raises(TypeError, match="an offset is an int"):
        partition(store).read(offset)


@pytest.mark.parametrize("number", [-1, 1, 10**9, "0", None, True, 0.0])
def test_a_partition_that_is_not_there_is_refused(store: logstore.Store, number: Any) -> None:
    partition(store)
    topic = store.topic("t")
    with pytest.raises(ValueError, match="partitions 0 to 0"):
        topic.partition(number)
    if number is not None:
        with pytest.raises((ValueError, TypeError)):
            topic.append(b"x", partition=number)
    assert_untouched(store)


@pytest.mark.parametrize("count", [0, -3, 10**7, "4", 2.0, True, None])
def test_a_number_of_partitions_is_checked(store: logstore.Store, count: Any) -> None:
    with pytest.raises(ValueError, match="whole number from 1"):
        store.create_topic("new", count)
    assert store.topics() == []


def test_an_unknown_ack_or_visibility_lists_those_that_exist(store: logstore.Store) -> None:
    log = partition(store)
    with pytest.raises(ValueError, match="buffered, local, durable"):
        log.append(b"x", ack="quorum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wal_dir"):
        log.append(b"x", ack="local")
    with pytest.raises(ValueError, match="buffered, durable"):
        log.read(0, visibility="all")  # type: ignore[arg-type]
    assert_untouched(store)


def test_a_read_only_store_takes_nothing() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        partition(store).append(b"x")
    before = list(objects.list(""))
    with open_store(objects, writer="read_only") as store:
        log = store.topic("t").partition(0)
        for call in (
            lambda: log.append(b"y"),
            lambda: log.append_batches(GOOD),
            lambda: store.create_topic("u"),
            lambda: store.delete_topic("t"),
        ):
            with pytest.raises(ReadOnly, match="read_only"):
                call()
        assert log.flush() == 1
    assert list(objects.list("")) == before


def test_a_closed_store_refuses_everything_cleanly() -> None:
    store = open_store(MemoryStore())
    log = partition(store)
    log.append(b"x")
    store.close()
    for call in (
        lambda: log.append(b"y"),
        lambda: log.append(b"y", ack="buffered"),
        lambda: store.topic("t"),
        lambda: store.topics(),
        lambda: store.create_topic("u"),
        lambda: store.flush(),
    ):
        with pytest.raises(Closed):
            call()
    assert store.health()["closed"]


# Words


def test_every_refusal_of_an_append_says_that_nothing_was_appended() -> None:
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("t")
        for given in ("text", 5, None, {"a": 1}):
            with pytest.raises(InvalidRecord, match="nothing was appended"):
                topic.partition(0).append(given)  # type: ignore[arg-type]
        for partition in ("0", 1, -1, 0.0):
            with pytest.raises(ValueError, match="has partitions 0 to 0"):
                topic.append(b"x", partition=partition)  # type: ignore[arg-type]
        assert topic.append(b"first").offset == 0
    with pytest.raises(Closed, match="the store is closed; nothing was appended"):
        topic.append(b"x")


def test_append_many_with_one_bad_record_stores_none_in_any_partition() -> None:
    with logstore.open(MemoryStore(), max_batch_bytes=1000) as store:
        topic = store.create_topic("t", partitions=2)
        good = Record(b"good", key=b"bob")
        assert (topic._internal.pick(b"bob"), topic._internal.pick(b"alice")) == (0, 1)
        for bad in (Record("text", key=b"alice"), Record(bytes(1000), key=b"alice")):  # type: ignore[arg-type]
            with pytest.raises(InvalidRecord, match="nothing was appended"):
                topic.append_many([good, bad])
        for one in (b"bytes", "text", Record(b"one")):
            with pytest.raises(InvalidRecord, match="use append"):
                topic.append_many(one)  # type: ignore[arg-type]
        assert [topic.partition(number).buffered_high_watermark for number in (0, 1)] == [0, 0]
        assert topic.append_many([]) == []
