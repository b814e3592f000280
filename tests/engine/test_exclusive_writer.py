"""W01–W06: one commit point, answers that get lost, writers that are fenced, writers that slept."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.harness import (
    PATIENCE_S,
    at,
    background,
    crash,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    until,
)
from logstore.engine.chain import Chain, ChainTail
from logstore.engine.partition_log import PartitionLog
from logstore.errors import (
    Closed,
    Fenced,
    Indeterminate,
    LogStoreError,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.format.batch import encode_batch
from logstore.format.errors import FormatError
from logstore.format.record import Record
from logstore.format.segment import EncodedBatch, SegmentHeader, build_segment
from logstore.objects import LocalStore, MemoryStore, ObjectInfo, ObjectStore
from logstore.objects.protocol import Buffer
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock


def headers(objects: ObjectStore, log: PartitionLog) -> list[SegmentHeader]:
    """The whole chain as it stands in the store."""
    return [link.header for link in Chain(objects, log.paths).follow(ChainTail())]


def stored(objects: ObjectStore) -> list[tuple[int, bytes]]:
    """What a process that was not there sees."""
    with open_store(objects, writer="read_only") as store:
        return pairs(store.topic("t").partition(0))


class Witness:
    """An object store that remembers how each object was put."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.puts: list[tuple[str, bool, str | None]] = []
        self.deleted: list[str] = []

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner.get(key, start, end)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        info = self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        self.puts.append((key, if_absent, if_match))
        return info

    def head(self, key: str) -> ObjectInfo | None:
        return self.inner.head(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after)

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        self.inner.delete(key)


# W01


def test_W01_a_record_exists_if_and_only_if_its_segment_stands(objects: ObjectStore) -> None:
    gated = GatedStore(objects)
    with running(gated) as store:
        log = partition(store)
        log.append(b"zero")
        with gated.hold("put", suffix=".seg") as gate:
            future = log.submit(b"one")
            gate.wait_held()
            assert stored(objects) == [(0, b"zero")]
            assert log.durable_high_watermark == 1
            gate.release()
            future.result(PATIENCE_S)
        assert stored(objects) == [(0, b"zero"), (1, b"one")]


def test_W01_every_segment_is_created_and_none_is_overwritten(objects: ObjectStore) -> None:
    witness = Witness(objects)
    for round_ in range(3):
        with running(witness) as store:
            log = partition(store)
            log.append(b"round %d" % round_)
            log.append(b"tail %d" % round_, ack="buffered")
    segments = [put for put in witness.puts if put[0].endswith(".seg")]
    assert len(segments) == len({key for key, _, _ in segments})
    assert all(if_absent for _, if_absent, _ in segments)
    conditional = [put for put in witness.puts if not put[1]]
    assert all(if_match is not None for _, _, if_match in conditional), "something was overwritten blindly"


# W02


def test_W02_uppers_form_an_unbroken_chain_whoever_writes(objects: ObjectStore) -> None:
    """Three writers take the partition from each other as fast as they can; each append is acked or refused."""
    acked: list[tuple[int, bytes]] = []
    guard = threading.Lock()

    def compete(name: bytes) -> None:
        for turn in range(5):
            store = open_store(objects)
            log = partition(store)
            for number in range(3):
                value = b"%b-%d-%d" % (name, turn, number)
                try:
                    receipt = log.append(value)
                except LogStoreError:
                    break
                with guard:
                    acked.append((receipt.offset, value))
            crash(store)

    rivals = [background(compete, name) for name in (b"a", b"b", b"c")]
    for rival in rivals:
        rival.result(PATIENCE_S)
    with open_store(objects) as store:
        chain = headers(objects, partition(store))
    assert [header.seq for header in chain] == list(range(len(chain)))
    for before, after in pairwise(chain):
        assert after.base_offset == before.end_offset
        assert after.epoch in (before.epoch, before.epoch + 1)
    found = stored(objects)
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert set(acked) <= set(found)
    assert len({value for _, value in found}) == len(found)


def test_W02_an_empty_range_with_records_is_a_usage_error() -> None:
    raw, info = encode_batch([Record(b"x")], now_ms=0)
    batch = EncodedBatch(raw[:16], memoryview(raw)[16:], 0, info.count, 0, 0)
    header = SegmentHeader(0, 1, 0, 0, bytes(16), 0, 0)
    with pytest.raises(FormatError, match="without a hole"):
        build_segment(header, [batch])


