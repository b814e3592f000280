"""A process of the mixed lanes' soak: several threads append, commit over partitions, read, reopen, delete, collect.

Every opening has settings of its own: no, one or two lanes, with a name that others have too, or none; a WAL, which the next
life of a killed process finds, or none; flushes, grace periods, entries and checkpoints of other sizes, a store that loses,
repeats and delays, a clock that is years off. What it tried and what it was told goes into a journal, a line at a time,
before and after.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import logstore
from logstore.cli.commands.maintenance import compact
from logstore.config import Ack
from logstore.engine.host.clock import SystemClock
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.write.lanes import lane_checkpoints, lane_queue
from logstore.errors import (
    BufferFull,
    Closed,
    Fenced,
    LogStoreError,
    NotAtomic,
    OutcomeUnknown,
    PartitionInUse,
    PreconditionFailed,
    RecordTooLarge,
    StoreError,
    UnknownTopic,
)
from logstore.objects import ObjectStore, open_url
from logstore.testing import ANY_DELIVERY, ANY_FAULT, FaultyStore

TOPICS = {"wide": 18, "narrow": 3, "gone": 17}
"""How many partitions each has. Two begin in a lane; `gone` is deleted and created again now and then."""
YEARS_MS = 8 * 365 * 86_400_000
STUCK_S = 60.0
EXCUSED = (BufferFull, Fenced, NotAtomic, OutcomeUnknown, PartitionInUse, RecordTooLarge, StoreError)
Place = tuple[str, str, int]


class SkewedClock(SystemClock):
    """Its wall clock is off, and jumps."""

    def __init__(self, skew_ms: int, rng: Random) -> None:
        self._skew_ms, self._rng = skew_ms, rng

    def now_ms(self) -> int:
        if self._rng.random() < 0.02:
            self._skew_ms = -self._skew_ms
        return super().now_ms() + self._skew_ms


class MixedWorker:
    """`where`: the store. `name` is of this process alone, and begins every value."""

    def __init__(self, folder: Path, where: str, name: str, seed: int, end_at: float) -> None:
        self._where, self._name, self._rng, self._end_at = where, name, Random(seed), end_at
        self._wal_dir = str(wal_dir(folder, name.partition(".")[0]))
        self._acks: tuple[Ack, ...] = ()
        self._journal = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lock = threading.Lock()  # guards the number
        self._number = 0
        self._leaving = threading.Event()

    def run(self) -> None:
        lane_checkpoints.CHECKPOINT_EVERY = self._rng.choice((4, 8, 64))
        lane_checkpoints.SPLIT_EVERY = self._rng.choice((6, 20, 1024))
        lane_queue.ENTRY_BYTES = self._rng.choice((200, 3000, 4 << 20))
        while not self._is_over():
            with suppress(StoreError, OutcomeUnknown):
                self._live()

    def _is_over(self) -> bool:
        return time.monotonic() > self._end_at

    def _objects(self) -> ObjectStore:
        objects = open_url(self._where)
        if self._rng.random() < 0.4:
            return objects
        faulty, often = (
            FaultyStore(objects, seed=self._rng.randrange(1 << 30)),
            self._rng.choice((0.01, 0.05, 0.15)),
        )
        rare = often / 3
        faulty.random(
            put=often,
            get=rare,
            list=rare,
            delete=rare,
            head=rare,
            faults=[*ANY_DELIVERY, *ANY_FAULT],
            within=50,
        )
        return faulty

    def _settings(self) -> dict[str, Any]:
        rng = self._rng
        lanes = rng.choice((0, 1, 1, 1, 2))
        return {
            "lanes": lanes,
            "lane": rng.choice((None, "one", "one", "two")) if lanes else None,
            "wal_dir": rng.choice((None, self._wal_dir)),
            "take_over": rng.random() < 0.75,
            "flush_interval": rng.choice((0.01, 0.1, 1.0, 30.0)),
            "durable_linger": rng.choice((0.0, 0.0, 0.02)),
            "delete_grace": rng.choice((0.0, 0.0, 1e6)),
            "append_timeout": rng.choice((1.0, 5.0)),
            "uploads_max": rng.choice((1, 2, 8)),
            "max_buffered_bytes": rng.choice((60_000, 64 << 20)),
            "probe_interval": 0.05,
            "close_timeout": 8.0,
        }

    def _live(self) -> None:
        """One opening of the store."""
        clock = SkewedClock(self._rng.choice((0, YEARS_MS)), self._rng)
        settings = self._settings()
        store = logstore.open(self._objects(), clock=clock, **settings)
        self._acks = (
            ("durable", "buffered")
            if settings["wal_dir"] is None
            else ("durable", "buffered", "local", "local")
        )
        self._leaving.clear()
        threads = [
            threading.Thread(target=self._work, args=(store, Random(self._rng.random())), daemon=True)
            for _ in range(self._rng.choice((1, 2, 4)))
        ]
        for thread in threads:
            thread.start()
        self._leaving.wait(
            min(self._rng.choice((0.3, 2.0, 8.0, 30.0)), max(0.0, self._end_at - time.monotonic()))
        )
        if self._rng.random() < 0.8:
            self._leave(threads)
        try:
            store.close()
        except OutcomeUnknown:
            pass  # it says what is not stored, and others have taken partitions
        except Exception as error:
            self._note("odd", what="close", why=repr(error))
        self._leave(threads)

    def _leave(self, threads: list[threading.Thread]) -> None:
        self._leaving.set()
        for thread in threads:
            thread.join(STUCK_S)
            if thread.is_alive():
                self._note("odd", what="end", why="a thread does not come back")
                os._exit(3)

    def _note(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "process": self._name, "at": time.monotonic(), **fields})
        os.write(self._journal, f"{line}\n".encode())

    def _value(self) -> str:
        with self._lock:
            self._number += 1
            return f"{self._name}.{self._number}" + "." * self._rng.choice((0, 0, 0, 30, 500))

    def _work(self, store: logstore.Store, rng: Random) -> None:
        acts = [
            self._append,
            self._burst,
            self._atomic,
            self._read,
            self._reopen,
            self._collect,
            self._compact,
            self._recreate,
        ]
        while not (self._is_over() or self._leaving.is_set()):
            topic = rng.choice(("wide", "wide", "narrow", "gone"))
            (act,) = rng.choices(acts, (30, 12, 12, 14, 4, 1, 1, 0.5))
            try:
                act(store, rng, topic)
            except (
                Closed,
                UnknownTopic,
            ) as error:  # a log that was reopened, a store that is closing, a topic that was deleted
                is_about_it = topic == "gone" or act in (self._atomic, self._recreate)
                if isinstance(error, UnknownTopic) and not is_about_it:
                    self._note("odd", what=act.__name__, why=repr(error))
            except EXCUSED as error:
                if isinstance(error, PreconditionFailed):
                    self._note("odd", what=act.__name__, why=repr(error))
            except Exception as error:
                self._note("odd", what=act.__name__, why=f"{type(error).__name__}: {error}")

    @staticmethod
    def _log(store: logstore.Store, rng: Random, topic: str) -> PartitionLog:
        return store.topic(topic).partition(rng.randrange(TOPICS[topic]))

    def _append(self, store: logstore.Store, rng: Random, topic: str) -> None:
        log = self._log(store, rng, topic)
        self._appended(log, [self._value() for _ in range(rng.choice((1, 1, 3)))], rng.choice(self._acks))

    def _appended(self, log: PartitionLog, values: list[str], ack: Ack) -> None:
        self._note("tried", places=[place_of(log)], values=values)
        try:
            receipt = log.append([value.encode() for value in values], ack=ack, timeout=1.0)
        except (Fenced, OutcomeUnknown):
            log.reopen(3.0)
            raise
        offsets = list(range(receipt.offset, receipt.last_offset + 1))
        self._note(
            "acked",
            places=[place_of(log)] * len(values),
            values=values,
            offsets=offsets,
            ack=receipt.durability,
        )

    def _burst(self, store: logstore.Store, rng: Random, topic: str) -> None:
        found, waiting = store.topic(topic), []
        for number in rng.sample(range(TOPICS[topic]), rng.randint(1, TOPICS[topic])):
            log, value = found.partition(number), self._value()
            with suppress(*EXCUSED):
                waiting.append((log, value, log.submit(value.encode(), timeout=2.0)))
        for log, value, future in waiting:
            try:
                receipt = future.result(6.0)
            except (Fenced, OutcomeUnknown):
                with suppress(*EXCUSED):
                    log.reopen(3.0)
            except (*EXCUSED, TimeoutError):
                continue
            else:
                offsets = [receipt.offset]
                self._note(
                    "acked", places=[place_of(log)], values=[value], offsets=offsets, ack=receipt.durability
                )

    def _atomic(self, store: logstore.Store, rng: Random, topic: str) -> None:
        logs = [self._log(store, rng, rng.choice(list(TOPICS))) for _ in range(rng.choice((1, 2, 3, 8)))]
        values, places = [self._value() for _ in logs], [place_of(log) for log in logs]
        self._note("atomic", places=places, values=values)
        try:
            with store.atomic(timeout=rng.choice((0.1, 5.0))) as block:
                for log, value in zip(logs, values, strict=True):
                    block.append(log.topic, value.encode(), partition=log.partition)
        except LogStoreError:
            for log in logs:
                if log._internal.stopped is not None:
                    log.reopen(3.0)
            raise
        offsets = [receipt.offset for receipt in block.receipts]
        self._note("acked", places=places, values=values, offsets=offsets, ack="durable")

    def _read(self, store: logstore.Store, rng: Random, topic: str) -> None:
        log = self._log(store, rng, topic)
        found = [
            (record.offset, (record.value or b"").decode()) for record in log.records(visibility="durable")
        ]
        self._note("saw", place=place_of(log), found=found[-60:])

    def _reopen(self, store: logstore.Store, rng: Random, topic: str) -> None:
        self._log(store, rng, topic).reopen(5.0)

    def _collect(self, store: logstore.Store, rng: Random, topic: str) -> None:
        store.collect_garbage(rng.choice((None, None, topic)))

    def _compact(self, store: logstore.Store, rng: Random, topic: str) -> None:
        compact.compact_log(self._log(store, rng, topic))

    def _recreate(self, store: logstore.Store, rng: Random, topic: str) -> None:
        try:
            store.delete_topic("gone")
        finally:
            store.create_topic("gone", TOPICS["gone"], exist_ok=True)


def place_of(log: PartitionLog) -> Place:
    paths = log._internal.paths
    return paths.topic, paths.incarnation, paths.partition


def wal_dir(folder: Path, number: str) -> Path:
    """Of a process and of its next lives."""
    return folder / f"wal-{number}"


def main(folder: str, where: str, name: str, seed: str, seconds: str) -> None:
    MixedWorker(Path(folder), where, name, int(seed), time.monotonic() + float(seconds)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
