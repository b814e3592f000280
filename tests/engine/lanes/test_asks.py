"""A taker that the owner of a lane outruns asks for the partition, and the owner's next entry gives it up."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from itertools import count

import pytest

import logstore
from logstore.engine.lanes.asking import AHEAD
from logstore.engine.lanes.lane_check import damage_in_lanes
from logstore.engine.lanes.lane_log import LaneLog, LostEntry
from logstore.engine.lanes.whole_lane import whole_state
from logstore.errors import Fenced
from logstore.format.stored.entry import ASK, ClaimKey, Entry, EntryHeader, EntryKind, build_ask, build_entry
from logstore.layout.paths import LanePaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import FaultyStore, GatedStore
from tests.support.engine.dying import DiesAt
from tests.support.engine.harness import background, crash, open_store, running, until
from tests.support.engine.virtual_move import run_move
from tests.support.lanes.entries import seen, store_lane
from tests.support.patience import PATIENCE_S


def log_of(objects: ObjectStore, store: logstore.Store) -> LaneLog:
    return LaneLog(objects, LanePaths(store_lane(store)))


def ask(log: LaneLog, seq: int, *claims: ClaimKey, judged: bytes = b"") -> None:
    """As a taker puts it that is never heard of again."""
    log.commit(*build_ask(seq, b"%016d" % seq, 0, claims, judged, b""))


def claim_of(log: logstore.PartitionLog, epoch: int = 1) -> ClaimKey:
    return ClaimKey(log._internal.paths.prefix, epoch)


def is_whole(objects: ObjectStore) -> bool:
    return not list(damage_in_lanes(objects))


# In virtual time, counted in requests that somebody waits for one after the other


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("partitions", "lanes"), [(4, 1), (16, 1), (4, 0), (16, 0)])
def test_N03_one_partition_moves_out_of_a_busy_lane(partitions: int, lanes: int, seed: int) -> None:
    """Its owner has an entry under way at every moment, so the taker never finds the lane's end. In the others nothing
    fails, and nothing takes longer than the upload that met the ask, one look and the upload behind it."""
    move = run_move(partitions, seed=seed, lanes=lanes)
    assert move.failed == []
    assert max(move.elsewhere) <= 3.01
    assert move.fenced == 1, "the producer of the partition that was taken"


def test_N03_at_s3s_latency_the_slowest_ack_elsewhere_is_five_put_times() -> None:
    """Three requests one after the other, each of which may take several times as long as the usual one. In the middle of
    five runs; what there was before the move is the measure of it."""
    moves = [run_move(16, seed=seed, lanes=1, as_s3=True) for seed in range(1, 6)]
    assert [move.failed for move in moves] == [[]] * 5
    assert statistics.median(max(move.elsewhere) for move in moves) <= 5.0
    assert statistics.median(max(move.elsewhere) / max(move.before) for move in moves) <= 2.5


def test_N03_two_move_at_the_same_time() -> None:
    move = run_move(16, takers=2, lanes=1)
    assert (move.failed, move.fenced) == ([], 2)
    assert max(move.elsewhere) <= 5.01


def test_N03_with_the_owners_consent_nobody_is_late() -> None:
    """It has given the partition up before, so nothing of the taker's is ever in its way."""
    move = run_move(16, lanes=1, consent=True)
    assert move.failed == []
    assert max(*move.before, *move.elsewhere) <= 2.01


# The owner


def test_N03_the_entry_behind_an_ask_gives_the_partition_up_with_its_last_records() -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects)
    with running(faulty, lanes=1) as store:
        topic = store.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        for log in logs:
            log.append(b"mine")
        lane = log_of(objects, store)
        ask(lane, 2, claim_of(logs[1]))
        faulty.forget_calls()
        with store._lanes.held():
            acks = [log.submit(b"last") for log in logs]
        assert [ack.result(PATIENCE_S).offset for ack in acks] == [1, 1], "its own is stored, too"
        assert [(call.operation, call.key[-14:]) for call in faulty.calls if "get" not in call.operation] == [
            ("put", "0000000002.seg"),
            ("put", "0000000003.seg"),
        ]
        assert faulty.count("get", prefix="lanes/") == 2, "what stands there, and whether it is of the past"
        answer = lane.entry_at(3)
        assert answer is not None
        assert answer.seals == (claim_of(logs[1]),)
        with pytest.raises(Fenced, match="took the partition over"):
            logs[1].append(b"no")
        assert logs[0].append(b"more").offset == 2
        assert logs[1].reopen().append(b"again").offset == 2, "nobody came for it"
    assert seen(objects, 1) == [(0, b"mine"), (1, b"last"), (2, b"again")]
    assert is_whole(objects)