# W03


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize(
    "error", [OSError("the wire broke"), RuntimeError("a bug in a store"), TimeoutError()]
)
def test_W03_an_error_of_any_other_type_counts_as_indeterminate(error: Exception, carried_out: bool) -> None:
    """Of the fence, and of a record: both are looked for before they are sent again."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    store = open_store(gated, clock)
    log = partition(store)
    for value in (b"opens the writer", b"goes on"):
        with gated.hold("put", suffix=".seg") as gate:
            future = background(log.append, value)
            gate.wait_held()
            if carried_out:
                gate.release_lost(error=error)
            else:
                gate.fail(error)
            gate.open()
            drive(clock, future)
    store.close()
    assert stored(objects) == [(0, b"opens the writer"), (1, b"goes on")]
    assert [header.epoch for header in headers(objects, log)] == [1, 1, 1]


# W04

OUTCOMES = [Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.CONFLICT, Fault.SLOW_DOWN]


@pytest.mark.parametrize("fault", OUTCOMES)
@pytest.mark.parametrize("times", [1, 4])
def test_W04_whatever_becomes_of_a_put_there_is_exactly_one_copy(
    objects: ObjectStore, fault: Fault, times: int
) -> None:
    clock, faulty = ManualClock(), FaultyStore(objects)
    with running(faulty, clock) as store:
        log = partition(store)
        faulty.fail("put", suffix=".seg", with_=fault, times=times)
        assert drive(clock, background(log.append, b"zero", timeout=1e6)).offset == 0
        faulty.fail("put", suffix=".seg", with_=fault, times=times)
        assert drive(clock, background(log.append, b"one", timeout=1e6)).offset == 1
        assert drive(clock, background(log.append, b"two", timeout=1e6)).offset == 2
    assert stored(objects) == at(0, [b"zero", b"one", b"two"])


@pytest.mark.s3
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("server", ["moto", "seaweedfs"])
def test_W04_lost_answers_on_a_real_server(server: str, fault: Fault, request: pytest.FixtureRequest) -> None:
    from logstore.objects import close_store, open_url

    home = open_url(request.getfixturevalue(server).url())
    faulty = FaultyStore(home)
    with running(faulty) as store:
        log = partition(store)
        for number in range(3):
            faulty.fail("put", suffix=".seg", with_=fault)
            assert log.append(b"v%d" % number).offset == number
    assert stored(home) == at(0, numbered(0, 3))
    close_store(home)


def test_W04_lost_answer_then_a_peer_commits_then_retry_is_exactly_one_copy(objects: ObjectStore) -> None:
    """The record stood before the peer's fence did, so it counts, and its producer is told so."""
    clock, gated = ManualClock(), GatedStore(objects)
    a = open_store(gated, clock)
    log = partition(a)
    log.append(b"zero")
    with gated.hold("get", suffix=".seg") as looks, gated.hold("put", suffix=".seg") as puts:
        future = log.submit(b"one")
        puts.wait_held()
        puts.release_lost()
        looks.wait_held()  # it wants to see whether its segment stands; meanwhile
        with running(objects) as b:
            assert partition(b).append(b"two").offset == 2
    assert drive(clock, future).offset == 1
    with pytest.raises(Fenced, match="epoch 2"):
        drive(clock, background(log.append, b"too late", timeout=1e6))
    a.close()
    assert stored(objects) == at(0, [b"zero", b"one", b"two"])


def test_W04_lost_request_then_a_peer_commits_is_no_copy_and_fenced(objects: ObjectStore) -> None:
    clock, gated = ManualClock(), GatedStore(objects)
    a = open_store(gated, clock)
    log = partition(a)
    log.append(b"zero")
    with gated.hold("put", suffix=".seg") as puts:
        future = log.submit(b"never stored")
        puts.wait_held()
        with running(objects) as b:
            assert partition(b).append(b"one").offset == 1
        puts.fail(Indeterminate("nobody knows"))
        puts.open()
        with pytest.raises(Fenced):
            drive(clock, future)
    a.close()
    assert stored(objects) == at(0, [b"zero", b"one"])


@pytest.mark.parametrize("carried_out", [True, False])
def test_W04_what_cannot_be_known_is_outcome_unknown_and_the_writer_is_poisoned(carried_out: bool) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    store = open_store(faulty, ManualClock(), append_timeout=0.0)
    log = partition(store)
    log.append(b"zero", timeout=PATIENCE_S)
    doubt = faulty.fail("put", suffix=".seg", with_=Fault.LOSE_ANSWER if carried_out else Fault.LOSE_REQUEST)
    faulty.fail("*", times=None, with_=Fault.UNAVAILABLE)
    future = log.submit(b"one")
    until(lambda: doubt.hits == 1)
    with pytest.raises(OutcomeUnknown, match="t/0: offsets 1 to 1"):
        store.close(timeout=0.0)
    with pytest.raises(OutcomeUnknown):
        future.result(PATIENCE_S)
    with pytest.raises((Closed, OutcomeUnknown)):
        log.append(b"two")
    faulty.heal()
    with running(faulty) as store:
        log = partition(store)
        assert pairs(log) == at(0, [b"zero", b"one"] if carried_out else [b"zero"])
        assert log.append(b"after").offset == (2 if carried_out else 1)


