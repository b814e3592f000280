"""An exclusive writer that now and then appends to several partitions at once, with other appends before and behind."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple

from logstore.config import Ack
from logstore.engine.memory.results import Receipt
from logstore.engine.partition.atomic_batches import finish_atomic
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import LogStoreError, NotAtomic, UnknownTopic
from logstore.topic import Topic
from tests.simulation.actors import CERTAIN, NEVER, Writing, place_of
from tests.simulation.oracle import Place

_ACKS: tuple[Ack, ...] = ("buffered", "buffered", "durable")
_WAIT_S = 400.0  # longer than any append_timeout here


class _Submitted(NamedTuple):
    place: Place
    values: list[str]
    ack: Ack
    began_deleted: bool
    future: Future[Receipt]


class Atomic(Writing):
    """As `Writing`, and atomic appends."""

    def step(self) -> None:
        if self.rng.random() < 0.4:
            self.atomically()
        else:
            super().step()

    def atomically(self) -> None:
        name = self.rng.choice(sorted(self.partitions))
        topic = self.opened().topic(name)
        logs = [topic.partition(number % topic.partitions) for number in self.partitions[name]]
        for _ in range(self.rng.randint(1, 8)):
            if not self._one(topic, logs):
                break
        self._reopen_stopped(logs)

    def _reopen_stopped(self, logs: list[PartitionLog]) -> None:
        for log in logs:
            if log._internal.stopped is not None and not log._internal.closed:
                self.tried(log.reopen)
                self.current = self.reading = None

    def _one(self, topic: Topic, logs: list[PartitionLog]) -> bool:
        """Whether the next one may be tried."""
        submitted = self._submit_some(logs)
        parts = {place_of(log): self.process.new_values(self.rng.choice([1, 1, 3])) for log in logs}
        deleted = {place: place[1] in self.oracle.deleted for place in parts}
        self.oracle.atomic(parts)
        block = self.opened().atomic(timeout=self.rng.choice([None, None, 0.05, 1.0]))
        for place, values in parts.items():
            for value in values:
                block.append(topic, value.encode(), partition=place[2])
        done = True
        try:
            begun = block._begin()
            assert begun is not None
            submitted += self._submit_some(logs)
            receipts = finish_atomic(*begun)
        except NEVER:
            raise
        except LogStoreError as error:
            self._failed(parts, error)
            done = False
        else:
            for (place, values), receipt in zip(parts.items(), receipts, strict=True):
                self.oracle.acked(place, receipt.offset, values, durable=True, began_deleted=deleted[place])
            self.process.note(f"acked atomic {[receipt.offset for receipt in receipts]} {parts}")
        for each in submitted:
            self._told(each)
        return done

    def _failed(self, parts: dict[Place, list[str]], error: LogStoreError) -> None:
        self.process.note(f"atomic {parts} {type(error).__name__} {error}")
        if isinstance(error, UnknownTopic):
            self.current = None
        if isinstance(error, (*CERTAIN, NotAtomic)):
            for place, values in parts.items():
                self.oracle.refused(place, values, f"{type(error).__name__}: {error}")

    def _submit_some(self, logs: list[PartitionLog]) -> list[_Submitted]:
        found: list[_Submitted] = []
        for log in logs:
            for _ in range(self.rng.choice([0, 0, 1, 2])):
                place, values, ack = place_of(log), self.process.new_values(1), self.rng.choice(_ACKS)
                deleted = place[1] in self.oracle.deleted
                try:
                    future = log.submit([value.encode() for value in values], ack=ack)
                except NEVER:
                    raise
                except LogStoreError as error:
                    self._not_stored(place, values, error)
                else:
                    found.append(_Submitted(place, values, ack, deleted, future))
        return found

    def _told(self, each: _Submitted) -> None:
        place, values, ack, began_deleted, future = each
        try:
            receipt = future.result(_WAIT_S)
        except NEVER:
            raise
        except FutureTimeout:
            self.process.note(f"submit {values} not answered")
            return
        except LogStoreError as error:
            self._not_stored(place, values, error)
            return
        self.oracle.acked(
            place, receipt.offset, values, durable=ack == "durable", began_deleted=began_deleted
        )
        self.process.note(f"acked {ack} {place[1][:4]}/{place[2]} {receipt.offset} {values}")
        if ack == "buffered":
            self.buffered.append((place, receipt.offset, values))

    def _not_stored(self, place: Place, values: list[str], error: Any) -> None:
        self.process.note(f"submit {values} {type(error).__name__} {error}")
        if isinstance(error, CERTAIN):
            self.oracle.refused(place, values, f"{type(error).__name__}: {error}")


class Busy(Atomic):
    """Its lane has hardly a moment without an upload under way: who takes one of its partitions over is outrun, and asks."""

    def step(self) -> None:
        if self.rng.random() < 0.2:
            super().step()
            return
        name = self.rng.choice(sorted(self.partitions))
        topic = self.opened().topic(name)
        logs = [topic.partition(number % topic.partitions) for number in self.partitions[name]]
        waiting: list[_Submitted] = []
        for _ in range(self.rng.randint(10, 60)):
            waiting += self._submit_some(logs)
            if len(waiting) > 2:
                self._told(waiting.pop(0))
        for each in waiting:
            self._told(each)
        self._reopen_stopped(logs)

    def rest(self) -> None:
        self.process.idle(self.rng.uniform(0, 0.02))