def test_N03_uploads_behind_the_one_that_met_an_ask_are_acked_in_order() -> None:
    """What was under way behind it is void. The partition's later records are not stored: its claim has ended."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    big = random.Random(1).randbytes(6 << 20)
    with running(gated, lanes=1, max_batch_bytes=8 << 20) as store:
        topic = store.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        for log in logs:
            log.append(b"mine")
        ask(log_of(objects, store), 2, claim_of(logs[1]))
        with gated.hold("put", prefix="lanes/") as held:
            early = [logs[0].submit(big), logs[1].submit(b"early")]
            held.wait_held(PATIENCE_S)
            late = [logs[0].submit(big), logs[1].submit(b"late")]
            held.wait_held(PATIENCE_S, count=2)
            held.open()
            assert early[0].result(PATIENCE_S).offset == 1
            assert late[0].result(PATIENCE_S).offset == 2
            outcomes = [early[1].exception(PATIENCE_S), late[1].exception(PATIENCE_S)]
    assert isinstance(outcomes[1], Fenced)
    stored = [value for _, value in seen(objects, 1)]
    assert stored == ([b"mine"] if outcomes[0] else [b"mine", b"early"])


def test_N03_an_ask_for_what_has_ended_or_of_whom_it_was_not_judged_is_passed_over() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        for log in logs:
            log.append(b"mine")
        lane = log_of(objects, store)
        again = logs[1].reopen()
        again.append(b"again")
        end = whole_state(lane).next_seq
        ask(lane, end, claim_of(logs[1]))
        ask(lane, end + 1, claim_of(logs[0]), judged=b"another life")
        assert logs[0].append(b"x").offset == 1
        assert again.append(b"y").offset == 2
        assert whole_state(lane).kept[-2:] == [end, end + 1], "they stay, and count for nothing"


def test_N09_an_atomic_append_goes_with_the_entry_that_gives_a_partition_up() -> None:
    objects = MemoryStore()
    with running(objects, lanes=1) as store:
        topic = store.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        for log in logs:
            log.append(b"mine")
        ask(log_of(objects, store), 2, claim_of(logs[1]))
        with store.atomic() as tx:
            for number in range(2):
                tx.append(topic, b"both", partition=number)
        with pytest.raises(Fenced), store.atomic() as tx:
            for number in range(2):
                tx.append(topic, b"none", partition=number)
    assert [seen(objects, number) for number in range(2)] == [[(0, b"mine"), (1, b"both")]] * 2


# The taker


@pytest.mark.parametrize("lanes", [0, 1])
def test_N03_a_taker_that_was_outrun_asks_ahead(lanes: int) -> None:
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(objects, lanes=1) as owner, running(gated, lanes=lanes) as taker:
        topic = owner.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"mine")
        with gated.hold("put", prefix=f"lanes/{store_lane(owner)}/") as held:
            taking = background(taker.topic("t").partition(1).append, b"taken")
            held.wait_held(PATIENCE_S)
            assert topic.partition(0).append(b"first").offset == 1
            held.release()
            (asked,) = held.wait_held(PATIENCE_S)
            assert int(asked.key[-24:-4]) == 2 + AHEAD
            held.release()
            held.wait_held(PATIENCE_S)  # it tries on, as before
            for offset in range(2, AHEAD + 3):
                assert topic.partition(0).append(b"x").offset == offset
            held.open()
            assert taking.result(PATIENCE_S).offset == 1
        with pytest.raises(Fenced):
            topic.partition(1).append(b"no")
    assert is_whole(objects)


def test_N03_an_owner_that_is_dead_answers_nothing_and_is_taken_over_all_the_same() -> None:
    """The ask stands behind places that nobody will fill, but for those who come later: it is no sign of a loss."""
    objects = MemoryStore()
    owner = open_store(objects, lanes=1)
    topic = owner.create_topic("t", 3)
    for number in range(3):
        topic.partition(number).append(b"mine")
    lane = log_of(objects, owner)
    ask(lane, 5, claim_of(topic.partition(0)))
    crash(owner)
    for number in range(3):
        with running(objects, lanes=1) as taker:
            assert taker.topic("t").partition(number).append(b"taken").offset == 1
    assert [seen(objects, number) for number in range(3)] == [[(0, b"mine"), (1, b"taken")]] * 3
    assert whole_state(lane).lost == {}
    assert is_whole(objects)


@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
def test_N03_a_taker_is_killed_at_each_request_of_a_move(after: bool) -> None:
    """Outrun at its first try, it dies anywhere behind that. The owner goes on, and whoever comes next has the partition."""
    requests = next(request for request in count() if not is_killed_at(request, after))
    assert requests > 20


def is_killed_at(request: int, after: bool) -> bool:
    """Whether the move had as many requests."""
    objects = MemoryStore()
    with running(objects, lanes=1) as owner:
        topic = owner.create_topic("t", 2)
        for number in range(2):
            topic.partition(number).append(b"mine")
        dying = DiesAt(objects)
        outrun = OutrunAtPuts(dying, lambda: topic.partition(0).append(b"x"))
        taker = open_store(outrun, lanes=1)
        log = taker.topic("t").partition(1)
        outrun.prefix = f"lanes/{store_lane(owner)}/"
        dying.die_at(request, after=after)
        taking = background(log.append, b"taken", timeout=PATIENCE_S)
        until(lambda: taking.done() or dying.has_died())
        for _ in range(AHEAD + 2):
            topic.partition(0).append(b"x")
        crash(taker)
        is_acked = taking.done() and taking.exception() is None
        with running(objects, lanes=1) as other:
            other.topic("t").partition(1).append(b"theirs")
        assert topic.partition(0).append(b"end").offset == len(seen(objects, 0)) - 1
    stored = [value for _, value in seen(objects, 1)]
    assert stored in ([b"mine", b"theirs"], [b"mine", b"taken", b"theirs"])
    assert b"taken" in stored or not is_acked
    assert is_whole(objects)
    return dying.has_died()


@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
def test_N03_an_owner_is_killed_at_each_request_of_its_answer(after: bool) -> None:
    """It has met an ask, and dies anywhere behind that: what it acked is there, and both partitions are taken over."""
    requests = next(request for request in count() if not owner_is_killed_at(request, after))
    assert requests >= 4, "the upload that met it, two looks, and the answer"


def owner_is_killed_at(request: int, after: bool) -> bool:
    """Whether the answer had as many requests."""
    objects = MemoryStore()
    dying = DiesAt(objects)
    owner = open_store(dying, lanes=1)
    topic = owner.create_topic("t", 2)
    logs = [topic.partition(number) for number in range(2)]
    for log in logs:
        log.append(b"mine")
    ask(log_of(objects, owner), 2, claim_of(logs[1]))
    dying.die_at(request, after=after)
    with owner._lanes.held():
        waiting = [log.submit(b"last") for log in logs]
    until(lambda: dying.has_died() or all(ack.done() for ack in waiting))
    dying.die_at(-1, after=False)  # not later than in the answer
    if not dying.has_died():
        assert logs[0].append(b"more").offset == 2
        with pytest.raises(Fenced):
            logs[1].append(b"no")
    crash(owner)
    acked = [ack.done() and ack.exception() is None for ack in waiting]
    for number in range(2):
        with running(objects, lanes=1) as taker:
            offset = taker.topic("t").partition(number).append(b"taken").offset
        stored = seen(objects, number)
        assert [place for place, _ in stored] == list(range(offset + 1))
        values = [value for _, value in stored if value != b"more"]
        assert values in ([b"mine", b"taken"], [b"mine", b"last", b"taken"])
        assert b"last" in values or not acked[number]
    assert is_whole(objects)
    return dying.has_died()


def test_N03_an_owner_that_sleeps_before_its_answer_loses_nothing_that_it_acked() -> None:
    """It has read the ask. Meanwhile the taker, which goes on as before, seals the partition itself, at the same place."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    with running(gated, lanes=1) as owner:
        topic = owner.create_topic("t", 2)
        logs = [topic.partition(number) for number in range(2)]
        for log in logs:
            log.append(b"mine")
        ask(log_of(objects, owner), 2, claim_of(logs[1]))
        with gated.hold("put", prefix="lanes/", suffix=f"{3:020d}.seg") as held:
            with owner._lanes.held():
                waiting = [log.submit(b"last") for log in logs]
            held.wait_held(PATIENCE_S)
            with running(objects, lanes=1) as taker:
                assert taker.topic("t").partition(1).append(b"taken").offset == 1
                held.open()
                assert waiting[0].result(PATIENCE_S).offset == 1
                with pytest.raises(Fenced):
                    waiting[1].result(PATIENCE_S)
                assert taker.topic("t").partition(1).append(b"more").offset == 2
        assert logs[0].append(b"end").offset == 2
    assert seen(objects, 0) == [(0, b"mine"), (1, b"last"), (2, b"end")]
    assert seen(objects, 1) == [(0, b"mine"), (1, b"taken"), (2, b"more")]
    assert is_whole(objects)


