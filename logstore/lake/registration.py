"""Which tables a topic is copied to: as long as one is registered, retention waits for it, up to its limit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from logstore.layout.catalog import Catalog, TopicDescriptor
from logstore.layout.holds import Hold, hold_key, holds_of
from logstore.objects import ObjectStore
from logstore.topic import Topic


@dataclass(frozen=True, slots=True)
class Registration:
    """One table that a topic is copied to."""

    target: str
    offsets: Mapping[int, int]
    """For each partition, the first offset that the table may not have."""
    hold_seconds: float
    """How much longer than retention says a record is kept for it, at most."""
    updated_at: datetime


def registered(topic: Topic) -> list[Registration]:
    """The tables that retention of the topic waits for."""
    objects, current = where_it_is(topic)
    return [
        Registration(
            hold.who, dict(hold.offsets), hold.seconds, datetime.fromtimestamp(hold.updated_at_ms / 1000, UTC)
        )
        for hold in holds_of(objects, current.name, current.incarnation)
    ]


def forget(topic: Topic, target: str) -> bool:
    """Retention waits for this table no longer; whether it did. A materializer that still runs registers again with its
    next step."""
    objects, current = where_it_is(topic)
    key = hold_key(current.name, current.incarnation, named(target))
    was_there = objects.head(key) is not None  # not read: one that is damaged can be forgotten, too
    objects.delete(key)
    return was_there


def named(target: str) -> str:
    """The target as it is shown and kept: properties of a catalog may hold a password, so a digest stands for them."""
    bare, mark, properties = target.partition("?")
    if not mark or not target.startswith("iceberg:"):
        return target
    return f"{bare}#{hashlib.blake2b(properties.encode(), digest_size=4).hexdigest()}"


def register(
    objects: ObjectStore, topic: TopicDescriptor, target: str, seconds: float, offsets: Mapping[int, int]
) -> None:
    """Say how far the table is. `offsets` are what the table itself says, or less."""
    hold = Hold(target, seconds, offsets, time.time_ns() // 1_000_000)
    objects.put(hold_key(topic.name, topic.incarnation, target), hold.pack())


def where_it_is(topic: Topic) -> tuple[ObjectStore, TopicDescriptor]:
    """The topic's store, and the topic of that name that there is right now: it may have been recreated."""
    objects = topic.partition(0)._internal.objects
    return objects, Catalog(objects).find(topic.name)
