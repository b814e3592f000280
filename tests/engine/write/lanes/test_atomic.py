"""Atomic appends: records of several partitions that are stored together or not at all, in one entry of a lane."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from crc32c import crc32c

import logstore
from logstore.engine.write.lanes import lane_queue
from logstore.errors import (
    BufferFull,
    Closed,
    Fenced,
    InvalidRecord,
    NotAtomic,
    OutcomeUnknown,
    ReadOnly,
    RecordTooLarge,
    UnknownTopic,
)
from logstore.format.batches.batch import encode_batch, split
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore
from tests.support.engine.harness import background, crash, disk_of, open_store, pairs, running, until
from tests.support.lanes.atomic import atomic_batches, opened, raw, submit
from tests.support.lanes.entries import place, seen, values
from tests.support.patience import PATIENCE_S


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


def test_N09_no_upload_is_sent_behind_one_that_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits: else a failure would have to move what is under way."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 1)
    gated = GatedStore(MemoryStore())
    with running(gated, lanes=1) as store:
        logs = opened(store, 2)
        with place(gated, 2) as gate, place(gated, 3) as next_one:
            atomic = submit((logs[0], b"x"), (logs[1], b"y"))
            gate.wait_held()
            behind = [log.submit(b"behind") for log in logs]
            another = submit((logs[0], b"xx"), (logs[1], b"yy"))
            lane = store._lanes.of(logs[0]._internal.paths)
            assert lane is not None
            lane._flight.idle[-1].run()  # as one that was asked to before
            assert not next_one.held
            gate.open()
            atomic.result(PATIENCE_S)
            next_one.wait_held()
            next_one.open()
            assert [future.result(PATIENCE_S).offset for future in behind] == [2, 2]
            assert [receipt.offset for receipt in another.result(PATIENCE_S)] == [3, 3]


def test_N09_those_that_wait_at_the_same_time_share_an_entry() -> None:
    gated = GatedStore(MemoryStore())
    with running(gated, lanes=1) as store:
        logs = opened(store, 4)
        before = len(list(gated.list("lanes/")))
        with place(gated, 4) as gate:
            first = submit((logs[0], b"0"), (logs[1], b"0"))
            gate.wait_held()
            more = [
                submit((logs[number % 3], b"%d" % number), (logs[3], b"%d" % number))
                for number in range(1, 9)
            ]
            gate.open()
            first.result(PATIENCE_S)
            found = [future.result(PATIENCE_S) for future in more]
        assert [receipts[1].offset for receipts in found] == list(range(1, 9))
        assert len(list(gated.list("lanes/"))) - before == 2


def test_N09_it_comes_to_its_turn_behind_a_loud_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its partitions has more before it than fits an entry, and goes on appending."""
    monkeypatch.setattr(lane_queue, "ENTRY_BYTES", 2_000)
    gated = GatedStore(MemoryStore())
    with running(gated, lanes=1, compression="none", uploads_max=1) as store:
        logs = opened(store, 2)
        with place(gated, 2) as gate:
            waiting = [logs[0].submit(bytes(900)) for _ in range(10)]
            gate.wait_held()
            atomic = submit((logs[0], b"x"), (logs[1], b"y"))
            waiting += [logs[0].submit(bytes(900)) for _ in range(10)]
            gate.open()
            assert [receipt.offset for receipt in atomic.result(PATIENCE_S)] == [11, 1]
            found = [future.result(PATIENCE_S).offset for future in waiting]
        assert found == [*range(1, 11), *range(12, 22)]


def test_N09_who_sees_it_in_one_partition_sees_it_in_the_other() -> None:
    objects = MemoryStore()
    wrong: list[tuple[int, int]] = []
    done = threading.Event()
    with running(objects, lanes=1) as store:
        logs = opened(store, 2)

        def look() -> None:
            while not done.is_set():
                first = logs[1].marks().durable
                second = logs[0].marks().durable
                third = logs[1].marks().durable
                if second < first or third < second:
                    wrong.append((first, second))

        looking = background(look)
        for number in range(200):
            submit((logs[0], b"%d" % number), (logs[1], b"%d" % number)).result(PATIENCE_S)
        done.set()
        looking.result(PATIENCE_S)
    assert not wrong