class OutrunAtPuts(FaultyStore):
    """Somebody is faster with the first three entries that it puts under the prefix."""

    def __init__(self, inner: ObjectStore, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.prefix, self._acts, self._overtakes = "-", 3, act

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if key.startswith(self.prefix) and self._acts:
            self._acts -= 1
            self._overtakes()
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


# What stands in the store


def test_N03_an_ask_is_void_for_every_release() -> None:
    """It is data that names an entry which never stands; those who know nothing of asks pass over it."""
    key = ClaimKey("topics/t/1/0/", 3)
    header, data = build_ask(7, b"i" * 16, 5, [key], b"judged", b"asking")
    entry = Entry.parse(data)
    assert (entry.header.kind, entry.header.prev, entry.header.known_until) == (EntryKind.DATA, ASK, 0)
    assert (entry.seals, entry.parts, entry.bases) == ((key,), (), b"")
    assert (entry.judged, entry.owner) == (b"judged", b"asking")
    front = Entry.parse_front(data[: -len(data) // 3])
    assert (front.seals, front.judged, front.owner) == ((key,), b"judged", b"asking")
    assert header.is_ask


def test_N03_an_ask_tells_nothing_of_a_lost_place() -> None:
    """Neither that something was lost before it, nor what counts behind that: later entries do."""
    objects = MemoryStore()
    lane = LaneLog(objects, LanePaths("a"))
    names = [b"%016d" % number for number in range(6)]
    for seq, prev, known in [(0, bytes(16), 0), (1, names[0], 1), (4, names[1], 4)]:
        header = EntryHeader(EntryKind.DATA, seq, names[seq], prev, 0, known)
        lane.commit(header, build_entry(header, [])[0])
    ask(lane, 3)
    assert [type(entry) for entry in lane.entries_from(0)] == [Entry, Entry, LostEntry, Entry, Entry]
    objects.delete(lane.paths.entry(4))
    assert len(lane.entries_from(0)) == 2, "an ask alone does not make an empty place a lost one"


def test_N03_N04_an_ask_is_not_answered_once_another_life_of_the_lane_has_begun() -> None:
    """Its owner meets an ask, and with the answer an adoption. An answer behind that would name it, and count: the next life
    would find an entry in its lane that it has not put there."""
    objects = MemoryStore()
    gated = GatedStore(objects)
    first = open_store(gated, lane="orders", take_over=True)
    topic = first.create_topic("t", 2)
    for number in range(2):
        topic.partition(number).append(b"a")
    lane = log_of(objects, first)
    seq = len(lane.entries_from(0))
    with (
        gated.hold("put", prefix="lanes/") as gate,
        running(objects, lane="orders", take_over=True) as second,
    ):
        waiting = topic.partition(0).submit(b"no")
        gate.wait_held()
        ask(lane, seq, claim_of(topic.partition(1)), judged=whole_state(lane).owner)
        gate.release()
        gate.wait_held()  # with the answer
        second.topic("t").partition(0).open_writer()
        gate.open()
        with pytest.raises(Fenced, match="next life"):
            waiting.result(PATIENCE_S)
        owned = first._lanes.of(topic.partition(0)._internal.paths)
        assert owned is not None
        until(lambda: not owned._flight.uploads)
        assert owned._queue.next_at() is None, "nothing more is sent"
        for number in range(2):
            assert second.topic("t").partition(number).append(b"b").offset == 1
    assert [seen(objects, number) for number in range(2)] == [[(0, b"a"), (1, b"b")]] * 2
    crash(first)
