"""Taking away what nobody needs any more, in the whole store: what `Store.collect_garbage` and `logstore gc` do.

* What is left of deleted topics, if whoever deleted them died half-way, or what somebody else brought there afterwards, who
  was compacting, or slept. There is no grace for these: they are gone.
* Objects of topics that were merged or expired longer ago than the grace period, and merged ones that never came to be
  named, because the compaction died (see `strays`).
* Holds on topics that are gone (see `layout.holds`).
* Entries of lanes, for the whole store only (see `lane_maintenance`).
* What shared writers have put aside and nobody may commit any more (see `engine.shared.pending`).
* What Spark jobs staged longer ago than that and nobody will publish (see `staged`).

Everything is safe to repeat, to interrupt anywhere, and to run in several processes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache, partial

from logstore.engine.chain.chain import Chain
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.garbage.removal import end_claims, is_removed, leftovers, remove_partition
from logstore.engine.garbage.staged import unneeded
from logstore.engine.maintenance.lane_maintenance import LaneMaintenance
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.engine.runtime import Runtime
from logstore.errors import CorruptData, UnknownTopic, UnsupportedStore
from logstore.layout.catalog import Catalog, Removal, TopicDescriptor
from logstore.layout.paths import HOLDS_PREFIX, TOPICS_PREFIX, PartitionPaths, behind
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)


class Sweeper:
    def __init__(self, runtime: Runtime, catalog: Catalog) -> None:
        self._runtime = runtime
        self._catalog = catalog

    def finish(self, name: str, removal: Removal) -> list[Garbage]:
        """Remove what is left of a deleted incarnation, and note that nothing is. Returns what went."""
        runtime, chains = self._runtime, list(self._chains(name, removal))
        end_claims(chains, runtime.lanes, runtime.new_id, runtime.clock.now_ms())
        found = fan_out([partial(self._remove, chain) for chain in chains])
        gone = [item for items in found for item in items]
        self._catalog.removed(name, removal)
        return gone

    def collect(self, topic: str | None) -> Iterator[list[Garbage]]:
        """Everything, once, or what belongs to one topic: what went, piece by piece. It goes on as long as it is asked."""
        for name, removal in self._unfinished(topic):
            yield self.finish(name, removal)
        for chain in self._removed(topic):
            yield self._remove(chain)
        for upkeep in self._upkeep(topic):
            yield upkeep.collect(self._runtime.clock.now_ms())
            yield upkeep.sweep(self._runtime.clock.now_ms())
        if topic is None:
            yield LaneMaintenance(self._runtime).collect()
        yield self._deleted(self._pending(topic) + self._staged(topic) + self._holds(topic))

    def _deleted(self, garbage: list[Garbage]) -> list[Garbage]:
        for item in garbage:
            self._runtime.store.delete(item.key)
        return garbage

    def garbage(self, topic: str | None) -> Iterator[list[Garbage]]:
        """What `collect` would take away now, likewise."""
        now_ms = self._runtime.clock.now_ms()
        chains = {
            chain.paths: chain
            for name, removal in self._unfinished(topic)
            for chain in self._chains(name, removal)
        }
        chains |= {chain.paths: chain for chain in self._removed(topic)}
        for chain in chains.values():
            yield [Garbage(info.key, info.size) for info in leftovers(chain)]
        for upkeep in self._upkeep(topic):
            yield upkeep.garbage(now_ms) + upkeep.strays(now_ms)
        if topic is None:
            yield LaneMaintenance(self._runtime).garbage()
        yield self._pending(topic) + self._staged(topic) + self._holds(topic)

    def _remove(self, chain: Chain) -> list[Garbage]:
        gone = remove_partition(chain, self._runtime.new_id, self._runtime.clock.now_ms())
        return [Garbage(info.key, info.size) for info in gone]

    def _removed(self, topic: str | None) -> Iterator[Chain]:
        """Partitions that were removed, and into which something came afterwards. Three requests for each that ever was.

        That no descriptor names an incarnation proves nothing; that its chain was ended does.
        """
        for paths in self._partitions(TOPICS_PREFIX if topic is None else f"{TOPICS_PREFIX}{topic}/"):
            chain = Chain(self._runtime.store, paths, self._runtime.rng, self._runtime.lanes)
            if (
                not self._may_be_alive(paths.topic, paths.incarnation)
                and leftovers(chain)
                and is_removed(chain)
            ):
                yield chain

    def _may_be_alive(self, topic: str, incarnation: str) -> bool:
        """Also if the descriptor cannot be read: then nobody knows, and what is left of that name stays."""
        try:
            return self._catalog.find(topic).incarnation == incarnation
        except UnknownTopic:
            return False
        except (CorruptData, UnsupportedStore) as error:
            logger.error("%s; what is left of older topics of that name stays", error)
            return True

    def _partitions(self, prefix: str) -> Iterator[PartitionPaths]:
        """Every partition that has an object, found by leaping from one to the next."""
        after = ""
        while (info := next(iter(self._runtime.store.list(prefix, after)), None)) is not None:
            paths = PartitionPaths.of(info.key)
            after = info.key if paths is None else behind(paths.prefix)
            if paths is not None:
                yield paths

    def _staged(self, topic: str | None) -> list[Garbage]:
        """Only for the whole store: one staged object may hold records of many topics."""
        if topic is not None:
            return []
        return unneeded(self._runtime.store, self._runtime.clock.now_ms(), self._runtime.config.delete_grace)

    def _holds(self, topic: str | None) -> list[Garbage]:
        """Of incarnations that are gone: nobody copies those any more."""
        found: list[Garbage] = []
        may_be_alive = cache(self._may_be_alive)
        for info in self._runtime.store.list(HOLDS_PREFIX if topic is None else f"{HOLDS_PREFIX}{topic}/"):
            name, incarnation, _ = info.key.removeprefix(HOLDS_PREFIX).split("/", 2)
            if not may_be_alive(name, incarnation):
                found.append(Garbage(info.key, info.size))
        return found

    def _unfinished(self, topic: str | None) -> list[tuple[str, Removal]]:
        found = [(name, removal) for name, removal in self._catalog.unfinished() if topic in (None, name)]
        if topic is not None and not found:
            self._catalog.find(topic)  # or it is unknown
        return found

    def _chains(self, name: str, removal: Removal) -> Iterator[Chain]:
        for number in range(removal.partitions):
            paths = PartitionPaths(name, removal.incarnation, number)
            yield Chain(self._runtime.store, paths, self._runtime.rng, self._runtime.lanes)

    def _upkeep(self, topic: str | None) -> Iterator[Maintenance]:
        """Maintenance of every partition there is."""
        for known, chain in self._living(topic):
            yield Maintenance(chain, self._runtime.reader, known.config, self._runtime.config.delete_grace)

    def _pending(self, topic: str | None) -> list[Garbage]:
        return [dead for _, chain in self._living(topic) for dead in dead_pending(chain)]

    def _living(self, topic: str | None) -> Iterator[tuple[TopicDescriptor, Chain]]:
        """Every partition there is."""
        for name in self._catalog.names() if topic is None else [topic]:
            try:
                known = self._catalog.find(name)
            except UnknownTopic:
                continue  # deleted: now, or before we began to finish that
            except (CorruptData, UnsupportedStore):
                if topic is not None:
                    raise
                continue  # said by `names`; its objects stay, and the other topics' do not stay because of it
            for chain in self._chains(name, Removal(known.incarnation, known.partitions)):
                yield known, chain


def dead_pending(chain: Chain) -> list[Garbage]:
    """Put aside so many places ago that nobody may store it: nothing, or another object, holds those appends."""
    listed = [
        (chain.paths.pending_name(info.key), info) for info in chain.store.list(chain.paths.pending_prefix)
    ]
    end = chain.load().tail.next_seq if listed else 0
    return [Garbage(info.key, info.size) for name, info in listed if name and name.is_dead(end)]
