"""Compaction by key: of the records with the same key the last one is kept, at its offset.

A pass learns the last offset of each key in the part of the log that is new since the pass before, goes over the log from
its beginning, and rewrites each run of segments that loses a record. Such an object replaces the run in the manifest as a
merged one does: the same swap, the same names, the same settling of doubt. When the last run is done, the manifest says how
far the pass has come, and when. A pass that is interrupted is begun again by whoever comes next, and finds what was done.

* Each record that is taken away is followed by a later one of its key, in a durable segment that the pass has read. So any
  number of passes, in any number of processes, may be under way: an object is built from rows of the manifest that it is
  swapped into, or it is not named.
* A tombstone goes when a pass has ended that knew it, so that nothing is left of what it deletes, and its time has passed
  since. If it is not known which passes have ended, because the manifest got lost or damaged, the time begins again.
* The log's last batch is never touched, nor the chain's newest segment, nor what is not in objects of the partition's own,
  nor what is younger than the topic says. A pass comes no further than the last stable offset: see `thinner`.
* What cannot be read stops the pass: a tombstone must not go while something before it may still need it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from logstore.config import TopicConfig
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.manifests.manifest_changes import change_manifest
from logstore.engine.chain.segment_reader import Block, SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.chain.view import ChainView
from logstore.engine.maintenance import offset_map
from logstore.engine.maintenance.outcomes import Outcomes
from logstore.engine.maintenance.replacing import Replacing, neighbours
from logstore.engine.maintenance.thinner import Thinned, Thinner
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.stored.extras import Cleaned, Mark
from logstore.format.stored.manifest import SegmentTable
from logstore.layout.paths import for_version
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)

MARKS_MAX = 64
_TRIES = 8


class _Waits(Exception):
    """A transaction that has not ended is where the pass would begin: there is nothing to do before it ends."""


class _GaveUp(Exception):
    """Somebody else changes the manifest again and again, or the store is being closed. The next pass does it."""


@dataclass(slots=True)
class CleaningDone:
    """What compaction by key has done: objects written, records left out, bytes of the segments before and after."""

    passes: int = 0
    objects: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class Cleaning:
    """Holds no state of its own. `stopped`: whether to give up, because the store is being closed."""

    def __init__(
        self,
        chain: Chain,
        reader: SegmentReader,
        topic: TopicConfig,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._chain = chain
        self._reader = reader
        self._topic = topic
        self._stopped = stopped
        self._replacing = Replacing(chain)

    def clean(
        self, view: ChainView, now_ms: int, *, at_once: bool = False
    ) -> tuple[ChainView | None, CleaningDone]:
        """As many passes as it takes, if the topic is compacted and there is enough to do; `at_once`: if there is anything.
        Returns the partition as it is then, None if nothing was changed."""
        done = CleaningDone()
        changed: ChainView | None = None
        view = view.without_parts()
        while self._is_due(view, now_ms, at_once):
            try:
                view = self._pass(view, now_ms, done)
            except _Waits:
                break
            except _GaveUp:
                return self._chain.load().without_parts() if done.objects else changed, done
            except (CorruptData, ObjectNotFound) as damage:
                logger.error("%s: compaction by key stops there until it can be read", damage)
                return self._chain.load().without_parts() if done.objects else changed, done
            changed, done.passes = view, done.passes + 1
        return changed, done

    # What there is to do

    def _end(self, view: ChainView, now_ms: int) -> int:
        """Up to which offset the log may be cleaned."""
        table = view.segments.table
        young = now_ms - int(self._topic.compact_after_seconds * 1000)
        end = view.low_watermark
        for row in range(_row_count(view)):
            if self._topic.compact_after_seconds and table.max_timestamp_ms[row] > young:
                break
            end = table.end_offset[row]
        return end

    def _last_batch(self, view: ChainView) -> int:
        """Where the last batch begins of those that may be rewritten, if it is the log's: where that ends there is a record.
        Else where they end."""
        count = _row_count(view)
        if count < len(view.segments):
            return view.segments.table.base_offset[count]
        if not count:
            return view.low_watermark
        return int(self._reader.index(view.segments.ref(count - 1)).index["base_offset"][-1])

    def _is_due(self, view: ChainView, now_ms: int, at_once: bool) -> bool:
        if not self._topic.compact or not view.segments.is_complete or view.tail.deleted:
            return False
        if self._tombstones_until(view.cleaned, now_ms) > 0:
            return True
        end, start = self._end(view, now_ms), max(view.cleaned.until, view.low_watermark)
        dirty = total = 0
        oldest_ms: int | None = None
        for size, base, row_end, low_ms in _rows(view.segments.table):
            if base >= end:
                break
            total += size
            if row_end > start:
                dirty += size * (row_end - max(base, start)) // (row_end - base)
                oldest_ms = low_ms if oldest_ms is None else min(oldest_ms, low_ms)
        if not dirty or oldest_ms is None:
            return False
        longest = self._topic.compact_within_seconds
        overdue = longest is not None and oldest_ms <= now_ms - int(longest * 1000)
        return at_once or overdue or dirty > self._topic.dirty_ratio * total

    def _tombstones_until(self, cleaned: Cleaned, now_ms: int) -> int:
        """Below which offset tombstones have had their time; 0 if there are none."""
        oldest_ms = now_ms - int(self._topic.tombstone_seconds * 1000)
        return max((mark.until for mark in cleaned.marks if mark.at_ms <= oldest_ms), default=0)

    # A pass

    def _pass(self, view: ChainView, now_ms: int, done: CleaningDone) -> ChainView:
        known = view.cleaned
        expired = self._tombstones_until(known, now_ms)
        last = self._last_batch(view)
        start, end = max(known.until, view.low_watermark), min(self._end(view, now_ms), last)
        look_ahead = partial(self._outcomes, view, end=end)
        thinner = Thinner(
            self._chain.new_id(),
            expired,
            known.until,
            last,
            offset_map.KEYS_MAX,
            max(0, end - start),
            look_ahead,
        )
        self._learn(view, thinner, start, end)
        if thinner.until <= start and not expired:
            raise _Waits
        position = view.low_watermark
        for _ in self._attempts():
            view, position = self._rewrite(view, thinner, position, known, now_ms, done)
            until = max(known.until, thinner.until)
            marks = tuple(mark for mark in known.marks if mark.until > expired)
            if thinner.tombstones:
                marks = (*marks, Mark(until, now_ms))
            noted = change_manifest(
                self._chain,
                view,
                now_ms,
                partial(replace, cleaned=Cleaned(until, marks[:1] + marks[1:][-MARKS_MAX + 1 :])),
            )
            if noted is not None:
                return noted
            view = self._again(view, known)
        raise _GaveUp

    def _attempts(self) -> Iterator[int]:
        for attempt in range(_TRIES):
            if self._stopped():
                raise _GaveUp
            yield attempt

    def _again(self, before: ChainView, known: Cleaned) -> ChainView:
        """The partition as it is now, if what we have done still counts: nobody ended a pass meanwhile, and no manifest got
        lost, with what it said."""
        view = self._chain.load().without_parts()
        if (
            view.cleaned != known
            or view.manifest_version < before.manifest_version
            or not view.segments.is_complete
            or view.tail.deleted
        ):
            raise _GaveUp
        return view

    def _learn(self, view: ChainView, thinner: Thinner, start: int, end: int) -> None:
        thinner.until = start
        if start >= end:
            return
        first, stop = view.segments.row_at(start), view.segments.row_at(end - 1) + 1
        for run in neighbours(view.segments.table, range(first, stop), self._topic.segment_bytes):
            if self._stopped():
                raise _GaveUp
            if not thinner.learn(self._blocks(view, run), start, min(end, _end_of(view, run))):
                return

    def _outcomes(self, view: ChainView, start: int, *, end: int) -> Outcomes:
        """Of the transactions from `start` on: the same objects are read a second time, for their headers."""
        rows = range(view.segments.row_at(start), view.segments.row_at(end - 1) + 1)
        return Outcomes(self._blocks(view, rows), start, end)

    def _rewrite(
        self,
        view: ChainView,
        thinner: Thinner,
        position: int,
        known: Cleaned,
        now_ms: int,
        done: CleaningDone,
    ) -> tuple[ChainView, int]:
        """Every run from `position` on, up to what was learned. Returns the partition as it is then, and how far it came."""
        while True:
            run = self._run_at(view, position, max(thinner.until, known.until))
            if run is None:
                return view, position
            for _ in self._attempts():
                left = thinner.thin(self._blocks(view, run))
                if not left.removed:
                    position = _end_of(view, run)
                    break
                published = self._published(view, run, left, now_ms, done)
                if published is not None:
                    position = _end_of(view, run)
                    view = published.without_parts()
                    break
                view = self._again(view, known)
                run = self._run_at(view, position, max(thinner.until, known.until))
                if run is None:
                    return view, position
            else:
                raise _GaveUp

    def _published(
        self, view: ChainView, run: range, left: Thinned, now_ms: int, done: CleaningDone
    ) -> ChainView | None:
        identity = for_version(view.manifest_version, self._chain.new_id())
        data, summary = self._replacing.build(view, run, left.batches, now_ms, identity, sparse=True)
        before = sum(view.segments.table.size[run.start : run.stop])
        published = self._replacing.publish(view, run, data, summary, now_ms, identity)
        if published is not None:
            done.objects += 1
            done.records += left.removed
            done.bytes_before += before
            done.bytes_after += len(data)
        return published

    def _run_at(self, view: ChainView, position: int, until: int) -> range | None:
        """The next rows to rewrite together, from the one that holds `position` on."""
        first = view.segments.row_at(position)
        stop = view.segments.row_at(until - 1) + 1 if until > 0 else 0
        rows = range(first, min(stop, _row_count(view)))
        return next(neighbours(view.segments.table, rows, self._topic.segment_bytes), None)

    def _blocks(self, view: ChainView, run: range) -> Iterator[Block]:
        refs = view.segments.refs(run.start, run.stop)
        for blocks in fan_out(partial(self._read, ref) for ref in refs):
            yield from blocks

    def _read(self, ref: SegmentRef) -> list[Block]:
        return list(self._reader.blocks(ref))


def _end_of(view: ChainView, run: range) -> int:
    return view.segments.table.end_offset[run.stop - 1]


def _row_count(view: ChainView) -> int:
    """How many rows may be rewritten. The chain's newest segment tells those who follow the chain where it ends; only what
    was in a lane is merged up to there."""
    table = view.segments.table
    return len(table) - (len(table) > 0 and table.first_seq[-1] not in table.merged)


def _rows(table: SegmentTable) -> Iterator[tuple[int, int, int, int]]:
    return zip(table.size, table.base_offset, table.end_offset, table.min_timestamp_ms, strict=True)
