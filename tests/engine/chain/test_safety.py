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
    Indeterminate,
    PreconditionFailed,
)
from logstore.objects import LocalStore, MemoryStore, ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import GatedStore, ManualClock
from tests.support.engine.collecting import (
    COLLECTIONS,
    DAY_S,
    collected_at_grace_0,
    compact,
    gc,
)
from tests.support.engine.harness import at, background, numbered, open_store, pairs, running, stored
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("no_checkpoints")


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
