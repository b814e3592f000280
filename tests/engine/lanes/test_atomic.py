"""Atomic appends: records of several partitions that are stored together or not at all, in one entry of a lane."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import AbstractContextManager

import pytest

import logstore
from logstore.engine.partition.atomic_batches import atomic_batches
from logstore.errors import Fenced, NotAtomic, ReadOnly, RecordTooLarge
from logstore.format.batches.batch import encode_batch
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, Gate, GatedStore
from tests.support.engine.harness import open_store, pairs, running
from tests.support.patience import PATIENCE_S

Logs = list[logstore.PartitionLog]


def place(gated: GatedStore, seq: int) -> AbstractContextManager[Gate]:
    """Holds what is put there."""
    return gated.hold("put", prefix="lanes/", suffix=f"{seq:020d}.seg")


def seen(objects: ObjectStore, number: int) -> list[tuple[int, bytes]]:
    """What a process that was not there sees of a partition."""
    with open_store(objects, writer="read_only") as store:
        return pairs(store.topic("t").partition(number))


def raw(*values: bytes) -> bytes:
    return encode_batch([logstore.Record(value) for value in values], now_ms=1, codec_id=0)[0]


def opened(store: logstore.Store, partitions: int) -> Logs:
    """Each has one record; their entries are in the lane's first places."""
    topic = store.create_topic("t", partitions)
    logs = [topic.partition(number) for number in range(partitions)]
    for log in logs:
        log.append(b"opened")
    return logs


def submit(*parts: tuple[logstore.PartitionLog, bytes]) -> Future[list[logstore.Receipt]]:
    return atomic_batches([(log, raw(*values.split())) for log, values in parts])


def values(log: logstore.PartitionLog, **options: str) -> list[bytes | None]:
    return [record.value for record in log.records(**options)]  # type: ignore[arg-type]


def test_N09_records_of_several_partitions_are_one_put(any_home: ObjectStore) -> None:
    faulty = FaultyStore(any_home)
    with running(faulty, lanes=1) as store:
        logs = opened(store, 3)
        faulty.forget_calls()
        receipts = submit((logs[0], b"a b"), (logs[2], b"c")).result(PATIENCE_S)
        assert [call.operation for call in faulty.calls] == ["put"]
        assert [(r.partition, r.offset, r.last_offset, r.durability) for r in receipts] == [
            (0, 1, 2, "durable"),
            (2, 1, 1, "durable"),
        ]
        assert values(logs[0], visibility="durable") == [b"opened", b"a", b"b"]
        assert values(logs[1], visibility="durable") == [b"opened"]
    assert seen(any_home, 0) == [(0, b"opened"), (1, b"a"), (2, b"b")]
    assert seen(any_home, 2) == [(0, b"opened"), (1, b"c")]


def test_N09_nothing_behind_it_is_shown_or_acked_before_it_is_decided() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, lanes=1, ack="buffered") as store:
        logs = opened(store, 3)
        store.flush()
        before = logs[0].append(b"before")
        with place(gated, 1) as gate:
            atomic = submit((logs[0], b"x"), (logs[1], b"y"))
            gate.wait_held()
            behind = [logs[0].submit(b"behind", ack=ack) for ack in ("buffered", "durable")]
            beside = logs[2].submit(b"beside")
            assert beside.done(), "of another partition"
            assert not atomic.done()
            assert not any(future.done() for future in behind)
            assert values(logs[0]) == [b"opened", b"before"]
            assert values(logs[1]) == [b"opened"]
            gate.open()
            assert [receipt.offset for receipt in atomic.result(PATIENCE_S)] == [2, 1]
            assert [future.result(PATIENCE_S).offset for future in behind] == [3, 4]
        assert before.offset == 1
    assert [value for _, value in seen(gated, 0)] == [b"opened", b"before", b"x", b"behind", b"behind"]


