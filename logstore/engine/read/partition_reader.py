"""Reading a partition: one look at the partition's state, then whole batches from segments, window and buffer, in
that order.

One contract for `max_bytes` wherever the batches lie: whole batches; at least one; no more than `max_bytes` unless one alone
is larger; `<= 0` gives exactly one. The first batch covers the offset asked for, or is the next that exists.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from logstore.config import Visibility
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.segment_reader import Block, SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.memory.catch_up import reload
from logstore.engine.memory.partition_state import Lookup, PartitionState
from logstore.engine.memory.results import Bytes, ReadResult
from logstore.engine.read.read_ahead import ScanDetector
from logstore.errors import (
    CorruptData,
    LogStoreError,
    ObjectNotFound,
    OffsetOutOfRange,
    StoreError,
    UnknownTopic,
)
from logstore.format.batches.batch import split
from logstore.format.batches.records import decode_records

AHEAD_MAX = 4
"""So many segments are on their way in a scan: at S3's latency one alone leaves the reader waiting for the next."""


@dataclass(slots=True, eq=False)
class _Gathering:
    """The batches of one read, as they come together.

    Of segments only up to `durable`: to a writer that does not know of its successor, its own last records may lie in one
    merged object with what the other has appended since.
    """

    position: int
    room: int
    durable: int
    parts: list[Bytes] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    full: bool = False

    def add(self, part: Bytes, end_offset: int, source: str) -> None:
        self.parts.append(part)
        self.room -= len(part)
        self.position = end_offset
        if source not in self.sources:
            self.sources.append(source)
        self.full = self.room <= 0

    def wants(self, ref: SegmentRef) -> bool:
        """Whether there is more to take from the segment."""
        return not self.full and self.position < min(ref.end_offset, self.durable)

    def add_run(self, block: Block) -> None:
        """As many batches of the block as fit."""
        run, end = block.run(self.position, self.room, at_least_one=not self.parts, stop=self.durable)
        if len(run):
            self.add(run, end, "segment")
        self.full = self.full or not len(run) or end < block.end_offset


