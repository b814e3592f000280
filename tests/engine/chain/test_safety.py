"""Nothing that was acked is lost, whatever clocks say, whatever settings other processes have, whatever is answered.

Garbage collection runs here with no grace at all, in the worst moment: while somebody sleeps who will go on from a place
that was merged and emptied meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import logstore
from logstore.cli import main
from logstore.errors import (
    CorruptData,
    Fenced,
    Indeterminate,
    OutcomeUnknown,
    PreconditionFailed,
    UnknownTopic,
)
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.harness import at, background, numbered, open_store, pairs, running, stored
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("no_checkpoints")

DAY_S = 86_400.0


def compact(log: logstore.PartitionLog) -> None:
    assert log._internal.maintenance.compact(log._internal.now_ms, b"m" * 16) > 4


def gc(objects: ObjectStore, clock: ManualClock | None = None, grace: float = 0.0) -> list[Any]:
    """What another process does with its own clock and its own grace period."""
    with open_store(objects, clock, writer="read_only", delete_grace=grace) as store:
        return store.collect_garbage()


def collected_at_grace_0(objects: ObjectStore) -> None:
    assert len(gc(objects)) > 4


def collected_by_a_clock_that_is_ahead(objects: ObjectStore) -> None:
    ahead = ManualClock(start_ms=ManualClock().now_ms() + int(2 * DAY_S * 1000))
    assert len(gc(objects, ahead, DAY_S)) > 4


COLLECTIONS = [collected_at_grace_0, collected_by_a_clock_that_is_ahead]


@pytest.mark.parametrize("collect", COLLECTIONS)
@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_writer_that_idled_appends_at_the_end(
    mode: str, collect: Callable[[ObjectStore], None]
) -> None:
    """`mode`: of the one who wrote before it. Behind an exclusive writer its place may really be empty again."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock, writer=mode) as first:
        first.create_topic("t").append(b"v0")
    idle = open_store(objects, clock, writer="shared")
    log = idle.topic("t").partition(0)
    log.append(b"v1") if mode == "shared" else log.open_writer()
    begun = 2 if mode == "shared" else 1
    with open_store(objects, clock, writer=mode) as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(begun, 40):
            other.append(value)
        compact(other)
        collect(objects)
        if mode == "exclusive":  # it took the partition over: that is told, and nothing is acked
            with pytest.raises(Fenced):
                log.append(b"late")
            log = log.reopen()
        for number in range(5):
            assert log.append(b"late").offset == begun + 40 + number
    idle.close()
    assert stored(objects) == at(0, [*numbered(0, begun + 40), *[b"late"] * 5])


@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_writer_that_opened_behind_an_exclusive_one_puts_nothing_into_its_emptied_places() -> (
    None
):
    """The exclusive writer goes on in the same epoch, so the place where the shared one stands is really emptied."""
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as owner:
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        shared = open_store(objects, clock, writer="shared")
        late = shared.topic("t").partition(0)
        late.open_writer()
        for value in numbered(1, 30):
            log.append(value)
        compact(log)
        collected_at_grace_0(objects)
        assert objects.head(log._internal.paths.segment(2)) is None
        assert late.append(b"late").offset == 31
        with pytest.raises(Fenced):
            log.append(b"too late")
        shared.close()
    assert stored(objects) == at(0, [*numbered(0, 31), b"late"])


@pytest.mark.parametrize("collect", COLLECTIONS)
def test_C01_a_replicated_writer_that_idled_learns_what_its_peers_stored(
    collect: Callable[[ObjectStore], None],
) -> None:
    objects, clock = MemoryStore(), ManualClock()
    idle, awake = open_store(objects, clock), open_store(objects, clock)
    sleeper = idle.create_topic("t").partition(0).replicated("sleeper")
    sleeper.compare_and_append([b"v0"], 0, 1)
    log = awake.topic("t").partition(0)
    peer = log.replicated("peer")
    for number in range(1, 40):
        peer.compare_and_append(numbered(number, 1), number, number + 1)
    compact(log)
    collect(objects)
    assert sleeper.compare_and_append([b"v1"], 1, 2).by == "peer"
    assert sleeper.compare_and_append([b"v40"], 40, 41).by == "us"
    idle.close()
    awake.close()
    assert stored(objects) == at(0, numbered(0, 41))


