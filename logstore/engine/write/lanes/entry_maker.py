"""Makes the next entry of a lane, and puts it into flight.

A window is taken from every partition that is due, each becomes a segment, and all of them are one entry for the lane's next
place. Bytes are built without the lane's lock: so what was true when that began is looked at again before the entry counts
as in flight, and it is made again if another's entry was met meanwhile.
"""

from __future__ import annotations

import logging
import threading

from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.atomic_append import AtomicAppend
from logstore.engine.write.lanes.flight import Flight, Sender
from logstore.engine.write.lanes.lane_bases import bases_of, settled
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.lane_queue import LaneQueue
from logstore.engine.write.lanes.teller import Teller
from logstore.engine.write.lanes.upload import Load, Upload, Windows, claims_given_up, part_of
from logstore.format.stored.claim_base import Bases
from logstore.format.stored.entry import EntryHeader, EntryKind, build_entry

logger = logging.getLogger(__name__)


class EntryMaker:
    """`making` is held while an entry is made, so windows are taken in the order of their offsets. The lane's lock is taken
    inside of it."""

    def __init__(
        self, runtime: Runtime, book: LaneBook, flight: Flight, queue: LaneQueue, teller: Teller
    ) -> None:
        self.making = threading.Lock()
        self._runtime = runtime
        self._book = book
        self._lock = book.lock
        self._flight = flight
        self._queue = queue
        self._teller = teller
        self._failures = 0  # in a row

    def next_upload(self, sender: Sender) -> Upload | None:
        """The next one, in flight and the sender's; None if there is nothing to be sent now. Holds `making`."""
        flight, queue = self._flight, self._queue
        with self._lock:
            if sender not in flight.idle:
                return None
            again = queue.again[0] if queue.may_send_again() else None
            writers = queue.take_due() if again is None else []
            is_asked = not flight.uploads and bool(flight.unanswered())
        if again is None and not (writers or is_asked):
            return None
        if again is None:
            self._fail_lost(queue.atomics)
        load = again or queue.load(writers)
        while True:
            self._fail_lost(load.atomics)
            with self._lock:
                load = Load([pair for pair in load.windows if not flight.has_ended(pair[0])], load.atomics)
                is_needed = bool(load.windows or flight.unanswered())
            try:
                upload = self._made(load) if is_needed else None
            except Exception as error:
                self._make_later(load if again is None else None, load.windows, error)
                return None
            with self._lock:
                if again is None and queue.again:
                    queue.again.append(load)  # another's entry was met: what was in flight goes first
                    return None
                if again is not None and (not queue.again or queue.again[0] is not again):
                    return None  # likewise, and it keeps its turn behind that
                if upload is not None and self._is_outdated(upload):
                    continue
                if again is not None:
                    queue.again.popleft()  # not before: what is met meanwhile goes in front of it
                if upload is None:
                    return None
                flight.uploads.append(upload)
                flight.idle.remove(sender)
                self._failures = 0
                upload.began_at = queue.began_at = self._runtime.clock.monotonic()
            sender.upload = upload
            return upload

    def _is_outdated(self, upload: Upload) -> bool:
        """Whether it must be made again, because of what came to be known meanwhile. Holds the lock."""
        flight, entry, load = self._flight, upload.entry, upload.load
        return (
            (entry.header.seq, entry.header.prev) != flight.next_place()
            or any(flight.has_ended(writer) for writer, _ in load.windows)
            or any(flight.lost(atomic) for atomic in load.atomics)
            or not set(flight.unanswered()) <= set(entry.seals)
        )

    def _made(self, load: Load) -> Upload:
        """The entry for the place that is next now. It may be another one by the time that the entry is made."""
        parts = [part_of(writer, window) for writer, window in load.windows]
        runtime = self._runtime
        with self._lock:
            known = self._book.known
            new = [writer for writer, _ in load.windows if writer.claim_key not in known.bases.of]
            claims = {writer.claim_key: known.claims[writer.claim_key] for writer in new}
        note = bases_of(settled(new), claims, Bases()).pack() if new else b""
        with self._lock:
            (seq, prev), known_until = self._flight.next_place(), self._book.known.next_seq
            seals = list(dict.fromkeys([*claims_given_up(load.windows), *self._flight.unanswered()]))
        header = EntryHeader(EntryKind.DATA, seq, runtime.new_id(), prev, runtime.clock.now_ms(), known_until)
        data, entry = build_entry(header, parts, seals, note)
        for (_, window), part in zip(load.windows, entry.parts, strict=True):
            window.lies_in(data, part.position, part.size)
        return Upload(load, self._book.log, data, entry)

    def _make_later(self, new: Load | None, windows: Windows, error: Exception) -> None:
        """The entry could not be made, for want of memory, say. What it was to hold stays readable, and keeps its turn.
        `new`: it is not among those that are sent again, and is from now on."""
        runtime, queue = self._runtime, self._queue
        with self._lock:
            if new is not None:
                queue.again.append(new)
            self._failures += 1
            failures = self._failures
            queue.again_at = runtime.clock.monotonic() + runtime.backoff(failures)
        logger.warning("%s: try %d to make an entry failed, trying again: %s", self._book, failures, error)
        for writer, _ in windows:
            writer.attempt_failed(error)

    def _fail_lost(self, atomics: list[AtomicAppend]) -> None:
        """Take those out that have lost a partition: they are in no entry that is committed, and in none that is under
        way."""
        with self._lock:
            lost = [
                (atomic, writer) for atomic in atomics if (writer := self._flight.lost(atomic)) is not None
            ]
            for atomic, _ in lost:
                atomics.remove(atomic)
        self._teller.fail_soon(lost)
