"""A lane in the object store: create an entry, look at one, read what was added, its checkpoint.

`put(‹seq›.seg, if_absent=True)` is the commit of everything in the entry, of all partitions at once. An answer that is lost,
or that says no, is settled by a look at the place itself: the entry's id is random and new for each attempt at a new place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from logstore.errors import CorruptData, ObjectNotFound, UnsupportedStore
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.entry import HEADER_SIZE, Entry, EntryHeader, object_size, tail_for, tail_needed
from logstore.format.stored.lane_checkpoint import FRONT_SIZE, LaneCheckpoint, parse_split_until
from logstore.format.stored.segment import TAIL_SIZE, Bytes
from logstore.layout.paths import LanePaths
from logstore.objects.fan_out import fan_out
from logstore.objects.protocol import ObjectStore
from logstore.objects.settled import settle

T = TypeVar("T")
Keep = Callable[[str, Entry, bytes], None]


class LaneRace(Exception):
    """Another's entry is committed where ours was to be. Internal: the owner of the lane, or a taker, takes it in."""

    def __init__(self, winner: EntryHeader) -> None:
        super().__init__(f"entry {winner.seq} of the lane was made by another")
        self.winner = winner


class LaneLog:
    """Holds no state: every call asks the store. `keep`: takes a small entry that a look at its end has brought whole."""

    def __init__(self, store: ObjectStore, paths: LanePaths, keep: Keep | None = None) -> None:
        self.store = store
        self.paths = paths
        self._keep = keep

    def commit(self, header: EntryHeader, data: Bytes) -> None:
        """Create the entry. Returns once it is certain that it exists and is ours.

        Raises `LaneRace` if another's is there, `Determinate` if surely nothing happened, `Indeterminate` if it may have:
        then call again with the same bytes.
        """
        key = self.paths.entry(header.seq)

        def look() -> EntryHeader | None:
            try:
                front = self.store.get(key, 0, HEADER_SIZE)
            except ObjectNotFound:
                return None
            return self._checked(key, lambda: EntryHeader.parse(front)) if front else None

        winner = settle(
            key,
            lambda: self.store.put(key, data, if_absent=True),
            look,
            lambda standing: standing.id == header.id,
        )
        if winner is not None:
            raise LaneRace(winner)

    def entry_at(self, seq: int, parts: int = 0) -> Entry | None:
        """What is there; one request, or two for an entry of more than a few hundred parts and more than the `parts` that
        were expected."""
        key = self.paths.entry(seq)
        try:
            tail = self.store.get(key, -max(TAIL_SIZE, tail_for(parts)))
            if not tail:
                return None  # a put that was cut off: nobody has committed it
            needed = self._checked(key, lambda: tail_needed(tail))
            if needed > len(tail):
                tail = self.store.get(key, -needed)
        except ObjectNotFound:
            return None
        entry = self._checked(key, lambda: Entry.parse(tail))
        if entry.header.seq != seq:
            raise CorruptData(key, None, f"the object holds entry {entry.header.seq}")
        if self._keep is not None and object_size(tail) == len(tail):
            self._keep(key, entry, tail)
        return entry

    def entries_from(self, seq: int, parts: int = 0) -> list[Entry]:
        """The entries from `seq` up to the first empty place: a listing, and one request for each. `parts`: how many one of
        them may hold, about."""
        found: list[Entry] = []
        after = self.paths.entry(seq - 1) if seq else self.paths.prefix
        listed = [
            number
            for info in self.store.list(self.paths.prefix, after)
            if info.size and (number := self.paths.seq_of(info.key)) is not None
        ]
        run = [number for place, number in enumerate(listed) if number == seq + place]
        for entry in fan_out(partial(self.entry_at, number, parts) for number in run):
            if entry is None:
                return found
            found.append(entry)
        # A listing is no snapshot: what it does not show is asked for by name.
        while (entry := self.entry_at(seq + len(found), parts)) is not None:
            found.append(entry)
        return found

    def checkpoint(self) -> LaneCheckpoint | None:
        """The stored one; None if there is none yet."""
        key = self.paths.checkpoint
        try:
            data = self.store.get(key)
        except ObjectNotFound:
            return None
        return self._checked(key, lambda: LaneCheckpoint.parse(data))

    def split_until(self) -> int:
        """Below this place entries may have been emptied, as of now: one small request."""
        key = self.paths.checkpoint
        try:
            front = self.store.get(key, 0, FRONT_SIZE)
        except ObjectNotFound:
            return 0
        return self._checked(key, lambda: parse_split_until(front))

    @staticmethod
    def _checked(key: str, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except UnsupportedVersion as error:
            raise UnsupportedStore(
                f"{key}: {error.why}. A newer release has written it: use that, or a later one"
            ) from error
        except FormatError as damage:
            raise CorruptData(key, None, damage.why) from damage