def test_C01_an_exclusive_writer_that_a_shared_one_superseded_acks_nothing() -> None:
    objects, clock = MemoryStore(), ManualClock()
    idle = open_store(objects, clock)
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    with open_store(objects, clock, writer="shared") as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(1, 39):
            other.append(value)
        compact(other)
        collected_at_grace_0(objects)
    with pytest.raises(Fenced):
        log.append(b"into the past")
    idle.close()
    assert stored(objects) == at(0, numbered(0, 40))


@pytest.mark.usefixtures("own_chain")
def test_C01_an_exclusive_commit_in_doubt_is_told_from_a_lost_race_after_a_collection() -> None:
    """Its segment stood, its answer was lost, another took over, and all of it was merged and collected."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    asleep = open_store(gated, clock)
    log = asleep.create_topic("t").partition(0)
    log.append(b"v0")
    with gated.hold("put", suffix=".seg", after=True) as gate:
        doubtful = log.submit(b"v1")
        gate.wait_held()  # it is carried out; the answer is on its way
        with open_store(objects, clock) as successor:
            other = successor.topic("t").partition(0)
            for value in numbered(2, 20):
                other.append(value)
            compact(other)
            collected_at_grace_0(objects)
        gate.fail(Indeterminate("the answer got lost"))
    assert doubtful.result(PATIENCE_S).offset == 1
    with pytest.raises(Fenced):
        log.append(b"too late")
    asleep.close()
    assert stored(objects) == at(0, numbered(0, 22))


@pytest.mark.parametrize("writer", ["exclusive", "shared"])
@pytest.mark.parametrize("collect", COLLECTIONS)
@pytest.mark.usefixtures("own_chain")
def test_C02_a_reader_that_idled_goes_on(writer: str, collect: Callable[[ObjectStore], None]) -> None:
    objects, clock = MemoryStore(), ManualClock()
    with (
        open_store(objects, clock, writer=writer) as writing,
        open_store(objects, clock, writer="read_only") as reading,
    ):
        log = writing.create_topic("t").partition(0)
        log.append(b"v0")
        reader = reading.topic("t").partition(0)
        assert pairs(reader) == at(0, [b"v0"])
        for value in numbered(1, 199):
            log.append(value)
        compact(log)
        collect(objects)
        assert pairs(reader) == at(0, numbered(0, 200))


@pytest.mark.usefixtures("own_chain")
def test_C02_a_reader_believes_no_segment_that_came_back_from_the_past() -> None:
    """A stale fence stands where a segment was merged and emptied: the reader that idles there is not led astray."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with (
        open_store(objects, clock) as owner,
        open_store(objects, clock, writer="read_only") as reading,
        open_store(objects, clock, writer="read_only") as informed,
    ):
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        reader = reading.topic("t").partition(0)
        assert pairs(reader) == at(0, [b"v0"])
        late = open_store(gated, clock)
        with gated.hold("put", suffix=".seg") as gate:
            opening = background(late.topic("t").append, b"v40", timeout=PATIENCE_S)
            gate.wait_held()
            for value in numbered(1, 39):
                log.append(value)
            knows = informed.topic("t").partition(0)
            assert knows.durable_high_watermark == 40
            compact(log)
            collected_at_grace_0(objects)
        assert opening.result(PATIENCE_S).offset == 40
        assert objects.head(log._internal.paths.segment(2)) is not None, "the stale fence stays"
        assert pairs(reader) == at(0, numbered(0, 41))
        assert pairs(knows) == at(0, numbered(0, 41)), "a row that named the place is no damage, either"
        late.close()
    assert stored(objects) == at(0, numbered(0, 41))


