"""What the tests of lanes ask: which entries there are, what a process that was not there reads; and a PUT held up."""

from __future__ import annotations

from contextlib import AbstractContextManager

import logstore
from logstore.config import Visibility
from logstore.layout.paths import is_birth_lane
from logstore.objects import ObjectStore
from logstore.testing import Gate, GatedStore
from tests.support.engine.harness import open_store, pairs


def entries(objects: ObjectStore) -> list[str]:
    """Of lanes that somebody owns."""
    stored = [info.key for info in objects.list("lanes/") if info.key.endswith(".seg")]
    return [key for key in stored if not is_birth_lane(key.split("/")[1])]


def place(gated: GatedStore, seq: int) -> AbstractContextManager[Gate]:
    """Holds what is put there."""
    return gated.hold("put", prefix="lanes/", suffix=f"{seq:020d}.seg")


def store_lane(store: logstore.Store) -> str:
    lane = store._lanes.of(store.topic("t").partition(0)._internal.paths)
    assert lane is not None
    return lane.name


def values(log: logstore.PartitionLog, visibility: Visibility = "buffered") -> list[bytes | None]:
    return [record.value for record in log.records(visibility=visibility)]


def seen(objects: ObjectStore, number: int = 0) -> list[tuple[int, bytes]]:
    """What a process that was not there sees of a partition."""
    with open_store(objects, writer="read_only") as store:
        return pairs(store.topic("t").partition(number))
