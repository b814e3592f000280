"""The driver's half of a write: staged batches become segments of the log.

A partition's batches are committed as a shared writer would: segments of their own, at the end of the chain, moved
up if somebody else was faster; giving a batch its offset patches sixteen bytes, nothing is encoded again. A
segment's writer id is derived from the transaction, so whoever commits it, however often, and whichever answers
were lost, it is stored once:

* a segment met in the chain with the id of one that is to be committed *is* that one;
* what the chain holds from the plan's start on is searched first, by producer id and sequence, which survive compaction.
  That is nothing, unless the plan was begun before or others have appended since.

Partitions are committed side by side and each on its own: a reader may see one before another.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np

from logstore.arrow.plan.log_partitions import side_by_side
from logstore.config import MIB, StoreConfig, TakeOver
from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.chain import Chain, LostRace, StalePlace
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.chain.view import ChainView
from logstore.engine.host.clock import SystemClock
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.runtime import Runtime
from logstore.engine.shared.chain_cursor import ChainCursor
from logstore.engine.write.ownership import WrittenByShared, check_may_stop
from logstore.errors import CorruptData, StoreError, UnknownTopic
from logstore.format.batches.batch import BatchInfo, check_crc, split
from logstore.format.batches.sequences import advance
from logstore.format.errors import FormatError
from logstore.format.stored.encoded_batch import place_all
from logstore.format.stored.segment import WriterMode, build_segment
from logstore.layout.catalog import Catalog
from logstore.layout.paths import PartitionPaths
from logstore.objects import ObjectStore
from logstore.objects.fan_out import fan_out
from logstore.spark.options.transaction import Transaction
from logstore.spark.write.staging import Part, StagedBatch, sweep
from logstore.spark.write.txn_ledger import Ledger, Plan

SEGMENT_BYTES = 16 * MIB
"""Of a segment that a commit writes: what the driver holds in memory for each partition that is under way."""
_AT_ONCE = 4
IF_GONE: TakeOver = "if_gone"
"""A job stops no service that may be at work: it runs on other machines than that one, and could not know."""


def store_once(
    store: ObjectStore, transaction: Transaction, parts: Sequence[Part], take_over: TakeOver = IF_GONE
) -> None:
    """Publish `parts` as this transaction, unless it is stored already; a plan that is stored for it comes first.

    `Fenced` if this is a run of a stream that may not write any more. `PartitionInUse` if a partition has an exclusive
    writer that `take_over` does not allow to stop: nothing is stored then, in any partition.
    """
    ledger = Ledger(store, transaction)
    ledger.claim()
    while (left := ledger.pending()) is not None:
        version, plan = left
        publish(store, replace(transaction, version=version), plan, take_over)
        ledger.finish(version)
    if not ledger.is_done():
        chosen = ledger.begin(make_plan(store, parts, take_over))
        if chosen is not None:
            publish(store, transaction, chosen, take_over)
            ledger.finish(transaction.version)
    sweep(store, transaction)


def store_job(
    store: ObjectStore, transaction: Transaction, parts: Sequence[Part], take_over: TakeOver = IF_GONE
) -> None:
    """Publish `parts` of a job that nobody will run again under the same name. `PartitionInUse` as for `store_once`."""
    publish(store, transaction, make_plan(store, parts, take_over), take_over)
    sweep(store, transaction)


def give_up(store: ObjectStore, transaction: Transaction, parts: Sequence[Part]) -> None:
    """Tasks failed: remove the parts that were staged in vain. What a pending plan has named is still going to be
    published, by the run that comes after this one.

    That run may be there already, while this driver is slow to die. What it has staged lies in the same place, and its plan
    is about to name it: nothing is removed but what is known to be ours.
    """
    if Ledger(store, transaction).withdraw():
        for key in {part.key for part in parts}:
            store.delete(key)


def make_plan(store: ObjectStore, parts: Sequence[Part], take_over: TakeOver = IF_GONE) -> Plan:
    """`parts`, and where each partition ends now. Asks all of them whether they may be written to, before one is."""
    targets = sorted({(part.topic, part.partition) for part in parts})
    paths = _find(store, targets)

    def end_of(one: tuple[str, int]) -> int:
        chain = Chain(store, paths[one])
        tail = chain.load().tail
        with suppress(WrittenByShared):
            check_may_stop(chain, tail, take_over)
        return tail.start_offset

    ends = side_by_side(end_of, targets)
    return Plan(tuple(parts), {_name(paths[one]): end for one, end in zip(targets, ends, strict=True)})


def publish(store: ObjectStore, transaction: Transaction, plan: Plan, take_over: TakeOver = IF_GONE) -> None:
    """Carry the plan out. Safe to repeat, and to run in two drivers at once."""
    by_target = {
        target: list(parts)
        for target, parts in groupby(
            sorted(plan.parts, key=_target), key=_target
        )  # stable: tasks stay in order
    }
    paths = _find(store, by_target)
    config = StoreConfig(writer="shared", take_over=take_over)
    runtime = Runtime(store, config, SystemClock(), random.Random())
    try:

        def one(target: tuple[str, int]) -> None:
            publisher = _PartitionPublisher(runtime, transaction, paths[target], by_target[target])
            publisher.run(plan.starts.get(_name(paths[target]), 0))

        commits = (partial(one, target) for target in by_target)
        for _ in fan_out(commits, at_once=_AT_ONCE, ahead=True):
            pass
    finally:
        runtime.close(1.0)


def _target(part: Part) -> tuple[str, int]:
    return part.topic, part.partition


def _name(paths: PartitionPaths) -> str:
    """In a plan's starts. A topic that was recreated since then has none there, and is searched from its beginning."""
    return f"{paths.topic}/{paths.incarnation}/{paths.partition}"


