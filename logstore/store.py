"""The store: what a service holds. Opening it checks that the place is ours and keeps its promises."""

from __future__ import annotations

import logging
import random
import threading
from types import TracebackType
from typing import Any

from logstore.catalog import Catalog, TopicDescriptor
from logstore.config import StoreConfig
from logstore.engine.chain import Chain
from logstore.engine.clock import Clock, SystemClock
from logstore.engine.partition_log import PartitionLog
from logstore.engine.removal import remove_partition
from logstore.engine.runtime import Runtime
from logstore.errors import (
    Closed,
    OutcomeUnknown,
    ReadOnly,
)
from logstore.marker import enter
from logstore.objects.closing import close_store
from logstore.objects.metered import MeteredStore, OperationStats
from logstore.objects.protocol import ObjectStore
from logstore.objects.retrying import RetryingStore, RetryPolicy
from logstore.objects.url import open_url
from logstore.paths import PartitionPaths
from logstore.topic import Topic

logger = logging.getLogger(__name__)

READ_RETRIES = RetryPolicy(attempts=4, base_s=0.05, cap_s=0.5)


def open(
    where: str | ObjectStore,
    *,
    config: StoreConfig | None = None,
    clock: Clock | None = None,
    dice: random.Random | None = None,
    **settings: Any,
) -> Store:
    """Open the store at `where`: a URL (`s3://bucket/prefix`, `file:///path`, `memory://name`), a path, or an object with
    the `ObjectStore` methods. It is created if it is not there, unless `writer="read_only"`.

    `settings` are fields of `StoreConfig`. `clock` and `dice` are for tests. Raises `UnsupportedStore` if the place holds
    something else, is of a newer format, or ignores conditional puts; `StoreUnavailable` if it cannot be reached.

    >>> with open("memory://docs") as store:
    ...     events = store.create_topic("events", exist_ok=True)
    ...     events.append(b"hello").offset
    0
    """
    chosen = (config or StoreConfig()).with_settings(settings)
    objects = open_url(where)
    owned = objects is not where
    # The system's randomness, because it forks well: two processes that draw the same writer ids would each take the
    # other's segments for its own.
    chance = dice or random.SystemRandom()
    try:
        return Store(objects, chosen, clock or SystemClock(), chance, owned=owned)
    except BaseException:
        if owned:
            close_store(objects)
        raise


class Store:
    """Topics in one place. A context manager; safe for threads. Get it from `logstore.open`.

    `objects` is the object store itself. The engine sees it through two wrappers: one counts, one rides out short failures
    of everything but conditional puts.
    """

    def __init__(
        self,
        objects: ObjectStore,
        config: StoreConfig,
        clock: Clock,
        dice: random.Random,
        *,
        owned: bool = False,
    ) -> None:
        self.objects = objects
        self.config = config
        self._owned = owned
        self._metered = MeteredStore(objects)
        wrapped = RetryingStore(self._metered, READ_RETRIES)
        self._runtime = Runtime(wrapped, config, clock, dice)
        self._catalog = Catalog(wrapped)
        self._lock = threading.Lock()  # guards the two fields below
        self._topics: dict[str, Topic] = {}
        self._logs: list[PartitionLog] = []
        self._closed = False
        self._runtime.store_id = enter(wrapped, dice, read_only=config.writer == "read_only")

    # Topics

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **topic_settings: Any
    ) -> Topic:
        """Create a topic. With `exist_ok`, one that exists with as many partitions is fine too."""
        self._check_writable()
        incarnation = self._runtime.dice.randbytes(8).hex()
        return self._topic(self._catalog.create(name, partitions, topic_settings, exist_ok, incarnation))

    def topic(self, name: str) -> Topic:
        """The topic of that name, or `UnknownTopic`."""
        self._check_open()
        return self._topic(self._catalog.find(name))

    def topics(self) -> list[str]:
        """The names of all topics, sorted; also of one whose descriptor cannot be read."""
        self._check_open()
        return self._catalog.names()

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Writers that still hold it are stopped; a new topic may take the name at once."""
        self._check_writable()
        gone = self._catalog.change(name, deleted=True)
        with self._lock:
            self._topics.pop(name, None)
            mine = [log for log in self._logs if log.paths.incarnation == gone.incarnation]
            self._logs = [log for log in self._logs if log not in mine]
        for log in mine:
            log.topic_deleted()
        for partition in range(gone.partitions):
            chain = Chain(self._runtime.store, PartitionPaths(name, gone.incarnation, partition))
            remove_partition(chain, self._runtime.new_id, self._runtime.clock.now_ms())

    def _topic(self, descriptor: TopicDescriptor) -> Topic:
        with self._lock:
            known = self._topics.get(descriptor.name)
            if (
                known is None
                or known.incarnation != descriptor.incarnation
                or known.partitions != descriptor.partitions
                or known.config != descriptor.config
            ):
                known = self._topics[descriptor.name] = Topic(descriptor, self._open_partition)
            return known

    def _open_partition(self, descriptor: TopicDescriptor, partition: int) -> PartitionLog:
        paths = PartitionPaths(descriptor.name, descriptor.incarnation, partition)
        with self._lock:
            self._check_open()
            for log in self._logs:
                if log.paths == paths:
                    return log
            log = PartitionLog(self._runtime, paths, descriptor.config)
            self._logs.append(log)
            return log

    # All of it

    def flush(self, timeout: float | None = None) -> None:
        """Make everything that was appended so far durable, all partitions side by side."""
        self._check_open()
        wait = self.config.append_timeout if timeout is None else timeout
        deadline = self._runtime.clock.monotonic() + wait
        begun = [(log, log.begin_flush()) for log in self._all_logs()]
        for log, flush in begun:
            log.finish_flush(flush, deadline)

    def health(self) -> dict[str, Any]:
        """The state of the store and of each partition in use, from memory alone: it asks nobody and never blocks."""
        runtime = self._runtime
        return {
            "closed": self._closed,
            "store_reachable": not runtime.breaker.is_open,
            "failures_in_a_row": runtime.breaker.failures,
            "buffered_bytes": runtime.budget.used,
            "buffered_bytes_limit": runtime.budget.limit,
            "cached_bytes": runtime.cache.used,
            "partitions": [log.health() for log in self._all_logs()],
        }

    def metrics(self) -> dict[str, OperationStats]:
        """Requests to the object store so far, by operation: how many, how many bytes, which errors, how long."""
        return self._metered.snapshot()

    def close(self, timeout: float | None = None) -> None:
        """Make everything durable and stop. Raises `OutcomeUnknown` if that did not work, saying which offsets are not;
        the store is closed all the same. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            logs = list(self._logs)
        wait = self.config.append_timeout if timeout is None else timeout
        deadline = self._runtime.clock.monotonic() + wait
        self._runtime.begin_close()
        for log in logs:
            log.begin_close()
        problems = [problem for log in logs if (problem := log.finish_close(deadline)) is not None]
        left = max(0.0, deadline - self._runtime.clock.monotonic())
        if not self._runtime.close(max(left, 1.0)):
            logger.warning("an upload did not end in time; its thread ends with the store's answer")
        for log in logs:
            log.release()
        if self._owned:
            close_store(self.objects)
        if problems:
            raise OutcomeUnknown("closed, but not everything is stored: " + "; ".join(problems))

    def _all_logs(self) -> list[PartitionLog]:
        with self._lock:
            return list(self._logs)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self.config.writer == "read_only":
            raise ReadOnly('the store was opened with writer="read_only"')

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