def test_W04_maintenance_that_sees_our_segment_before_its_answer_came_does_not_confuse_the_commit() -> None:
    """The PUT has landed and its answer is on its way; a reload finds the segment in the store first."""
    from logstore.engine.takeover import reload

    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as store:
        log = partition(store)
        log.append(b"zero")
        with gated.hold("put", suffix=".seg", after=True) as gate:
            future = log.submit(b"one")
            gate.wait_held()
            reload(log._chain, log._load()[0])
            assert log.durable_high_watermark == 1, "not acked yet, so not known to be ours"
            gate.release()
            assert future.result(PATIENCE_S).offset == 1
        assert pairs(log) == at(0, [b"zero", b"one"])
        assert log.append(b"two").offset == 2


# W05


def test_W05_a_fenced_writer_stays_fenced_whatever_it_tries(objects: ObjectStore, wal_dir: Any) -> None:
    a = open_store(objects, wal_dir=wal_dir())
    log = partition(a)
    log.append(b"zero")
    with running(objects) as b:
        partition(b).append(b"one")
    for _ in range(2):
        with pytest.raises(Fenced, match="reopen"):
            log.append(b"unacked")
        with pytest.raises(Fenced):
            log.append(b"unacked", ack="buffered")
        with pytest.raises(Fenced):
            log.append(b"unacked", ack="local")
        with pytest.raises(Fenced):
            log.append_batches(encode_batch([Record(b"unacked")], now_ms=0)[0])
        with pytest.raises(Fenced):
            log.submit([b"unacked"] * 3)
    assert pairs(log) == at(0, [b"zero", b"one"]), "it goes on reading, as a follower"
    a.close()
    assert stored(objects) == at(0, [b"zero", b"one"])


def test_W05_the_unacked_records_of_a_fenced_writer_are_never_visible(objects: ObjectStore) -> None:
    gated = GatedStore(objects)
    a = open_store(gated)
    log = partition(a)
    log.append(b"zero")
    with gated.hold("put", suffix=".seg") as gate:
        uploading = log.submit(b"in the window")
        gate.wait_held()
        buffered = log.submit(b"in the buffer")
        with running(objects) as b:
            partition(b).append(b"one")
    for future in (uploading, buffered):
        with pytest.raises(Fenced):
            future.result(PATIENCE_S)
    assert pairs(log) == at(0, [b"zero", b"one"])
    assert a.health()["buffered_bytes"] == 0
    a.close()
    assert stored(objects) == at(0, [b"zero", b"one"])


def test_W05_ownership_a_b_a_goes_on_at_bs_end(any_home: ObjectStore) -> None:
    first = open_store(any_home)
    assert partition(first).append([b"a0", b"a1"]).last_offset == 1
    second = open_store(any_home)
    assert partition(second).append([b"b2", b"b3"]).offset == 2
    with pytest.raises(Fenced):
        partition(first).append(b"lost")
    first.close()
    with running(any_home) as again:
        log = partition(again)
        assert log.append(b"a4").offset == 4
        assert pairs(log) == at(0, [b"a0", b"a1", b"b2", b"b3", b"a4"])
        with pytest.raises(Fenced):
            partition(second).append(b"lost too")
    second.close()


def test_W05_a_reader_of_a_fenced_writers_buffered_tail_is_told_and_does_not_spin(
    objects: ObjectStore,
) -> None:
    """Acked `buffered`, seen by readers here, and then another writer came: those offsets are lost, and said to be."""
    a = open_store(objects)
    log = partition(a)
    log.append(b"zero")
    log.append([b"seen", b"seen too"], ack="buffered")
    assert pairs(log) == at(0, [b"zero", b"seen", b"seen too"])
    with running(objects) as b:
        taken = partition(b).append(b"b's")
    assert taken.offset > 2
    with pytest.raises(Fenced):
        log.append(b"meets the fence")
    assert pairs(log) == [(0, b"zero"), (taken.offset, b"b's")]
    result = log.read(1)
    assert (result.lost[0].start, result.lost[0].end) == (1, taken.offset)
    assert log.lost_ranges() == [(1, taken.offset)]
    tail = log.tail(start=1)
    assert next(tail).offset == taken.offset
    with pytest.raises(OutcomeUnknown, match="offsets 1 to 2"):
        a.close()


