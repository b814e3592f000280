"""How far behind a group is, and which groups there are: for members, for programs that watch them, for the command line.

All of it reads and changes nothing, except `delete`. It asks the store: for a group's document, for the slots of its
members, and for the end of each partition.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from logstore.engine.partition.many_partitions import look_at
from logstore.errors import ObjectNotFound, UnknownTopic
from logstore.groups.documents import Document, Place, Slot
from logstore.groups.host import Host
from logstore.layout.groups import GROUPS_PREFIX, check_group_name, group_document, group_prefix, group_slot
from logstore.layout.paths import behind
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectStore, get_if_there
from logstore.objects.settled import put_settled
from logstore.topic import Topic


class PartitionLag(NamedTuple):
    """One partition of a group. `position` is what was saved last, None if nothing was; `end` is the durable high watermark;
    `records` is how many offsets lie between. `seconds` is the age of the first record that is not behind a saved position,
    by this machine's clock: 0 if there is none. `member` is who reads it, None if nobody does."""

    topic: str
    partition: int
    position: int | None
    end: int
    records: int
    seconds: float
    member: str | None


class GroupInfo(NamedTuple):
    """A group, as its document says. `generation` grows with each change of members or partitions."""

    name: str
    generation: int
    members: dict[str, list[Place]]
    topics: list[str]


def names(store: Host) -> list[str]:
    """The groups that there are, sorted. One request for each."""
    objects, found, after = store._runtime.store, [], ""
    while (info := next(iter(objects.list(GROUPS_PREFIX, after)), None)) is not None:
        name = info.key.removeprefix(GROUPS_PREFIX).partition("/")[0]
        if not _document(objects, name).deleted:
            found.append(name)
        after = behind(group_prefix(name))
    return found


def describe(store: Host, name: str) -> GroupInfo:
    """Members, with the partitions of each, and topics. Raises `ObjectNotFound` if there is no group of that name."""
    document = _known(store._runtime.store, check_group_name(name))
    members = {
        member.name: sorted(document.owned_by(slot)) for slot, member in sorted(document.members.items())
    }
    return GroupInfo(name, document.generation, members, sorted(document.topics))


def lag(store: Host, name: str) -> list[PartitionLag]:
    """How far behind the group is, for each partition of its topics that exist. Asks for the end of each partition."""
    objects = store._runtime.store
    document = _known(objects, check_group_name(name))
    slots = {slot: _slot(objects, name, slot) for slot in document.members}
    topics: dict[str, Topic | None] = {}
    for topic, incarnation in document.incarnations.items():
        topics[topic] = _topic(store, topic, incarnation)
    found = [
        (known, place)
        for place, _ in document.places()
        if (known := topics[place[0]]) is not None and place[1] < known.partitions
    ]
    look_at(known.partition(place[1])._internal for known, place in found)
    calls = [partial(_lag_of, store, document, slots, known, place) for known, place in found]
    return list(fan_out(calls))


def delete(store: Host, name: str) -> None:
    """Forget the group and its positions. Raises `ValueError` if it has members: stop them first, or wait until the last one
    was found dead; `ObjectNotFound` if there is no group of that name."""
    objects, key = store._runtime.store, group_document(check_group_name(name))
    while True:
        info = objects.head(key)
        document = _known(objects, name)
        if document.members:
            who = ", ".join(sorted(member.name for member in document.members.values()))
            raise ValueError(f"group {name!r} has members: {who}; stop them first")
        life = store._runtime.rng.randbytes(8).hex()
        gone = Document(document.generation + 1, life, deleted=True)
        if put_settled(objects, key, gone.pack(), None if info is None else info.etag) is not None:
            return


def _lag_of(
    store: Host, document: Document, slots: dict[int, Slot | None], topic: Topic, place: Place
) -> PartitionLag:
    log = topic.partition(place[1])
    end = log._internal.high_watermark("durable")
    owner = document.topics[place[0]][place[1]].owner
    position = document.position(place, None if owner is None else slots.get(owner.slot))
    begin = max(log.low_watermark, position or 0)
    seconds = 0.0
    if begin < end:
        first = next(log.read(begin, 0, visibility="durable").records(), None)
        stamp = None if first is None else first.timestamp_ms
        if stamp is not None and stamp >= 0:
            seconds = max(0.0, (store._runtime.clock.now_ms() - stamp) / 1000)
    reader = None if owner is None else document.members.get(owner.slot)
    member = None if reader is None else reader.name
    return PartitionLag(*place, position, end, max(0, end - begin), seconds, member)


def _topic(store: Host, name: str, incarnation: str) -> Topic | None:
    try:
        topic = store.topic(name)
    except UnknownTopic:
        return None
    return topic if topic._internal.descriptor.incarnation == incarnation else None


def _known(objects: ObjectStore, name: str) -> Document:
    document = _document(objects, name)
    if document.deleted or document.generation == 0:
        raise ObjectNotFound(
            f"there is no group {name!r} in {objects!r}: `logstore groups` lists those that there are"
        )
    return document


def _document(objects: ObjectStore, name: str) -> Document:
    key = group_document(name)
    data = get_if_there(objects, key)
    return Document(deleted=True) if data is None else Document.parse(key, data)


def _slot(objects: ObjectStore, name: str, slot: int) -> Slot | None:
    key = group_slot(name, slot)
    data = get_if_there(objects, key)
    return None if data is None else Slot.parse(key, data)
