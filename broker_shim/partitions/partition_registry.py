"""The topics and partitions that this broker knows. What is cached here is only ever a hint about the store.

A topic is looked up in the store when a client asks for one that is not known, and again when it is asked about and
what is known is not fresh: a service, the command line or another broker may have changed it, or deleted it and
created another of its name. Runs on the event loop; asks the store in worker threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from broker_shim.net.fairness import few_at_once
from broker_shim.partitions.cluster import Cluster
from broker_shim.partitions.hosted_partition import Host, HostedPartition
from broker_shim.partitions.topic_rules import TopicRules
from broker_shim.wire.codes import Code
from logstore.errors import Fenced, InvalidTopicName, LogStoreError, TopicExists, UnknownTopic
from logstore.topic import Topic

log = logging.getLogger(__name__)
REFRESH_AFTER_S = 5.0
REFRESH_PATIENCE_S = 1.0
LISTING_PATIENCE_S = 5.0
ABSENT_FOR_S = 1.0
ABSENT_MAX = 10_000
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Known:
    topic: Topic
    rules: TopicRules
    looked_at: float
    hosted: dict[int, HostedPartition] = field(default_factory=dict)


class PartitionRegistry:
    def __init__(
        self, host: Host, cluster: Cluster, on_lost: Callable[[HostedPartition, BaseException], None]
    ) -> None:
        self._host = host
        self._store, self._loop = host.store, host.loop
        self._cluster = cluster
        self._on_lost = on_lost
        self.on_open_transactions: Callable[[], None] = _nobody
        self._known: dict[str, _Known] = {}
        self._names: dict[UUID, str] = {}  # by the topics' ids
        self._looking: dict[str, asyncio.Task[Topic | None]] = {}
        self._absent: dict[str, float] = {}
        self._not_asked_until = 0.0
        self._next_listing: asyncio.Task[list[str]] | None = None
        self._listing = asyncio.Lock()  # held while the store lists the topics
        self._was_listed = False
        self._listed_at = -ABSENT_FOR_S
        self._generation = 0

    # ── what is known ────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str) -> Topic | None:
        known = self._known.get(name)
        return known.topic if known is not None else None

    def names(self) -> list[str]:
        """Of the topics that are known here: some of those there are."""
        return list(self._known)

    def nearest(self, rack: str, partition: HostedPartition) -> int | None:
        """The broker that a consumer in this rack should read from instead of us, who lead it."""
        return self._cluster.nearest(rack, partition.topic, partition.index)

    def leads(self, partition: HostedPartition) -> bool:
        return self._cluster.leads(partition.topic, partition.index)

    def get(self, name: str, index: int, rack: str = "") -> HostedPartition | Code:
        """The partition, if this broker leads it, or serves it to consumers of this rack; else why not."""
        known = self._known.get(name)
        if known is None or not 0 <= index < known.topic.partitions:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if not self._cluster.leads(name, index) and not self._cluster.may_follow(rack):
            return Code.NOT_LEADER_OR_FOLLOWER
        hosted = known.hosted.get(index)
        if hosted is None:
            hosted = known.hosted[index] = HostedPartition(known.topic, index, self._host, known.rules, self)
        return hosted

    @property
    def stamp(self) -> tuple[int, int, bool]:
        """As long as it is the same, `get` answers the same for what it has found before."""
        return self._generation, self._cluster.generation, self._cluster.may_lead

    def hosted(self, name: str, index: int) -> HostedPartition | None:
        """The partition if it is in use here, led or not."""
        known = self._known.get(name)
        return known.hosted.get(index) if known is not None else None

    def all_hosted(self) -> Iterator[HostedPartition]:
        for known in self._known.values():
            yield from known.hosted.values()

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id, if it is known."""
        return self._names.get(topic_id)

    # ── asking the store ─────────────────────────────────────────────────────────────────────────────────

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that blocks in a worker thread."""
        return await self._loop.run_in_executor(self._host.workers, function, *arguments)

    async def find(self, name: str) -> Topic | None:
        """The topic, asked for in the store if it is not known or not fresh. While the store does not answer, what is
        known has to do.
        """
        known = self._known.get(name)
        if known is None:
            return await self._look(name)
        now = self._loop.time()
        if now < max(known.looked_at + REFRESH_AFTER_S, self._not_asked_until):
            return known.topic
        try:
            return await asyncio.wait_for(asyncio.shield(self._look(name)), REFRESH_PATIENCE_S)
        except TimeoutError:
            # Once is enough: a client that asks about a thousand topics would wait a thousand times.
            self._not_asked_until = self._loop.time() + REFRESH_AFTER_S
            return known.topic
        except (LogStoreError, OSError):
            known.looked_at = self._loop.time()
            return known.topic

    async def find_id(self, topic_id: UUID) -> Topic | None:
        """The topic with this id. Ids are not in the store: if it is not known, all topics are looked at, at most once in
        a while.
        """
        if self.missing_id((topic_id,)) is not None:
            await self.find_all()
        name = self._names.get(topic_id)
        topic = None if name is None else await self.find(name)
        return topic if topic is not None and topic._internal.descriptor.topic_id == topic_id else None

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names that a request should look up first: not known, and not known to be absent either."""
        now = self._loop.time()
        unknown = (name for name in names if name not in self._known and self._absent.get(name, now) <= now)
        return list(dict.fromkeys(unknown))

    def missing_id(self, ids: Iterable[UUID]) -> UUID | None:
        """One of the ids that should be looked for first: not known, and the topics were not all looked at just now."""
        if self._loop.time() < self._listed_at + ABSENT_FOR_S:
            return None
        return next((each for each in ids if each not in self._names), None)

    async def look_up(self, names: Iterable[str]) -> None:
        """Ask the store for topics; those that are not there are remembered as absent for a moment."""

        async def look(name: str) -> None:
            with suppress(LogStoreError, OSError):
                await self._look(name)

        await few_at_once(look, names)

    def _look(self, name: str) -> asyncio.Task[Topic | None]:
        """One request to the store, however many clients ask at once."""
        task = self._looking.get(name)
        if task is None:
            task = self._looking[name] = self._loop.create_task(self._looked(name))
            task.add_done_callback(lambda done: self._looking.pop(name, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _looked(self, name: str) -> Topic | None:
        try:
            return self.learn(await self.run(self._store.topic, name))
        except (UnknownTopic, InvalidTopicName):
            self.forget(name)
            if len(self._absent) >= ABSENT_MAX:
                self._absent.clear()
            self._absent[name] = self._loop.time() + ABSENT_FOR_S
            return None

    async def find_all(self) -> list[str]:
        """The names of all topics. While the store does not answer, those that are known: a consumer that subscribes by
        pattern would give up every partition that is not in the list.
        """
        if self._next_listing is None:
            self._next_listing = self._loop.create_task(self._listed())
            self._next_listing.add_done_callback(lambda done: done.cancelled() or done.exception())
        patience = LISTING_PATIENCE_S if self._was_listed else None
        try:
            return await asyncio.wait_for(asyncio.shield(self._next_listing), patience)
        except (TimeoutError, LogStoreError, OSError) as error:
            log.warning("topics are listed from memory: %s", error or "the store does not answer")
            return sorted(self._known)

    async def list_all(self) -> bool:
        """Learn of all topics. False if they have never been listed: then what is known says nothing about the others."""
        await self.find_all()
        return self._was_listed

    async def _listed(self) -> list[str]:
        """One listing at a time, however many clients ask: each would keep a worker. Whoever asks while one runs gets the
        next: the one that runs may have begun before there was a topic that the client has just created.
        """
        async with self._listing:
            self._next_listing = None
            began = self._loop.time()
            names = await self.run(self._store.topics)
        self._was_listed = True
        listed = set(names)
        # Of what we have learned of since it began, a topic that was created meanwhile say, the listing knows nothing.
        gone = [name for name, each in self._known.items() if name not in listed and each.looked_at < began]
        for name in gone:
            self.forget(name)
        await asyncio.gather(*(self.find(name) for name in names), return_exceptions=True)
        self._listed_at = self._loop.time()
        return sorted({*names, *self._known})

    async def create(
        self,
        name: str,
        partitions: int,
        kafka: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Topic:
        """`kafka`: the settings as a client gave them; `settings`: what they mean for the log."""
        create = self._store._create_topic_of_kafka
        return self.learn(await self.run(create, name, partitions, kafka or {}, settings or {}))

    async def ensure(self, name: str, partitions: int) -> Topic:
        """The topic, created if need be. Of two brokers that create it at once, one finds the other's."""
        topic = self.topic(name) or await self.find(name)
        if topic is not None:
            return topic
        try:
            return await self.create(name, partitions)
        except TopicExists:
            return self.learn(await self.run(self._store.topic, name))

    def learn(self, topic: Topic) -> Topic:
        """Remember a topic as the store has it now. One that was recreated starts with nothing in use."""
        known, now = self._known.get(topic.name), topic._internal.descriptor
        if known is None or known.topic._internal.descriptor.incarnation != now.incarnation:
            self.forget(topic.name)
            self._names[now.topic_id] = topic.name
            rules = TopicRules(now, self._host.max_message_bytes)
            known = self._known[topic.name] = _Known(topic, rules, self._loop.time())
            self._generation += 1
        known.topic = topic
        known.rules.learn(now)
        known.looked_at = self._loop.time()
        self._absent.pop(topic.name, None)
        return topic

    def forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._names.pop(known.topic._internal.descriptor.topic_id, None)
            self._generation += 1

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    def lost(self, partition: HostedPartition, error: BaseException) -> None:
        """A writer of ours was stopped: by somebody else's fence, by the deletion of the topic, or by an error that only a
        new writer gets past. That one is still ours to open.
        """
        if isinstance(error, UnknownTopic):
            self.forget(partition.topic)
        elif isinstance(error, Fenced):
            self._cluster.fenced(partition.topic, partition.index)
        self._on_lost(partition, error)

    def found_open(self, partition: HostedPartition) -> None:
        """A partition has open transactions, of before this broker served it."""
        self.on_open_transactions()

    @staticmethod
    def _give_up(partitions: Iterable[HostedPartition], why: str) -> list[asyncio.Future[None]]:
        flushing = (each.release(why) for each in partitions)
        return [future for future in flushing if future is not None]

    async def release_unled(self) -> None:
        """The view has changed: flush what now belongs to others, before they fence us."""
        me = self._cluster.me.node_id
        moving = [each for each in self.all_hosted() if self._cluster.leader(each.topic, each.index) != me]
        flushing = self._give_up(moving, "another broker leads it")
        await asyncio.gather(*flushing, return_exceptions=True)


def _nobody() -> None:
    """Nobody ends transactions yet."""