_FORKED = """
import os, sys, logstore
store = logstore.open(sys.argv[1])
log = store.create_topic("t").partition(0)
for name in ("a", "b"):
    if os.fork() == 0:
        try:
            for number in range(5):
                value = f"{name}{number}"
                os.write(1, f"{log.append(value.encode()).offset} {value}\\n".encode())
        except logstore.Fenced:
            pass
        os._exit(0)
for _ in range(2):
    os.wait()
"""


def test_W05_processes_forked_from_an_open_store_do_not_take_each_other_for_themselves(
    tmp_path: Path,
) -> None:
    """A server that opens the store and then forks its workers: each is a writer of its own, and one fences the other."""
    where = str(tmp_path / "objects")
    told = subprocess.run(
        [sys.executable, "-c", _FORKED, where], capture_output=True, check=True, text=True
    ).stdout
    acked = [(int(offset), value.encode()) for offset, value in (line.split() for line in told.splitlines())]
    found = stored(LocalStore(where))
    assert acked
    assert len({offset for offset, _ in acked}) == len(acked)
    assert set(acked) <= set(found)
    assert len({value for _, value in found}) == len(found)


# W06


@pytest.mark.parametrize("slept_s", [0.0, 3600.0, 400 * 86_400.0])
def test_W06_a_writer_that_slept_for_any_time_cannot_commit_into_the_past(slept_s: float) -> None:
    objects, clock = MemoryStore(), ManualClock()
    sleeper = open_store(objects, clock, delete_grace=86_400.0)
    log = partition(sleeper)
    log.append(b"zero")
    clock.advance(slept_s)
    with running(objects, clock) as b:
        partition(b).append([b"one", b"two"])
    with pytest.raises(Fenced):
        log.append(b"into the past")
    sleeper.close()
    assert stored(objects) == at(0, [b"zero", b"one", b"two"])


def test_W06_not_even_if_its_place_in_the_chain_is_empty_again() -> None:
    """Somebody deleted what stood there, the fence too, against all rules: the ack is still not given."""
    objects, clock = MemoryStore(), ManualClock()
    sleeper = open_store(objects, clock, delete_grace=3600.0, append_timeout=PATIENCE_S)
    log = partition(sleeper)
    log.append(b"zero")
    with running(objects, clock) as b:
        other = partition(b)
        for value in numbered(1, 5):
            other.append(value)
        other._checkpointer.write()  # type: ignore[union-attr]
        for seq in (2, 3):
            objects.delete(log.paths.segment(seq))
    clock.advance(3600.0)
    with pytest.raises(OutcomeUnknown, match="silent for 3600 s"):
        log.append(b"into the past")
    with pytest.raises(OutcomeUnknown):
        log.append(b"again")
    sleeper.close()
    with open_store(objects, writer="read_only") as store:
        reader = store.topic("t").partition(0)
        assert pairs(reader, start=2) == at(2, numbered(2, 4))
        assert b"into the past" not in [value for _, value in pairs(reader, start=2)]


def test_W06_a_fence_in_the_way_of_two_openers_is_taken_into_account(objects: ObjectStore) -> None:
    """B's fence lands between A's look at the chain and A's own fence: A goes on behind it, in its own epoch."""
    gated = GatedStore(objects)
    a = open_store(gated)
    log = partition(a)
    with gated.hold("put", suffix=".seg") as gate:
        future = background(log.append, b"a's")
        gate.wait_held()
        b = open_store(objects)
        assert partition(b).append(b"b's").offset == 0
        gate.release()
        gate.open()
        assert future.result(PATIENCE_S).offset == 1
    with pytest.raises(Fenced, match="epoch 2"):
        partition(b).append(b"too late")
    b.close()
    a.close()
    assert stored(objects) == at(0, [b"b's", b"a's"])


def test_W06_a_writer_that_cannot_open_says_so_and_nothing_was_appended() -> None:
    objects = MemoryStore()
    clock, faulty = ManualClock(), FaultyStore(objects)
    with running(faulty, clock) as store:
        log = partition(store)
        faulty.fail("put", suffix=".seg", times=None, with_=Fault.LOSE_REQUEST)
        with pytest.raises(StoreUnavailable, match="nothing was appended"):
            drive(clock, background(log.append, b"x", timeout=5.0))
        faulty.heal()
        assert drive(clock, background(log.append, b"y", timeout=5.0)).offset == 0
    assert stored(objects) == [(0, b"y")]
