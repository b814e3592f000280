"""One partition of the internal topic, and the groups that live in it. What they are is in its log (`state_log`).

Runs on the event loop; loading runs in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from broker_shim.groups import consumer_records
from broker_shim.groups.assignors import Topics
from broker_shim.groups.consumer_group import JOINING, Beat, ConsumerGroup, ConsumerLimits, Heartbeat, Refused
from broker_shim.groups.consumer_shard import ConsumerShard
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
from broker_shim.groups.migration import downgrade, upgraded
from broker_shim.groups.pending_offsets import Place
from broker_shim.groups.transactional_offsets import TransactionalOffsets
from broker_shim.partitions import state_log
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.state_log import Change, Done, StateLog, nobody_waits
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest

log = logging.getLogger(__name__)
_ID_BYTES = 16


class GroupShard:
    """`offsets[group][(topic, partition)]` and `groups[group]`: what coordinator handlers read."""

    def __init__(
        self,
        hosted: HostedPartition,
        limits: Limits,
        new_id: Callable[[str], str],
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        consumer_limits: ConsumerLimits,
    ) -> None:
        self.log = StateLog(hosted, loop, nothing=encode_key(GroupKey("")), replaced=self._replaced)
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[Place, Committed]] = {}
        self.consumers = ConsumerShard(self.log, consumer_limits, loop, now_ms, self._downgrade)
        self.limits = limits
        self.new_id = new_id
        self._now_ms = now_ms
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.transactional = TransactionalOffsets(self.log, self, now_ms)
        self._committing: dict[str, list[dict[Place, Committed]]] = {}
        self._of_topic: dict[str, set[bytes]] = {}
        """The keys of the offsets that were committed for a topic, by its incarnation."""
        self._states: dict[str, GroupState] = {}
        self._owed: dict[str, list[Change]] = {}
        """What goes with the next record of a group that is a classic one again: what it was before is no more."""
        self._closed = False

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────

    def load(self) -> None:
        """In a worker thread, before anybody else sees this shard."""
        self.log.load()
        for raw_key, value in self.log.latest.items():
            try:
                if self.transactional.read(raw_key, value):
                    continue
                key = decode_key(raw_key)
                if isinstance(key, OffsetKey):
                    places = self.offsets.setdefault(key.group, {})
                    places[(key.topic, key.partition)] = committed = decode_committed(value)
                    self._list(raw_key, committed.incarnation)
                elif isinstance(key, GroupKey):
                    self._states[key.group] = decode_group(value)
                elif (consumer := consumer_records.decode_key(raw_key)) is not None:
                    self.consumers.read(consumer, value)
            except MalformedRequest as error:
                log.warning("%s: a record that cannot be read is left alone: %s", self.log.hosted, error)

    def restore(self) -> None:
        """On the loop, after `load`: members get a full session to come back."""
        for name, state in self._states.items():
            self._restore_group(name, state)
        self._states.clear()
        self.consumers.restore()

    def _restore_group(self, name: str, state: GroupState) -> None:
        group = self.group(name)
        group.generation = state.generation
        group.protocol_type = state.protocol_type or None
        group.protocol = state.protocol
        group.leader = state.leader
        group.empty_since_ms = None if state.members else state.changed_at_ms
        group.restore(state.members, self._loop.time())
        self._schedule(group)

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, group: str, commits: dict[Place, Committed], done: Done) -> None:
        def written(code: Code) -> None:
            self.end_commit(group, commits, code)
            done(code)

        changes = self.changes(group, commits)
        self.begin_commit(group, commits)
        self.log.write(changes, written)

    def changes(self, group: str, commits: dict[Place, Committed]) -> list[Change]:
        changes: list[Change] = []
        for (topic, index), value in commits.items():
            key = encode_key(OffsetKey(group, topic, index))
            self._list(key, value.incarnation)
            changes.append((key, encode_committed(value)))
        return changes

    def begin_commit(self, group: str, commits: dict[Place, Committed]) -> None:
        self._committing.setdefault(group, []).append(commits)

    def end_commit(self, group: str, commits: dict[Place, Committed], code: Code) -> None:
        """What was on its way to the log has come there, or not."""
        self._committing[group].remove(commits)
        if not self._committing[group]:
            del self._committing[group]
        if code is Code.NONE:
            self.offsets.setdefault(group, {}).update(commits)

    def forget_offsets(self, group: str, places: Iterable[Place], done: Done) -> None:
        gone = list(places)

        def written(code: Code) -> None:
            if code is Code.NONE:
                kept = self.offsets.get(group, {})
                for place in gone:
                    kept.pop(place, None)
                if not kept:
                    self.offsets.pop(group, None)
            done(code)

        self.log.write([(encode_key(OffsetKey(group, topic, index)), None) for topic, index in gone], written)

    def forget_topic(self, incarnation: str) -> None:
        """The offsets that were committed for it, those that are on their way to the log included."""
        keys = self._of_topic.pop(incarnation, None)
        if keys:
            self.log.start(self._forget_all(list(keys), incarnation))

    async def _forget_all(self, keys: list[bytes], incarnation: str) -> None:
        for start in range(0, len(keys), state_log.SLICE_RECORDS):
            gone: list[tuple[bytes, OffsetKey]] = []
            for raw_key in keys[start : start + state_log.SLICE_RECORDS]:
                key, value = decode_key(raw_key), self.log.latest.get(raw_key)
                still = value is None or decode_committed(value).incarnation == incarnation
                if isinstance(key, OffsetKey) and still:
                    gone.append((raw_key, key))
            changes: list[Change] = [(raw_key, None) for raw_key, _ in gone]
            if changes and await self.log.written(changes) is not Code.NONE:
                return  # nobody is told of them any more, whoever coordinates: they go with their groups
            for _, key in gone:
                kept = self.offsets.get(key.group, {})
                known = kept.get((key.topic, key.partition))
                if known is not None and known.incarnation == incarnation:
                    del kept[(key.topic, key.partition)]
                if not kept:
                    self.offsets.pop(key.group, None)

    def _list(self, key: bytes, incarnation: str | None) -> None:
        if incarnation is not None:
            self._of_topic.setdefault(incarnation, set()).add(key)

    def _replaced(self, key: bytes, before: bytes, value: bytes | None) -> None:
        """Whose offset is gone, or is another topic's now, is taken off the list of the one it was committed for."""
        # The topic's id is at the end of a committed offset: who commits again for the same topic changes no list.
        if value is not None and before[-_ID_BYTES:] == value[-_ID_BYTES:]:
            return
        with suppress(MalformedRequest):
            incarnation = decode_committed(before).incarnation if _is_offset(key) else None
            keys = self._of_topic.get(incarnation) if incarnation is not None else None
            if keys is not None and incarnation is not None:
                keys.discard(key)
                if not keys:
                    del self._of_topic[incarnation]

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────

    def group(self, name: str) -> Group:
        """The group, made if there is none: an empty group costs nothing in the log."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self.limits, self.new_id)
        return group

    def names(self) -> set[str]:
        """Every group that there is, of either protocol, or of which only offsets are there."""
        return {*self.groups, *self.consumers.groups, *self.offsets}

    def is_empty(self, name: str) -> bool:
        """Whether nobody is a member."""
        group, consumer = self.groups.get(name), self.consumers.groups.get(name)
        return (group is None or group.state is State.EMPTY) and (consumer is None or not consumer.members)

    async def heartbeat(self, name: str, said: Heartbeat, topics: Topics) -> Beat:
        """Of the consumer protocol. A group of the other one becomes one of this when somebody joins, if its members are
        consumers. Raises `Refused`."""
        classic = self.groups.get(name)
        if classic is None or (classic.state is State.EMPTY and classic.deadline() is None):
            if classic is not None:
                del self.groups[name]
                if encode_key(GroupKey(name)) in self.log.latest:
                    self.log.write([(encode_key(GroupKey(name)), None)], nobody_waits)
            return await self.consumers.heartbeat(name, said, topics)
        now = self._loop.time()
        new = upgraded(classic, self.consumers.limits, topics, now) if said.epoch == JOINING else None
        if new is None:
            why = f"{name} has members that speak the classic protocol, and is not to be changed"
            raise Refused(Code.GROUP_ID_NOT_FOUND, why)
        answer = new.heartbeat(said, topics, now)  # if it is refused, nothing has happened
        log.info("group %s speaks the consumer protocol from now on", name)
        del self.groups[name]
        self.carry_out(classic, classic.kill(Code.REBALANCE_IN_PROGRESS))
        return await self.consumers.changed(new, answer)

    def _downgrade(self, old: ConsumerGroup) -> None:
        log.info("group %s speaks the classic protocol from now on", old.group_id)
        self._owed[old.group_id] = self.consumers.removal(old.group_id)
        self.consumers.forget(old.group_id)
        group = self.group(old.group_id)
        downgrade(old, group, self._loop.time())
        # Nobody is in it, for the log, before the rebalance that now begins has ended: after a crash all of them join again,
        # also those that had a part of their share.
        nobody = GroupState(group.protocol_type or "", group.generation, None, None, self._now_ms(), [])
        self._write(group.group_id, nobody, nobody_waits)
        self.carry_out(group, group.rebalance(self._loop.time()))

    def mixed(self, name: str) -> ConsumerGroup | None:
        """The group, if it is one of the consumer protocol and has members: those of the classic one may be among them."""
        consumer = self.consumers.groups.get(name)
        return consumer if consumer is not None and consumer.members else None

    def classic(self, name: str) -> Group:
        """The group, for somebody who joins. One of the consumer protocol without members is a classic one from now on."""
        if name in self.consumers.groups:
            self.log.write(self.consumers.removal(name), nobody_waits)
            self.consumers.forget(name)
        return self.group(name)

    def check_commit(self, name: str, member_id: str, instance_id: str | None, epoch: int) -> Code:
        """May this caller commit offsets, or, with an epoch of the new protocol, read them?"""
        consumer, group = self.consumers.groups.get(name), self.groups.get(name)
        if consumer is not None:
            return consumer.check_commit(member_id, instance_id, epoch)
        if group is not None:
            return group.check_commit(member_id, instance_id, epoch, self._loop.time())
        return Code.NONE if epoch < 0 else Code.ILLEGAL_GENERATION

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

        self._write(group.group_id, state, saved)

    def _write(self, name: str, state: GroupState, done: Done) -> None:
        owed = self._owed.get(name, [])

        def written(code: Code) -> None:
            if code is Code.NONE and self._owed.get(name) is owed:
                del self._owed[name]
            done(code)

        self.log.write([*owed, (encode_key(GroupKey(name)), encode_group(state))], written)

    def _schedule(self, group: Group) -> None:
        """One timer for a group, at its next deadline. Heartbeats only move that back: the timer then finds
        out.
        """
        is_over = self._closed or self.groups.get(group.group_id) is not group
        deadline = None if is_over else group.deadline()
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
                if self.is_empty(name):
                    self.consumers.forget(name)
                self.offsets.pop(name, None)
            done(code)

        places = {*self.offsets.get(name, {})}.union(*self._committing.get(name, ()))
        keys = [OffsetKey(name, topic, index) for topic, index in sorted(places)]
        changes: list[Change] = [(encode_key(key), None) for key in keys]
        changes += self.consumers.removal(name)
        self.log.write([*changes, (encode_key(GroupKey(name)), None)], written)

    def expire(self, retention_ms: int) -> asyncio.Task[None]:
        """Groups that have been empty, or committed nothing, for so long are deleted. No request if there are
        none.
        """
        return self.log.start(self._expire(retention_ms))

    async def _expire(self, retention_ms: int) -> None:
        oldest = self._now_ms() - retention_ms
        self.transactional.expire(oldest)
        pending = self.transactional.groups
        seen = 0
        for name in self.names():
            seen += 1 + len(self.offsets.get(name, ()))
            if seen > state_log.SLICE_RECORDS:
                seen = 0
                await asyncio.sleep(0)
            group = self.groups.get(name)
            if name in self._committing or name in pending or not self.is_empty(name):
                continue
            times = [each.committed_at_ms for each in self.offsets.get(name, {}).values()]
            if group is not None and group.empty_since_ms is not None:
                times.append(group.empty_since_ms)
            consumer = self.consumers.groups.get(name)
            if consumer is not None and consumer.empty_since_ms is not None:
                times.append(consumer.empty_since_ms)
            if times and max(times) < oldest:
                log.info("group %s was empty for long enough: it is deleted", name)
                self.delete_group(name, nobody_waits)

    def close(self, error: Code) -> None:
        """Somebody else coordinates from now on, or the broker stops: nobody is left waiting."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.consumers.close()
        self.log.close(error)
        for group in self.groups.values():
            self.carry_out(group, group.kill(error))


def _is_offset(key: bytes) -> bool:
    return isinstance(decode_key(key), OffsetKey)
