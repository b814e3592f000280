"""Many partitions are opened with the requests of one: their claims go on in a lane of ours with one entry (N04)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.config import Ack
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.write.lanes import lane_checkpoints
from logstore.errors import Fenced, OutcomeUnknown, PartitionInUse, StoreUnavailable, UnknownTopic
from logstore.format.stored.entry import Entry, EntryKind
from logstore.layout.catalog import BORN_VERSION
from logstore.layout.paths import LANES_PREFIX, LanePaths, catalog_key, is_birth_lane
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.testing import Delivery, Fault, FaultyStore, GatedStore, ManualClock
from tests.support.engine.harness import background, crash, open_store, pairs, running, until
from tests.support.engine.other_process import OtherProcess
from tests.support.lanes.entries import seen
from tests.support.patience import PATIENCE_S

MANY = 1000


def submitted(store: logstore.Store, count: int, value: bytes) -> list[int]:
    """One durable record to each partition: all are submitted, then waited for."""
    topic = store.create_topic("t", count, exist_ok=True)
    futures = [topic.partition(number).submit(value, ack="durable") for number in range(count)]
    return [future.result(PATIENCE_S).offset for future in futures]


def entries_of(objects: ObjectStore) -> list[Entry]:
    """All that stand in lanes."""
    lanes = {info.key.split("/")[1] for info in objects.list(LANES_PREFIX)}
    logs = [LaneLog(objects, LanePaths(lane)) for lane in sorted(lanes)]
    entries = [entry for log in logs for entry in log.standing(0)[0].values()]
    return [entry for entry in entries if isinstance(entry, Entry)]


def transfers(objects: ObjectStore) -> list[int]:
    """How many partitions each of them has moved."""
    return [len(entry.parts) for entry in entries_of(objects) if entry.header.kind is EntryKind.TRANSFER]


def opened_and_appended(store: logstore.Store, gated: GatedStore, count: int, value: bytes) -> list[int]:
    """`submitted`, with a store that answers no claim before all of them are asked for but the first: how many claims are
    asked for while one is under way depends on how fast this machine is. So does for how long it remembers a lane."""
    topic = store.create_topic("t", count, exist_ok=True)
    first = topic.partition(0).submit(value)
    with gated.hold("put", prefix=LANES_PREFIX) as gate:
        futures = [first, *(topic.partition(number).submit(value) for number in range(1, count))]
        gate.open()
        return [future.result(PATIENCE_S).offset for future in futures]


def test_N04_a_thousand_partitions_of_a_new_topic_are_opened_with_a_few_requests() -> None:
    faulty = FaultyStore(MemoryStore())
    gated = GatedStore(faulty)
    with running(gated, ManualClock(), lanes=1) as store:
        assert opened_and_appended(store, gated, MANY, b"a") == [0] * MANY
        assert len(faulty.calls) <= 100
    assert sum(transfers(faulty)) == MANY
    assert not list(faulty.list("topics/")), "nothing is put into the partitions' own chains"
    assert [seen(faulty, number) for number in (0, 1, MANY - 1)] == [[(0, b"a")]] * 3


def test_N04_a_thousand_partitions_whose_owner_closed_are_opened_with_a_few_requests() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        assert submitted(store, MANY, b"a") == [0] * MANY
    faulty = FaultyStore(objects)
    gated = GatedStore(faulty)
    with running(gated, ManualClock(), lanes=1) as store:
        assert opened_and_appended(store, gated, MANY, b"b") == [1] * MANY
        assert len(faulty.calls) <= 100
    assert [seen(objects, number) for number in (0, 1, MANY - 1)] == [[(0, b"a"), (1, b"b")]] * 3


def test_N04_who_transfers_behind_a_transfer_of_his_own_does_not_look_again_where_the_lane_ends() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        assert submitted(store, 5, b"a") == [0] * 5
    faulty, clock = FaultyStore(objects), ManualClock()
    with running(faulty, clock, lanes=1) as store:
        topic = store.topic("t")
        topic.partition(0).append(b"b")
        faulty.forget_calls()
        assert [topic.partition(number).append(b"b").offset for number in (1, 2, 3)] == [1] * 3
        assert faulty.count("list") == 0
        assert faulty.count("put") == 6, "a transfer and a part for each"
    assert [seen(objects, number) for number in range(4)] == [[(0, b"a"), (1, b"b")]] * 4


def test_N04_who_transfers_behind_a_transfer_of_his_own_finds_another_s_there() -> None:
    """He reads on and puts his own behind it, and asks nobody for anything: nobody has outrun him."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        assert submitted(store, 3, b"a") == [0] * 3
    with running(objects, ManualClock(), lanes=1) as one, running(objects, ManualClock(), lanes=1) as other:
        one.topic("t").partition(0).append(b"b")
        other.topic("t").partition(1).append(b"b")
        one.topic("t").partition(2).append(b"b")
    assert [seen(objects, number) for number in range(3)] == [[(0, b"a"), (1, b"b")]] * 3
    assert sum(transfers(objects)) == 6
    assert not any(entry.header.is_ask for entry in entries_of(objects))


