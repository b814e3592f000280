"""W05, W06: writers that are fenced, and writers that slept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logstore.engine.memory.catch_up import reload
from logstore.errors import (
    Fenced,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.format.batches.batch import encode_batch
from logstore.format.batches.record import Record
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import (
    at,
    background,
    drive,
    numbered,
    open_store,
    pairs,
    partition,
    running,
    stored,
)
from tests.support.patience import PATIENCE_S

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


_FORKED_APART = """
import os, sys, logstore
store = logstore.open(sys.argv[1])
topic = store.create_topic("t", 2)
for number in (0, 1):
    if os.fork() == 0:
        for turn in range(5):
            topic.partition(number).append(b"%d" % turn)
        store.close()
        os._exit(0)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


def test_W05_N01_processes_forked_from_an_open_store_write_their_own_partitions_side_by_side(
    tmp_path: Path,
) -> None:
    where = str(tmp_path / "objects")
    subprocess.run([sys.executable, "-c", _FORKED_APART, where], check=True)
    with open_store(LocalStore(where), writer="read_only") as store:
        for number in (0, 1):
            assert pairs(store.topic("t").partition(number)) == at(0, [b"%d" % turn for turn in range(5)])


@pytest.mark.parametrize("heard", ["by a reader", "by its maintenance"])
@pytest.mark.usefixtures("own_chain")
def test_W05_who_has_not_learnt_of_its_successor_shows_nothing_past_its_own_mark(heard: str) -> None:
    """The last records of both lie in one merged object: the old writer's readers stop where its mark is, and go on, with
    each record once, when it has met the fence."""
    objects, clock = MemoryStore(), ManualClock()
    theirs = numbered(6, 6)
    with open_store(objects, clock, cache_bytes=0) as a, running(objects, clock) as b:
        log, other = partition(a), partition(b)
        for value in numbered(0, 6):
            log.append(value)
        clock.advance(1.0)
        for value in theirs:
            other.append(value)
        assert other._internal.maintenance.compact(clock.now_ms(), bytes(16)) == 11
        if heard == "by a reader":  # which finds its segments gone, and asks where the records are now
            clock.advance(2 * 86400.0)
            assert len(other._internal.maintenance.collect(clock.now_ms())) == 11
        else:
            reload(log._internal._chain, log._internal.state)
        for read in (log.read, log._internal.read_cached, log.read):
            result = read(0, visibility="durable")
            assert result is None or (result.next_offset, result.durable_high_watermark) == (6, 6)
        assert log.read(5).next_offset == 6
        assert not log.read(6)
        assert log.offset_for_timestamp(1_700_000_000_001) is None
        assert pairs(log) == at(0, numbered(0, 6))
        with pytest.raises(Fenced):
            log.append(b"too late")
        assert pairs(log) == at(0, numbered(0, 6) + theirs)
        assert log.offset_for_timestamp(1_700_000_000_001) == 6


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
    with running(objects) as creator:
        creator.create_topic("t")
    clock, faulty = ManualClock(), FaultyStore(objects)
    with running(faulty, clock) as store:
        log = partition(store)
        faulty.fail("put", suffix=".seg", times=None, with_=Fault.LOSE_REQUEST)
        with pytest.raises(StoreUnavailable, match="nothing was appended"):
            drive(clock, background(log.append, b"x", timeout=5.0))
        faulty.heal()
        assert drive(clock, background(log.append, b"y", timeout=5.0)).offset == 0
    assert stored(objects) == [(0, b"y")]