class PartitionReader:
    def __init__(self, state: PartitionState, chain: Chain, reader: SegmentReader) -> None:
        self._state = state
        self._chain = chain
        self._reader = reader
        self._scan_detector = ScanDetector()
        self._where = str(chain.paths)

    def read(self, offset: int, max_bytes: int, visibility: Visibility) -> ReadResult:
        """May do I/O, never under a lock."""
        try:
            return self._read_from(offset, max_bytes, visibility)
        except CorruptData as damage:
            self._refuse_deleted(damage)
            raise
        except OffsetOutOfRange as outside:
            if self._state.tail.deleted:  # found on the way: its records are below the low watermark now
                raise UnknownTopic(f"{self._chain.paths}: the topic was deleted") from outside
            raise

    def _read_from(self, offset: int, max_bytes: int, visibility: Visibility) -> ReadResult:
        while True:
            look = self._state.look_up(offset, visibility, max_bytes, self._where)
            try:
                return self._read(look, offset, max_bytes)
            except ObjectNotFound as gone:
                self._look_again(look.refs[0], gone)

    def _look_again(self, ref: SegmentRef, gone: ObjectNotFound) -> None:
        """An object is gone: maintenance may have merged or expired it, as often as it likes while we read; or somebody
        deleted it, if it is still the one that is named."""
        reload(self._chain, self._state)
        if self._state.is_named(ref):
            raise CorruptData(ref.key, ref.base_offset, f"the segment is missing ({gone})") from gone

    def _refuse_deleted(self, damage: CorruptData) -> None:
        """Whoever removes a partition takes objects away and puts others in their place. Then it is `UnknownTopic` and not
        damage: the chain's end tells."""
        deleted = self._state.tail.deleted
        with suppress(LogStoreError):
            deleted = deleted or self._chain.load().tail.deleted
        if deleted:
            raise UnknownTopic(f"{self._chain.paths}: the topic was deleted") from damage

    def read_cached(self, offset: int, max_bytes: int, visibility: Visibility) -> ReadResult | None:
        """The same from memory alone; None if the first batch needs I/O."""
        look = self._state.look_up(offset, visibility, max_bytes, self._where)
        gathering = _Gathering(offset, max_bytes, look.durable)
        for ref in look.refs:
            if gathering.full:
                break
            gathering.position = max(gathering.position, ref.base_offset)
            while gathering.wants(ref):
                block = self._reader.cached_block(ref, gathering.position)
                if block is None:
                    return self._result(look, offset, gathering) if gathering.parts else None
                gathering.add_run(block)
        self._add_pending(look, gathering)
        return self._result(look, offset, gathering)

    def _read(self, look: Lookup, offset: int, max_bytes: int) -> ReadResult:
        gathering = _Gathering(offset, max_bytes, look.durable)
        in_a_row = self._scan_detector.begin(offset)
        for ref in look.refs:
            if gathering.full:
                break
            try:
                self._add_segment(ref, gathering, in_a_row)
            except (CorruptData, StoreError):
                if not gathering.parts:
                    raise
                break  # what lies before is sound: the next read begins here and meets the error
        else:
            self._add_pending(look, gathering)
        return self._result(look, offset, gathering)

    def _add_segment(self, ref: SegmentRef, gathering: _Gathering, in_a_row: int) -> None:
        gathering.position = max(gathering.position, ref.base_offset)
        scanning = gathering.position == ref.base_offset or in_a_row > 0
        if scanning:
            self._reader.prefetch(self._state.refs_behind(ref, min(1 + in_a_row, AHEAD_MAX)))
        while gathering.wants(ref):
            gathering.add_run(self._reader.block(ref, gathering.position, scanning=scanning))

    @staticmethod
    def _add_pending(look: Lookup, gathering: _Gathering) -> None:
        for batches, source in ((look.window, "window"), (look.buffer, "buffer")):
            for batch in batches:
                if gathering.full:
                    return
                if batch.end_offset <= gathering.position:
                    continue
                raw = batch.raw()
                if gathering.parts and len(raw) > gathering.room:
                    gathering.full = True
                else:
                    gathering.add(raw, batch.end_offset, source)

    def _result(self, look: Lookup, offset: int, gathering: _Gathering) -> ReadResult:
        end = gathering.position
        if not gathering.parts and offset < look.durable:
            end = look.durable  # nothing but lost offsets from here on
        self._scan_detector.end(offset, end)
        return ReadResult(
            where=self._where,
            offset=offset,
            parts=tuple(gathering.parts),
            next_offset=end,
            low_watermark=look.low,
            durable_high_watermark=look.durable,
            buffered_high_watermark=look.buffered,
            source="+".join(gathering.sources),
            lost=tuple(self._state.lost_between(offset, end)) if offset < look.durable else (),
        )

    def first_at(self, timestamp_ms: int) -> int | None:
        """The first offset whose record has this timestamp or a later one: exact, one index and one block of I/O."""
        try:
            return self._first_at(timestamp_ms)
        except CorruptData as damage:
            self._refuse_deleted(damage)
            raise

    def _first_at(self, timestamp_ms: int) -> int | None:
        while True:
            (low, durable, _), refs = self._state.refs_by_time(timestamp_ms)
            for ref in refs:
                try:
                    found = self._first_in_segment(ref, timestamp_ms, low, durable)
                except ObjectNotFound as gone:
                    self._look_again(ref, gone)
                    break
                if found is not None:
                    return found
            else:
                return self._first_pending(timestamp_ms, max(durable, low))

    def _first_pending(self, timestamp_ms: int, position: int) -> int | None:
        """The same among what is not durable yet."""
        buffered = self._state.buffered
        while position < buffered:
            result = self.read(position, 1 << 20, "buffered")
            for record in result.records():
                if record.timestamp_ms is not None and record.timestamp_ms >= timestamp_ms:
                    return record.offset
            if result.next_offset == position:
                break
            position = result.next_offset
        return None

    def _first_in_segment(self, ref: SegmentRef, timestamp_ms: int, low: int, durable: int) -> int | None:
        index = self._reader.index(ref).index
        for row in index[index["max_timestamp_ms"] >= timestamp_ms]:
            base = int(row["base_offset"])
            if base + int(row["count"]) <= low or base >= durable:
                continue
            block = self._reader.block(ref, base, scanning=False)
            run, _ = block.run(base, 0, at_least_one=True, stop=durable)
            for record in decode_records(run, split(run)[0], start_offset=low):
                if record.timestamp_ms is not None and record.timestamp_ms >= timestamp_ms:
                    return record.offset
        return None
