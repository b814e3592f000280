"""The epoch of every partition that clients are told a leader of, also where this broker has not opened it.

Clients keep to the largest epoch that they were told. A smaller one they take for news from a broker that is behind; and
franz-go takes none at all (−1) for "nobody leads" and stays with the leader that it knows, which may be dead. So a broker
that leads, or only says who does, says the epoch of the newest writer. Of a partition that it owns it knows that. Of the
others it asks the store when a client asks for metadata, as a reader does, at most every `FRESH_S` and whenever
leaders have changed; the partitions of a lane cost about as much as one of them. Nobody is fenced by that.

Whoever takes a partition over makes the epoch one larger, so what is told here is never larger than what the leader will
say. While the store does not answer, what was seen last has to do. Runs on the event loop; asks in worker threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.partitions.partition_registry import PartitionRegistry
from logstore.engine.partition.many_partitions import look_at
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import LogStoreError
from logstore.topic import Topic

log = logging.getLogger(__name__)
UNKNOWN = -1
FRESH_S = 5.0
PATIENCE_S = 1.0
"""How long an answer waits for the store."""
LOOKS_AT_ONCE = 4
"""Each keeps a worker."""


@dataclass(slots=True)
class _Seen:
    epochs: dict[int, int]
    looked_at: float
    generation: int


class LeaderEpochs:
    def __init__(
        self, partitions: PartitionRegistry, cluster: Cluster, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._partitions = partitions
        self._cluster = cluster
        self._loop = loop
        self._seen: dict[UUID, _Seen] = {}
        self._looking: dict[UUID, asyncio.Task[None]] = {}
        self._workers = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._not_waited_until = 0.0

    def of(self, topic: Topic, index: int) -> int:
        """As far as it is known here: `UNKNOWN` if nobody has looked."""
        hosted = self._partitions.hosted(topic.name, index)
        here = hosted.log._internal.epoch if hosted is not None and hosted.is_open else UNKNOWN
        seen = self._seen.get(_id(topic))
        return here if seen is None else max(here, seen.epochs.get(index, UNKNOWN))

    async def learn(self, topics: Sequence[Topic]) -> None:
        """Look at what is not known, or not fresh: one look for all of them, whoever asks meanwhile."""
        due = [topic for topic in topics if self._is_due(topic)]
        if not due or self._loop.time() < self._not_waited_until:
            return
        new = [topic for topic in due if _id(topic) not in self._looking]
        if new:
            self._forget_deleted()
            task = self._loop.create_task(self._look(new))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            for topic in new:
                self._looking[_id(topic)] = task
        _, late = await asyncio.wait({self._looking[_id(topic)] for topic in due}, timeout=PATIENCE_S)
        if late:  # once is enough: clients ask again and again while a store is down
            self._not_waited_until = self._loop.time() + FRESH_S

    def _is_due(self, topic: Topic) -> bool:
        seen = self._seen.get(_id(topic))
        if (
            seen is not None
            and seen.generation == self._cluster.generation
            and self._loop.time() < seen.looked_at + FRESH_S
        ):
            return False
        return bool(self._of_others(topic))

    def _of_others(self, topic: Topic) -> list[int]:
        """Those of its partitions that this broker does not write."""
        hosted = (self._partitions.hosted(topic.name, index) for index in range(topic.partitions))
        return [index for index, each in enumerate(hosted) if each is None or not each.is_owned]

    async def _look(self, topics: list[Topic]) -> None:
        began_at, generation = self._loop.time(), self._cluster.generation
        wanted = [(topic, index) for topic in topics for index in self._of_others(topic)]
        try:
            async with self._workers:
                found = await self._partitions.run(_epochs, wanted)
            for topic in topics:
                known = self._seen.setdefault(_id(topic), _Seen({}, began_at, generation))
                known.looked_at, known.generation = began_at, generation
            for (topic, index), epoch in found.items():
                epochs = self._seen[_id(topic)].epochs
                epochs[index] = max(epoch, epochs.get(index, UNKNOWN))
        finally:
            for topic in topics:
                del self._looking[_id(topic)]

    def _forget_deleted(self) -> None:
        for topic_id in [each for each in self._seen if self._partitions.name_of(each) is None]:
            del self._seen[topic_id]


def _id(topic: Topic) -> UUID:
    return topic._internal.descriptor.topic_id


def _epochs(wanted: list[tuple[Topic, int]]) -> dict[tuple[Topic, int], int]:
    """In a worker thread. What cannot be read is left out: its own readers and writers are told why."""
    logs: dict[tuple[Topic, int], PartitionLog] = {}
    for topic, index in wanted:
        with suppress(LogStoreError):
            logs[topic, index] = topic.partition(index)
    look_at_all(list(logs.values()))
    found: dict[tuple[Topic, int], int] = {}
    for place, each in logs.items():
        with suppress(LogStoreError, OSError):
            found[place] = each._internal.epoch
    return found


def look_at_hosted(partitions: Sequence[HostedPartition]) -> float:
    """In a worker thread: all of them as they are now. The moment since when they have been looked at."""
    since = partitions[0].log._internal.lanes.now()
    look_at_all([each.log for each in partitions])
    return since


def look_at_all(logs: Sequence[PartitionLog]) -> None:
    """In a worker thread: all of them as they are now, with a few requests for each lane. One that cannot be read is left as
    it is, and the others are asked for by themselves."""
    try:
        look_at([each._internal for each in logs])
    except (LogStoreError, OSError) as error:
        log.warning("%d partitions are looked at one by one: %s", len(logs), error)
        for each in logs:
            with suppress(LogStoreError, OSError):
                each.refresh()
