"""One partition of the internal topic, and the groups that live in it.

The log is the truth: a state counts when its record is durable. `_latest` mirrors the log, compacted, in the
order of submission: the newest value of each key. When the log has grown to several times that, the mirror is
appended and everything before it is deleted, so a restart reads little however long the broker
ran. Because the log is a prefix-ordered whole, a mirror that is durable proves that everything before it was.

Runs on the event loop; loading runs in a worker thread. Whatever concerns many records goes in slices, with turns for
others in between: a key is mirrored with the value that is the newest when its slice is handed to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from broker_shim.groups.group import Group, State
from broker_shim.groups.group_records import (
    Committed,
    GroupKey,
    GroupState,
    OffsetKey,
    decode_committed,
    decode_group,
    decode_key,
    encode_committed,
    encode_group,
    encode_key,
)
from broker_shim.groups.member import Effect, Joined, Limits, Save, Synced
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest
from logstore.engine.memory.results import Receipt
from logstore.errors import BufferFull, InvalidRecord, LogStoreError
from logstore.format.batches.record import Record

log = logging.getLogger(__name__)
COMPACT_FROM_RECORDS = 2_000
COMPACT_AT_RATIO = 4
SLICE_RECORDS = 500
"""How many records are handled in one turn of the loop: a few milliseconds."""
SETTLE_PATIENCE_S = 5.0
WRITE_PATIENCE_S = 5.0
ROOM_RETRY_S = 0.02
_ID_BYTES = 16
_NOTHING = Record(None, encode_key(GroupKey("")))
"""What is appended in place of a mirror that holds nothing."""
Place = tuple[str, int]
Done = Callable[[Code], None]


class GroupShard:
    """`offsets[group][(topic, partition)]` and `groups[group]`: what coordinator handlers read."""

    def __init__(
        self,
        hosted: HostedPartition,
        limits: Limits,
        new_id: Callable[[str], str],
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.hosted = hosted
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[Place, Committed]] = {}
        self._limits = limits
        self._new_id = new_id
        self._now_ms = now_ms
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._latest: dict[bytes, bytes] = {}
        self._of_topic: dict[str, set[bytes]] = {}
        """The keys of the offsets that were committed for a topic, by its incarnation."""
        self._compacting: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._records_in_log = 0
        self._last_write: Future[Receipt] | None = None
        self._backlog: deque[tuple[float, list[Record], Done]] = deque()
        self._committing: dict[str, list[dict[Place, Committed]]] = {}
        self._states: dict[str, GroupState] = {}
        self._closed = False

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────

    def load(self) -> None:
        """Read the log into memory. In a worker thread, before anybody else sees this shard."""
        partition = self.hosted.log
        for record in partition.records(visibility="durable"):
            self._records_in_log += 1
            if record.key is None:
                continue
            if record.value is None:
                self._latest.pop(record.key, None)
            else:
                self._latest[record.key] = record.value

        for raw_key, value in self._latest.items():
            try:
                key = decode_key(raw_key)
                if isinstance(key, OffsetKey):
                    places = self.offsets.setdefault(key.group, {})
                    places[(key.topic, key.partition)] = committed = decode_committed(value)
                    self._list(raw_key, committed.incarnation)
                elif isinstance(key, GroupKey):
                    self._states[key.group] = decode_group(value)
            except MalformedRequest as error:
                log.warning("%s: a record that cannot be read is left alone: %s", self.hosted, error)

    def restore(self) -> None:
        """On the loop, after `load`: members get a full session to come back."""
        for name, state in self._states.items():
            self._restore_group(name, state)
        self._states.clear()

    def _restore_group(self, name: str, state: GroupState) -> None:
        group = self.group(name)
        group.generation = state.generation
        group.protocol_type = state.protocol_type or None
        group.protocol = state.protocol
        group.leader = state.leader
        group.empty_since_ms = None if state.members else state.changed_at_ms
        group.restore(state.members, self._loop.time())
        self._schedule(group)

    def write(self, changes: Iterable[tuple[bytes, bytes | None]], done: Done) -> None:
        """Append changes, durably, then call `done`. What waits for `done` is not seen by others before it."""
        records = [Record(value, key) for key, value in changes]
        if self._backlog or not self._submit(records, done):
            self._backlog.append((self._loop.time() + WRITE_PATIENCE_S, records, done))
            if len(self._backlog) == 1:
                self._loop.call_later(ROOM_RETRY_S, self._catch_up)

    def _catch_up(self) -> None:
        """Producers have filled the write buffer: what waited for room goes on, in order, while there is any."""
        now = self._loop.time()
        while self._backlog:
            until, records, done = self._backlog.popleft()
            if until <= now:
                done(Code.COORDINATOR_NOT_AVAILABLE)
            elif not self._submit(records, done):
                self._backlog.appendleft((until, records, done))
                self._loop.call_later(ROOM_RETRY_S, self._catch_up)
                return

    def _submit(self, records: list[Record], done: Done) -> bool:
        """Hand records to the log. False if there is no room now."""
        try:
            future = self.hosted.log.submit(records, ack="durable")
        except BufferFull:
            return False
        except InvalidRecord as error:
            # Larger than any batch may be: it is refused, and the log is as good for the others as it was.
            log.warning("%s: %s", self.hosted, error)
            done(Code.UNKNOWN_SERVER_ERROR)
            return True
        except LogStoreError as error:
            self._lost(error)
            done(Code.NOT_COORDINATOR)
            return True
        for record in records:
            assert record.key is not None
            self._mirror(record.key, record.value)
        self._records_in_log += len(records)
        self._last_write = future
        future.add_done_callback(lambda each: self._call(self._written, each, done))
        return True

    async def settled(self) -> None:
        """Wait until everything written so far is durable, or will not be."""
        if self._last_write is not None and not self._last_write.done():
            await asyncio.wait(
                [asyncio.wrap_future(self._last_write, loop=self._loop)], timeout=SETTLE_PATIENCE_S
            )

    def _written(self, future: Future[Receipt], done: Done) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._lost(error or ConnectionError("the log was closed"))
            done(Code.NOT_COORDINATOR)
            return
        done(Code.NONE)
        self._compact_if_long()

    def _mirror(self, key: bytes, value: bytes | None) -> None:
        before = self._latest.get(key)
        if value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = value
        # The topic's id is at the end of a committed offset: who commits again for the same topic changes no list.
        if before is not None and (value is None or before[-_ID_BYTES:] != value[-_ID_BYTES:]):
            self._unlist(key, before)

    def _list(self, key: bytes, incarnation: str | None) -> None:
        if incarnation is not None:
            self._of_topic.setdefault(incarnation, set()).add(key)

    def _unlist(self, key: bytes, before: bytes) -> None:
        with suppress(MalformedRequest):
            if not isinstance(decode_key(key), OffsetKey):
                return
            incarnation = decode_committed(before).incarnation
            keys = self._of_topic.get(incarnation or "")
            if incarnation is not None and keys is not None:
                keys.discard(key)
                if not keys:
                    del self._of_topic[incarnation]

    def _compact_if_long(self) -> None:
        if self._records_in_log < max(COMPACT_FROM_RECORDS, COMPACT_AT_RATIO * len(self._latest)):
            return
        if self._compacting is None and not self._closed:
            self._compacting = self._start(self._compact())

    async def _compact(self) -> None:
        """Append the mirror, then delete what was before it. What is written meanwhile lies behind its first record."""
        keys = list(self._latest)
        self._records_in_log = len(keys)
        first: Future[Receipt] | None = None
        try:
            for start in range(0, max(len(keys), 1), SLICE_RECORDS):
                newest = ((key, self._latest.get(key)) for key in keys[start : start + SLICE_RECORDS])
                records = [Record(value, key) for key, value in newest if value is not None]
                last = self.hosted.log.submit(records or [_NOTHING], ack="durable")
                first = first or last
                await asyncio.sleep(0)
            await asyncio.wrap_future(last, loop=self._loop)
            assert first is not None
            self.hosted.trim(first.result().offset)
        except LogStoreError as error:
            log.warning("%s: not compacted this time: %s", self.hosted, error)
        finally:
            self._compacting = None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _lost(self, error: BaseException) -> None:
        log.warning("%s: the coordinator has lost its log: %s", self.hosted, error)
        self.hosted.lose(error)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, group: str, commits: dict[Place, Committed], done: Done) -> None:
        def written(code: Code) -> None:
            self._committing[group].remove(commits)
            if not self._committing[group]:
                del self._committing[group]
            if code is Code.NONE:
                self.offsets.setdefault(group, {}).update(commits)
            done(code)

        self._committing.setdefault(group, []).append(commits)
        changes: list[tuple[bytes, bytes]] = []
        for (topic, index), value in commits.items():
            key = encode_key(OffsetKey(group, topic, index))
            self._list(key, value.incarnation)
            changes.append((key, encode_committed(value)))
        self.write(changes, written)

    def forget_offsets(self, group: str, places: Iterable[Place], done: Done) -> None:
        self._forget([OffsetKey(group, *place) for place in places], done)

    def _forget(self, gone: list[OffsetKey], done: Done) -> None:
        def written(code: Code) -> None:
            if code is Code.NONE:
                for group, topic, index in gone:
                    kept = self.offsets.get(group, {})
                    kept.pop((topic, index), None)
                    if not kept:
                        self.offsets.pop(group, None)
            done(code)

        self.write([(encode_key(key), None) for key in gone], written)

    def forget_topic(self, incarnation: str) -> None:
        """The offsets that were committed for it, those that are on their way to the log included."""
        keys = self._of_topic.pop(incarnation, None)
        if keys:
            self._start(self._forget_all(list(keys), incarnation))

    async def _forget_all(self, keys: list[bytes], incarnation: str) -> None:
        for start in range(0, len(keys), SLICE_RECORDS):
            gone: list[OffsetKey] = []
            for raw_key in keys[start : start + SLICE_RECORDS]:
                key, value = decode_key(raw_key), self._latest.get(raw_key)
                if isinstance(key, OffsetKey) and (
                    value is None or decode_committed(value).incarnation == incarnation
                ):
                    gone.append(key)
            done: asyncio.Future[Code] = self._loop.create_future()
            self._forget(gone, partial(_resolve, done))
            if await done is not Code.NONE:
                return  # nobody is told of them any more, whoever coordinates: they go with their groups

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────

    def group(self, name: str) -> Group:
        """The group, made if there is none: an empty group costs nothing in the log."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self._limits, self._new_id)
        return group

    def carry_out(self, group: Group, effects: Iterable[Effect]) -> None:
        """Answer who can be answered, save what must be saved, and look again when the group's time comes."""
        for effect in effects:
            if isinstance(effect, Save):
                self._save(group, effect)
            else:
                future: asyncio.Future[Joined | Synced] = effect.token
                if not future.done():
                    future.set_result(effect.answer)
        if group.is_unused:
            self.groups.pop(group.group_id, None)  # made for a request that was refused
        self._schedule(group)

    def _save(self, group: Group, save: Save) -> None:
        now_ms = self._now_ms()
        group.empty_since_ms = None if group.members else now_ms
        state = GroupState(
            group.protocol_type or "",
            group.generation,
            group.protocol,
            group.leader,
            now_ms,
            list(group.members.values()),
        )

        def saved(code: Code) -> None:
            self.carry_out(group, group.saved(save, code, self._loop.time()))

        self.write([(encode_key(GroupKey(group.group_id)), encode_group(state))], saved)

    def _schedule(self, group: Group) -> None:
        """One timer for a group, at its next deadline. Heartbeats only move that back: the timer then finds
        out.
        """
        deadline = None if self._closed else group.deadline()
        timer = self._timers.get(group.group_id)
        if timer is not None and (deadline is None or deadline < timer.when()):
            timer.cancel()
            del self._timers[group.group_id]
            timer = None
        if timer is None and deadline is not None:
            self._timers[group.group_id] = self._loop.call_at(deadline, self._tick, group)

    def _tick(self, group: Group) -> None:
        self._timers.pop(group.group_id, None)
        self.carry_out(group, group.tick(self._loop.time()))

    def delete_group(self, name: str, done: Done) -> None:
        """The group, which the caller has found empty, and its offsets, those that are on their way to the log included.

        Who joins while that is being written keeps the group.
        """
        group = self.groups.get(name)
        generation = group.generation if group is not None else 0

        def written(code: Code) -> None:
            if code is Code.NONE:
                if group is not None and group.state is State.EMPTY and group.generation == generation:
                    self.groups.pop(name, None)
                self.offsets.pop(name, None)
            done(code)

        places = {*self.offsets.get(name, {})}.union(*self._committing.get(name, ()))
        keys = [OffsetKey(name, topic, index) for topic, index in sorted(places)]
        changes: list[tuple[bytes, bytes | None]] = [(encode_key(key), None) for key in keys]
        self.write([*changes, (encode_key(GroupKey(name)), None)], written)

    def expire(self, retention_ms: int) -> asyncio.Task[None]:
        """Groups that have been empty, or committed nothing, for so long are deleted. No request if there are
        none.
        """
        return self._start(self._expire(retention_ms))

    async def _expire(self, retention_ms: int) -> None:
        oldest = self._now_ms() - retention_ms
        seen = 0
        for name in {*self.groups, *self.offsets}:
            seen += 1 + len(self.offsets.get(name, ()))
            if seen > SLICE_RECORDS:
                seen = 0
                await asyncio.sleep(0)
            group = self.groups.get(name)
            if name in self._committing or (group is not None and group.state is not State.EMPTY):
                continue
            times = [each.committed_at_ms for each in self.offsets.get(name, {}).values()]
            if group is not None and group.empty_since_ms is not None:
                times.append(group.empty_since_ms)
            if times and max(times) < oldest:
                log.info("group %s was empty for long enough: it is deleted", name)
                self.delete_group(name, lambda code: None)

    def close(self, error: Code) -> None:
        """Somebody else coordinates from now on, or the broker stops: nobody is left waiting."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._running:
            task.cancel()
        backlog, self._backlog = self._backlog, deque()
        for _, _, done in backlog:
            done(error)
        for group in self.groups.values():
            self.carry_out(group, group.kill(error))


def _resolve(waiting: asyncio.Future[Code], code: Code) -> None:
    """Unless whoever waited has been stopped meanwhile."""
    if not waiting.done():
        waiting.set_result(code)
