"""Writers as actors of a `Schedule`: opened outside of it, then stepped call by call; and how to look at what they left."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import OutcomeUnknown, StoreUnavailable
from logstore.objects import MemoryStore, ObjectStore
from logstore.store import Store
from tests.support.scheduler import InstantClock

TOPIC = "t"


class Switch:
    """A store whose calls go to `inner` now and to another place later: an actor is opened outside of the schedule."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # The five verbs are methods, so that the retry wrapper finds them on the class.
    def get(self, *args: Any, **kw: Any) -> bytes:
        return self.inner.get(*args, **kw)

    def put(self, *args: Any, **kw: Any) -> Any:
        return self.inner.put(*args, **kw)

    def head(self, *args: Any) -> Any:
        return self.inner.head(*args)

    def list(self, *args: Any) -> Any:
        return self.inner.list(*args)

    def delete(self, *args: Any) -> None:
        self.inner.delete(*args)


class Process:
    """One process on a store: its own `Store`, clock and rng. `body` is what it does while it is scheduled."""

    def __init__(
        self, objects: ObjectStore, name: int, body: Callable[[Process], object], **settings: Any
    ) -> None:
        self.name = name
        self.body = body
        self.objects = objects
        self.switch = Switch(objects)
        defaults: dict[str, Any] = {"compression": "none", "probe_interval": 0.001, "stall_after": math.inf}
        self.store: Store = logstore.open(
            self.switch,
            clock=InstantClock(),
            rng=random.Random(name),
            **defaults | settings,
        )
        self.log: PartitionLog = self.store.create_topic(TOPIC, exist_ok=True).partition(0)
        self.acked: list[tuple[int, bytes]] = []
        self.failed: list[BaseException] = []

    def act(self, scheduled: ObjectStore) -> None:
        self.switch.inner = scheduled
        try:
            self.body(self)
        finally:
            self.switch.inner = self.objects

    def append(self, value: bytes, timeout: float | None = None) -> None:
        receipt = self.log.append(value, timeout=timeout)
        self.acked.append((receipt.offset, value))

    def close(self) -> None:
        self.switch.inner = self.objects
        self.store.close()


def contents(objects: MemoryStore | ObjectStore) -> list[tuple[int, bytes | None]]:
    """What a fresh process reads: every record with its offset."""
    with logstore.open(objects, writer="read_only") as store:
        return [(record.offset or 0, record.value) for record in store.topic(TOPIC).partition(0).records()]


class Dead:
    """The store as a killed process sees it: nothing of it arrives any more."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*args: Any, **kw: Any) -> Any:
            raise StoreUnavailable("this process is dead")

        return refuse


class DiesAt:
    """Lets `calls` calls through and then kills the process: at the last one before it is carried out, or right after."""

    def __init__(self, inner: ObjectStore, calls: int, *, after: bool) -> None:
        self._inner = inner
        self._left = calls
        self._after = after

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kw: Any) -> Any:
            self._left -= 1
            if self._left > 0:
                return getattr(self._inner, name)(*args, **kw)
            if self._left == 0 and self._after:
                getattr(self._inner, name)(*args, **kw)
            raise StoreUnavailable("this process is dead")

        return call


def kill(process: Process) -> None:
    """As kill -9 would: from now on nothing that it does reaches the store. Its threads are ended."""
    process.switch.inner = Dead()
    with suppress(OutcomeUnknown):
        process.store.close(timeout=0.001)
