"""A lane in the object store: create an entry, look at one, read what was added, its checkpoint.

`put(‹seq›.seg, if_absent=True)` is the commit of everything in the entry, of all partitions at once. An answer that is lost,
or that says no, is settled by a look at the place itself: the entry's id is random and new for each attempt at a new place.

An entry says what it holds at its end and at its front, so one damage hides nothing but the bytes that it hits. Of one that
cannot be read at all, or is missing although a later entry knows of it, there is a `LostEntry`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from logstore.errors import CorruptData, ObjectNotFound, PreconditionFailed, UnsupportedStore
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.entry import (
    FOOTER_SIZE,
    HEADER_SIZE,
    Entry,
    EntryHeader,
    object_size,
    tail_for,
    tail_needed,
)
from logstore.format.stored.lane_checkpoint import FRONT_SIZE, LaneCheckpoint, parse_reach, parse_split_until
from logstore.format.stored.segment import TAIL_SIZE, Bytes
from logstore.layout.paths import LanePaths
from logstore.objects.fan_out import fan_out, timed
from logstore.objects.protocol import ObjectStore
from logstore.objects.settled import create_settled

logger = logging.getLogger(__name__)

_AHEAD_MAX = 16
_LOOKED_AT_MAX = 8
T = TypeVar("T")
Keep = Callable[[str, Entry, bytes], None]


class LaneRace(Exception):
    """Another's entry is committed where ours was to be. Internal: the owner of the lane, or a taker, takes it in."""

    def __init__(self, winner: EntryHeader) -> None:
        super().__init__(f"entry {winner.seq} of the lane was made by another")
        self.winner = winner


@dataclass(frozen=True, slots=True)
class LostEntry:
    """What was in the place cannot be known. `damage`: why, with the object's name."""

    seq: int
    damage: CorruptData