@pytest.mark.soak
def test_N08_ten_thousand_partitions_are_opened_with_two_hundred_requests() -> None:
    """Of a new topic, and of one whose owner closed."""
    objects = MemoryStore()
    for life in range(2):
        faulty = FaultyStore(objects)
        gated = GatedStore(faulty)
        with running(gated, ManualClock(), lanes=1) as store:
            assert opened_and_appended(store, gated, 10 * MANY, b"%d" % life) == [life] * 10 * MANY
            assert len(faulty.calls) <= 200
    assert [seen(objects, number) for number in (0, 10 * MANY - 1)] == [[(0, b"0"), (1, b"1")]] * 2


def test_N08_a_writer_keeps_nothing_of_the_claim_that_it_was_opened_ahead_of() -> None:
    """What waits for a claim is let go of once it is committed: there may be ten thousand of them."""
    gated = GatedStore(MemoryStore())
    with running(gated, ManualClock(), lanes=1) as store:
        assert opened_and_appended(store, gated, 20, b"a") == [0] * 20
        writers = [store.topic("t").partition(number)._internal._writer for number in range(20)]
        assert [writer.claim_committed for writer in writers if writer is not None] == [None] * 20
        store.topic("t").partition(3).open_writer()  # nor waits for it any more


def test_N04_the_partitions_of_an_unnamed_owner_that_was_killed_are_opened_with_a_few_requests(
    tmp_path: Path,
) -> None:
    with OtherProcess(tmp_path / "store", partitions=MANY, lanes=1) as other:
        assert other.append_to_all("a") == [0] * MANY
        other.kill()
    faulty = FaultyStore(LocalStore(tmp_path / "store"))
    gated = GatedStore(faulty)
    with running(gated, ManualClock(), lanes=1) as store:
        assert opened_and_appended(store, gated, MANY, b"b") == [1] * MANY
        assert len(faulty.calls) <= 200
    assert [seen(faulty, number) for number in (0, MANY - 1)] == [[(0, b"a"), (1, b"b")]] * 2