class Repeating:
    """Something between us and the store sends every conditional put twice, as gateways do, and answers with the second
    answer; or with none. `late`: it is carried out only when the test says so, after its sender has given up."""

    def __init__(self, inner: ObjectStore, suffix: str, *, answers: bool = True, late: bool = False) -> None:
        self.inner = inner
        self.suffix = suffix
        self.answers = answers
        self.late: list[Callable[[], object]] | None = [] if late else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        def send() -> ObjectInfo:
            return self.inner.put(key, data, if_absent=if_absent, if_match=if_match)

        if not key.endswith(self.suffix) or (not if_absent and if_match is None):
            return send()
        if self.late is not None:
            self.late.append(send)
            raise Indeterminate("no answer")
        send()
        if not self.answers:
            raise Indeterminate("no answer")
        return send()


@pytest.mark.parametrize("answers", [True, False], ids=["done-but-412", "done-unanswered"])
@pytest.mark.parametrize("suffix", ["", ".seg", "manifest", "catalog/t", "store"])
def test_C03_no_refusal_is_believed_without_a_look(suffix: str, answers: bool) -> None:
    """Opening, creating, appending, merging and collecting through a gateway that repeats conditional puts."""
    objects, clock = MemoryStore(), ManualClock()
    gateway = Repeating(objects, suffix, answers=answers)
    with running(gateway, clock) as store:
        topic = store.create_topic("t")
        log = topic.partition(0)
        for value in numbered(0, 40):
            log.append(value)
        compact(log)
        assert pairs(log) == at(0, numbered(0, 40))
        store.alter_topic("t", retention_seconds=DAY_S)
    collected_at_grace_0(objects)
    assert stored(objects) == at(0, numbered(0, 40))


@pytest.mark.usefixtures("own_chain")
def test_C03_a_swap_that_is_carried_out_late_names_an_object_that_is_still_there() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gateway = Repeating(objects, "manifest", late=True)
    with running(gateway, clock) as store:
        log = store.create_topic("t").partition(0)
        for value in numbered(0, 40):
            log.append(value)
        gateway.suffix = "nothing"
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        gateway.suffix = "manifest"
        with pytest.raises(Indeterminate):
            log._internal.maintenance.compact(clock.now_ms(), b"m" * 16)
        assert gateway.late
        gc(objects)
        with suppress(PreconditionFailed):
            gateway.late[0]()
    assert stored(objects) == at(0, numbered(0, 40))
    gc(objects)
    assert stored(objects) == at(0, numbered(0, 40))


@pytest.mark.usefixtures("own_chain")
def test_C04_gc_with_no_grace_takes_nothing_from_a_merge_under_way() -> None:
    """Between "merged object stored" and "manifest swapped": the sweep makes that swap impossible before it deletes."""
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with running(gated, clock) as store:
        log = store.create_topic("t").partition(0)
        for value in numbered(0, 80):
            log.append(value)
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        with gated.hold("put", suffix="manifest") as gate:
            merge = background(log._internal.maintenance.compact, clock.now_ms(), b"n" * 16)
            gate.wait_held()
            gc(objects)
        assert merge.result(PATIENCE_S) == 0
        assert pairs(log) == at(0, numbered(0, 80))
        compact(log)
        collected_at_grace_0(objects)
        assert pairs(log) == at(0, numbered(0, 80))
    assert stored(objects) == at(0, numbered(0, 80))


