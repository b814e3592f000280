"""The half of a partition that reads: it never fences and never needs a writer.

While an exclusive writer is open in this process nobody else can append, so watermarks and tail reads cost the store
nothing.
Otherwise the partition is followed: a read that has come to the end polls the store, at most every
`follow_interval` while it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from logstore.config import Visibility, check_visibility
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_table import LostRange, Segments
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.host.clock import Clock
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.engine.maintenance.checkpoint import Checkpointer
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.results import ReadResult
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.read.follower import Follower
from logstore.engine.read.partition_reader import PartitionReader
from logstore.engine.read.transaction_index import Ahead, Stable, TransactionIndex
from logstore.engine.runtime import Runtime
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import Closed, LogStoreError, OffsetOutOfRange, UnknownTopic
from logstore.format.stored.manifest import SegmentTable
from logstore.format.stored.owner import shown
from logstore.layout.paths import PartitionPaths
from logstore.objects.protocol import ObjectStore

READ_BYTES = 1 << 20
Loaded = tuple[PartitionState, PartitionReader, Follower]


class ReadablePartition:
    """The reading half of `Partition`. It is loaded when it is first looked at.

    `_writer` is the one that `append` uses, once there is one.
    """

    def __init__(self, runtime: Runtime, paths: PartitionPaths, settings: TopicSettings) -> None:
        self.paths = paths
        self._runtime = runtime
        self._config = runtime.config
        self._settings = settings
        self._chain = Chain(runtime.store, paths, runtime.rng, runtime.lanes, runtime.reader.keep_found)
        # Held during I/O, so only by those who must wait for it: load and open_writer.
        self._opening = threading.RLock()
        self._loaded: Loaded | None = None
        self._knows_end_only = (
            False  # it was opened to write, from what a lane says; the rest is loaded when somebody asks
        )
        self._checkpointer: Checkpointer | None = None
        self._writer: Writer | None = None
        self._transactions: TransactionIndex | None = None
        self._closed = False
        self._deleted = False

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.paths.topic

    @property
    def partition(self) -> int:
        """Its number in the topic, from 0."""
        return self.paths.partition

    def __repr__(self) -> str:
        return f"Partition({self.topic!r}, {self.partition})"

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int = READ_BYTES,
        *,
        visibility: Visibility = "buffered",
        wait: float = 0.0,
    ) -> ReadResult:
        """As `PartitionLog.read`."""
        check_visibility(visibility)
        check_offset(offset)
        if visibility == "committed":
            return self._read_committed(offset, max_bytes, wait)
        state, reader, follower = self._load()
        self._check_not_deleted()
        if offset >= state.readable_end(visibility):
            if wait <= 0 or offset > state.high_watermark(visibility):
                follower.refresh()
            if wait > 0 and offset <= state.high_watermark(visibility):
                follower.wait_for(offset, visibility, wait)
            self._check_not_deleted()  # again: the look at the chain may have shown it
        return reader.read(offset, max_bytes, visibility)

    def _read_committed(self, offset: int, max_bytes: int, wait: float) -> ReadResult:
        """At the last stable offset it waits as others do at the high watermark: for the next marker, or for more records.
        What was aborted is passed over, so that an answer is empty there alone."""
        state, _, follower = self._load()
        deadline = self._runtime.clock.monotonic() + wait
        position, lost = offset, tuple[LostRange, ...]()
        while True:
            found = self.read(position, max_bytes, visibility="durable")
            stable, index = self._learn_stable(state)
            found = index.committed(found, stable)
            position, lost = found.next_offset, (*lost, *found.lost)
            if not found.parts and position == found.offset:
                left = deadline - self._runtime.clock.monotonic()
                if left > 0:
                    follower.wait_for(stable.known_until, "durable", left)
                else:
                    follower.refresh()
                self._check_not_deleted()
            if found.parts or (position == found.offset and state.durable <= stable.known_until):
                return replace(found, offset=offset, lost=lost)

    def _learn_stable(self, state: PartitionState) -> tuple[Stable, TransactionIndex]:
        """The last stable offset of what is durable, as last seen."""
        index = self._transactions
        if index is None:
            index = self._transactions = TransactionIndex(self._runtime.store, self.paths)

        def read(offset: int, max_bytes: int) -> ReadResult:
            return self.read(offset, max_bytes, visibility="durable")

        try:
            return index.learn(state.low, state.durable, read), index
        except Ahead:
            self._load()[2].refresh()
            return index.learn(state.low, state.durable, read, is_newest=True), index

    def read_cached(
        self, offset: int, max_bytes: int = READ_BYTES, *, visibility: Visibility = "buffered"
    ) -> ReadResult | None:
        """`read` from memory alone, so it never blocks; None if it would need the object store, or is closed."""
        if self._loaded is None or self._knows_end_only or self.closed or visibility == "committed":
            return None
        return self._loaded[1].read_cached(offset, max_bytes, visibility)

    def bounds(self, start: int | None, stop: int | None, visibility: Visibility) -> tuple[int, int]:
        """The first offset and the one after the last that `records` is about."""
        check_visibility(visibility)
        state, _, _ = self._followed()
        low, mark = state.low, state.high_watermark(visibility)
        if start is not None:
            check_offset(start)
            if not low <= start <= mark:
                raise OffsetOutOfRange(low, mark, start, str(self.paths))
        if visibility == "committed":
            mark = self._learn_stable(state)[0].end
        return low if start is None else start, mark if stop is None else min(stop, mark)

    def end_now(self, visibility: Visibility) -> int:
        """The high watermark of this moment: asks the store, unless the writer is here."""
        self._load()[2].refresh()
        return self.end_seen(visibility)

    def end_seen(self, visibility: Visibility) -> int:
        """The same as last seen. Of `committed` the last stable offset, for which the store may be asked."""
        if visibility == "committed":
            return self._learn_stable(self.state)[0].end
        return self.high_watermark(visibility)

    @property
    def follows(self) -> bool:
        """Whether somebody else may be appending, so that the end is known only by asking the store."""
        writer = self._writer
        return writer is None or writer.failed is not None or not writer.is_alone

    def refresh(self) -> None:
        """As `PartitionLog.refresh`."""
        self._load()[2].refresh()

    def refresh_since(self, began_at: float) -> None:
        """The same. A lane that was read from then on (`lanes.now()`) is not asked again."""
        self._load()[2].refresh(since=began_at)

    @property
    def lane_name(self) -> str | None:
        """In which lane the chain goes on, as last seen; None if in none, or if it was not loaded."""
        claim = None if self._loaded is None else self._loaded[0].tail.claim
        return None if claim is None else claim.lane

    @property
    def owner_name(self) -> str:
        """The writer that the chain names, as last seen; nothing if it names none."""
        return "" if self._loaded is None else shown(self._loaded[0].tail.owner)

    def offset_for_timestamp(self, ms: int) -> int | None:
        """As `PartitionLog.offset_for_timestamp`."""
        if not isinstance(ms, int) or isinstance(ms, bool):
            raise TypeError(f"a timestamp is an int, in milliseconds, not {type(ms).__name__}")
        return self._followed()[1].first_at(ms)

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted by key: an offset below the high watermark may hold no record any more."""
        return self._settings.config.compact

    # The watermarks

    def high_watermark(self, visibility: Visibility) -> int:
        """The high watermark for readers of that visibility, as last seen. Of `committed` that is the durable one: a place
        between the last stable offset and that is no place outside of the log."""
        return self.end_state.high_watermark(visibility)

    def readable_end(self, visibility: Visibility) -> int:
        """Up to where there are records to be had, as last seen: the high watermark, unless a writer here has stopped
        below it. Of `committed` the last stable offset, if that was looked up since more became durable."""
        end, index = self.end_state.readable_end(visibility), self._transactions
        if visibility == "committed" and index is not None and index.last.known_until >= end:
            return index.last.end
        return end

    @property
    def now_ms(self) -> int:
        """The store's clock: what a record without a timestamp gets."""
        return self._runtime.clock.now_ms()

    @property
    def clock(self) -> Clock:
        """The store's: for whoever waits for several partitions at once."""
        return self._runtime.clock

    @property
    def closed(self) -> bool:
        """Whether its store was closed, its topic deleted, or it was reopened as another log."""
        return self._ended()

    @property
    def follow_interval(self) -> float:
        """How often to ask the store while `follows`."""
        return self._config.follow_interval

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener()`, from any thread and with no lock held, after a visible watermark moved. It must be quick."""
        self.end_state.add_listener(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call it no more. One that is not there is no error."""
        self.end_state.remove_listener(listener)

    def _tell_listeners(self) -> None:
        loaded = self._loaded
        if loaded is not None:
            loaded[0].tell_listeners()

    @property
    def objects(self) -> ObjectStore:
        """Where the records are, as the engine sees it. Raises `Closed`, or `UnknownTopic` if the topic was deleted."""
        if self._ended():
            raise self._closed_error()
        return self._runtime.store

    @property
    def maintenance(self) -> Maintenance:
        """Compact, expire and collect by hand; a writer does it by itself now and then."""
        return Maintenance(
            self._chain,
            self._runtime.reader,
            self._settings.config,
            self._config.delete_grace,
            stopped=lambda: self._runtime.closed,
        )

    # Loading

    @property
    def state(self) -> PartitionState:
        """What is known of it, loaded if nobody has looked at it yet."""
        return self._load()[0]

    @property
    def end_state(self) -> PartitionState:
        """The same for those who ask about the end alone: of a partition that is only written, no more need be known."""
        loaded = self._loaded
        return self._load()[0] if loaded is None else loaded[0]

    def _ended(self) -> bool:
        return self._closed or self._gone

    @property
    def _gone(self) -> bool:
        """Whether the topic was deleted: here, or elsewhere, if the chain was followed to its end since."""
        return self._deleted or (self._loaded is not None and self._loaded[0].tail.deleted)

    def _check_not_deleted(self) -> None:
        """A reader may finish when its store was closed under it; of a topic that was deleted nothing shows any more."""
        if self._gone:
            raise self._closed_error()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> LogStoreError:
        if self._gone:
            return UnknownTopic(f"{self.paths}: the topic was deleted")
        return Closed(f"{self.paths}: the store is closed")

    def _load(self) -> Loaded:
        loaded = self._loaded
        if loaded is not None and not self._knows_end_only:
            return loaded
        with self._opening:
            if self._loaded is None:
                self._check_open()
                return self._become(self._chain.load())
            if self._knows_end_only:
                self._loaded[0].complete(self._chain.load())
                self._knows_end_only = False
            return self._loaded

    def _followed(self) -> Loaded:
        """Loaded, and as the store says now."""
        self._check_not_deleted()
        loaded = self._load()
        loaded[2].refresh()
        self._check_not_deleted()  # again: the look at the chain may have shown it
        return loaded

    def _load_end(self, tail: ChainTail) -> None:
        """Enough to write: where the chain ends."""
        with self._opening:
            if self._loaded is None:
                self._check_open()
                nothing = Segments(self.paths, SegmentTable(), is_complete=False)
                self._become(ChainView(nothing, tail.end_offset, tail, manifest_next_seq=tail.next_seq))
                self._knows_end_only = True

    def _become(self, view: ChainView) -> Loaded:
        state = PartitionState(view)
        self._checkpointer = Checkpointer(
            self._runtime,
            self._chain,
            state,
            view,
            self,
            self._settings.refresh,
        )
        reader = PartitionReader(state, self._chain, self._runtime.reader)
        self._loaded = state, reader, Follower(self._runtime, self._chain, state, self)
        return self._loaded

    def take_view(self, view: ChainView) -> None:
        """Somebody has loaded it, with many others. Nothing happens if it was loaded meanwhile."""
        with self._opening:
            if self._loaded is None and not self._ended():
                self._become(view)

    @property
    def chain_to_load(self) -> Chain | None:
        """For somebody who loads many partitions at once; None if this one need not be loaded."""
        return self._chain if self._loaded is None and not self._ended() else None

    @property
    def lanes(self) -> LaneReader:
        """With which all partitions of the store read lanes."""
        return self._runtime.lanes


def check_start(start: object) -> None:
    """`TypeError` unless a tail could begin there."""
    if start is not None and start != "end":
        check_offset(start)


def check_offset(offset: object) -> None:
    """`TypeError` unless it could be one."""
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(f"an offset is an int, not {type(offset).__name__}")