def test_N09_without_one_of_its_partitions_it_fails_whole_and_what_follows_is_dense() -> None:
    """Another process takes partition 1 while the entry is under way, with appends of all kinds before and behind it."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    logs = opened(store, 3)
    with place(gated, 3) as gate, running(objects, lanes=1) as other:
        first = logs[2].submit(b"first")
        gate.wait_held()
        before = [logs[0].submit(b"before"), logs[2].submit(b"before")]
        lost = submit((logs[0], b"x xx"), (logs[1], b"y"))
        kept = submit((logs[0], b"k"), (logs[2], b"kk"))
        behind = [logs[0].submit(b"behind", ack=ack) for ack in ("durable", "durable")]
        assert other.topic("t").partition(1).append(b"taken").offset == 1
        gate.open()
        assert first.result(PATIENCE_S).offset == 1
        with pytest.raises(Fenced, match=r"nothing of it.*t/1 has another writer"):
            lost.result(PATIENCE_S)
        assert [future.result(PATIENCE_S).offset for future in before] == [1, 2]
        assert [receipt.offset for receipt in kept.result(PATIENCE_S)] == [2, 3]
        assert [future.result(PATIENCE_S).offset for future in behind] == [3, 4]
    assert [value for _, value in seen(objects, 0)] == [b"opened", b"before", b"k", b"behind", b"behind"]
    assert [offset for offset, _ in seen(objects, 0)] == [0, 1, 2, 3, 4]
    assert seen(objects, 1) == [(0, b"opened"), (1, b"taken")]
    assert [value for _, value in seen(objects, 2)] == [b"opened", b"first", b"before", b"kk"]
    store.close()


def test_N09_a_seal_in_its_own_place_fails_it_whole() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1, ack="buffered")
    logs = opened(store, 2)
    store.flush()
    with place(gated, 1) as gate, running(objects, lanes=1) as other:
        lost = submit((logs[0], b"x"), (logs[1], b"y"))
        gate.wait_held()
        behind = [logs[0].submit(b"buffered"), logs[0].submit(b"durable", ack="durable")]
        assert other.topic("t").partition(1).append(b"taken").offset >= 1
        assert not any(future.done() for future in behind)
        gate.open()
        with pytest.raises(Fenced, match="nothing of it"):
            lost.result(PATIENCE_S)
        assert [future.result(PATIENCE_S).offset for future in behind] == [1, 2]
        assert pairs(logs[0]) == [(0, b"opened"), (1, b"buffered"), (2, b"durable")]
        assert logs[0].append(b"on").offset == 3
    store.close()
    assert seen(objects, 0) == [(0, b"opened"), (1, b"buffered"), (2, b"durable"), (3, b"on")]
    assert b"y" not in [value for _, value in seen(objects, 1)]


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.REFUSE, Fault.LOSE_ANSWER])
def test_N09_a_lost_answer_leaves_one_copy_of_all_of_it(fault: Fault) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, lanes=1, probe_interval=0.001) as store:
        logs = opened(store, 2)
        faulty.fail("put", prefix="lanes/", times=3, with_=fault)
        receipts = submit((logs[0], b"x"), (logs[1], b"y")).result(PATIENCE_S)
        assert [receipt.offset for receipt in receipts] == [1, 1]
        assert logs[0].append(b"z").offset == 2
    assert seen(objects, 0) == [(0, b"opened"), (1, b"x"), (2, b"z")]
    assert seen(objects, 1) == [(0, b"opened"), (1, b"y")]


def test_N09_where_it_cannot_be_it_says_so_and_nothing_is_stored() -> None:
    objects = MemoryStore()
    with running(objects) as store:
        store.create_topic("t", 8)
    for settings, error in (
        ({"lanes": 0}, NotAtomic),
        ({"lanes": 4}, NotAtomic),
        ({"writer": "shared"}, NotAtomic),
        ({"writer": "read_only"}, ReadOnly),
    ):
        with running(objects, **settings) as store:
            logs = [store.topic("t").partition(number) for number in range(8)]
            with pytest.raises(error):
                submit(*((log, b"x") for log in logs))
    with running(objects, lanes=1) as store:
        logs = [store.topic("t").partition(number) for number in range(8)]
        with pytest.raises(RecordTooLarge):
            atomic_batches([(log, raw(bytes(700_000))) for log in logs])
    assert not list(objects.list("lanes/"))
    assert not [info for info in objects.list("topics/") if info.key.endswith(".seg")]
