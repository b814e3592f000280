"""What the processes do: each role drives the real engine through its public surface, and tells the oracle the outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import logstore
from logstore.config import Visibility
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.errors import (
    BufferFull,
    Closed,
    CorruptData,
    Determinate,
    DivergentWriters,
    Fenced,
    GapError,
    LogStoreError,
    OffsetOutOfRange,
    OutcomeUnknown,
    PreconditionFailed,
    StraddlingTransaction,
    TopicExists,
    UnknownTopic,
    UnsupportedStore,
)
from logstore.store import Store
from tests.simulation.oracle import Place
from tests.simulation.world import Process

NEVER = (CorruptData, DivergentWriters, GapError, StraddlingTransaction, UnsupportedStore, PreconditionFailed)
"""Nothing here damages bytes, feeds two inputs or breaks the store's promises: who says so has believed something untrue."""

CERTAIN = (Fenced, BufferFull, Determinate)
"""Errors of an append that say that nothing of it was stored."""

_PATIENCE_S = 900.0  # far more than a shared writer waits for those who died
STALLS_S = (1.0, 1.0, 60.0, 7_200.0, 100_000.0, 1_000_000.0)  # the longest grace is 86,400


def place_of(log: PartitionLog) -> Place:
    return log.topic, log._internal.paths.incarnation, log.partition


class Role(ABC):
    """One thing after the other until the finale, then whatever the driver asks for."""

    def __init__(self, process: Process, settings: dict[str, Any], partitions: dict[str, list[int]]) -> None:
        self.process = process
        self.world = process.world
        self.oracle = process.world.oracle
        self.rng = process.rng
        self.settings = settings
        self.partitions = partitions
        self.store: Store | None = None

    def run(self) -> None:
        while not self.world.finale:
            self.tried(self.step)
            self.rest()
        while True:
            turn = self.process.await_turn()
            turn()

    def rest(self) -> None:
        luck = self.rng.random()
        if luck < 0.8:
            self.process.idle(self.rng.uniform(0, 1.0))
        else:
            self.process.idle(3 * 86_400.0, steps=self.rng.randint(10, 600))

    def tried(self, call: Callable[[], object]) -> bool:
        """False if it failed in a way that may happen here."""
        try:
            call()
            return True
        except NEVER as error:
            self.process.note(f"{type(error).__name__} {error}")
            self.world.fail(f"{type(error).__name__} from {call.__name__}", f"{self.process.name}: {error}")
            return False
        except LogStoreError as error:
            self.process.note(f"{type(error).__name__} {error}")
            if isinstance(error, Closed | UnknownTopic):
                self.forget()
            return False

    @abstractmethod
    def step(self) -> None:
        """What it does next."""

    def cannot_go_on(self) -> None:
        self.world.fail(
            "a writer cannot go on", f"{self.process.name}: {_PATIENCE_S:.0f} s with a store that works"
        )

    def forget(self) -> None:
        """Whatever it holds is over. A role that holds nothing has nothing to do."""
        return

    def opened(self, **changes: Any) -> Store:
        if self.store is None:
            settings = {"compression": "none"} | self.settings | changes
            self.store = logstore.open(
                self.process.objects, clock=self.process.clock, rng=self.rng, **settings
            )
            self.process.note(f"opened {settings}")
        return self.store

    def close(self) -> bool:
        """False if something may not be stored."""
        store, self.store = self.store, None
        self.forget()
        if store is None:
            return True
        try:
            store.close()
        except OutcomeUnknown as error:
            self.process.note(f"close: {error}")
            return False
        self.process.note("closed")
        return True

    def log(self) -> PartitionLog:
        topic = self.rng.choice(sorted(self.partitions))
        found = self.opened().topic(topic)
        return found.partition(self.rng.choice(self.partitions[topic]) % found.partitions)