def test_N04_one_partition_moves_and_the_others_stay(any_home: ObjectStore) -> None:
    first = open_store(any_home, lanes=1)
    assert submitted(first, 3, b"a") == [0] * 3
    with running(any_home, lanes=1, take_over=True) as second:
        assert second.topic("t").partition(1).append(b"b").offset == 1
        with pytest.raises(Fenced):
            first.topic("t").partition(1).append(b"no")
        assert [first.topic("t").partition(number).append(b"c").offset for number in (0, 2)] == [1, 1]
    assert [seen(any_home, number) for number in range(3)] == [
        [(0, b"a"), (1, b"c")],
        [(0, b"a"), (1, b"b")],
        [(0, b"a"), (1, b"c")],
    ]
    first.close()


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_N10_a_partition_of_a_new_topic_may_begin_in_its_own_chain(kind: str) -> None:
    """By a writer without a lane, before and behind those that have one."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        store.create_topic("t", 2).partition(0).append(b"a")
    for turn in range(2):
        with running(objects, lanes=0, writer=kind, take_over=True) as store:
            assert submitted(store, 2, b"own") == [1 + 2 * turn, 2 * turn]
        with running(objects, lanes=1, take_over=True) as store:
            assert submitted(store, 2, b"lane") == [2 + 2 * turn, 1 + 2 * turn]
    assert [value for _, value in seen(objects, 1)] == [b"own", b"lane"] * 2


def test_N04_who_was_faster_is_gone_on_behind() -> None:
    """It was told of all partitions, and another process has taken one since: what it was given has later offsets."""
    objects, clock = MemoryStore(), ManualClock()
    with running(objects, clock, lanes=1) as store:
        assert submitted(store, 3, b"a") == [0] * 3
    with running(objects, clock, lanes=1) as second, running(objects, clock, lanes=1) as third:
        second.topic("t").partition(0).append(b"b")  # its lane tells of the others
        assert [third.topic("t").partition(1).append(value).offset for value in (b"x", b"y")] == [1, 2]
        log = second.topic("t").partition(1)
        futures = [log.submit(b"%d" % number) for number in range(3)]
        assert [future.result(PATIENCE_S).offset for future in futures] == [3, 4, 5]
        assert pairs(log) == [(0, b"a"), (1, b"x"), (2, b"y"), (3, b"0"), (4, b"1"), (5, b"2")]
        with pytest.raises(Fenced):
            third.topic("t").partition(1).append(b"no")
        assert log.append(b"3").offset == 6
    assert [offset for offset, _ in seen(objects, 1)] == list(range(7))


def test_N04_who_was_faster_and_lives_is_not_stopped(tmp_path: Path) -> None:
    where, clock = tmp_path / "store", ManualClock()
    with running(LocalStore(where), clock, lanes=1) as store:
        assert submitted(store, 2, b"a") == [0] * 2
    with running(LocalStore(where), clock, lanes=1) as second:
        second.topic("t").partition(0).append(b"b")
        with OtherProcess(where, partitions=2, lanes=1) as other:
            assert other.append("x", partition=1) == [1, 1]
            log = second.topic("t").partition(1)
            with pytest.raises(PartitionInUse):
                log.submit(b"no").result(PATIENCE_S)
            assert pairs(second.topic("t").partition(1).reopen())[-1] == (1, b"x")


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.UNAVAILABLE, Fault.CUT])
@pytest.mark.parametrize("where", ["put", "get"])
def test_N04_a_claim_in_doubt_is_settled(fault: Fault, where: str) -> None:
    """The answer of the transfer is lost, or of the look at the checkpoint behind it."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, lanes=1, probe_interval=0.01) as store:
        topic = store.create_topic("t", 8)
        topic.partition(0).append(b"a")
        lane = topic.partition(0)._internal.paths.birth_lane
        faulty.fail(where, with_=fault, prefix=f"{LANES_PREFIX}{lane}/", times=2)
        futures = [topic.partition(number).submit(b"a") for number in range(1, 8)]
        assert [future.result(PATIENCE_S).offset for future in futures] == [0] * 7
    assert [seen(objects, number) for number in range(8)] == [[(0, b"a")]] * 8