def _find(store: ObjectStore, targets: Collection[tuple[str, int]]) -> dict[tuple[str, int], PartitionPaths]:
    catalog = Catalog(store)
    topics = {topic: catalog.find(topic) for topic in {topic for topic, _ in targets}}
    for name, number in targets:
        if number >= topics[name].partitions:  # the topic is not the one that the tasks saw
            raise UnknownTopic(
                f"topic {name!r} has partitions 0 to {topics[name].partitions - 1}, and rows are staged for {number}: "
                "it was recreated meanwhile. Write again, or give it as many partitions as it had"
            )
    return {
        (name, number): PartitionPaths(name, topics[name].incarnation, number) for name, number in targets
    }


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of staged batches of one part, small enough for a segment."""

    part: Part
    position: int
    base_sequence: int
    batches: tuple[StagedBatch, ...]

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)


class _PartitionPublisher:
    def __init__(
        self, runtime: Runtime, transaction: Transaction, paths: PartitionPaths, parts: Sequence[Part]
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._retries = replace(runtime.retries, attempts=10)
        self._chain = Chain(runtime.store, paths)
        self._segments = _segments(parts)
        self._ids = [
            transaction.segment_id(paths.topic, paths.incarnation, paths.partition, number)
            for number in range(len(self._segments))
        ]

    def run(self, start: int) -> None:
        """Commit every segment that is not in the chain yet; none of them is before offset `start`."""
        view = self._chain.load()
        done = self._found(view, start)
        cursor = ChainCursor(self._runtime, self._chain, PartitionState(view), WriterMode.SHARED)
        for number, pieces in enumerate(self._segments):
            if number not in done:
                self._commit(
                    cursor, number, [one for piece in pieces for one in self._read(piece)], done, start
                )

    def _commit(
        self,
        cursor: ChainCursor,
        number: int,
        batches: list[tuple[memoryview, BatchInfo]],
        done: set[int],
        start: int,
    ) -> None:
        count, failures = sum(info.count for _, info in batches), 0
        while number not in done:
            try:
                if cursor.needs_opener:
                    cursor.open_epoch()
                header = replace(cursor.header(count), writer_id=self._ids[number])
                data, summary = build_segment(header, place_all(batches, header.base_offset, header.epoch))
                if not cursor.commit(header, data, summary):
                    self._rejoin(cursor, done, start)
                return
            except LostRace:
                self._move_up(cursor, done, start)
            except StalePlace:
                self._rejoin(cursor, done, start)
            except StoreError as error:
                failures += 1
                if not self._retries.allows(error, failures):
                    raise
                self._runtime.pause(self._runtime.backoff(failures))

    def _move_up(self, cursor: ChainCursor, done: set[int], start: int) -> None:
        """Past what others have committed. One of ours among it was committed by another driver for this transaction."""
        try:
            while (link := cursor.advance()) is not None:
                if link.header.writer_id in self._ids:
                    done.add(self._ids.index(link.header.writer_id))
        except StalePlace:
            self._rejoin(cursor, done, start)

    def _rejoin(self, cursor: ChainCursor, done: set[int], start: int) -> None:
        """To the end of a chain whose segments were collected meanwhile: what they held is looked for in the log."""
        cursor.rejoin()
        done |= self._found(self._chain.load(), start)

    def _read(self, piece: _Piece) -> list[tuple[memoryview, BatchInfo]]:
        """The staged batches, checked. The plan knows their timestamps better than their headers do."""
        raw = memoryview(self._store.get(piece.part.key, piece.position, piece.position + piece.size))
        try:
            infos = split(raw)
            for info in infos:
                check_crc(raw, info)
        except FormatError as damage:
            raise CorruptData(piece.part.key, None, damage.why) from damage
        if [(info.size, info.count) for info in infos] != [batch[:2] for batch in piece.batches]:
            raise CorruptData(piece.part.key, None, "the staged batches are not those of the plan")
        return [
            (
                raw[info.position : info.position + info.size],
                info._replace(
                    min_timestamp_ms=batch.min_timestamp_ms, max_timestamp_ms=batch.max_timestamp_ms
                ),
            )
            for info, batch in zip(infos, piece.batches, strict=True)
        ]

    def _found(self, view: ChainView, start: int) -> set[int]:
        """Which of the segments the chain holds already: their first batch is looked for by producer and sequence."""
        reader = SegmentReader(self._store, BlockCache(64 * MIB))
        wanted = {
            (pieces[0].part.producer_id, pieces[0].base_sequence, pieces[0].batches[0]): number
            for number, pieces in enumerate(self._segments)
        }
        shapes = {shape for _, _, shape in wanted}
        found: set[int] = set()
        segments = view.segments
        for row in range(segments.row_at(start), len(segments)):
            ref = segments.ref(row)
            loaded = reader.index(ref)
            if loaded.sparse:
                found |= self._found_in_sparse(reader, ref)
                continue
            index = loaded.index
            for at in index:
                shape = StagedBatch(
                    int(at["size"]),
                    int(at["count"]),
                    int(at["min_timestamp_ms"]),
                    int(at["max_timestamp_ms"]),
                )
                if shape in shapes:
                    info = self._info_at(ref.key, int(at["position"]), shape.size)
                    number = wanted.get((info.producer_id, info.base_sequence, shape))
                    if number is not None:
                        found.add(number)
        return found

    def _found_in_sparse(self, reader: SegmentReader, ref: SegmentRef) -> set[int]:
        """The same in an object from which compaction by key has taken records, or whole batches. A producer's batches come
        in the order of their numbers: one with a later number tells of all before it."""
        latest: dict[int, int] = {}
        for block in reader.blocks(ref):
            for info in split(block.data):
                latest[info.producer_id] = max(latest.get(info.producer_id, -1), info.base_sequence)
        return {
            number
            for number, pieces in enumerate(self._segments)
            if latest.get(pieces[0].part.producer_id, -1) >= pieces[0].base_sequence
        }

    def _info_at(self, key: str, position: int, size: int) -> BatchInfo:
        return split(self._store.get(key, position, position + size))[0]


def _segments(parts: Sequence[Part]) -> list[list[_Piece]]:
    """The parts, cut and joined to segments; the same parts always give the same segments."""
    segments: list[list[_Piece]] = [[]]
    room = SEGMENT_BYTES
    for part in parts:
        position, sequence, first = part.position, part.base_sequence, 0
        sizes = np.cumsum([batch.size for batch in part.batches])
        while first < len(sizes):
            before = int(sizes[first - 1]) if first else 0
            stop = int(np.searchsorted(sizes, before + room, side="right"))
            if stop == first and not segments[-1]:
                stop = first + 1
            if stop > first:
                batches = part.batches[first:stop]
                segments[-1].append(_Piece(part, position, sequence, batches))
                position += sum(batch.size for batch in batches)
                sequence = advance(sequence, sum(batch.count for batch in batches))
                room -= int(sizes[stop - 1]) - before
                first = stop
            if first < len(sizes):
                segments.append([])
                room = SEGMENT_BYTES
    return [pieces for pieces in segments if pieces]
