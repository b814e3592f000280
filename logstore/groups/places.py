"""What callers say of partitions and positions, and what that means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, TypeGuard

from logstore.config import Visibility
from logstore.engine.partition.partition_log import PartitionLog
from logstore.groups.documents import Place

Start = Literal["beginning", "end"]
Seek = int | datetime | Start
Places = int | Place | Iterable[int | Place]


def several(topics: str | Iterable[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise ValueError("a group reads at least one topic")
    return names


def named(partitions: Places, topics: Sequence[str]) -> set[Place]:
    """One place, or several, of a group that reads these topics."""
    if isinstance(partitions, int) or _is_place(partitions):
        return {place_of(partitions, topics)}
    each_of: Iterable[int | Place] = partitions  # type: ignore[assignment]  # one place is an iterable of others
    return {place_of(each, topics) for each in each_of}


def place_of(given: int | Place, topics: Sequence[str]) -> Place:
    """A number alone will do in a group that reads one topic."""
    if isinstance(given, int) and len(topics) == 1:
        return topics[0], given
    if _is_place(given):
        return given
    raise ValueError(f"{given!r}: this group reads {len(topics)} topics, so name a (topic, partition)")


def _is_place(given: object) -> TypeGuard[Place]:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


def resolved(log: PartitionLog, to: Seek, visibility: Visibility) -> int:
    """The offset that is meant. Asks the store, unless it is an offset."""
    if to == "beginning":
        log.refresh()
        return log.low_watermark
    if to == "end":
        return log._internal.end_now(visibility)
    if isinstance(to, datetime):
        found = log.offset_for_timestamp(int(to.timestamp() * 1000))
        return log._internal.end_now(visibility) if found is None else found
    if not isinstance(to, int) or isinstance(to, bool):
        raise TypeError(f'{to!r}: an offset, "beginning", "end" or a datetime')
    return to