@pytest.mark.parametrize("ack", ["durable", "buffered"])
def test_N04_C05_a_claim_that_meets_an_earlier_try_of_its_own_is_committed(ack: Ack) -> None:
    """The first try was not answered, and lands right before the second one, in its place. Nothing is said to be lost."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    gated = GatedStore(faulty)
    with running(gated, ManualClock(), lanes=1) as store:
        log = store.create_topic("t").partition(0)
        faulty.fail("put", with_=Delivery.LATE)
        with gated.hold("put", prefix="lanes/born") as gate:
            first = background(log.append, b"x", ack=ack)
            gate.wait_held(PATIENCE_S)
            gate.release(1)
            gate.wait_held(PATIENCE_S)
            faulty.deliver()
            gate.open()
        assert first.result(PATIENCE_S).offset == 0
        assert (log._internal.epoch, log.lost_ranges()) == (1, [])
    assert seen(objects) == [(0, b"x")]


@pytest.mark.parametrize("ack", ["durable", "buffered"])
def test_N04_C05_a_claim_that_nobody_could_look_for_is_found_by_a_later_try(ack: Ack) -> None:
    """It stands; its answer was lost, and nothing could be read until it was tried again. Nothing is said to be lost."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, lanes=1, probe_interval=0.01) as store:
        log = store.create_topic("t").partition(0)
        faulty.fail("put", with_=Fault.LOSE_ANSWER, prefix="lanes/born")
        unread = faulty.fail("get", prefix="lanes/born", times=None)
        first = background(log.append, b"x", ack=ack)
        claiming = store._lanes._lanes[0].claiming
        until(lambda: claiming.last_error is not None)
        faulty.remove(unread)
        assert first.result(PATIENCE_S).offset == 0
        assert (log._internal.epoch, log.lost_ranges()) == (1, [])
    assert seen(objects) == [(0, b"x")]


def test_N04_killed_at_any_request_of_opening_the_next_one_goes_on() -> None:
    """Each life dies at its k-th request; what it acked is there afterwards, once, at its offset."""
    objects = MemoryStore()
    acked: dict[int, dict[int, bytes]] = {number: {} for number in range(3)}
    with running(objects, lanes=1) as creator:
        creator.create_topic("t", 3)

    def live(store: logstore.Store, life: bytes) -> None:
        topic = store.topic("t")
        for turn in range(2):
            values = [b"%s-%d-%d" % (life, turn, number) for number in range(3)]
            futures = [topic.partition(number).submit(values[number]) for number in range(3)]
            for number, future in enumerate(futures):
                acked[number][future.result(PATIENCE_S).offset] = values[number]

    for last in range(2, 24):
        lifeline = FaultyStore(objects)
        lifeline.fail("*", skip=last, times=None)
        store = open_store(lifeline, lanes=1, append_timeout=0.5, probe_interval=0.01)
        living = background(live, store, b"%d" % last)
        until(lambda: living.done() or len(lifeline.calls) > last)  # noqa: B023
        crash(store, lifeline)
        living.exception(PATIENCE_S)
        for number in range(3):
            found = dict(seen(objects, number))
            assert acked[number].items() <= found.items()
            assert len(set(found.values())) == len(found), "nothing is stored twice"
    with running(objects, lanes=1) as store:
        live(store, b"last")
    for number in range(3):
        found = dict(seen(objects, number))
        assert acked[number].items() <= found.items()
        assert sorted(found) == list(range(len(found))), "nothing was reserved, so there is no hole"


def test_N06_where_a_topic_begins_is_not_read_from_its_start() -> None:
    """A thousand partitions that were opened one by one have a thousand claims there; a checkpoint holds most."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 100)
        for number in range(100):
            topic.partition(number).open_writer(ack="buffered")
    faulty = FaultyStore(objects)
    with running(faulty, writer="read_only") as reader:
        faulty.forget_calls()
        assert reader.topic("t").partition(99).durable_high_watermark == 0
        assert len(faulty.calls) <= 16


def test_N06_a_topic_that_begins_in_a_lane_is_deleted() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store, running(objects, lanes=1) as other:
        store.create_topic("t", 3).partition(0).append(b"a")
        log = other.topic("t").partition(1)
        log.append(b"b")
        store.delete_topic("t")
        with pytest.raises((Fenced, UnknownTopic)):
            log.append(b"no")
        assert submitted(store, 3, b"again") == [0] * 3
    assert [seen(objects, number) for number in range(3)] == [[(0, b"again")]] * 3


def test_N10_releases_that_do_not_know_it_refuse_a_topic_that_begins_in_a_lane() -> None:
    """They know one format of a topic's descriptor, and would take its empty chains for partitions without an owner."""
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        store.create_topic("born")
    with running(objects, lanes=0) as store:
        store.create_topic("plain")
    assert f'"format": {BORN_VERSION}'.encode() in objects.get(catalog_key("born"))
    assert b'"format": 1' in objects.get(catalog_key("plain"))


