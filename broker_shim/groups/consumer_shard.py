"""The groups of the consumer protocol that live in one partition of the internal topic: their records, their timers.

A change counts when its records are durable, and nobody is told of one before: an answer waits for what its own request
changed, and for what others have changed of the group before it. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from broker_shim.groups.assignors import Topics
from broker_shim.groups.consumer_group import JOINING, Beat, ConsumerGroup, ConsumerLimits, Heartbeat, Refused
from broker_shim.groups.consumer_records import ConsumerKey, keys_of, read_into, values_of
from broker_shim.partitions.state_log import Change, StateLog
from broker_shim.wire.codes import Code

T = TypeVar("T")


@dataclass(eq=False)
class ConsumerShard:
    """`_downgrade`: only members that speak the classic protocol are left."""

    _log: StateLog
    limits: ConsumerLimits
    _loop: asyncio.AbstractEventLoop
    _now_ms: Callable[[], int]
    _downgrade: Callable[[ConsumerGroup], None]
    groups: dict[str, ConsumerGroup] = field(default_factory=dict, init=False)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    _is_closed: bool = field(default=False, init=False)

    def read(self, key: ConsumerKey, value: bytes) -> None:
        """A record of the log, while it is loaded."""
        read_into(self.groups, self.limits, key, value)

    def restore(self) -> None:
        """All records are read: members get a full session to come back."""
        for group in self.groups.values():
            group.restore(self._loop.time())
            self._schedule(group)

    async def heartbeat(self, name: str, said: Heartbeat, topics: Topics) -> Beat:
        """Raises `Refused`."""
        group = self.groups.get(name)
        if group is None:
            if said.epoch != JOINING:
                raise Refused(Code.UNKNOWN_MEMBER_ID)
            group = ConsumerGroup(name, self.limits)
        return await self.changed(group, group.heartbeat(said, topics, self._loop.time()))

    async def changed(self, group: ConsumerGroup, answer: T) -> T:
        """The answer, when all that is behind it is durable. Raises `Refused`."""
        self.groups[group.group_id] = group
        if group.is_classic:
            self._downgrade(group)
            await self._log.settled()
            return answer
        self._schedule(group)
        code = await self._save(group)
        if code is not Code.NONE:
            raise Refused(code)
        return answer

    async def _save(self, group: ConsumerGroup) -> Code:
        group.empty_since_ms = None if group.members else self._now_ms()
        noted = list(group.changes())
        if not noted:
            await self._log.settled()
            return Code.NOT_COORDINATOR if self._is_closed else Code.NONE
        code = await self._log.written(values_of(group, noted))
        if code is not Code.NONE:
            group.note(noted)  # with the next one
        return code

    def _schedule(self, group: ConsumerGroup) -> None:
        """One timer for a group, at its next deadline. Heartbeats only move that back: the timer then finds out."""
        deadline = None if self._is_closed else group.deadline()
        timer = self._timers.get(group.group_id)
        if timer is not None and (deadline is None or deadline < timer.when()):
            timer.cancel()
            del self._timers[group.group_id]
            timer = None
        if timer is None and deadline is not None:
            self._timers[group.group_id] = self._loop.call_at(deadline, self._tick, group)

    def _tick(self, group: ConsumerGroup) -> None:
        self._timers.pop(group.group_id, None)
        group.tick(self._loop.time())
        if group.is_classic:
            self._downgrade(group)
            return
        self._schedule(group)
        self._log.start(self._save(group))

    def removal(self, name: str) -> list[Change]:
        """What is to be written so that nothing of the group is left."""
        group = self.groups.get(name)
        if group is None:
            return []
        unsaved = [key for key, _ in values_of(group, group.changes())]
        return [(key, None) for key in dict.fromkeys((*unsaved, *keys_of(group)))]

    def forget(self, name: str) -> None:
        self.groups.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