@pytest.mark.parametrize("lost", [False, True])
def test_N09_local_acks_behind_it_wait_and_the_wal_never_has_it(tmp_path: Path, lost: bool) -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1, ack="local", wal_dir=tmp_path / "wal", take_over=True)
    logs = opened(store, 2)
    store.flush()
    with place(gated, 1) as gate:
        before = logs[0].append(b"before")
        atomic = submit((logs[0], b"x"), (logs[1], b"y"))
        gate.wait_held()
        behind = logs[0].submit(b"behind")
        assert not behind.done()
        left = disk_of(tmp_path / "wal", tmp_path / "copy")
        if lost:
            with running(objects, lanes=1, take_over=True) as other:
                other.topic("t").partition(1).append(b"taken")
        gate.open()
        if lost:
            with pytest.raises(Fenced):
                atomic.result(PATIENCE_S)
        else:
            assert atomic.result(PATIENCE_S)[0].offset == before.offset + 1
        assert behind.result(PATIENCE_S).offset == before.offset + (1 if lost else 2)
    on_disk = b"".join(path.read_bytes() for path in left.rglob("*.wal"))
    assert b"before" in on_disk
    assert b"behind" not in on_disk
    crash(store)
    again = disk_of(tmp_path / "wal", tmp_path / "again")
    with running(objects, lanes=1, wal_dir=again, take_over=True) as next_life:
        next_life.topic("t").partition(0).append(b"next")
    expected = [b"opened", b"before", *([] if lost else [b"x"]), b"behind", b"next"]
    assert [value for _, value in seen(objects, 0)] == expected


def test_N09_it_counts_against_the_memory_limit_and_gives_all_of_it_back() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1, max_buffered_bytes=100_000, compression="none")
    logs = opened(store, 2)
    budget = store._runtime.budget
    with place(gated, 2) as gate, running(objects, lanes=1) as other:
        atomic = atomic_batches([(logs[0], raw(bytes(40_000))), (logs[1], raw(bytes(40_000)))])
        gate.wait_held()
        assert budget.used > 80_000
        with pytest.raises(BufferFull):
            atomic_batches([(log, raw(bytes(30_000))) for log in logs], timeout=0.0)
        with pytest.raises(RecordTooLarge):
            atomic_batches([(log, raw(bytes(60_000))) for log in logs], timeout=0.0)
        behind = logs[0].submit(bytes(5_000))
        other.topic("t").partition(1).append(b"taken")
        gate.open()
        with pytest.raises(Fenced):
            atomic.result(PATIENCE_S)
        assert behind.result(PATIENCE_S).offset == 1
    until(lambda: budget.used == 0)
    assert budget.used_max <= 100_000
    store.close()


def test_N09_a_close_that_gives_up_says_that_nobody_knows() -> None:
    gated = GatedStore(MemoryStore())
    store = open_store(gated, lanes=1)
    logs = opened(store, 2)
    with place(gated, 2) as gate:
        sent = submit((logs[0], b"x"), (logs[1], b"y"))
        gate.wait_held()
        queued = submit((logs[0], b"xx"), (logs[1], b"yy"))
        with pytest.raises(OutcomeUnknown, match="not everything is stored"):
            store.close(timeout=0.01)
        for future in (sent, queued):
            with pytest.raises(OutcomeUnknown):
                future.result(0)
        gate.open()