@pytest.mark.usefixtures("own_chain")
def test_C05_a_put_that_comes_a_second_time_after_the_collection_changes_nothing() -> None:
    """Every segment's put is carried out once more at the end, when its place may have been emptied."""
    objects, clock = MemoryStore(), ManualClock()
    sent: list[tuple[str, bytes]] = []

    class Recording(MemoryStore):
        def put(
            self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
        ) -> ObjectInfo:
            if key.endswith(".seg") and if_absent:
                sent.append((key, bytes(data)))
            return objects.put(key, data, if_absent=if_absent, if_match=if_match)

        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name) if name == "put" else getattr(objects, name)

    with (
        running(Recording(), clock) as store,
        open_store(objects, clock, writer="read_only") as reading,
    ):
        log = store.create_topic("t").partition(0)
        log.append(b"v0")
        reader = reading.topic("t").partition(0)
        assert pairs(reader) == at(0, [b"v0"])
        for value in numbered(1, 39):
            log.append(value)
        compact(log)
        collected_at_grace_0(objects)
        again = 0
        for key, data in sent:
            with suppress(PreconditionFailed):
                objects.put(key, data, if_absent=True)
                again += 1
        assert again > 4
        assert pairs(reader) == at(0, numbered(0, 40))
        assert log.append(b"v40").offset == 40
        assert len(gc(objects)) == again, "what came back is swept"
    assert stored(objects) == at(0, numbered(0, 41))


class Restored(ManualClock):
    """A wall clock that can be set back."""

    shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms


def test_C06_an_own_clock_that_is_set_back_changes_nothing() -> None:
    """A virtual machine that was restored: the writer's clock says that no time has passed, or less than none."""
    objects, clock, restored = MemoryStore(), ManualClock(), Restored()
    idle = open_store(objects, restored, writer="shared")
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    with open_store(objects, clock, writer="shared") as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(1, 39):
            other.append(value)
        compact(other)
        clock.advance(3 * DAY_S)
        assert len(other._internal.maintenance.collect(clock.now_ms())) > 4
    restored.shift_ms = -int(365 * DAY_S * 1000)
    assert log.append(b"v40").offset == 40
    idle.close()
    assert stored(objects) == at(0, numbered(0, 41))


def test_C07_processes_with_other_settings_lose_nothing_of_each_other(tmp_path: Any) -> None:
    """`logstore compact` and `gc --grace 0` from a shell, beside a shared writer with a grace of a day."""
    url = f"file://{tmp_path}"
    with logstore.open(url, writer="shared") as idle, logstore.open(url, writer="shared") as peer:
        log = idle.create_topic("t").partition(0)
        log.append(b"v0")
        for value in numbered(1, 39):
            peer.topic("t").append(value)
        assert main(["--store", url, "compact", "t"]) == 0
        assert main(["--store", url, "gc", "--grace", "0"]) == 0
        for number in range(5):
            assert log.append(b"late").offset == 40 + number
    assert stored(LocalStore(tmp_path)) == at(0, [*numbered(0, 40), *[b"late"] * 5])


def test_C09_an_object_of_no_bytes_that_a_killed_server_left_blocks_nobody() -> None:
    objects = MemoryStore()
    with open_store(objects) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"v0")
    objects.put(log._internal.paths.segment(3), b"")
    with open_store(objects, writer="read_only") as reading:
        assert pairs(reading.topic("t").partition(0)) == at(0, [b"v0"])
    with open_store(objects) as store:
        log = store.topic("t").partition(0)
        assert log.append(b"v1").offset == 1
        objects.put(log._internal.paths.segment(log._internal.state.tail.next_seq), b"")
        assert log.append(b"v2").offset == 2
    assert stored(objects) == at(0, numbered(0, 3))


@pytest.mark.usefixtures("own_chain")
def test_C09_an_object_of_no_bytes_before_others_is_damage() -> None:
    objects = MemoryStore()
    with open_store(objects) as store:
        log = store.create_topic("t").partition(0)
        for value in numbered(0, 3):
            log.append(value)
    objects.put(log._internal.paths.segment(2), b"")
    with (
        open_store(objects, writer="read_only") as reading,
        pytest.raises(CorruptData, match=log._internal.paths.segment(2)),
    ):
        pairs(reading.topic("t").partition(0))


