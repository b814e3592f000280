"""Zero-downtime cut-over and active-active: any lag, any crash; the partition holds what one writer would have stored."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.errors import LogStoreError
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore
from tests.support.engine.actors import Process, contents, kill
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("quiet")

FAULTS = (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.REFUSE, Fault.CONFLICT)


class Replica:
    """One writer of the source `0, 1, 2 …`, on a store that fails now and then."""

    def __init__(self, objects: MemoryStore, name: int, rng: random.Random, *, start: int = 0) -> None:
        self.faulty = FaultyStore(objects, seed=name)
        self.process = Process(self.faulty, name, lambda _: None, append_timeout=PATIENCE_S)
        self.writer: ReplicatedWriter = self.process.log.replicated(f"replica-{name}")
        self.fed = start
        self._rng = rng
        self.seen = 0

    def feed(self, limit: int) -> None:
        """A random piece of the source; now and then its PUT ends badly."""
        upper = min(limit, self.fed + self._rng.randint(1, 7))
        if self._rng.random() < 0.3:
            self.faulty.fail("put", suffix=".seg", with_=self._rng.choice(FAULTS))
        applied = self.writer.compare_and_append(
            [b"%d" % at for at in range(self.fed, upper)], self.fed, upper
        )
        assert applied.upper >= upper
        assert self.writer.frontier >= max(applied.upper, self.seen)  # never below an upper that it has seen
        self.seen, self.fed = self.writer.frontier, upper

    def kill(self) -> None:
        kill(self.process)

    def kill_in_the_middle(self, limit: int) -> None:
        """A PUT is under way, done or not, and its writer dies before it can know."""
        self.faulty.fail("put", suffix=".seg", with_=self._rng.choice(FAULTS[:2]))
        self.faulty.fail("get", suffix=".seg", with_=Fault.UNAVAILABLE, times=None)
        upper = min(limit, self.fed + 3)
        with suppress(LogStoreError):
            self.writer.submit([b"%d" % at for at in range(self.fed, upper)], self.fed, upper)
        self.kill()


@pytest.mark.parametrize("seed", range(200))
def test_W12_W14_cold_replacement_catches_up_while_the_old_one_is_killed(seed: int) -> None:
    """The old writer is far ahead; a cold one starts at 0; the old one dies at a random moment. No wedge, contents equal."""
    rng, objects, end = random.Random(seed), MemoryStore(), 40
    old = Replica(objects, 0, rng)
    for _ in range(rng.randint(3, 6)):
        old.feed(end)
    new = Replica(objects, 1, rng)
    dies_after = rng.randint(0, 12)
    alive = True
    for step in range(200):
        if alive and step == dies_after:
            old.kill_in_the_middle(end) if rng.random() < 0.5 else old.kill()
            alive = False
        elif alive and rng.random() < 0.6:
            old.feed(end)
        new.feed(end)
        if new.fed == end:
            break
    assert new.fed == end, f"wedged at {new.fed}"
    assert new.writer.frontier == end
    if alive:
        old.kill()
    new.process.close()
    assert contents(objects) == [(at, b"%d" % at) for at in range(end)]


@pytest.mark.parametrize("seed", range(6))
def test_W13_W14_active_active_long_run(seed: int) -> None:
    """Three writers, 400 source offsets; any of them lags, pauses, dies and starts again, cold or warm, in any mix."""
    rng, objects, end = random.Random(seed), MemoryStore(), 400
    names = iter(range(1000))
    replicas = [Replica(objects, next(names), rng) for _ in range(3)]
    crashes = 0
    while min(replica.fed for replica in replicas) < end:
        number = rng.choices(range(3), weights=(6, 3, 1))[0]
        replica = replicas[number]
        if rng.random() < 0.05:
            replica.kill_in_the_middle(end) if rng.random() < 0.5 else replica.kill()
            crashes += 1
            fresh = Replica(objects, next(names), rng)
            fresh.fed = 0 if rng.random() < 0.3 else fresh.writer.upper()
            replicas[number] = fresh
        else:
            replica.feed(end)
    for replica in replicas:
        replica.process.close()
    assert crashes > 3
    assert contents(objects) == [(at, b"%d" % at) for at in range(end)]