def test_N06_a_lane_where_topics_begin_has_no_owner() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        paths = store.create_topic("t").partition(0)._internal.paths
    assert paths.birth_lane is not None
    assert is_birth_lane(paths.birth_lane)
    assert not is_birth_lane("born-again.0"), "a name that somebody gave"


@pytest.mark.parametrize("kind", ["shared", "replicated"])
def test_W13_those_who_share_a_new_partition_go_on_behind_the_first_of_them(kind: str) -> None:
    """Both have seen that nobody has written it. The one who is slower meets what the other has put into its chain."""
    objects = MemoryStore()
    with running(objects, lanes=1) as creator:
        creator.create_topic("t", 2)
    settings: dict[str, Any] = {"writer": "shared"} if kind == "shared" else {}
    with running(objects, **settings) as one, running(objects, **settings) as two:
        logs = [store.topic("t").partition(0) for store in (one, two)]
        if kind == "shared":
            for log in logs:
                log.open_writer()
            assert sorted(log.append(b"%d" % turn).offset for turn in range(3) for log in logs) == list(
                range(6)
            )
        else:
            writers = [log.replicated("w") for log in logs]
            for lower in range(3):
                for writer in writers:
                    assert writer.compare_and_append([b"%d" % lower], lower, lower + 1).upper == lower + 1
            assert [value for _, value in seen(objects, 0)] == [b"0", b"1", b"2"]


def test_N04_C01_a_claim_that_was_ended_while_its_owner_did_not_know_it_stays_ended() -> None:
    """A claim stands, and the one who made it was not told in time. Another takes the partition over from there, and the
    lane meets that. Then the first tries again: what its lane says of the claim must not be forgotten, or whoever reads
    the lane's next checkpoint takes the claim for one that goes on, and writes beside the one who has the partition."""
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    gated = GatedStore(faulty)
    with running(gated, lane="first", lanes=1, take_over=True, probe_interval=0.01) as first:
        topic = first.create_topic("t", 2)
        topic.partition(0).append(b"a")
        where = f"{LANES_PREFIX}{topic.partition(1)._internal.paths.birth_lane}/"
        with gated.hold("put", prefix=where, suffix=".seg", after=True) as gate:
            opening = background(topic.partition(1).open_writer, timeout=0.0)
            gate.wait_held()
            with running(objects, lanes=1, take_over=True) as second:
                assert second.topic("t").partition(1).append(b"b").offset == 0
            assert topic.partition(0).append(b"a").offset == 1  # its lane meets what has ended the claim
            unread = faulty.fail("get", prefix=where, times=None)
            gate.release_lost()
            with pytest.raises(StoreUnavailable):
                opening.result(PATIENCE_S)
            faulty.remove(unread)
        assert topic.partition(1).append(b"c").offset == 1
    assert seen(objects, 1) == [(0, b"b"), (1, b"c")]
    with running(objects, lanes=0) as third:
        assert third.topic("t").partition(1).append(b"d").offset == 2
    assert seen(objects, 1) == [(0, b"b"), (1, b"c"), (2, b"d")]


