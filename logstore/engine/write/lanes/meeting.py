"""What the owner of a lane does when another's entry is in the place that one of its uploads was for.

* **A seal** ends the claims of some partitions: their writers stop for good. What the others had in flight behind it names
  an entry that will never be committed, and is void wherever it lands; it is made again behind the seal, one entry after
  the other until all are there. Acked a round later, and none fails. **A fence** stops them all.
* **An ask** is void. The next entry seals what it asks for, with what these partitions have in it.
* **An adoption** begins the next life of a lane with a name: all writers stop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from logstore.engine.write.lanes.flight import Flight
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.lane_queue import LaneQueue
from logstore.engine.write.lanes.teller import Teller
from logstore.engine.write.lanes.upload import Fate, Upload
from logstore.errors import CorruptData, Indeterminate
from logstore.format.stored.entry import Entry, EntryKind
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)


class Meeting:
    """By one thread at a time: the one that settles the oldest upload. Takes the lane's lock for memory work alone, never
    during a request."""

    def __init__(self, book: LaneBook, flight: Flight, queue: LaneQueue, teller: Teller) -> None:
        self._book = book
        self._lock = book.lock
        self._flight = flight
        self._queue = queue
        self._teller = teller

    def settle(self, upload: Upload) -> None:
        """The oldest upload was refused: it is found to be there after all, or what is there is taken in and all in flight
        is to be sent again. Raises `CorruptData` or `UnsupportedStore` if nobody can go on behind what is there, and
        another error if that is not known yet."""
        seq = upload.entry.header.seq
        found, was_split = self._found_at(seq)
        if found is None and not was_split:
            if not upload.failures:
                raise Indeterminate(f"{self._book}: place {seq} is refused and looks empty")
            raise CorruptData(self._book.log.paths.entry(seq), None, "an entry was there and is gone")
        if found is None or was_split or found.header.id == upload.entry.header.id:
            upload.fate = (
                Fate.LANDED
            )  # it is there; or it was, and its records are in their partitions' manifests
            return
        with self._lock:
            is_ours = found.header.kind is EntryKind.DATA and found.header.prev == self._book.known.edge
        if is_ours:
            key = self._book.log.paths.entry(seq)
            raise CorruptData(key, None, "another process puts records into this lane")
        self._take(found)

    def _take(self, found: Entry) -> None:
        """Take in what is there, stop those whose claims it ends, and go on behind it with what the others had in flight."""
        book, flight = self._book, self._flight
        with self._lock:
            book.known.take(found)
            is_adopted = found.header.kind is EntryKind.ADOPTION
            if is_adopted:
                book.life.end()
            ended = [
                (writer, found)
                for key, writer in book.writers.items()
                if (is_adopted or book.known.claims[key].is_sealed) and writer.failed is None
            ]
            if found.header.is_ask:
                flight.take_ask(found)
            flight.asked = {key: ask for key, ask in flight.asked.items() if not book.known.is_left(key)}
            given_up, flight.uploads = list(flight.uploads), deque()
            for one in given_up[1:]:
                if one.fate is not Fate.LANDED:
                    break
                book.known.take(one.entry)  # it is behind one that is not committed, so it is void
            for one in given_up:
                one.fate = Fate.GIVEN_UP
            self._queue.again.extendleft(one.load for one in reversed(given_up))
            flight.is_held = True
        self._teller.end_soon(ended)

    def _found_at(self, seq: int) -> tuple[Entry | None, bool]:
        """What is in the place, and `_was_split`. Side by side: everybody's ack waits for them."""
        asked: tuple[Callable[[], Entry | None], Callable[[], bool]] = (
            partial(self._book.log.entry_at, seq),
            partial(self._was_split, seq),
        )
        found, was_split = fan_out(asked, at_once=2, ahead=True)
        return cast("Entry | None", found), cast("bool", was_split)

    def _was_split(self, seq: int) -> bool:
        """Whether what was in the place was split and deleted: then what is there now came later, and is in the past."""
        try:
            if seq >= self._book.log.split_until():
                return False
            checkpoint = self._book.log.checkpoint()
        except CorruptData as damage:
            logger.error("%s; nobody but us splits this lane", damage)
            return False
        return checkpoint is not None and seq < checkpoint.split_until and seq not in checkpoint.kept
