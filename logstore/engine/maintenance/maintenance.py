"""Maintenance of a partition: compact small segments, expire old ones, delete what nobody needs.

Four steps, each safe to repeat, to interrupt anywhere, and to run in several processes at once, whatever their clocks say
and whatever their grace periods are:

* `compact` writes one larger object from neighbouring small segments, batches verbatim, and then swaps the manifest's rows
  with `If-Match`. The object's name says which version of the manifest it is for: one of another version that is not named
  can never come to be named. The chain itself is not touched: its newest segment is never merged, and fences always stay.
* `clean`, of a topic that is compacted by key, writes such an object without the records that later ones replace: see
  `cleaning`.
* `expire` moves the low watermark past segments that retention no longer wants.
* `collect` takes away objects that no row has named for the grace period, a courtesy to readers with old references. First
  it publishes a horizon in the manifest, and only once that is certainly stored it empties places below it: whoever looks
  there knows then that it must not believe what it finds (see `chain`). In most places something stays, because a writer
  that slept may come to this very place: every fence as it is, and the bare header of every segment of shared and replicated
  writers and of the last one in each exclusive epoch. Only the data in the middle of an exclusive epoch is deleted. The
  newest segment stays, before there is another.

A manifest that somebody else changed at the same time ends the step without effect; the next run sees the new one.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.config import TopicConfig
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.view import ChainView
from logstore.engine.garbage.collection import Collection
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.garbage.strays import Strays
from logstore.engine.maintenance.cleaning import Cleaning, CleaningDone
from logstore.engine.maintenance.compaction import COMPACT_AT_LEAST, Compaction
from logstore.engine.maintenance.retention import Retention

COLLECT_AT_MOST = 1000
"""In one round beside the writer: far more than it retires meanwhile, and not all that a day without one has left."""


class Maintenance:
    """Holds no state of its own: what there is to do is seen in a view of the partition, each time."""

    def __init__(
        self,
        chain: Chain,
        reader: SegmentReader,
        topic: TopicConfig,
        delete_grace: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        grace_ms = int(delete_grace * 1000)
        self._chain = chain
        self._topic = topic
        self._compaction = Compaction(chain, reader, topic)
        self._cleaning = Cleaning(chain, reader, topic, stopped)
        self._retention = Retention(chain, topic, self._split)
        self._collection = Collection(chain, grace_ms)
        self._strays = Strays(chain, grace_ms)

    def run(self, view: ChainView, now_ms: int, new_id: bytes) -> ChainView:
        """Everything, once. Returns the partition as it is then."""
        view = self._retention.expire(view, now_ms) or view
        view = self._compaction.compact(view, now_ms, new_id)[0] or view
        view = self._cleaning.clean(view, now_ms)[0] or view
        self.collect(now_ms, COLLECT_AT_MOST)
        return view

    def split(self, view: ChainView, now_ms: int) -> ChainView | None:
        """What the partition has in lanes becomes objects of its own, and what retention no longer wants goes before it lies
        in one object with what it wants. Returns the partition as it is then; None if nothing was changed."""
        expired = self._retention.expire(view, now_ms)
        return self._split(self._chain.load() if expired is not None else view, now_ms) or expired

    def _split(self, view: ChainView, now_ms: int) -> ChainView | None:
        return self._compaction.split(view, now_ms, self._chain.new_id())

    def compact(self, now_ms: int, identity: bytes) -> int:
        """Merge the first run of small neighbours there is; if there is none, what the partition has in lanes. Returns how
        many segments became one (0: nothing to do)."""
        view = self._chain.load()
        merged = self._compaction.compact(view, now_ms, identity)[1]
        if merged or view.part_count < COMPACT_AT_LEAST:
            return merged
        return view.part_count if self._compaction.split(view, now_ms, identity) is not None else 0

    def clean(self, now_ms: int) -> CleaningDone:
        """Compaction by key, if the topic has it and there is anything to do: what the partition has in lanes becomes
        objects of its own first."""
        view = self._chain.load()
        if self._topic.compact and view.part_count:
            view = self._split(view, now_ms) or self._chain.load()
        return self._cleaning.clean(view, now_ms, at_once=True)[1]

    def expire(self, now_ms: int) -> int:
        """Move the low watermark as retention says. Returns the new one."""
        view = self._chain.load()
        return (self._retention.expire(view, now_ms) or view).low_watermark

    def delete_before(self, offset: int, now_ms: int) -> int:
        """Move the low watermark up to `offset`, at the most to the end. Returns the new one once it is in the store."""
        return self._retention.delete_before(offset, now_ms)

    def garbage(self, now_ms: int) -> list[Garbage]:
        """What `collect` would take away now."""
        return self._collection.garbage(now_ms)

    def collect(self, now_ms: int, at_most: int | None = None) -> list[Garbage]:
        """Take away what has been retired for the grace period. Returns what went."""
        return self._collection.collect(now_ms, at_most)

    def strays(self, now_ms: int) -> list[Garbage]:
        """What `sweep` would take away now."""
        return self._strays.find(now_ms)

    def sweep(self, now_ms: int) -> list[Garbage]:
        """Take the strays away. Returns what went."""
        return self._strays.sweep(now_ms)