def test_N09_the_topic_of_one_partition_is_deleted_while_it_waits() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as store:
        (kept,) = opened(store, 1)
        gone = store.create_topic("gone").partition(0)
        gone.append(b"opened")
        with place(gated, 2) as gate:
            first = kept.submit(b"first")
            gate.wait_held()
            lost = submit((kept, b"x"), (gone, b"y"))
            behind = kept.submit(b"behind")
            deleting = background(store.delete_topic, "gone")
            until(lambda: gone._internal.closed)
            gate.open()
            deleting.result(PATIENCE_S)
            assert first.result(PATIENCE_S).offset == 1
            with pytest.raises((UnknownTopic, Closed, Fenced)):
                lost.result(PATIENCE_S)
            assert behind.result(PATIENCE_S).offset == 2
    assert [value for _, value in seen(objects, 0)] == [b"opened", b"first", b"behind"]


def test_N09_its_callback_may_append_while_it_fails() -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    logs = opened(store, 3)
    after: Future[logstore.Receipt] = Future()

    def then(_: Future[list[logstore.Receipt]]) -> None:
        after.set_result(logs[0].append(b"after"))

    with place(gated, 3) as gate, running(objects, lanes=1) as other:
        lost = submit((logs[0], b"x"), (logs[1], b"y"))
        lost.add_done_callback(then)
        gate.wait_held()
        behind = logs[2].submit(b"behind")
        other.topic("t").partition(1).append(b"taken")
        gate.open()
        assert after.result(PATIENCE_S).offset == 1
        behind.result(PATIENCE_S)
    store.close()


def test_N09_control_batches_are_taken_and_junk_is_not() -> None:
    marker = control_batch()
    with running(MemoryStore(), lanes=1) as store:
        logs = opened(store, 2)
        with pytest.raises(InvalidRecord, match="control batch"):
            logs[0].append_batches(marker)
        with pytest.raises(InvalidRecord):
            atomic_batches([(logs[0], marker), (logs[1], b"junk")])
        with pytest.raises(ValueError, match="once"):
            atomic_batches([(logs[0], marker), (logs[0], marker)])
        receipts = atomic_batches([(logs[0], marker), (logs[1], raw(b"a") + raw(b"b"))]).result(PATIENCE_S)
        assert [(receipt.offset, receipt.last_offset) for receipt in receipts] == [(1, 1), (1, 2)]
        assert split(logs[0].read(1).raw)[0].is_control


def control_batch() -> bytes:
    """A commit marker, as a transaction coordinator writes it."""
    data = bytearray(encode_batch([logstore.Record(bytes(6), b"\0\0\0\1")], now_ms=1, codec_id=0)[0])
    struct.pack_into(">h", data, 21, 0x30)  # transactional, control
    struct.pack_into(">qhi", data, 43, 7, 0, -1)  # producer, epoch, no sequence
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


WRITER = """
import sys
import logstore
with logstore.open(sys.argv[1], lanes=1, ack="buffered", flush_interval=0.001, take_over=True) as store:
    topic = store.topic("t")
    start = topic.partition(0).durable_high_watermark
    for number in range(10_000):
        topic.append(b"noise", partition=number % 3)
        with store.atomic() as tx:
            for partition in range(3):
                for part in range(1 + partition):
                    tx.append(topic, b"%d/%d" % (start, number), partition=partition)
        print(start, number, flush=True)
"""


def test_N09_kill_9_leaves_all_of_it_or_none(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    with logstore.open(url) as store:
        store.create_topic("t", 3)
    acked: list[bytes] = []
    for life in range(4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE)
        assert process.stdout is not None
        acked += [b"/".join(process.stdout.readline().split()) for _ in range(3 + 4 * life)]
        process.kill()
        process.wait()
        acked += [b"/".join(line.split()) for line in process.stdout.read().splitlines() if line.count(b" ")]
        process.stdout.close()
        with logstore.open(url, writer="read_only") as store:
            found = []
            for partition in range(3):
                values = Counter(record.value for record in store.topic("t").partition(partition).records())
                found.append({value: count for value, count in values.items() if value != b"noise"})
        whole = dict.fromkeys(found[0], 1)
        assert found == [dict.fromkeys(whole, 1 + partition) for partition in range(3)]
        assert {*acked} <= {*whole}
    assert len({*acked}) > 30
