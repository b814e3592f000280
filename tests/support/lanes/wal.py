"""Partitions of a lane with one WAL, killed, and what the next life finds in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import logstore
from logstore.format.stored.wal import Section, parse_frames
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore
from tests.support.engine.harness import crash, disk_of, open_store

Pairs = list[tuple[int, bytes]]
MODES: list[dict[str, Any]] = [{"lanes": 1}, {"lanes": 2}, {"lane": "orders"}, {"lanes": 0}]


def names(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def opened(store: logstore.Store, count: int) -> list[logstore.PartitionLog]:
    topic = store.create_topic("t", count, exist_ok=True)
    return [topic.partition(number) for number in range(count)]


def values(found: Pairs) -> list[bytes]:
    return [value for _, value in found]


def wal_file(disk: Path) -> Path:
    (path,) = disk.rglob("*.wal")
    return path


def sections(path: Path) -> list[Section]:
    return parse_frames(path.read_bytes())[0]


def left_by_a_crash(tmp_path: Path, count: int, **settings: Any) -> tuple[MemoryStore, Path, list[Pairs]]:
    """A process that acked two records of each partition `local`, one behind the other, and was killed."""
    objects = MemoryStore()
    lifeline = FaultyStore(objects)
    store = open_store(lifeline, wal_dir=tmp_path / "disk", compression="none", **settings)
    logs = opened(store, count)
    acked: list[Pairs] = [[] for _ in logs]
    for turn in range(2):
        for number, log in enumerate(logs):
            value = b"%d of partition %d" % (turn, number)
            acked[number].append((log.append(value, ack="local").offset, value))
    crash(store, lifeline)
    return objects, disk_of(tmp_path / "disk", tmp_path / "left"), acked
