"""W01–W04: one commit point, and answers that get lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.tail import ChainTail
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import (
    Closed,
    Fenced,
    Indeterminate,
    LogStoreError,
    OutcomeUnknown,
)
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from logstore.format.errors import FormatError
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.segment import SegmentHeader, build_segment
from logstore.objects import MemoryStore, ObjectInfo, ObjectStore
from logstore.objects.protocol import Buffer
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    crash,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    stored,
    until,
)
from tests.support.patience import PATIENCE_S


def headers(objects: ObjectStore, log: PartitionLog) -> list[SegmentHeader]:
    """The whole chain as it is in the store."""
    return [link.header for link in Chain(objects, log._internal.paths).follow(ChainTail())]  # type: ignore[union-attr]


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


@pytest.mark.usefixtures("no_checkpoints")
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
@pytest.mark.usefixtures("begin_in_own_chains")
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
        looks.wait_held()  # it wants to see whether its segment is committed; meanwhile
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
    from logstore.engine.memory.catch_up import reload

    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated) as store:
        log = partition(store)
        log.append(b"zero")
        with gated.hold("put", suffix=".seg", after=True) as gate:
            future = log.submit(b"one")
            gate.wait_held()
            reload(log._internal._chain, log._internal.state)
            assert log.durable_high_watermark == 1, "not acked yet, so not known to be ours"
            gate.release()
            assert future.result(PATIENCE_S).offset == 1
        assert pairs(log) == at(0, [b"zero", b"one"])
        assert log.append(b"two").offset == 2
