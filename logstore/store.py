"""The store: what a service holds. Opening it checks that the place is ours and keeps its promises."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack
from weakref import WeakSet

from logstore.atomic import AtomicBlock
from logstore.config import StoreConfig, StoreSettings, TopicOptions, Visibility
from logstore.engine.garbage.garbage import Garbage, Report
from logstore.engine.host.clock import Clock, SystemClock, waitable
from logstore.engine.maintenance.lane_maintenance import LaneMaintenance
from logstore.engine.maintenance.sweep import Sweeper
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.partition.flushing import flush_all
from logstore.engine.partition.health import StoreHealth
from logstore.engine.partition.internal import Partition
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.partition.writer_metrics import WriterMetrics
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.lanes import Lanes
from logstore.engine.write.wal.local_sync import LocalSync
from logstore.engine.write.wal.wal import Wal
from logstore.errors import Closed, OutcomeUnknown, ReadOnly, UnknownTopic
from logstore.layout.catalog import Catalog, KafkaChange, TopicDescriptor, Unreadable
from logstore.layout.marker import enter
from logstore.layout.paths import BORN_IN_LANE, PartitionPaths, birth_lane
from logstore.objects.closing import close_store
from logstore.objects.homes.disk import Disk
from logstore.objects.protocol import ObjectStore
from logstore.objects.url import open_url
from logstore.objects.wrappers.layers import READ_RETRIES, Layers
from logstore.objects.wrappers.metered import OperationStats
from logstore.objects.wrappers.retrying import repeat
from logstore.process import at_exit, forked
from logstore.topic import Topic

if TYPE_CHECKING:
    from logstore.groups.group import Group

logger = logging.getLogger(__name__)

_UNSTORED_MAX = 100
_LAST_WORD_S = 0.1  # for threads that end by themselves, when the deadline has passed
_FORKED = "the store was in use when this process was forked, and is the parent's: open it again here"


def open(
    where: str | os.PathLike[str] | ObjectStore,
    *,
    config: StoreConfig | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    disk: Disk | None = None,
    **settings: Unpack[StoreSettings],
) -> Store:
    """Open the store at `where`: a URL (`s3://bucket/prefix`, `file:///path`, `memory://name`), a path, or an object with
    the `ObjectStore` methods. It is created if it is not there, unless `writer="read_only"`.

    `settings` are fields of `StoreConfig`. `clock`, `rng` and `disk` (under `wal_dir`) are for tests. Raises
    `UnsupportedStore` if the place holds something else, is of a newer format, or ignores conditional puts;
    `StoreUnavailable` if it cannot be reached.

    >>> with open("memory://docs") as store:
    ...     events = store.create_topic("events", exist_ok=True)
    ...     events.append(b"hello").offset
    0
    """
    if not isinstance(config, StoreConfig | None):
        raise TypeError(f"config is a StoreConfig, or None, not {type(config).__name__}")
    chosen = (config or StoreConfig()).with_settings(**settings)
    objects = open_url(where)
    owned = objects is not where
    # The system's randomness, because it forks well: two processes that draw the same writer ids would each take the
    # other's segments for its own.
    chance = rng or random.SystemRandom()
    try:
        return Store(objects, chosen, clock or SystemClock(), chance, owned=owned, disk=disk)
    except BaseException:
        if owned:
            close_store(objects)
        raise


class Store:
    """Topics in one place. A context manager; safe for threads. Get it from `logstore.open`."""

    config: StoreConfig
    """What it was opened with."""
    objects: ObjectStore
    """The object store itself. The engine sees it through three wrappers: one counts, one puts foreign errors into our
    words, one rides out short failures of everything but conditional puts."""

    def __init__(
        self,
        objects: ObjectStore,
        config: StoreConfig,
        clock: Clock,
        rng: random.Random,
        *,
        owned: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self.objects = objects
        self.config = config
        self._owned = owned
        self._metered, bare, wrapped = Layers.round(objects, clock.monotonic)
        self._retrying = wrapped
        self._runtime = Runtime(wrapped, config, clock, rng, disk)
        self._lanes = Lanes(self._runtime, LaneMaintenance(self._runtime).split)
        self._catalog = Catalog(wrapped)
        self._sweeper = Sweeper(self._runtime, self._catalog)
        self._lock = threading.Lock()  # guards the six fields below
        self._topics: dict[str, Topic] = {}
        self._handed_out: WeakSet[Topic] = WeakSet()
        self._settings: dict[str, TopicSettings] = {}  # by incarnation
        # What logs that were reopened could not store.
        self._unstored: deque[str] = deque(maxlen=_UNSTORED_MAX)
        self._logs: dict[PartitionPaths, PartitionLog] = {}
        self._groups: WeakSet[Group] = WeakSet()
        self._closed, self._why_closed = False, "the store is closed"
        # As a whole: it may be done twice, its conditional puts by themselves may not.
        self._runtime.store_id = repeat(
            lambda: enter(bare, rng, read_only=config.writer == "read_only"), READ_RETRIES
        )
        self._local_sync: LocalSync | None = None
        if config.wal_dir is not None and config.writer == "exclusive":
            folder = Path(config.wal_dir) / self._runtime.store_id
            self._local_sync = LocalSync(self._runtime, Wal(folder, self._runtime.wal_folders))
        if config.writer != "read_only" and isinstance(clock, SystemClock):
            at_exit.remember(self, lambda: self._runtime.budget.used > 0)
        forked.remember(self, Store._after_fork_in_child)

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        exist_ok: bool = False,
        **topic_settings: Unpack[TopicOptions],
    ) -> Topic:
        """Create a topic. `topic_settings` are fields of `TopicConfig`. With `exist_ok`, one that exists is fine too; if
        `partitions` is given, with as many."""
        return self._create_topic_of_kafka(name, partitions, {}, topic_settings, exist_ok=exist_ok)

    def topic(self, name: str) -> Topic:
        """The topic of that name, or `UnknownTopic`."""
        self._check_open()
        return self._topic(self._catalog.find(name))

    def topics(self) -> list[str]:
        """The names of all topics, sorted; also of one whose descriptor cannot be read."""
        self._check_open()
        return self._catalog.names()

    def _described(self) -> list[tuple[str, Topic | Unreadable]]:
        """All topics, or why one cannot be read: a listing, and a request for each that has changed since the last call."""
        self._check_open()
        return [
            (name, self._topic(found) if isinstance(found, TopicDescriptor) else found)
            for name, found in self._catalog.described()
        ]

    def alter_topic(self, name: str, **topic_settings: Unpack[TopicOptions]) -> Topic:
        """Change some of a topic's settings; the others stay. `None` takes a limit away.

        Partitions that are open here go by them at once; those that another process writes, from their next checkpoint on
        (after at most 64 more segments), or when that process asks for the topic again. Raises `UnknownTopic`,
        `ReadOnly`, `TypeError` for a setting that does not exist, `ValueError` for a value that it cannot have.
        """
        self._check_writable()
        return self._topic(self._catalog.alter(name, topic_settings))

    def _create_topic_of_kafka(
        self,
        name: str,
        partitions: int,
        kafka: Mapping[str, str],
        settings: Mapping[str, Any],
        *,
        exist_ok: bool = False,
    ) -> Topic:
        """For the broker and for copies: with the settings that a Kafka client gave it, and what they mean here.

        The partitions of a topic that is written through lanes begin in one: they are claimed together."""
        self._check_writable()
        incarnation = self._runtime.rng.randbytes(8).hex() + (BORN_IN_LANE if self._lanes else "")
        made = self._catalog.create(name, partitions, settings, exist_ok, incarnation, kafka)
        lane = birth_lane(incarnation)
        if lane is not None and made.incarnation == incarnation:
            self._runtime.lanes.is_new(lane)
        return self._topic(made)

    def _alter_topic_of_kafka(self, name: str, change: KafkaChange) -> Topic:
        """For the broker. `change` is called with the topic as it is, and again if somebody else was faster."""
        self._check_writable()
        return self._topic(self._catalog.alter_kafka(name, change))

    def add_partitions(self, name: str, total: int) -> Topic:
        """Give a topic more partitions, so that it has `total`. Nothing happens if it has as many; `ValueError` if it has
        more. A `Topic` that somebody holds stays as it is; the next `topic(name)` has them all.

        From then on a key may belong to another partition than before.
        """
        self._check_writable()
        return self._topic(self._catalog.add_partitions(name, total))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Writers that still hold it are stopped; a new topic may take the name at once.

        If it is interrupted, or the store fails, the topic may be gone and some of its records not: call it again, or
        `collect_garbage`. `UnknownTopic` if there is no topic of that name and nothing left of one.
        """
        self._check_writable()
        gone = self._catalog.delete(name)
        incarnations = [removal.incarnation for removal in gone.removing]
        with self._lock:
            self._topics.pop(name, None)
            for incarnation in incarnations:
                self._settings.pop(incarnation, None)
            mine = [self._logs.pop(paths) for paths in list(self._logs) if paths.incarnation in incarnations]
        for log in mine:
            log._internal.topic_deleted()
        self._forget_deleted()
        self._runtime.counters.forget(name)
        for removal in gone.removing:
            self._sweeper.finish(name, removal)

    def collect_garbage(
        self, topic: str | None = None, *, dry_run: bool = False, report: Report | None = None
    ) -> list[Garbage]:
        """Take away what nobody needs any more, in the whole store or of one topic: objects that were merged or expired
        longer ago than `delete_grace`, and what an interrupted `delete_topic` has left; for the whole store also what Spark
        jobs that died have staged. Returns what went, or, with `dry_run`, what would. `report` is told of it piece by piece.

        Safe beside writers and readers anywhere, and beside Spark jobs none of whose tasks takes longer than
        `delete_grace`. It appends nothing, so a `read_only` store may do it too.
        """
        self._check_open()
        found: list[Garbage] = []
        for some in self._sweeper.garbage(topic) if dry_run else self._sweeper.collect(topic):
            found += some
            if report is not None:
                report(some)
        if topic is None and not dry_run:
            self._lanes.collect()
            self._forget_deleted()
        return found

    def _forget_deleted(self) -> None:
        """What the WAL has of topics that were deleted."""
        if self._local_sync is not None:
            self._local_sync.wal.forget_deleted(self._catalog.has_deleted)

    def _topic(self, descriptor: TopicDescriptor) -> Topic:
        with self._lock:
            self._learn(descriptor)
            known = self._topics.get(descriptor.name)
            if known is None or known._internal.is_older_than(descriptor):
                known = self._topics[descriptor.name] = Topic(descriptor, self._open_partition)
                self._handed_out.add(known)
            return known

    def _learn(self, descriptor: TopicDescriptor) -> TopicSettings:
        """The settings that the topic's open partitions go by, brought up to date. Holds the lock."""
        known = self._settings.get(descriptor.incarnation)
        if known is None:
            look = partial(self._look_again, descriptor.name)
            known = TopicSettings(descriptor.config, descriptor.revision, look)
            self._settings[descriptor.incarnation] = known
        known.learn(descriptor.config, descriptor.revision)
        return known

    def _look_again(self, name: str) -> None:
        """What a checkpoint calls: somebody else may have altered the topic."""
        with suppress(UnknownTopic):  # its writer will meet the end of its chain, and say so
            self._topic(self._catalog.find(name))

    def _open_partition(self, descriptor: TopicDescriptor, partition: int) -> PartitionLog:
        paths = PartitionPaths(descriptor.name, descriptor.incarnation, partition)
        with self._lock:
            self._check_open()
            log = self._logs.get(paths)
            if log is None:
                log = self._logs[paths] = self._new_log(paths, self._learn(descriptor))
            return log

    def _new_log(self, paths: PartitionPaths, settings: TopicSettings) -> PartitionLog:
        partition = Partition(self._runtime, paths, settings, self._lanes.of(paths), self._local_sync)
        return PartitionLog(partition, self._replace)

    def _replace(self, log: PartitionLog, problem: str | None) -> PartitionLog:
        """What `PartitionLog.reopen` calls once the log has let go: the one that is handed out instead of it from now on.
        `problem` is what it could not store."""
        paths = log._internal.paths
        with self._lock:
            self._check_open()
            current, settings = self._logs.get(paths), self._settings.get(paths.incarnation)
            if current is None or settings is None:
                raise UnknownTopic(f"{paths}: the topic was deleted")
            if problem is not None:
                self._unstored.append(problem)
            if current is log:
                current = self._logs[paths] = self._new_log(paths, settings)
                log._internal.replaced = True
                for topic in self._handed_out:
                    topic._internal.forget(log)
            return current

    # Groups: imported when somebody asks for one

    def group(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        member: str | None = None,
        session_timeout: float = 30.0,
        max_poll_interval: float = 300.0,
        start: Literal["beginning", "end"] = "beginning",
        visibility: Visibility = "durable",
    ) -> Group:
        """Join the group `name`: its members, in any number of processes, share the partitions of `topics` out among them
        and save positions. A context manager; `close` leaves.

        A member that shows no life for its `session_timeout` is replaced, and what it saves afterwards is refused; so is one
        that calls neither `poll` nor `commit` for `max_poll_interval`. `member`: a name, under which the next life of this
        process takes its place at once (two that live and have the same one replace each other). `start`: where to begin in
        a partition of which nothing was saved. Raises `UnknownTopic`, `ReadOnly`, `StoreUnavailable`.
        """
        from logstore.groups.group import Group

        self._check_writable()
        group = Group(
            self,
            name,
            topics,
            member=member,
            session_timeout=session_timeout,
            max_poll_interval=max_poll_interval,
            start=start,
            visibility=visibility,
        )
        with self._lock:
            self._groups.add(group)
        return group

    # All of it

    def atomic(self, *, timeout: float | None = None) -> AtomicBlock:
        """Records for several partitions, of one topic or of several, that are stored together or not at all:

            with store.atomic() as tx:
                tx.append("orders", b"paid", key=b"17")
                tx.append("ledger", b"+20", key=b"17")
            tx.receipts

        Leaving the block commits with one PUT and returns when all is durable, within `timeout` seconds (`append_timeout`).
        After an exception inside the block, and after every error but `OutcomeUnknown` and `AppendTimeout`, nothing of it is
        stored. Whoever has seen a record of it, here or elsewhere, and looks at another of its partitions afterwards, finds
        the rest there, whatever has crashed.

        Raises `NotAtomic`, before anything is stored, where partitions do not commit together: it needs
        `writer="exclusive"` and one lane for all of them. `RecordTooLarge` for more than fits one entry of a lane (4 MiB as
        it is stored); `Fenced` if another process has one of the partitions; and what `PartitionLog.append` raises.
        """
        self._check_writable()
        return AtomicBlock(self.topic, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Make everything that was appended so far durable, all partitions side by side. Of those that cannot be flushed the
        first says why, once the others are."""
        self._check_open()
        wait = self.config.append_timeout if timeout is None else timeout
        flush_all(self._all_logs(), self._lanes.held(), self._runtime.clock.monotonic() + wait)

    def _health_report(self, *, with_partitions: bool = True) -> StoreHealth:
        """`health`, typed."""
        partitions = [log.health_report() for log in self._all_logs()] if with_partitions else []
        return StoreHealth.of(self._runtime, self._metered, partitions, closed=self._closed)

    def health(self) -> dict[str, Any]:
        """The state of the store and of each partition in use, from memory alone: it asks nobody and never blocks.

        `unanswered_seconds`: for how long the oldest upload under way has had no answer; None if none is. `stalled`: whether
        that is longer than `stall_after`. `degraded`: why the store serves badly, in words: a request of any kind has
        had no answer for 5 s, or uploads fail; None if it does not.
        """
        return self._health_report().as_dict()

    def metrics(self) -> dict[str, OperationStats]:
        """Requests to the object store so far, by operation: how many, how many bytes, which errors, how long."""
        return self._metered.snapshot()

    def writer_metrics(self) -> list[WriterMetrics]:
        """The writers of the partitions in use, in numbers, from memory alone."""
        return [writer for log in self._all_logs() for writer in log.health_report().writer_metrics()]

    def close(self, timeout: float | None = None) -> None:
        """Make everything durable and stop, all of it within `timeout` seconds (`close_timeout`). Raises `OutcomeUnknown` if
        that did not work, saying which offsets are not stored; the store is closed all the same, also if an interrupt
        ends the wait. A second call does nothing."""
        wait = self.config.close_timeout if timeout is None else timeout
        deadline = self._runtime.clock.monotonic() + wait
        self._leave_groups(deadline)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            logs, problems = [log._internal for log in self._logs.values()], list(self._unstored)
        at_exit.forget(self)
        self._runtime.begin_close()
        try:
            self._lanes.begin_close()
            with self._lanes.held():
                for log in logs:
                    log.begin_close()
            problems += [problem for log in logs if (problem := log.finish_close(deadline)) is not None]
        except BaseException:  # Ctrl-C, say: the wait is over, but not for those who wait elsewhere
            for log in logs:
                log.finish_close(self._runtime.clock.monotonic())
            self._let_go(logs, 0.0)
            raise
        self._lanes.close(deadline)
        self._let_go(logs, max(deadline - self._runtime.clock.monotonic(), _LAST_WORD_S))
        if problems:
            raise OutcomeUnknown("closed, but not everything is stored: " + "; ".join(problems))

    def _leave_groups(self, deadline: float) -> None:
        """All at once, each on a thread of its own: a store that does not answer must not hold up `close`."""
        with self._lock:
            groups = list(self._groups)
        leaving = [threading.Thread(target=group.close, daemon=True) for group in groups]
        for thread in leaving:
            try:
                thread.start()
            except RuntimeError:  # Python 3.12 starts none once the interpreter ends
                thread.run()
        for thread in leaving:
            if thread.ident is not None:
                thread.join(waitable(deadline - self._runtime.clock.monotonic()))

    def _let_go(self, logs: list[Partition], timeout: float) -> None:
        """The end of `close`: of threads, files and connections, and of the marker that says that it is open."""
        if not self._runtime.close(timeout):
            logger.warning("an upload did not end in time; its thread ends with the store's answer")
        self._lanes.let_go()
        for log in logs:
            log.release()
        if self._local_sync is not None:
            self._local_sync.wal.close()
        self._runtime.presence.hide()
        if self._owned:
            close_store(self.objects)

    def _after_fork_in_child(self) -> None:
        """After a fork, in the child: a store that was writing is the parent's, and closed here."""
        if self._closed:
            return
        if not self._runtime.has_threads:
            self._lanes.after_fork_in_child()
            return
        self._closed, self._why_closed = True, _FORKED
        for paths, log in self._logs.items():
            log._internal.after_fork_in_child(Closed(f"{paths}: {_FORKED}; nothing was appended"))
        if self._local_sync is not None:
            self._local_sync.wal.after_fork_in_child()

    def _all_logs(self) -> list[Partition]:
        with self._lock:
            return [log._internal for log in self._logs.values()]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self._why_closed)

    def _check_writable(self) -> None:
        self._check_open()
        if self.config.writer == "read_only":
            raise ReadOnly('the store was opened with writer="read_only"')

    def __repr__(self) -> str:
        return f"Store({self.objects!r}, writer={self.config.writer!r}{', closed' if self._closed else ''})"

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
