"""A lane of six entries over three partitions, ways to damage its objects, and what is read and appended afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logstore.errors import CorruptData
from logstore.layout.paths import is_birth_lane
from logstore.objects import ObjectStore
from tests.support.engine.harness import crash, open_store

Damage = Callable[[bytes], bytes | None]

VALUES = {0: [b"a0", b"b0", b"c0"], 1: [b"a1", b"b1"], 2: [b"a2"]}


def killed(objects: ObjectStore, **settings: Any) -> None:
    """Six entries: of partitions 0, 1, 2, and then 0, 1, 0. Nobody has closed anything."""
    store = open_store(objects, **(settings or {"lanes": 1}))
    topic = store.create_topic("t", 3)
    for turn in range(3):
        for number, values in VALUES.items():
            if turn < len(values):
                topic.partition(number).append(values[turn])
    crash(store)


def keys(objects: ObjectStore, suffix: str = ".seg") -> list[str]:
    """Of lanes that somebody owns."""
    stored = [info.key for info in objects.list("lanes/") if info.key.endswith(suffix)]
    return [key for key in stored if not is_birth_lane(key.split("/")[1])]


def spoil(objects: ObjectStore, key: str, damage: Damage) -> None:
    data = damage(objects.get(key))
    if data is None:
        objects.delete(key)
    else:
        objects.put(key, data)


def flipped(position: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        made = bytearray(data)
        made[position] ^= 0x10
        return bytes(made)

    return flip


def garbage(data: bytes) -> bytes:
    return b"nothing that we know " * (len(data) // 20 + 1)


def emptied(data: bytes) -> bytes:
    return b""


def deleted(data: bytes) -> None:
    return None


def cut(size: int) -> Damage:
    return lambda data: data[:size]


LOSSES: dict[str, Damage] = {"garbage": garbage, "cut": cut(10), "emptied": emptied, "deleted": deleted}


def read(objects: ObjectStore, number: int) -> list[bytes | CorruptData]:
    """What a process that was not there reads, and what it is told at the end."""
    found: list[bytes | CorruptData] = []
    with open_store(objects, writer="read_only") as store:
        try:
            found.extend(record.value or b"" for record in store.topic("t").partition(number).records())
        except CorruptData as damage:
            found.append(damage)
    return found


def readable(objects: ObjectStore) -> dict[int, list[bytes | CorruptData]]:
    return {number: read(objects, number) for number in VALUES}


def offsets_of_next(objects: ObjectStore, **settings: Any) -> list[int | CorruptData]:
    """Of an append to each by a new owner."""
    store = open_store(objects, **(settings or {"lanes": 1}))
    found: list[int | CorruptData] = []
    for number in VALUES:
        try:
            found.append(store.topic("t").partition(number).append(b"next").offset)
        except CorruptData as damage:
            found.append(damage)
    crash(store)
    return found


def is_damage(found: object, key: str) -> bool:
    return isinstance(found, CorruptData) and found.key.split("@")[0] == key


# The claim in a partition's own chain


def claims(objects: ObjectStore, number: int) -> list[str]:
    return [
        info.key
        for info in objects.list("topics/")
        if info.key.endswith(".seg") and f"/{number}/" in info.key
    ]