class Reading:
    """One who reads a log from where it has come to."""

    def __init__(self, role: Role, log: PartitionLog) -> None:
        self.role = role
        self.log = log
        self.position = 0
        self.readonly = role.settings.get("writer") == "read_only"

    def read(self, wait: float = 0.0) -> bool:
        """Whether it got on."""
        role, place, log = self.role, place_of(self.log), self.log
        visibility: Visibility = "durable" if role.rng.random() < 0.5 else "buffered"
        size = role.rng.choice([0, 200, 1 << 20])
        try:
            result = log.read(self.position, size, visibility=visibility, wait=wait)
        except OffsetOutOfRange as error:
            role.oracle.low_is(place, error.low)
            role.process.note(f"{type(error).__name__} {error}")
            if self.position < error.low:
                self.position = error.low
                return True
            if place[1] in role.oracle.deleting or (not self.readonly and visibility == "durable"):
                return False  # the topic is being deleted; or it has read its own buffer before
            role.world.fail("the log went back", f"{role.process.name} {place}: {error}")
            return False
        records = [(record.offset or 0, (record.value or b"").decode()) for record in result.records()]
        role.oracle.saw(place, self.position, records, result.next_offset, result.low_watermark)
        if visibility == "durable" or self.readonly:
            role.oracle.read_as_durable(place, records)
        moved = result.next_offset > self.position
        if moved or role.rng.random() < 0.1:
            role.process.note(
                f"read {place[1][:4]}/{place[2]} {self.position}..{result.next_offset} {visibility}"
            )
        self.position = result.next_offset
        return moved