class LaneLog:
    """Holds no state: every call asks the store. `keep`: takes a small entry that a look at its end has brought whole."""

    def __init__(self, store: ObjectStore, paths: LanePaths, keep: Keep | None = None) -> None:
        self.store = store
        self.paths = paths
        self.keep = keep

    def commit(self, header: EntryHeader, data: Bytes, *, caller_looks: bool = False) -> None:
        """Create the entry. Returns once it is certain that it exists and is ours.

        Raises `LaneRace` if another's is there, `Determinate` if surely nothing happened, `Indeterminate` if it may have:
        then call again with the same bytes. `caller_looks`: a refused put is a `LaneRace`, even if what is there is ours.
        """
        key = self.paths.entry(header.seq)
        try:
            winner = create_settled(
                self.store,
                key,
                data,
                HEADER_SIZE,
                partial(self._header, key),
                lambda winner: winner.id == header.id,
                caller_looks=caller_looks,
            )
        except PreconditionFailed as refused:
            raise LaneRace(header) from refused
        if winner is not None:
            raise LaneRace(winner)

    def _header(self, key: str, front: bytes) -> EntryHeader:
        """There are two of them."""
        try:
            return EntryHeader.parse(front)
        except UnsupportedVersion as newer:
            raise self._too_new(key, newer) from newer
        except FormatError:
            return self._checked(key, lambda: EntryHeader.parse(self.store.get(key, -FOOTER_SIZE)))

    def entry_at(self, seq: int, parts: int = 0) -> Entry | None:
        """What is there; one request, or two for an entry of more than a few hundred parts and more than the `parts` that
        were expected. `CorruptData` if it cannot be read."""
        key = self.paths.entry(seq)
        try:
            tail = self.store.get(key, -max(TAIL_SIZE, tail_for(parts)))
            if not tail:
                return None  # a put that was cut off: nobody has committed it
            entry = self._parsed(key, tail)
        except ObjectNotFound:
            return None
        if entry.header.seq != seq:
            raise CorruptData(key, None, f"the object holds entry {entry.header.seq}")
        return entry

    def _parsed(self, key: str, tail: bytes) -> Entry:
        try:
            needed = tail_needed(tail)
            if needed > len(tail):
                tail = self.store.get(key, -needed)
            entry = Entry.parse(tail)
            if self.keep is not None and object_size(tail) == len(tail):
                self.keep(key, entry, tail)
            return entry
        except UnsupportedVersion as newer:
            raise self._too_new(key, newer) from newer
        except FormatError as damage:
            logger.error("%s: %s; its front is read instead", key, damage)
            return self._from_front(key, damage)

    def _from_front(self, key: str, damage: FormatError) -> Entry:
        data = self.store.get(key)
        try:
            return Entry.parse_front(data)
        except UnsupportedVersion as newer:
            raise self._too_new(key, newer) from newer
        except FormatError:
            raise CorruptData(key, None, damage.why) from damage

    def look_at(self, seq: int, parts: int = 0) -> Entry | LostEntry | None:
        """`entry_at`, for those who go on behind one that cannot be read."""
        try:
            return self.entry_at(seq, parts)
        except CorruptData as damage:
            return LostEntry(seq, damage)

    def entries_from(self, seq: int, parts: int = 0) -> list[Entry | LostEntry]:
        """The entries from `seq` up to the first empty place: a listing, and one request for each. `parts`: how many one of
        them may hold, about. A place is lost, not empty, if an entry behind it knows what was there."""
        listed, takes_long = self._listed(seq)
        if not listed and not seq:
            return []  # nothing was ever there: the newest entry always stays
        behind = max(listed, default=seq - 1) + 1  # a listing is no snapshot
        seen, known_until = self._looked_at([*listed, behind], parts, takes_long=takes_long)
        found: list[Entry | LostEntry] = []
        empty = set() if behind in seen else {behind}
        while True:
            place = seq + len(found)
            if place in seen:
                found.append(seen[place])
            elif place not in empty:
                found += self.following(place, parts)
                empty.add(seq + len(found))
            elif place < known_until:
                damage = CorruptData(self.paths.entry(place), None, "the lane's entry is missing")
                found.append(LostEntry(place, damage))
            else:
                return found

    def following(self, seq: int, parts: int = 0) -> list[Entry | LostEntry]:
        """The entries from `seq` up to the first empty place, without a listing. The more there are, the more are asked for
        at the same time: else who reads a busy lane would never come to its end."""
        found: list[Entry | LostEntry] = []
        while True:
            places = range(seq + len(found), seq + len(found) + min(max(len(found) // 2, 1), _LOOKED_AT_MAX))
            looks = [partial(self.look_at, place, parts) for place in places]
            for entry in fan_out(looks, ahead=len(looks) > 1):
                if entry is None:
                    return found
                found.append(entry)

    def standing(self, seq: int, parts: int = 0) -> tuple[dict[int, Entry | LostEntry], int]:
        """What is listed from `seq` on, by place, in order; and below which place these know what was there."""
        listed, takes_long = self._listed(seq)
        return self._looked_at(listed, parts, takes_long=takes_long)

    def _listed(self, seq: int) -> tuple[list[int], bool]:
        """The places from `seq` on that hold something; whether requests take long enough to make several at a time."""
        after = self.paths.entry(seq - 1) if seq else self.paths.prefix
        infos, takes_long = timed(lambda: list(self.store.list(self.paths.prefix, after)))
        listed = [
            number for info in infos if info.size and (number := self.paths.seq_of(info.key)) is not None
        ]
        return listed, takes_long

    def _looked_at(
        self, places: list[int], parts: int, *, takes_long: bool
    ) -> tuple[dict[int, Entry | LostEntry], int]:
        looks = (partial(self.look_at, place, parts) for place in places)
        ahead = takes_long and len(places) > 1
        looked = fan_out(looks, at_once=_AHEAD_MAX, ahead=ahead)
        seen = {place: entry for place, entry in zip(places, looked, strict=True) if entry is not None}
        known = (entry.header.known_until for entry in seen.values() if isinstance(entry, Entry))
        return seen, max(known, default=0)

    def last_behind(self, seq: int) -> int:
        """The last place behind this one, if an entry there may know of one that was in this place; else -1. An ask does
        not, nor does what was sent ahead of an upload that is under way."""
        later = self._listed_from(seq + 1, _AHEAD_MAX + 1)
        if 0 < len(later) <= _AHEAD_MAX:
            looked = fan_out(partial(self.look_at, place) for place in later)
            if all(isinstance(entry, Entry) and not entry.header.may_know(seq) for entry in looked):
                return -1
        return later[-1] if later else -1

    def stands_from(self, seq: int) -> bool:
        """Whether there is an entry in this place or a later one."""
        return bool(self._listed_from(seq, 1))

    def _listed_from(self, seq: int, most: int) -> list[int]:
        listed = self.store.list(self.paths.prefix, self.paths.entry(seq - 1) if seq else self.paths.prefix)
        places = (self.paths.seq_of(info.key) for info in listed if info.size)
        return list(islice((place for place in places if place is not None), most))

    def checkpoint(self) -> LaneCheckpoint | None:
        """The stored one; None if there is none yet."""
        return self.checkpoint_and_front()[0]

    def checkpoint_and_front(self) -> tuple[LaneCheckpoint | None, bytes | None]:
        """And its first bytes, by which it is known again."""
        key = self.paths.checkpoint
        try:
            data = self.store.get(key)
        except ObjectNotFound:
            return None, None
        return self._checked(key, lambda: LaneCheckpoint.parse(data)), data[:FRONT_SIZE]

    def reach_of(self, front: bytes) -> tuple[int, int]:
        """The version of the checkpoint that begins with these bytes, and the place that it reaches to."""
        return self._checked(self.paths.checkpoint, lambda: parse_reach(front))

    def split_until(self) -> int:
        """Below this place entries may have been emptied, as of now: one small request."""
        return self.split_until_of(self.front())

    def split_until_of(self, front: bytes | None) -> int:
        """What those first bytes of the checkpoint say."""
        return 0 if front is None else self._checked(self.paths.checkpoint, lambda: parse_split_until(front))

    def is_there(self, seq: int) -> bool:
        """Whether an object is in the place, whatever it holds."""
        info = self.store.head(self.paths.entry(seq))
        return info is not None and info.size > 0

    def front(self) -> bytes | None:
        """The checkpoint's first bytes; None if there is none."""
        try:
            return self.store.get(self.paths.checkpoint, 0, FRONT_SIZE)
        except ObjectNotFound:
            return None

    @classmethod
    def _checked(cls, key: str, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except UnsupportedVersion as error:
            raise cls._too_new(key, error) from error
        except FormatError as damage:
            raise CorruptData(key, None, damage.why) from damage

    @staticmethod
    def _too_new(key: str, error: UnsupportedVersion) -> UnsupportedStore:
        return UnsupportedStore(
            f"{key}: {error.why}. A newer release has written it: use that, or a later one"
        )
