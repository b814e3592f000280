"""What the engine's tests share: opening on a clock that stands still, crashing, and looking at what a store holds.

Nothing here waits for time to pass: `drive` moves the clock until something has happened, and `background` runs a call that
blocks while the test goes on.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import logstore
from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.lanes.lane_state import LaneState
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.partition.internal import Partition
from logstore.engine.partition.partition_log import PartitionLog
from logstore.engine.runtime import Runtime
from logstore.format.stored.entry import Entry
from logstore.format.stored.segment import SegmentHeader
from logstore.layout.paths import LANES_PREFIX, LanePaths, PartitionPaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.objects.wrappers.slices import slice_key
from logstore.process import at_exit
from logstore.testing import FaultyStore, ManualClock
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
_seeds = count(1)
DEFAULTS: dict[str, Any] = {}
"""Settings of every store that is opened here, where the test does not say otherwise. A fixture changes them."""


def open_store(objects: ObjectStore, clock: ManualClock | None = None, **settings: Any) -> logstore.Store:
    """A store whose only moving part is the test: seeded, and on the given clock.

    Each has a seed of its own: writers that draw the same ids would take each other's segments for their own.
    """
    settings = {"flush_interval": 3600.0, **DEFAULTS, **settings}
    rng = random.Random(settings.pop("seed", None) or next(_seeds))
    return logstore.open(objects, clock=clock, rng=rng, **settings)


def copy_of(objects: MemoryStore) -> MemoryStore:
    """Another store with the same objects."""
    copy = MemoryStore()
    for info in objects.list(""):
        copy.put(info.key, objects.get(info.key))
    return copy


@contextmanager
def running(
    objects: ObjectStore, clock: ManualClock | None = None, **settings: Any
) -> Iterator[logstore.Store]:
    """`open_store` for a `with`. If the test fails inside, the store is crashed: closing it could wait for the test."""
    store = open_store(objects, clock, **settings)
    try:
        yield store
    except BaseException:
        crash(store, hanging=True)
        raise
    store.close()


def lone_log(runtime: Runtime, paths: PartitionPaths) -> PartitionLog:
    """A log that no store has made: of a topic that nobody alters, and never reopened."""

    def refuse(log: PartitionLog, problem: str | None) -> PartitionLog:
        raise AssertionError(f"{log} is not to be reopened")

    settings = TopicSettings(logstore.TopicConfig(), 0, lambda: None)
    return PartitionLog(Partition(runtime, paths, settings), refuse)


def partition(store: logstore.Store, topic: str = "t") -> PartitionLog:
    return store.create_topic(topic, exist_ok=True).partition(0)


def stored(objects: ObjectStore) -> list[tuple[int, bytes]]:
    """What a process that was not there sees."""
    with open_store(objects, writer="read_only") as store:
        return pairs(store.topic("t").partition(0))


def headers(objects: ObjectStore) -> list[SegmentHeader]:
    """Of every segment that stands, in the order of the chain: those of the partition's own, and those in lanes."""
    keys = [info.key for info in objects.list("topics/") if info.key.endswith(".seg")]
    found = [SegmentHeader.parse(objects.get(key)) for key in keys] + [
        header for _, header in parts_in_lanes(objects)
    ]
    return sorted(found, key=lambda header: header.seq)


def parts_in_lanes(objects: ObjectStore) -> list[tuple[str, SegmentHeader]]:
    """The key of each part of an entry that counts, and its header."""
    found = []
    for lane in sorted({info.key.split("/")[1] for info in objects.list(LANES_PREFIX)}):
        log, state = LaneLog(objects, LanePaths(lane)), LaneState()
        for entry in log.entries_from(0):
            if state.take(entry) and isinstance(entry, Entry):
                key = log.paths.entry(entry.header.seq)
                found += [
                    (
                        slice_key(key, part.position, part.size),
                        SegmentHeader.parse(objects.get(key, part.position, part.position + part.size)),
                    )
                    for part in entry.parts
                    if part.size  # else a fence of a transfer, of which there are no bytes
                ]
    return found


def is_flushing(store: logstore.Store) -> bool:
    """Whether a flush is under way, or waits a moment for more."""
    return bool(store._runtime.task_pool._running)


def background(call: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Run a call that may block in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


def drive(clock: ManualClock, future: Future[T], step_s: float = 0.25) -> T:
    """Move the clock until the future is done; its result."""
    for _ in range(int(PATIENCE_S / 0.003)):
        if wait([future], timeout=0.003).done:
            return future.result()
        clock.advance(step_s)
    raise TimeoutError("the clock was moved on and on, and it did not happen")


def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that another thread is on its way to."""
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if condition():
            return
        tick.wait(0.002)
    raise TimeoutError("the state that was waited for did not come")


def pairs(log: PartitionLog, **reading: Any) -> list[tuple[int, bytes]]:
    """Which record is at which offset."""
    return [(record.offset or 0, record.value or b"") for record in log.records(**reading)]


def numbered(first: int, count: int) -> list[bytes]:
    return [b"v%d" % number for number in range(first, first + count)]


def at(first_offset: int, values: list[bytes]) -> list[tuple[int, bytes]]:
    return list(enumerate(values, first_offset))


def crash(store: logstore.Store, lifeline: FaultyStore | None = None, *, hanging: bool = False) -> None:
    """End it as kill -9 does: nothing is flushed, nobody is told, its threads end.

    From then on nothing that goes through the lifeline, its way to its objects, reaches them. `hanging`: an upload is held
    at a gate and will not end.
    """
    if lifeline is not None:
        lifeline.down()
    at_exit.forget(store)  # as it ends, a killed process stores nothing, and waits for nothing
    store._runtime.close(0.0 if hanging else 5.0)


def disk_of(wal_dir: Path, copy: Path) -> Path:
    """What a dead process left on its disk, where a new one may use it. (The dead one's lock dies with a real process.)"""
    shutil.copytree(wal_dir, copy)
    return copy