def test_C01_a_header_that_was_cut_off_as_it_was_left_is_no_free_place() -> None:
    """A server that is killed in a put leaves an object of no bytes, also where a segment was and its header was to stay.
    At the chain's end nobody has committed it; here somebody has, and the chain has gone on."""
    objects, clock = MemoryStore(), ManualClock()
    idle = open_store(objects, clock, writer="shared")
    reader = open_store(objects, clock, writer="read_only")
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    follower = reader.topic("t").partition(0)
    assert pairs(follower) == at(0, [b"v0"])
    with open_store(objects, clock, writer="shared") as peer:
        other = peer.topic("t").partition(0)
        for value in numbered(1, 40):
            other.append(value)
        compact(other)
        collected_at_grace_0(objects)
        objects.put(log._internal.paths.segment(1), b"")
        follower.refresh()
        assert pairs(follower) == at(0, numbered(0, 41))
        with pytest.raises(OutcomeUnknown, match="gone on"):
            log.append(b"late")
        assert log.reopen().append(b"late").offset == 41
    idle.close()
    reader.close()
    assert stored(objects) == at(0, [*numbered(0, 41), b"late"])


def test_C01_an_object_of_no_bytes_in_a_deleted_topic_is_replaced_and_stays_so() -> None:
    objects, clock = MemoryStore(), ManualClock()
    idle = open_store(objects, clock, writer="shared")
    log = idle.create_topic("t").partition(0)
    log.append(b"v0")
    with open_store(objects, clock, writer="shared") as peer:
        for value in numbered(1, 10):
            peer.topic("t").partition(0).append(value)
        peer.delete_topic("t")
    objects.put(log._internal.paths.segment(1), b"")
    assert [item.key for item in gc(objects)] == [log._internal.paths.segment(1)]
    assert gc(objects) == []
    with pytest.raises(UnknownTopic):
        log.append(b"late")
    idle.close()


def collected_and_the_manifest_lost(objects: MemoryStore, log: logstore.PartitionLog) -> None:
    """The first manifest there ever was: who slept since before it saw none, and sees none now."""
    for value in numbered(1, 30):
        log.append(value)
    compact(log)
    collected_at_grace_0(objects)
    objects.delete(log._internal.paths.manifest)
    assert objects.head(log._internal.paths.segment(2)) is None


@pytest.mark.usefixtures("own_chain")
def test_C01_a_shared_writer_from_before_the_first_manifest_appends_at_the_end_though_that_is_lost() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as owner:
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        shared = open_store(objects, clock, writer="shared")
        late = shared.topic("t").partition(0)
        late.open_writer()
        collected_and_the_manifest_lost(objects, log)
        assert late.append(b"late").offset == 31
        with pytest.raises(Fenced):
            log.append(b"too late")
        shared.close()
    assert stored(objects) == at(0, [*numbered(0, 31), b"late"])


@pytest.mark.usefixtures("own_chain")
def test_C01_a_fence_from_before_the_first_manifest_goes_to_the_end_though_that_is_lost() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    with open_store(objects, clock) as owner, running(gated, clock) as successor:
        log = owner.create_topic("t").partition(0)
        log.append(b"v0")
        late = successor.topic("t").partition(0)
        with gated.hold("put", suffix=".seg") as gate:
            opening = background(late.open_writer)
            gate.wait_held()
            collected_and_the_manifest_lost(objects, log)
        opening.result(PATIENCE_S)
        assert late.append(b"late").offset == 31
        with pytest.raises(Fenced):
            log.append(b"too late")
    assert stored(objects) == at(0, [*numbered(0, 31), b"late"])


def test_C02_a_foreign_object_among_the_segments_is_not_the_end_of_a_listing() -> None:
    """Somebody keeps a copy beside a segment: those behind it are listed all the same."""
    objects = MemoryStore()
    with open_store(objects) as store:
        log = store.create_topic("t").partition(0)
        for value in numbered(0, 5):
            log.append(value)
        assert log._internal._checkpointer is not None
        log._internal._checkpointer.write()
        for value in numbered(5, 4):
            log.append(value)
        key = log.segments()[-3].key
        objects.put(f"{key}.bak", b"a copy")
        with open_store(objects, writer="read_only") as reading:
            assert reading.topic("t").partition(0).durable_high_watermark == 9
