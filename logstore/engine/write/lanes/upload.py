"""An entry on its way: what goes into it, what it was made from, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from logstore.engine.lanes.lane_log import LaneLog
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.engine.write.lanes.flushed import Flushed, Released
from logstore.format.stored.entry import ClaimKey, Entry, NewPart
from logstore.format.stored.segment import SegmentFlags

_new_tuple = tuple.__new__  # half the time of NewPart(…)
Windows = list[tuple[Flushed, FlushWindow]]


class Fate(Enum):
    SENT = auto()
    LANDED = auto()
    LOST = auto()
    """Another's entry is in its place. What that means is found out when it is the oldest."""
    GIVEN_UP = auto()
    """It was made again, or its writers have stopped: whatever comes of it means nothing."""


class Load(NamedTuple):
    """What goes into one entry. All that belongs to `atomics` is in the windows."""

    windows: Windows
    atomics: list[AtomicAppend]


@dataclass(slots=True, eq=False)
class Upload:
    """An entry that is to be committed, and what it was made from."""

    load: Load
    log: LaneLog
    data: memoryview
    entry: Entry
    fate: Fate = Fate.SENT
    began_at: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    released: list[tuple[Flushed, list[Released]]] = field(default_factory=list)
    stored: list[AtomicAppend] = field(default_factory=list)


def claims_given_up(windows: Windows) -> list[ClaimKey]:
    """The claims that end with these windows, because their owner gives the partitions up."""
    return [
        writer.claim_key
        for writer, window in windows
        if writer.hands_over and SegmentFlags.CLOSED in window.header.flags
    ]


def part_of(writer: Flushed, window: FlushWindow) -> NewPart:
    pieces, summary, header = window.pieces(), window.summary(), window.header
    fields = (
        writer.claim_key,
        header.seq,
        header.flags,
        header.base_offset,
        header.end_offset,
        header.reserved_until,
        summary.records,
        summary.min_timestamp_ms,
        summary.max_timestamp_ms,
        summary.object_size,
        pieces,
    )
    return _new_tuple(NewPart, fields)
