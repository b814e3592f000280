"""W17: who may stop whom. The owner that a fence names is a real process on this machine."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.config import Ack
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.engine.maintenance import checkpoint
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.write.ownership import check_may_stop
from logstore.errors import Fenced, PartitionInUse, StoreError
from logstore.format.stored.extras import Claim
from logstore.format.stored.owner import Owner
from logstore.format.stored.segment import SegmentFlags, WriterMode
from logstore.layout.paths import PartitionPaths
from logstore.objects import LocalStore, MemoryStore
from logstore.process.presence import Presence
from logstore.testing import FaultyStore, GatedStore
from tests.support.engine.harness import background, headers, open_store, pairs, partition, running, until
from tests.support.engine.other_process import OtherProcess
from tests.support.lanes.entries import seen, store_lane
from tests.support.patience import PATIENCE_S


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("lanes", [0, 1])
def test_W17_a_writer_that_lives_in_another_process_is_not_stopped_by_one_that_opens(
    home: Path, lanes: int
) -> None:
    """Nor is its lane touched, if it commits through one."""
    with OtherProcess(home, lanes=lanes) as service, logstore.open(home, lanes=lanes) as late:
        assert service.append("first") == [0, 0]
        for _ in range(2):  # it may be tried again at any time
            with pytest.raises(PartitionInUse, match=r'writer="shared".*take_over=True') as refused:
                late.topic("t").append(b"late")
            assert refused.value.retriable
            assert f"process {service.pid} " in str(refused.value)
            assert refused.value.owner is not None
            assert refused.value.owner.startswith(f"process {service.pid} ")
        assert service.append("second") == [0, 1], "it was not stopped"
        service.close_store()
        assert late.topic("t").append(b"late").offset == 2, "a store that was closed is in nobody's way"


@pytest.mark.parametrize("lanes", [0, 1])
def test_W17_it_is_stopped_by_one_that_asks_for_it_and_told_what_to_do(home: Path, lanes: int) -> None:
    with OtherProcess(home, lanes=lanes) as service, logstore.open(home, take_over=True) as successor:
        assert service.append("first") == [0, 0]
        assert successor.topic("t").append(b"second").offset == 1
        told = service.append("late")
        assert told["error"] == "Fenced"
        assert f"(process {os.getpid()} " in told["text"] or lanes
        assert 'writer="shared"' in told["text"]
        assert "take_over=True" in told["text"]


@pytest.mark.parametrize("wait", [True, False])
def test_W17_one_that_was_killed_is_in_nobodys_way(home: Path, wait: bool) -> None:
    """Also while it is still in the process table, because its parent has not asked for it."""
    with OtherProcess(home) as service, logstore.open(home) as successor:
        assert service.append("first") == [0, 0]
        service.kill(wait=wait)
        assert successor.topic("t").append(b"second").offset == 1


def test_W17_one_that_is_stopped_by_a_signal_lives(home: Path) -> None:
    with OtherProcess(home) as service, logstore.open(home) as late:
        service.append("first")
        os.kill(service.pid, signal.SIGSTOP)
        with pytest.raises(PartitionInUse):
            late.topic("t").append(b"late")


def test_W17_a_forked_child_does_not_keep_its_parents_store_open(home: Path) -> None:
    with OtherProcess(home) as service, logstore.open(home) as late:
        service.append("first")
        service.fork()
        with pytest.raises(PartitionInUse):
            late.topic("t").append(b"late")
        service.close_store()
        assert late.topic("t").append(b"second").offset == 1


def test_W17_a_shared_writer_does_not_stop_an_exclusive_one_that_lives(home: Path) -> None:
    with OtherProcess(home) as service, logstore.open(home, writer="shared") as late:
        assert service.append("first") == [0, 0]
        with pytest.raises(PartitionInUse, match=f"process {service.pid} "):
            late.topic("t").append(b"late")
        assert service.append("second") == [0, 1]
        service.close_store()
        assert late.topic("t").append(b"third").offset == 2


def test_W17_a_replicated_writer_does_not_either(home: Path) -> None:
    with OtherProcess(home) as service, logstore.open(home) as late:
        assert service.append("first") == [0, 0]
        with pytest.raises(PartitionInUse, match=f"process {service.pid} "):
            late.topic("t").partition(0).replicated("r").compare_and_append([b"r0"], 0, 1)
        assert service.append("second") == [0, 1]


def test_W17_an_exclusive_writer_joins_shared_ones(home: Path) -> None:
    with OtherProcess(home, writer="shared") as fleet, logstore.open(home) as late:
        assert fleet.append("first") == [0, 0]
        assert late.topic("t").append(b"second").offset == 1
        assert fleet.append("third") == [0, 2]
        assert late.topic("t").append(b"fourth").offset == 3
        assert late.health()["partitions"][0]["mode"] == "shared"


@pytest.mark.parametrize("ack", ["buffered", "local"])
def test_W17_who_has_joined_shared_writers_is_told_what_to_do_for_a_weaker_ack(
    home: Path, tmp_path: Path, ack: Ack
) -> None:
    with OtherProcess(home, writer="shared") as fleet, logstore.open(home, wal_dir=tmp_path / "wal") as late:
        assert fleet.append("first") == [0, 0]
        log = late.topic("t").partition(0)
        assert log.append(b"second").offset == 1
        with pytest.raises(PartitionInUse, match=f'ack="{ack}" was asked for.*take_over=True'):
            log.append(b"refused", ack=ack)
        assert log.append(b"third").offset == 2, "nothing was appended, and nobody was stopped"


def test_W17_a_shared_chain_stays_shared_when_its_fleet_is_gone_until_somebody_takes_it(home: Path) -> None:
    """Who joins cannot know that it is alone: a worker that has not appended yet has left nothing in the store."""
    with OtherProcess(home, writer="shared") as fleet:
        assert fleet.append("first") == [0, 0]
        fleet.close_store()
    with logstore.open(home) as late:
        assert late.topic("t").append(b"second").offset == 1
        assert late.health()["partitions"][0]["mode"] == "shared"
    with logstore.open(home, take_over=True) as owner:
        assert owner.topic("t").append(b"third").offset == 2
    with logstore.open(home) as next_one:
        assert next_one.topic("t").append(b"fourth", ack="buffered").offset == 3
        assert next_one.health()["partitions"][0]["mode"] == "exclusive"


def test_W17_one_that_cannot_join_says_why(objects: MemoryStore) -> None:
    with running(objects, writer="shared") as fleet:
        partition(fleet).append(b"first")
        with running(objects) as late:
            with pytest.raises(PartitionInUse, match='ack="buffered" was asked for') as refused:
                partition(late).append(b"x", ack="buffered")
            assert refused.value.owner is None
            with pytest.raises(PartitionInUse, match="must be the only one"):
                partition(late)._internal.open_writer(alone=True)
        with (
            running(objects, ack="buffered") as late,
            pytest.raises(PartitionInUse, match='ack="buffered" was asked for'),
        ):
            partition(late).append(b"x", ack="durable")
        assert partition(fleet).append(b"second").offset == 1
        with running(objects, ack="buffered", take_over=True) as owner:
            assert partition(owner).append(b"third").offset == 2
        with pytest.raises(Fenced, match='writer="shared"'):
            partition(fleet).append(b"late")


def test_W17_within_one_process_the_later_writer_wins(objects: MemoryStore) -> None:
    with running(objects) as first, running(objects) as second:
        partition(first).append(b"first")
        assert partition(second).append(b"second").offset == 1
        with pytest.raises(Fenced):
            partition(first).append(b"late")


def test_W17_who_came_while_the_fence_was_on_its_way_is_judged_too(home: Path) -> None:
    """Between the look and the put another process opens: the put loses, and what is there now is looked at."""
    gated = GatedStore(LocalStore(home))
    with running(gated) as late, gated.hold("put", suffix="00.seg") as gate:
        appending = background(partition(late).append, b"late")
        gate.wait_held()
        with OtherProcess(home) as service:
            assert service.append("first") == [0, 0]
            gate.release()
            with pytest.raises(PartitionInUse, match=f"process {service.pid} "):
                appending.result(PATIENCE_S)
            assert service.append("second") == [0, 1]


def test_W17_an_owner_is_known_however_long_ago_its_fence_was(home: Path) -> None:
    """In a chain of its own: the manifest says it, and opening asks for no more objects than before."""
    with OtherProcess(home, lanes=0) as service:
        for number in range(checkpoint.EVERY_SEGMENTS + 2):
            service.append(f"{number}")
        objects = LocalStore(home)
        with open_store(objects, writer="read_only") as reader:
            manifest = partition_of(reader)._internal.paths.manifest
        until(lambda: objects.head(manifest) is not None)
        faulty = FaultyStore(objects)
        with running(faulty) as late:
            log = partition_of(late)
            _ = log.durable_high_watermark
            assert faulty.count("get", suffix=f"{0:020d}.seg") == 0, "the fence itself is not read"
            faulty.forget_calls()
            with pytest.raises(PartitionInUse, match=f"process {service.pid} "):
                log.append(b"late")
            assert not faulty.calls


def partition_of(store: logstore.Store) -> PartitionLog:
    return store.topic("t").partition(0)


# What is judged, without a second process

CHAIN = Chain(MemoryStore(), PartitionPaths("t", "0" * 16, 0))


@pytest.fixture
def elsewhere() -> Owner:
    """On another machine."""
    return replace(Presence().show(), boot_id=b"another machine.", host="web-2", name="shop", pid=7)


def test_W17_where_it_cannot_be_known_the_library_takes_over_and_a_command_does_not(elsewhere: Owner) -> None:
    tail = ChainTail(next_seq=3, epoch=2, owner=elsewhere.pack())
    check_may_stop(CHAIN, tail, False)
    check_may_stop(CHAIN, tail, True)
    with pytest.raises(PartitionInUse, match=r"process 7 \(shop\) on web-2 wrote it last .* cannot be told"):
        check_may_stop(CHAIN, tail, "if_gone")
    for nameless in (tail._replace(owner=b""), tail._replace(owner=b"\xff of a newer release")):
        check_may_stop(CHAIN, nameless, False)
        with pytest.raises(PartitionInUse, match="left no name"):
            check_may_stop(CHAIN, nameless, "if_gone")
    with pytest.raises(PartitionInUse, match="replicated writers wrote it last"):
        check_may_stop(CHAIN, tail._replace(owner=b"", mode=WriterMode.REPLICATED), "if_gone")


def test_W17_one_that_said_that_it_closed_is_in_nobodys_way(elsewhere: Owner) -> None:
    check_may_stop(CHAIN, ChainTail(next_seq=3, epoch=2, owner=elsewhere.pack(), closed=True), "if_gone")
    check_may_stop(CHAIN, ChainTail(), "if_gone")


@pytest.mark.parametrize(
    ("settings", "ack", "says_it"),
    [({}, "durable", False), ({}, "buffered", True), ({"take_over": "if_gone"}, "durable", True)],
)
def test_W17_a_close_says_so_where_it_stores_something_anyway_or_promised_to(
    objects: MemoryStore, settings: dict[str, Any], ack: Ack, says_it: bool
) -> None:
    faulty = FaultyStore(objects)
    with running(faulty, **settings) as store:
        partition(store).append(b"x", ack=ack)
        partition(store).flush()
        faulty.forget_calls()
        lane = f"lanes/{store_lane(store)}/"
    assert faulty.count("put", prefix=lane) == (2 if says_it else 1), "the end of the lane, and a last word"
    assert faulty.count("put") == faulty.count("put", prefix="lanes/")
    assert (SegmentFlags.CLOSED in headers(objects)[-1].flags) is says_it
    with running(objects) as store:
        assert pairs(partition_of(store)) == [(0, b"x")]
        assert partition_of(store)._internal.state.tail.closed is says_it


def test_W17_a_farewell_that_cannot_be_stored_is_no_failure(objects: MemoryStore) -> None:
    faulty = FaultyStore(objects)
    store = open_store(faulty, take_over="if_gone")
    partition(store).append(b"x")
    faulty.fail("put", times=None)
    store.close(timeout=0.05)
    assert pairs_of(objects) == [(0, b"x")]


def pairs_of(objects: MemoryStore) -> list[tuple[int, bytes]]:
    with open_store(objects, writer="read_only") as store:
        return pairs(partition_of(store))


def test_N05_C01_no_fence_goes_behind_a_claim_that_was_not_sealed(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taker judges who has the lane, and seals nothing if another has it. It must not go on without the seal: the owner
    would, too. Here it does not know whom it judges, twice, as if another thread read the lane just then."""
    left, known = [b"", b""], LaneReader.owner_of
    with running(objects, lane="first") as first, running(objects, lanes=0, take_over=True) as second:
        log = first.create_topic("t", 1).partition(0)
        assert log.append(b"a").offset == 0
        monkeypatch.setattr(LaneReader, "owner_of", lambda *call: left.pop() if left else known(*call))
        assert second.topic("t").partition(0).append(b"b").offset == 1
        with pytest.raises(Fenced):
            log.append(b"c")
    assert seen(objects, 0) == [(0, b"a"), (1, b"b")]


def test_W17_who_has_a_lane_is_known_while_it_cannot_be_read() -> None:
    """A look that failed leaves what was known of the owner: whom the partition's fence names may be gone for long."""
    faulty = FaultyStore(MemoryStore())
    with running(faulty, lane="first") as first:
        log = first.create_topic("t", 1).partition(0)
        log.append(b"a")
        reader, claim = LaneReader(faulty), Claim("first.0", 0)
        reader.snapshot(claim.lane)
        owner = reader.owner_of(claim)
        assert owner == first._runtime.presence.show().pack()
        log.append(b"b")
        unread = faulty.fail("get", suffix="/checkpoint", times=None)
        with pytest.raises(StoreError):
            reader.snapshot(claim.lane)
        faulty.remove(unread)
        assert reader.owner_of(claim) == owner
