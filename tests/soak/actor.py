"""The processes of a run: producers of every mode, readers, maintainers. Run as a program it is a fork server.

Each line on stdin is an order (JSON). `start` forks a process that does a job and answers its pid; `reap` waits for one that
has ended. A job runs until it is killed, or until SIGTERM asks it to come to an end: then it must still be able to make
progress, and says so.

An actor writes everything it did into the journal, and every error that nothing in a run excuses as `error`.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import logstore
from logstore import cli
from logstore.cli.commands.maintenance import compact, gc
from logstore.cli.terminal.output import Output
from logstore.engine.host.clock import SystemClock
from logstore.engine.maintenance import checkpoint
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Fenced,
    LogStoreError,
    OffsetOutOfRange,
    OutcomeUnknown,
    PreconditionFailed,
    StoreError,
)
from logstore.objects import ObjectStore, open_url
from logstore.objects.homes.s3 import S3Store
from logstore.producer import Producer

if __package__:
    from tests.soak.journal import Journal
else:
    from journal import Journal  # type: ignore[import-not-found, no-redef]

T = TypeVar("T")
PATIENCE_S = 30.0  # for a process to come to its end, when nothing disturbs it any more
FILLERS = (0, 0, 0, 0, 20, 300)


@dataclass(frozen=True)
class Job:
    role: str
    process: str
    seed: int
    journal: str
    folder: str | None = None
    endpoint_url: str | None = None
    bucket: str = ""
    prefix: str = ""
    read_timeout_s: float = 2.0
    topic: str = ""
    topics: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    acks: tuple[str, ...] = ("durable",)
    alone: bool = False  # nobody else writes the topic: nothing may fence this one
    skew_ms: int = 0
    grace_s: float = 0.0  # of a maintainer
    checkpoint_every: int = 64
    pace_s: float = 0.02
    target: str = ""  # a file that says where each topic ends, once nobody appends any more


class SkewedClock(SystemClock):
    """A wall clock that is wrong, and jumps now and then. Deadlines go by the monotonic one, as everywhere."""

    def __init__(self, skew_ms: int, rng: Random) -> None:
        self._skew_ms = skew_ms
        self._rng = rng

    def now_ms(self) -> int:
        if self._skew_ms and self._rng.random() < 0.02:
            self._skew_ms = -self._skew_ms
        return super().now_ms() + self._skew_ms


class Actor:
    def __init__(self, job: Job, finishing: threading.Event) -> None:
        self.job = job
        self.rng = Random(job.seed)
        self.journal = Journal(job.journal)
        self.finishing = finishing
        self.process = job.process
        self._lives = 0
        self._values = 0
        self._end_by: float | None = None

    def run(self) -> None:
        getattr(self, self.job.role)()

    def objects(self) -> ObjectStore:
        job = self.job
        if job.folder is not None:
            return open_url(job.folder)
        return S3Store(
            job.bucket,
            job.prefix,
            endpoint_url=job.endpoint_url,
            region="us-east-1",
            connect_timeout_s=2.0,
            read_timeout_s=job.read_timeout_s,
        )

    def open(self, **settings: Any) -> logstore.Store:
        clock = SkewedClock(self.job.skew_ms, self.rng)
        objects = self.objects()
        return self.insist(lambda: logstore.open(objects, clock=clock, **{**self.job.settings, **settings}))

    def insist(self, call: Callable[[], T]) -> T:
        """Until the store lets it: a request that failed is no reason to end."""
        while True:
            self.check_end()
            try:
                return call()
            except StoreError as error:
                if isinstance(error, PreconditionFailed):
                    raise
            except OutcomeUnknown:
                pass
            self.pause()

    def pause(self) -> None:
        """At its pace. Afterwards, when it is to end, there is no need to hurry either: the store may be busy."""
        self.finishing.wait(self.rng.uniform(0, 2 * self.job.pace_s))
        if self.finishing.is_set():
            threading.Event().wait(0.02)

    def excuse(self, error: BaseException, what: str, *, fenced: bool = False, topic: str = "") -> None:
        """Write the error down unless it is one that runs like these cause by themselves."""
        expected = (StoreError, AppendTimeout, OutcomeUnknown, BufferFull)
        if isinstance(error, expected) and not isinstance(error, PreconditionFailed):
            return
        if fenced and isinstance(error, Fenced):
            return
        why = f"{type(error).__name__}: {error}"
        topic = topic or self.job.topic
        self.journal.note("error", process=self.process, topic=topic, what=what, why=why)

    def check_end(self) -> None:
        """Once it was asked to end nothing disturbs it any more, and its peers only a little: it must make progress."""
        if self.finishing.is_set():
            self._end_by = self._end_by or time.monotonic() + PATIENCE_S
            if time.monotonic() > self._end_by:
                raise TimeoutError(f"no progress in {PATIENCE_S} s, and nothing disturbs the store any more")

    def next_life(self) -> None:
        self._lives += 1
        self.process = f"{self.job.process}~{self._lives}"

    def fresh_values(self) -> list[bytes]:
        values = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
            self._values += 1
            filler = "." * self.rng.choice(FILLERS)
            values.append(f"{self.job.process}/{self._values}{filler}".encode())
        return values

    # Producers

    def produce(self) -> None:
        """An exclusive or a shared writer, whose appends are each sent once."""
        store = self.open()
        log = self.open_writer(self.insist(lambda: store.topic(self.job.topic)).partition(0))
        while not self.finishing.is_set():
            log = self.take_stock(log)
            if self.rng.random() < 0.2:
                self.look(log)
            else:
                self.append_some(log)
            self.pause()
        self.insist_on_progress(log)
        with suppress(OutcomeUnknown):
            store.close(PATIENCE_S)

    def open_writer(self, log: PartitionLog) -> PartitionLog:
        topic, shared = self.job.topic, self.job.settings.get("writer") == "shared"
        self.journal.note("opened", topic=topic, process=self.process)
        while True:
            self.check_end()
            try:
                log.open_writer(timeout=5.0, ack=self.rng.choice(self.job.acks))  # type: ignore[arg-type]
            except LogStoreError as error:
                self.excuse(error, "open_writer", fenced=not self.job.alone)
                if log._internal.stopped is not None:
                    log = self.reopened(log)
                    self.journal.note("opened", topic=topic, process=self.process)
                self.pause()
                continue
            # A shared writer takes over with its first commit; others have lost nothing before that, nor after it.
            if not shared or not self.job.alone:
                self.journal.note(
                    "recovered", topic=topic, process=self.process, same_disk="wal_dir" in self.job.settings
                )
            return log

    def take_stock(self, log: PartitionLog) -> PartitionLog:
        """A writer that has stopped is dead, with all that it held: its next life begins."""
        if log._internal.stopped is None:
            return log
        self.excuse(log._internal.stopped, "stopped", fenced=not self.job.alone)
        self.journal.note(
            "stopped", topic=self.job.topic, process=self.process, why=str(log._internal.stopped)
        )
        self.journal.note("crashed", process=self.process)
        return self.open_writer(self.reopened(log))

    def reopened(self, log: PartitionLog) -> PartitionLog:
        self.next_life()
        self.pause()
        return self.insist(log.reopen)

    def append_some(self, log: PartitionLog) -> None:
        """One append, or several under way at once."""
        topic, timeout = self.job.topic, self.rng.choice((0.3, 2.0, 5.0))
        under_way = []
        for _ in range(self.rng.choice((1, 1, 1, 5))):
            values, ack = self.fresh_values(), self.rng.choice(self.job.acks)
            op = self.journal.began(topic, self.process, values, ack)
            try:
                under_way.append((op, log.submit(values, ack=ack, timeout=timeout)))  # type: ignore[arg-type]
            except LogStoreError as error:
                self.failed(op, error, taken=False)
        for op, future in under_way:
            try:
                offset = future.result(timeout).offset
            except (LogStoreError, TimeoutError) as error:
                self.failed(op, error, taken=True)
            else:
                self.journal.note("acked", op=op, topic=topic, offset=offset)

    def failed(self, op: str, error: Exception, *, taken: bool) -> None:
        """Told for certain: it was never taken, or its writer was fenced before it could store it."""
        certain = not taken or isinstance(error, Fenced | BufferFull)
        why = type(error).__name__
        self.journal.note("failed", op=op, topic=self.job.topic, certain=certain, why=why)
        if not isinstance(error, TimeoutError):
            self.excuse(error, "append", fenced=not self.job.alone)

    def look(self, log: PartitionLog) -> None:
        """Read after ack, in the process that appends."""
        visibility = self.rng.choice(("buffered", "durable"))
        try:
            low, high = (
                log.low_watermark,
                (log.durable_high_watermark if visibility == "durable" else log.buffered_high_watermark),
            )
            offset = self.rng.randint(max(low, high - 40), high)
            op = self.journal.read(self.job.topic, self.process, offset, visibility)
            result = log.read(offset, self.rng.choice((0, 300, 1 << 20)), visibility=visibility)  # type: ignore[arg-type]
            found = list(result.records())
        except OffsetOutOfRange as error:
            if error.offset is not None and error.offset > error.low:
                self.excuse(error, "read")
        except LogStoreError as error:
            self.excuse(error, "read", fenced=True)
        else:
            # One that has lost the partition meanwhile has lost what it held: that is not this read's fault.
            if log._internal.stopped is None and found is not None:
                self.journal.got(op, self.job.topic, result)

    def insist_on_progress(self, log: PartitionLog) -> None:
        """A durable append must succeed, and those before it be stored or given up."""
        while True:
            self.check_end()
            log = self.take_stock(log)
            values = self.fresh_values()
            op = self.journal.began(self.job.topic, self.process, values, "durable")
            try:
                offset = log.append(values, ack="durable", timeout=PATIENCE_S).offset
            except LogStoreError as error:
                self.failed(op, error, taken=True)
                self.pause()
            else:
                self.journal.note("acked", op=op, topic=self.job.topic, offset=offset)
                return

    def produce_numbered(self) -> None:
        """A shared writer whose records are numbered: what may have failed is sent again, also by its next life."""
        store = self.open()
        log = self.open_writer(self.insist(lambda: store.topic(self.job.topic)).partition(0))
        identity = int(self.job.process.partition(".")[0][-1]) + 1
        sequence, finished = None, False
        while not finished:
            self.check_end()
            if log._internal.stopped is not None:
                log, sequence = self.take_stock(log), None
            if sequence is None:
                producer = Producer(log, identity)
                sequence = max(0, self.insist(producer.next_sequence) - 1)
            values = [b"numbered-%d/%d" % (identity, sequence)]
            op = self.journal.began(self.job.topic, self.process, values, "durable", idempotent=True)
            try:
                offset = producer.append(
                    values[0], sequence=sequence, timeout=self.rng.choice((0.5, 4.0))
                ).offset
            except LogStoreError as error:
                self.failed(op, error, taken=True)
            else:
                self.journal.note("acked", op=op, topic=self.job.topic, offset=offset)
                sequence, finished = sequence + 1, self.finishing.is_set()
            self.pause()
        with suppress(OutcomeUnknown):
            store.close(PATIENCE_S)

    def replicate(self) -> None:
        """One of several that feed the same source: one record for each source offset, so that is its offset, too."""
        store = self.open()
        log = self.insist(lambda: store.topic(self.job.topic)).partition(0)
        self.journal.note("opened", topic=self.job.topic, process=self.process)
        writer = self.insist(lambda: log.replicated(self.process))
        position, finished = None, False
        while not finished:
            self.check_end()
            if writer.failed is not None:
                self.excuse(writer.failed, "stopped")
                self.next_life()
                log = self.insist(log.reopen)
                self.journal.note("opened", topic=self.job.topic, process=self.process)
                writer, position = self.insist(lambda log=log: log.replicated(self.process)), None  # type: ignore[misc]
            op = None
            try:
                if position is None:
                    position = max(0, writer.upper() - self.rng.randrange(4))  # some of it once more
                upper = position + self.rng.choice((1, 1, 2, 5))
                values = [b"source/%d" % number for number in range(position, upper)]
                op = self.journal.began(self.job.topic, self.process, values, "durable", idempotent=True)
                writer.compare_and_append(values, position, upper, timeout=self.rng.choice((0.5, 4.0)))
            except LogStoreError as error:
                if op is not None:
                    self.failed(op, error, taken=True)
                else:
                    self.excuse(error, "upper")
            else:
                self.journal.note("acked", op=op, topic=self.job.topic, offset=position)
                position, finished = upper, self.finishing.is_set()
            self.pause()
        with suppress(OutcomeUnknown):
            store.close(PATIENCE_S)

    # Readers

    def read(self) -> None:
        """Follow all topics; now and then begin again somewhere. At the end it must come to where they end (C02)."""
        store = self.open(writer="read_only")
        logs = {
            name: self.insist(lambda name=name: store.topic(name)).partition(0)  # type: ignore[misc]
            for name in self.job.topics
        }
        positions: dict[str, int | None] = dict.fromkeys(logs)
        for name in logs:
            self.journal.note("opened", topic=name, process=self.process)
        while not self.finishing.is_set():
            for name, log in logs.items():
                if self.rng.random() < 0.03:
                    positions[name] = None
                positions[name] = self.follow(name, log, positions[name])
            self.pause()
        ends: dict[str, int] = json.loads(Path(self.job.target).read_text())
        end_by = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_by:
            behind = [name for name in ends if (positions[name] or 0) < ends[name]]
            if not behind:
                break
            for name in behind:
                positions[name] = self.follow(name, logs[name], positions[name])
            self.pause()
        for name in ends:
            if (positions[name] or 0) < ends[name]:
                where = f"it is at {positions[name]} of {ends[name]}, and comes no further"
                self.journal.note("error", process=self.process, topic=name, what="stuck", why=where)
        store.close()

    def follow(self, name: str, log: PartitionLog, position: int | None) -> int | None:
        try:
            if position is None:
                low, high = log.low_watermark, log.durable_high_watermark
                position = low if self.finishing.is_set() else self.rng.randint(max(low, high - 200), high)
            visibility = self.rng.choice(("buffered", "durable"))
            op = self.journal.read(name, self.process, position, visibility)
            limit, wait = self.rng.choice((0, 1000, 1 << 20)), self.rng.choice((0.0, 0.02))
            result = log.read(position, limit, visibility=visibility, wait=wait)  # type: ignore[arg-type]
            self.journal.got(op, name, result)
            return result.next_offset
        except OffsetOutOfRange as error:
            if position is not None and position >= error.low:
                self.excuse(error, "read", topic=name)
            return None
        except LogStoreError as error:
            self.excuse(error, "read", topic=name)
            return position

    # Maintenance

    def maintain(self) -> None:
        """What an operator's cron job does, with a grace period of 0: as the commands do it, and a trim now and then."""
        objects = self.objects()
        commands = ("compact", "gc", "gc all", "trim") if self.job.topic else ("compact", "gc", "gc all")
        while not self.finishing.is_set():
            topic, what = self.rng.choice(self.job.topics), self.rng.choice(commands)
            try:
                if what == "trim":
                    self.trim(objects, self.job.topic)
                else:
                    self.command(objects, what, topic)
            except LogStoreError as error:
                self.excuse(error, what, topic=topic)
            self.pause()

    def command(self, objects: ObjectStore, what: str, topic: str) -> None:
        """Run it, and write down what it did: a run in which nothing is merged and deleted shows nothing."""
        text = io.StringIO()
        out = Output(text, as_json=True)
        if what == "compact":
            compact.run(argparse.Namespace(store=objects, topic=topic), out)
        else:
            chosen = topic if what == "gc" else None
            gc.run(
                argparse.Namespace(store=objects, topic=chosen, grace=self.job.grace_s, dry_run=False), out
            )
        rows = [json.loads(line) for line in text.getvalue().splitlines()]
        merged, deleted = (
            sum(row.get("merged_segments", 0) for row in rows),
            sum("deleted" in row for row in rows),
        )
        self.journal.note("maintained", merged=merged, deleted=deleted)

    def trim(self, objects: ObjectStore, topic: str) -> None:
        with logstore.open(objects) as store:
            log = store.topic(topic).partition(0)
            low, high = log.low_watermark, log.durable_high_watermark
            offset = low + (high - low) // 4
            self.journal.note("trim", topic=topic, offset=offset)
            log.delete_before(offset)


def child(job: Job) -> None:
    """In the fork. Ends with `os._exit`: what the fork server holds is not its own."""
    finishing = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: finishing.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    checkpoint.EVERY_SEGMENTS = job.checkpoint_every
    logging.basicConfig(level=logging.ERROR, format=f"%(asctime)s {job.process} %(message)s")
    actor = Actor(job, finishing)
    try:
        actor.run()
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        logging.exception("it ended by itself")
        actor.journal.note("error", process=actor.process, topic=job.topic, what="ended by itself", why=why)
        os._exit(1)
    os._exit(0)


def serve() -> None:
    # What every child needs is made ready once: parsing the SDK's description of S3 takes a second.
    S3Store("none", endpoint_url="http://127.0.0.1:9", region="us-east-1").close()
    cli.program()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until a child can hear it
    answers = os.dup(1)
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, 0)
                os.dup2(nothing, 1)
                os.close(answers)
                try:
                    child(Job(**order))
                finally:
                    os._exit(2)
        os.write(answers, b"%d\n" % answer)


if __name__ == "__main__":
    serve()