class Writing(Role):
    """An exclusive or a shared writer: it also reads its own partition and asks for records to be deleted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.forget()

    def forget(self) -> None:
        self.current: PartitionLog | None = None
        self.reading: Reading | None = None
        self.buffered: list[tuple[Place, int, list[str]]] = []

    def step(self) -> None:
        log = self.current
        if log is None or self.rng.random() < 0.03:
            log = self.current = self.log()
            self.reading = Reading(self, log)
        luck = self.rng.random()
        if luck < 0.75:
            for _ in range(self.rng.randint(1, 20)):
                if not self.append(log):
                    break
                log = self.current or log
        elif luck < 0.80 and self.settings["writer"] == "exclusive":
            self.tried(log.flush)
        elif luck < 0.93 and self.reading is not None:
            while self.reading.read() and self.rng.random() < 0.7:
                pass
        elif luck < 0.96:
            if self.world.trims:
                self.delete_before(log)
        elif luck < 0.98:
            buffered = self.buffered
            if self.close():  # without complaint: then all of it is stored
                for place, offset, values in buffered:
                    self.oracle.acked(place, offset, values, durable=True, began_deleted=False)
        else:
            self.reopen(log)

    def reopen(self, log: PartitionLog) -> None:
        fresh = log.reopen()
        self.process.note("reopened")
        self.current, self.reading = fresh, Reading(self, fresh)

    def append(self, log: PartitionLog) -> bool:
        place = place_of(log)
        values = self.process.new_values(self.rng.choice([1, 1, 1, 2, 5]))
        ack = "durable"
        if self.settings["writer"] == "exclusive" and self.rng.random() < 0.3:
            ack = "buffered"
        timeout = self.rng.choice([None, None, None, 0.05, 1.0])
        began_deleted = place[1] in self.oracle.deleted
        given = [value.encode() for value in values]
        try:
            receipt = log.append(given[0] if len(given) == 1 else given, ack=ack, timeout=timeout)  # type: ignore[arg-type]
        except NEVER:
            raise
        except LogStoreError as error:
            what = f"append {values} {type(error).__name__} {error}"
            if isinstance(error, CERTAIN):
                self.oracle.refused(place, values, f"{type(error).__name__}: {error}")
            self.process.note(what)
            if isinstance(error, UnknownTopic | Closed):
                self.current = None
            elif log._internal.stopped is not None:
                self.reopen(log)
            return False
        self.oracle.acked(
            place, receipt.offset, values, durable=ack == "durable", began_deleted=began_deleted
        )
        self.process.note(f"acked {ack} {place[1][:4]}/{place[2]} {receipt.offset} {values}")
        if ack == "buffered":
            self.buffered.append((place, receipt.offset, values))
            if self.rng.random() < 0.3:
                self.wait_durable(place, receipt, values)
        return True

    def wait_durable(self, place: Place, receipt: Any, values: list[str]) -> None:
        try:
            receipt.wait_durable(timeout=30.0)
        except LogStoreError as error:
            self.process.note(f"wait_durable {values} {type(error).__name__} {error}")
            return
        self.oracle.acked(place, receipt.offset, values, durable=True, began_deleted=False)
        self.process.note(f"durable {receipt.offset} {values}")

    def delete_before(self, log: PartitionLog) -> None:
        place = place_of(log)
        low, high = log.low_watermark, log.durable_high_watermark
        offset = self.rng.randint(low, max(low, high - self.rng.randint(0, 30)))
        self.oracle.asked_to_delete_before(place, offset)
        self.process.note(f"delete_before {place[1][:4]}/{place[2]} {offset}")
        log.delete_before(offset)

    def last_append(self) -> None:
        """In the finale the store works: an append must go through, of whoever slept for however long."""
        until = self.world.kernel.now + _PATIENCE_S
        while self.world.kernel.now < until and self.world.violation is None:
            if self.current is None:
                self.tried(self._look)
            if self.current is not None and self._appended():
                return
            self.world.kernel.sleep(5.0)
        self.cannot_go_on()

    def _appended(self) -> bool:
        done = False

        def once() -> None:
            nonlocal done
            assert self.current is not None
            done = self.append(self.current)

        self.tried(once)
        return done

    def _look(self) -> None:
        self.current = self.log()
        self.reading = Reading(self, self.current)


class Crowding(Writing):
    """A shared writer that hardly rests: with a few of these, most appends are put aside and committed by another."""

    def step(self) -> None:
        log = self.current
        if log is None or self.rng.random() < 0.1:
            super().step()
            return
        for _ in range(self.rng.randint(5, 40)):
            if not self.append(log):
                break

    def rest(self) -> None:
        self.process.idle(self.rng.uniform(0, 0.02))


class Following(Role):
    """A reader, in one of the ways there are: it asks, it waits, and it idles for long."""

    readings: dict[Place, Reading]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.readings = {}

    def forget(self) -> None:
        self.readings = {}

    def reading(self, log: PartitionLog) -> Reading:
        known = self.readings.get(place_of(log))
        if known is None:
            known = self.readings[place_of(log)] = Reading(self, log)
        return known

    def step(self) -> None:
        if not self.readings or self.rng.random() < 0.05:
            reading = self.reading(self.log())
        else:
            reading = self.readings[self.rng.choice(sorted(self.readings))]
        luck = self.rng.random()
        try:
            if luck < 0.97:
                for _ in range(self.rng.randint(1, 6)):
                    reading.read(self.rng.choice([0.0, 0.0, 1.0, 5.0]))
            else:
                self.close()
        except UnknownTopic:
            self.readings.pop(place_of(reading.log), None)

    def read_to_the_end(self, place: Place, high: int) -> None:
        reading = self.readings.get(place)
        if reading is None or self.store is None:
            return
        for _ in range(400):
            if not self.tried(lambda: reading.read(2.0)) and not self.readings:
                break
            if reading.position >= high:
                return
        self.world.fail(
            "a reader is stuck",
            f"{self.process.name} {place}: at {reading.position}, and the log is at {high}",
        )


class Replicating(Role):
    """A replicated writer: source offset n gives the record `s<n>`."""

    log_: PartitionLog | None = None
    writer: ReplicatedWriter | None = None

    def forget(self) -> None:
        self.log_ = self.writer = None

    def step(self) -> None:
        if self.writer is None or self.log_ is None:
            self.log_ = self.log()
            self.writer = self.log_.replicated(self.process.name)
        luck = self.rng.random()
        if luck < 0.9:
            for _ in range(self.rng.randint(1, 8)):
                self.feed(self.writer, self.log_)
        elif luck < 0.94:
            self.writer.promote()
            self.process.note("promoted")
        elif luck < 0.97:
            self.writer.upper()
        else:
            self.close()

    def feed(self, writer: ReplicatedWriter, log: PartitionLog) -> None:
        lower = max(0, writer.frontier - self.rng.choice([0, 0, 0, 2]))
        upper = writer.frontier + self.rng.randint(1, 4)
        place = place_of(log)
        began_deleted = place[1] in self.oracle.deleted
        try:
            applied = writer.compare_and_append(
                [b"s%d" % number for number in range(lower, upper)], lower, upper
            )
        except Fenced as error:
            self.process.note(f"{type(error).__name__} {error}")
            self.log_ = log.reopen()
            self.writer = self.log_.replicated(self.process.name)
            raise
        if began_deleted and applied.by == "us":
            self.oracle.violation("ack into a deleted topic", f"{place}: source {lower} to {upper}")
        self.oracle.acks += 1
        self.oracle.source_stored(place, applied.upper)
        self.process.note(f"applied by {applied.by} {place[1][:4]}/{place[2]} {lower}..{applied.upper}")

    def last_append(self) -> None:
        until = self.world.kernel.now + _PATIENCE_S
        while self.world.kernel.now < until and self.world.violation is None:
            if self.tried(self.last_feed):
                return
            self.world.kernel.sleep(5.0)
        self.cannot_go_on()

    def last_feed(self) -> None:
        if self.writer is None or self.log_ is None or self.writer.failed is not None:
            self.log_ = self.log() if self.log_ is None else self.log_.reopen()
            self.writer = self.log_.replicated(self.process.name)
        self.feed(self.writer, self.log_)


class Maintaining(Role):
    """`logstore compact` and `logstore gc`, with whatever grace this process was given."""

    def step(self) -> None:
        topic = self.rng.choice(sorted(self.partitions))
        luck = self.rng.random()
        if luck < 0.8:
            self.compact(topic)
        if luck > 0.2:
            self.collect(topic if self.rng.random() < 0.8 else None)
        if self.rng.random() < 0.3:
            self.close()

    def compact(self, topic: str) -> None:
        found = self.opened().topic(topic)
        for number in range(found.partitions):
            log = found.partition(number)
            low = log._internal.maintenance.expire(self.process.clock.now_ms())
            merged = 0
            while count := log._internal.maintenance.compact(
                self.process.clock.now_ms(), self.rng.randbytes(16)
            ):
                merged += count
            self.process.note(f"compacted {log._internal.paths.incarnation[:4]}/{number} {merged} low {low}")

    def collect(self, topic: str | None) -> None:
        gone = self.opened().collect_garbage(topic)
        self.process.note(f"collected {len(gone)}: {' '.join(item.key[-40:] for item in gone[:6])}")

    def last_collection(self) -> None:
        self.tried(lambda: self.collect(None))


class Deleting(Role):
    """Deletes the topic now and then, and creates it again."""

    def step(self) -> None:
        name = self.rng.choice(sorted(self.partitions))
        count = len(self.partitions[name])
        store = self.opened()
        if self.rng.random() < 0.6:
            self.create(store, name, count)
            return
        incarnation = store.topic(name).partition(0)._internal.paths.incarnation
        self.oracle.deleting.add(incarnation)
        self.process.note(f"deletes {name} {incarnation}")
        store.delete_topic(name)
        self.oracle.deleted.add(incarnation)
        self.process.note(f"deleted {name} {incarnation}")
        if self.rng.random() < 0.8:
            self.create(store, name, count)

    def create(self, store: Store, name: str, count: int) -> None:
        try:
            topic = store.create_topic(name, count, exist_ok=True, **self.world.topic_settings[name])
        except TopicExists:
            return
        self.process.note(f"created {name} {topic.partition(0)._internal.paths.incarnation}")