@pytest.mark.parametrize("since", ["adopted", "adopted back", "written and adopted back"])
def test_N04_W06_a_claim_that_is_answered_in_another_life_of_its_lane_has_no_writer(since: str) -> None:
    """Its transfer is committed, and before its maker is told the lane has another life, elsewhere or here again; that one
    may have gone on with the claim. A writer that was made of the answer would wait for ever, or write the same offsets."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lane="orders", take_over=True) as first:
        topic = first.create_topic("t", 2)
        topic.partition(0).append(b"a")
        log = topic.partition(1)
        where = f"{LANES_PREFIX}{log._internal.paths.birth_lane}/"
        with gated.hold("put", prefix=where, suffix=".seg", after=True) as gate:
            opening = background(log.open_writer)
            gate.wait_held()
            with running(objects, lane="orders", take_over=True) as second:
                assert second.topic("t").partition(0).append(b"b").offset == 1
                if since == "written and adopted back":
                    assert second.topic("t").partition(1).append(b"b").offset == 0
            with pytest.raises(Fenced):
                topic.partition(0).append(b"no")
            if since != "adopted":
                assert topic.partition(0).reopen().append(b"c").offset == 2
            gate.open()
            opening.result(PATIENCE_S)
        with pytest.raises(OutcomeUnknown, match="reopen it"):
            log.append(b"no", timeout=0.5)
        written = [b"b"] if since == "written and adopted back" else []
        assert log.reopen().append(b"c").offset == len(written)
    assert seen(objects, 1) == list(enumerate([*written, b"c"]))


def test_N04_C01_what_an_earlier_life_put_into_the_lane_is_not_forgotten_by_a_late_try_to_claim_it() -> None:
    """Who loaded a partition before another life of its lane took it asks for the same claim: the lane has records of it."""
    objects = MemoryStore()
    with running(objects, lanes=1) as owner:
        assert submitted(owner, 2, b"a") == [0, 0]
    with running(objects, lane="orders", take_over=True) as first:
        topic = first.topic("t")
        topic.partition(0).append(b"b")
        late = topic.partition(1)
        assert pairs(late) == [(0, b"a")]
        with running(objects, lane="orders", take_over=True) as second:
            assert submitted(second, 2, b"c") == [2, 1]
        with pytest.raises(Fenced):
            topic.partition(0).append(b"no")
        assert topic.partition(0).reopen().append(b"d").offset == 3
        assert late.append(b"d").offset == 2
    assert seen(objects, 1) == [(0, b"a"), (1, b"c"), (2, b"d")]


def test_N04_C01_who_has_not_met_the_next_life_of_its_lane_says_nothing_of_that_ones_claims(
    often: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another life of the lane has taken a partition and written it. The former one opens that partition, whose chain leads
    into its own lane, and writes a checkpoint: if that says that the other's records lie before the claim's first part,
    nobody believes the partition's manifest any more."""
    objects = MemoryStore()
    with running(objects, lanes=1, delete_grace=0.0) as owner:
        for number in range(20):
            assert submitted(owner, 2, b"%d" % number) == [number] * 2
    monkeypatch.setattr(lane_checkpoints, "CHECKPOINT_EVERY", 64)
    first = open_store(objects, lane="orders", take_over=True)
    first.topic("t").partition(0).append(b"a")
    second = open_store(objects, lane="orders", take_over=True)
    assert submitted(second, 2, b"b") == [21, 20]
    first.topic("t").partition(1).open_writer()
    first.close()
    assert seen(objects, 1) == [*((number, b"%d" % number) for number in range(20)), (20, b"b")]
    assert "a lane knows of a newer one" not in caplog.text
    crash(second)


def test_N04_N08_who_is_outrun_in_a_birth_lane_asks_nobody() -> None:
    """Processes that open a new topic at the same time: one entry each, and no asks, which nobody would answer and all of
    them would have to read."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(objects) as first, running(gated) as second, running(objects) as third:
        first.create_topic("t", 3)
        topic = second.topic("t")
        with gated.hold("put", prefix=LANES_PREFIX) as gate:
            outrun = background(topic.partition(1).append, b"second")
            gate.wait_held()
            assert first.topic("t").partition(0).append(b"first").offset == 0
            gate.open()
            assert outrun.result(PATIENCE_S).offset == 0
        assert third.topic("t").partition(2).append(b"third").offset == 0
    (birth,) = {lane for info in objects.list(LANES_PREFIX) if is_birth_lane(lane := info.key.split("/")[1])}
    entries = LaneLog(objects, LanePaths(birth)).entries_from(0)
    assert [entry.header.kind for entry in entries if isinstance(entry, Entry)] == [EntryKind.TRANSFER] * 3
    assert not LaneLog(objects, LanePaths(birth)).stands_from(3)
