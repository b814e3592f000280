"""B13 and N06: compacted topics whose partitions move between processes while any of them compacts, merges and collects.

Each process has a clock of its own, and deletes at once what it may. Whoever reads the log as it is then finds the table
that the acked records make, and every record that is left at its offset.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

import logstore
from logstore import Record
from logstore.arrow.plan.log_partitions import load
from logstore.objects import MemoryStore
from logstore.objects.wrappers.slices import SlicedStore
from logstore.testing import ManualClock
from tests.support.engine.cleaning import append_all, check_same, history
from tests.support.engine.harness import crash, open_store

pytestmark = pytest.mark.usefixtures("no_checkpoints", "quiet")

PARTITIONS = 3
TURNS = 40


class Fleet:
    """Processes that come, take partitions from each other, are killed or closed, and keep the log up meanwhile."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.objects = MemoryStore()
        self.stores: list[logstore.Store] = []
        self.clocks: dict[int, ManualClock] = {}
        self.acked: dict[int, list[Record]] = defaultdict(list)
        self.removed = 0
        self.start().create_topic("t", PARTITIONS, compact=True, segment_bytes=3000, tombstone_seconds=20)

    def start(self, **settings: object) -> logstore.Store:
        clock = ManualClock()
        clock.advance(self.rng.choice([0, 1000, 1e6]))
        settings = {"delete_grace": 0.0, "take_over": True, "lanes": self.rng.choice([1, 1, 2]), **settings}
        store = open_store(self.objects, clock, seed=self.rng.getrandbits(60), **settings)
        self.clocks[id(store)] = clock
        self.stores.append(store)
        return store

    def append(self) -> None:
        store, number = self.rng.choice(self.stores), self.rng.randrange(PARTITIONS)
        if store.config.writer == "read_only":
            return
        log = store.topic("t").partition(number)
        for records in history(self.rng.getrandbits(30), self.rng.randint(1, 8), keys=6):
            try:
                self.acked[number] += append_all(log, [records])
            except logstore.Fenced:
                log.reopen()
                return

    def keep_up(self) -> None:
        store, number = self.rng.choice(self.stores), self.rng.randrange(PARTITIONS)
        now_ms = self.clocks[id(store)].now_ms()
        maintenance = store.topic("t").partition(number)._internal.maintenance
        act = self.rng.choice(["clean", "clean", "compact", "collect", "gc"])
        if act == "clean":
            self.removed += maintenance.clean(now_ms).records
        elif act == "compact":
            while maintenance.compact(now_ms, self.rng.randbytes(16)):
                pass
        elif act == "collect":
            maintenance.collect(now_ms)
        else:
            store.collect_garbage()

    def come_and_go(self) -> None:
        if len(self.stores) < 3:
            self.start(**self.rng.choice([{}, {}, {"writer": "read_only", "lanes": 1}]))
            return
        store = self.stores.pop(self.rng.randrange(len(self.stores)))
        if self.rng.random() < 0.5:
            crash(store)
        else:
            store.close()

    def checkpoint(self) -> None:
        for store in self.stores:
            for lane in store._lanes._lanes:
                lane.checkpoints.write()

    def pass_time(self) -> None:
        for clock in self.clocks.values():
            clock.advance(self.rng.choice([1, 5, 30]))

    def check(self) -> None:
        with open_store(self.objects, ManualClock(), writer="read_only") as reader:
            topic = reader.topic("t")
            paths = [topic.partition(number)._internal.paths for number in range(PARTITIONS)]
            ends = [each.end for each in load(SlicedStore(self.objects), paths)]
            for number in range(PARTITIONS):
                check_same(self.acked[number], list(topic.partition(number).records()))
                assert ends[number] == len(self.acked[number]), "as a planner knows it, by the lane"


def run(seed: int) -> int:
    fleet = Fleet(seed)
    acts = [fleet.append] * 6 + [fleet.keep_up] * 5 + [fleet.come_and_go, fleet.checkpoint, fleet.pass_time]
    for turn in range(TURNS):
        fleet.rng.choice(acts)()
        if turn % 5 == 4:
            fleet.check()
    fleet.check()
    for store in fleet.stores:
        crash(store)
    return fleet.removed


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.soak) for n in range(8, 200))]
)
def test_B13_N06_any_history_of_owners_leaves_the_table_as_it_was(seed: int) -> None:
    run(seed)


def test_B13_N06_histories_compact_what_was_in_lanes() -> None:
    assert sum(run(seed) for seed in range(200, 204)) > 100
