"""Sends the uploads of a lane, settles them in the order of their places, and acks.

* **An answer that is lost** leaves doubt about its entry alone: the same bytes are sent again to the same place.
* **A place that is another's** is looked at once the upload is the oldest (`Meeting`).
* **Acks** come in the order of the entries.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from logstore.engine.chain.link import Link
from logstore.engine.lanes.lane_log import LaneRace
from logstore.engine.memory.flush_window import FlushWindow
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.atomic_append import all_locked
from logstore.engine.write.lanes.entry_maker import EntryMaker
from logstore.engine.write.lanes.flight import Flight, Sender
from logstore.engine.write.lanes.flushed import Committed, Flushed
from logstore.engine.write.lanes.lane_book import LaneBook
from logstore.engine.write.lanes.lane_checkpoints import LaneCheckpoints
from logstore.engine.write.lanes.lane_queue import LaneQueue
from logstore.engine.write.lanes.meeting import Meeting
from logstore.engine.write.lanes.teller import Teller
from logstore.engine.write.lanes.upload import Fate, Upload
from logstore.errors import CorruptData, LogStoreError, UnsupportedStore
from logstore.objects.wrappers.slices import slice_key

logger = logging.getLogger(__name__)

_IN_ORDER_S = 0.05


class Sending:
    """On the task pool's threads. `settling` is held while the oldest upload is settled, so entries are taken in the order
    of their places; the lane's lock is taken inside of it, and partitions' locks once that one is released. `give_up`: the
    lane's, if nobody can go on behind what is in a place."""

    def __init__(
        self,
        runtime: Runtime,
        book: LaneBook,
        flight: Flight,
        queue: LaneQueue,
        teller: Teller,
        maker: EntryMaker,
        checkpoints: LaneCheckpoints,
        give_up: Callable[[LogStoreError], None],
    ) -> None:
        self.settling = threading.Lock()
        self._acking = threading.Lock()
        self._runtime = runtime
        self._book = book
        self._lock = book.lock
        self._flight = flight
        self._queue = queue
        self._teller = teller
        self._maker = maker
        self._checkpoints = checkpoints
        self._give_up = give_up
        self._meeting = Meeting(book, flight, queue, teller)
        flight.idle = [Sender(self._step) for _ in range(runtime.config.uploads_max)]

    def begin_next(self) -> None:
        """Let a sender begin the next upload, when it is due, if somebody waits for one."""
        with self._lock:
            due = self._queue.next_at()
            sender = self._flight.idle[-1] if due is not None else None
        if sender is not None and due is not None:
            self._runtime.task_pool.at(sender, due)

    def _step(self, sender: Sender) -> None:
        """Make the next entry, if there is one, and commit it; or try again with the one that the sender has."""
        if sender.upload is None:
            with self._maker.making:
                self._maker.next_upload(sender)
            self.begin_next()  # there may be enough for another one beside it
        if sender.upload is not None:
            self._send(sender, sender.upload)

    def _send(self, sender: Sender, upload: Upload) -> None:
        runtime = self._runtime
        wait = runtime.breaker.delay()
        if wait:
            runtime.task_pool.at(sender, runtime.clock.monotonic() + wait)
            return
        if upload.fate is Fate.GIVEN_UP:
            self._ended(sender, upload, Fate.GIVEN_UP)
            return
        try:
            header, is_first = upload.entry.header, not upload.failures
            with runtime.observer.flush_entry(upload.log.paths.entry(header.seq)):
                upload.log.commit(header, upload.data, caller_looks=is_first)  # `Meeting` looks
        except LaneRace:
            fate = Fate.LOST
        except CorruptData as error:
            logger.error("%s: what is in our place cannot be read: %s", self._book, error)
            fate = Fate.LOST  # it is looked at once more, when it is the oldest
        except UnsupportedStore as error:
            self._give_up(error)
            fate = Fate.GIVEN_UP
        except Exception as error:
            self._retry_later(sender, upload, error)
            return
        else:
            fate = Fate.LANDED
        runtime.breaker.success()
        self._ended(sender, upload, fate)

    def _retry_later(self, sender: Sender, upload: Upload, error: Exception) -> None:
        runtime = self._runtime
        runtime.breaker.failure()
        with self._lock:
            given_up = upload.fate is Fate.GIVEN_UP
        if given_up:
            self._ended(sender, upload, Fate.GIVEN_UP)
            return
        upload.failures += 1
        logger.warning(
            "%s: upload %d of this entry failed, trying again: %s", self._book, upload.failures, error
        )
        for writer, _ in upload.load.windows:
            writer.attempt_failed(error)
        runtime.task_pool.at(sender, runtime.clock.monotonic() + runtime.backoff(upload.failures))

    def _ended(self, sender: Sender, upload: Upload, fate: Fate) -> None:
        """What came of an upload. Settle whatever is the oldest now, as far as that is known."""
        with self._lock:
            if upload.fate is Fate.SENT:
                upload.fate = fate
            upload.seconds = self._runtime.clock.monotonic() - upload.began_at
        while (done := self._settle_oldest()) is not None:
            self._ack(done)
        with self._lock:  # not before: while it calls back, another one must do what the callback waits for
            if sender.upload is upload:
                sender.upload = None
                if not sender.is_extra:
                    self._flight.idle.append(sender)
        self.begin_next()

    def _settle_oldest(self) -> Upload | None:
        """If the oldest upload's fate is known: take its entry in. Returns it if somebody is to be told."""
        with self.settling:
            with self._lock:
                oldest = self._flight.uploads[0] if self._flight.uploads else None
                fate = None if oldest is None else oldest.fate
            if oldest is None or fate is Fate.SENT:
                return None
            if fate is Fate.LANDED:
                self._landed(oldest)
            elif fate is Fate.LOST:
                self._meet(oldest)
            return oldest

    def _meet(self, upload: Upload) -> None:
        """What is in its place is another's, as far as is known."""
        try:
            self._meeting.settle(upload)
        except (CorruptData, UnsupportedStore) as error:
            self._give_up(error)
        except Exception as error:
            seq = upload.entry.header.seq
            logger.warning(
                "%s: what is at place %d could not be read, trying again: %s", self._book, seq, error
            )
            upload.fate = Fate.SENT
            sender = Sender(self._step, is_extra=True)  # an idle one may be making an entry right now
            sender.upload = upload
            self._retry_later(sender, upload, error)

    def _landed(self, upload: Upload) -> None:
        entry, flight = upload.entry, self._flight
        with self._lock:
            counts = self._book.known.take(entry)
            flight.uploads.popleft()
            flight.is_held = False
            asked = {key: flight.asked.pop(key) for key in entry.seals if key in flight.asked}
            ended = [
                (self._book.writers[key], ask) for key, ask in asked.items() if key in self._book.writers
            ]
        assert counts, "nobody is acked for a void entry"
        self._commit(upload)
        self._teller.end_soon(ended)
        with self._lock:
            released = len(upload.stored) + sum(len(released) for _, released in upload.released)
            self._queue.group_commit.after_commit(released, self._queue.waiting, upload.seconds)
        self._checkpoints.after_entry(entry.header.seq, upload.seconds)

    def _commit(self, upload: Upload) -> None:
        """Tell its writers, all those of an atomic append at the same time: who sees it in one partition sees it in all."""
        key = upload.log.paths.entry(upload.entry.header.seq)
        runtime, seconds, now = self._runtime, upload.seconds, self._runtime.clock.monotonic()
        together = {writer for atomic in upload.load.atomics for writer in atomic.writers}
        links: list[tuple[Flushed, FlushWindow, Link]] = []
        committed: list[tuple[Flushed, Committed | None]] = []
        is_kept = runtime.reader.keep_entry(key, upload.data)
        for (writer, window), part in zip(upload.load.windows, upload.entry.parts, strict=True):
            summary = window.summary()
            link = Link(summary, part.size, writer.extras, slice_key(key, part.position, part.size))
            if not is_kept:
                data = upload.data[part.position : part.position + part.size]
                runtime.reader.keep(link.key or key, data, summary)
            if writer in together:
                links.append((writer, window, link))
            else:
                with writer.lock:
                    committed.append((writer, writer.commit(window, link, seconds, now)))
        with all_locked(together):
            committed += [
                (writer, writer.commit(window, link, seconds, now)) for writer, window, link in links
            ]
        told = [(writer, done) for writer, done in committed if done is not None]
        runtime.budget.give_back(sum([done.done.charged for _, done in told]))
        writers = [writer for writer, _ in told]
        runtime.watch.all_ended(writers)
        # Asked now: another upload may have taken something of theirs since, which waited already when it began.
        self._queue.watch([writer for writer in writers if writer.is_under_way])
        upload.stored = upload.load.atomics
        for writer, done in told:
            writer.committed(done)
            upload.released.append((writer, done.released))

    def _ack(self, upload: Upload) -> None:
        """Tell those who waited, in the order of the entries. Unless one of the callbacks before it takes long: it may wait
        for this very ack."""
        in_order = self._acking.acquire(timeout=_IN_ORDER_S)
        try:
            for writer, released in upload.released:
                writer.acked(released)
            for atomic in upload.stored:
                atomic.stored()
        finally:
            if in_order:
                self._acking.release()
