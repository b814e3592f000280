"""One to three replicas of an upsert view against a dict: fed, advanced, paused, crashed, restarted, in any order.

The source is one list of updates by time, the same for all. At every upper that the log ever has, its contents must be the
dict fold of the source below that upper. And nothing may be stuck at the end.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import logstore
from logstore.errors import Fenced, LogStoreError
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore
from logstore.upsert import UpsertView, decode_change
from tests.support.engine.actors import TOPIC, Process, kill
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("quiet")

Update = tuple[bytes, bytes | None, int]
FAULTS = (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.REFUSE, Fault.CONFLICT)


def fold(source: list[list[Update]], upper: int) -> dict[bytes, bytes]:
    """The oracle: every update below `upper`, by time and then by order."""
    state: dict[bytes, bytes] = {}
    for updates in source[:upper]:
        for key, value, _ in sorted(updates, key=lambda update: update[2]):
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    return state


def check_log(objects: MemoryStore, source: list[list[Update]]) -> int:
    """Replay what is in the log: right at every upper, at most one change for a key and time. Returns the upper."""
    with logstore.open(objects, writer="read_only") as store:
        log = store.topic(TOPIC).partition(0)
        state: dict[bytes, bytes] = {}
        seen: set[tuple[bytes | None, int]] = set()
        at = 0
        for record in log.records():
            old, new, time = decode_change(record.value)
            while at < time:
                at += 1
                assert state == fold(source, at)
            assert (record.key, time) not in seen
            seen.add((record.key, time))
            assert state.get(record.key or b"") == old
            if new is None:
                del state[record.key or b""]
            else:
                state[record.key or b""] = new
        upper = max(0, log._internal.state.tail.source_upper)
        assert at <= upper
        assert state == fold(source, upper)
        return upper


class Replica:
    def __init__(self, objects: MemoryStore, name: int, *, standby: bool = False) -> None:
        self.faulty = FaultyStore(objects, seed=name)
        self.process = Process(self.faulty, name, lambda _: None, append_timeout=PATIENCE_S)
        self.view = UpsertView(self.process.log, f"replica-{name}", standby=standby)
        self.fed = 0  # times below are applied
        self.highest = self.view.frontier

    def feed(self, source: list[list[Update]], rng: random.Random, times: int) -> None:
        """The updates of the next times, in any order of arrival."""
        upper = min(len(source), self.fed + times)
        batch = [(k, v, order, time) for time in range(self.fed, upper) for k, v, order in source[time]]
        rng.shuffle(batch)
        self.view.apply_many(batch)
        self.fed = upper

    def advance(self) -> None:
        assert self.view.advance(self.fed) >= self.fed

    def check(self, source: list[list[Update]]) -> None:
        assert self.view.frontier >= self.highest
        self.highest = self.view.frontier
        assert dict(self.view.items()) == fold(source, self.view.frontier)


class UpsertModel(RuleBasedStateMachine):
    """`source[t]` holds the updates of time t."""

    @initialize(replicas=st.integers(1, 3), seed=st.integers(0, 10_000))
    def start(self, replicas: int, seed: int) -> None:
        self.objects = MemoryStore()
        self.rng = random.Random(seed)
        self.source: list[list[Update]] = []
        self.names = iter(range(1_000_000))
        self.replicas = [Replica(self.objects, next(self.names)) for _ in range(replicas)]

    @rule(
        times=st.lists(
            st.lists(
                st.tuples(
                    st.sampled_from([b"a", b"b", b"c"]),
                    st.sampled_from([None, b"1", b"2"]),
                    st.integers(0, 3),
                ),
                max_size=4,
                unique_by=lambda update: (update[0], update[2]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def source_grows(self, times: list[list[Update]]) -> None:
        self.source += times

    @rule(number=st.integers(0, 2), times=st.integers(1, 4))
    def feed(self, number: int, times: int) -> None:
        self.pick(number).feed(self.source, self.rng, times)

    @rule(number=st.integers(0, 2))
    def advance(self, number: int) -> None:
        try:
            self.pick(number).advance()
        except Fenced:
            self.restart(number)

    @rule(number=st.integers(0, 2))
    def deliver_feedback(self, number: int) -> None:
        try:
            self.pick(number).view.refresh()
        except Fenced:
            self.restart(number)

    @rule(number=st.integers(0, 2), times=st.integers(1, 6))
    def a_standby_takes_over(self, number: int, times: int) -> None:
        """It held a part of the input, or more than all others, when it was promoted. The others are fenced."""
        self.restart(number, standby=True)
        replica = self.pick(number)
        replica.feed(self.source, self.rng, times)
        assert replica.view.advance(replica.fed) <= len(self.source)
        assert replica.view.promote() >= replica.fed

    @rule(number=st.integers(0, 2), fault=st.sampled_from(FAULTS))
    def next_put_ends_badly(self, number: int, fault: Fault) -> None:
        self.pick(number).faulty.fail("put", suffix=".seg", with_=fault)

    @rule(number=st.integers(0, 2), in_the_middle=st.booleans())
    def crash_and_restart(self, number: int, in_the_middle: bool) -> None:
        replica = self.pick(number)
        if in_the_middle:
            replica.faulty.fail("put", suffix=".seg", with_=Fault.LOSE_ANSWER)
            replica.faulty.fail("get", suffix=".seg", with_=Fault.UNAVAILABLE, times=None)
            with suppress(LogStoreError):
                replica.view.advance(replica.fed, timeout=0.01)
        self.restart(number)

    def restart(self, number: int, *, standby: bool = False) -> None:
        place = number % len(self.replicas)
        kill(self.replicas[place].process)
        self.replicas[place] = Replica(self.objects, next(self.names), standby=standby)

    def pick(self, number: int) -> Replica:
        return self.replicas[number % len(self.replicas)]

    @precondition(lambda self: hasattr(self, "replicas"))
    @invariant()
    def contents_are_the_fold_at_every_upper(self) -> None:
        check_log(self.objects, self.source)
        for replica in self.replicas:
            replica.check(self.source)

    def teardown(self) -> None:
        """Nothing is stuck: when all are fed to the end, all get there."""
        if not hasattr(self, "replicas"):
            return
        for number in range(len(self.replicas)):
            self.deliver_feedback(number)  # who was fenced starts again
            replica = self.replicas[number]
            replica.feed(self.source, self.rng, len(self.source))
            replica.advance()
            replica.check(self.source)
            assert replica.view.frontier == len(self.source)
            assert replica.view.stashed == 0
            replica.process.close()
        assert check_log(self.objects, self.source) == len(self.source)


UpsertModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.timeout(900)
class TestU01ToU08UpsertModel(UpsertModel.TestCase):  # type: ignore[misc, valid-type]
    """Any number of writers, any lag, crash, restart: contents = dict fold of the source."""


@pytest.mark.parametrize("seed", range(60))
def test_U06_U07_cold_replacement_catches_up_while_the_old_one_dies(seed: int) -> None:
    """The old writer is far ahead; the new one starts from nothing; the old one is killed at a random moment."""
    rng, objects, end = random.Random(seed), MemoryStore(), 30
    keys = [b"%d" % number for number in range(5)]
    source: list[list[Update]] = [
        [
            (rng.choice(keys), rng.choice([None, b"x%d" % time, b"y"]), order)
            for order in range(rng.randint(0, 3))
        ]
        for time in range(end)
    ]
    old, new = Replica(objects, 0), None
    dies_at = rng.randint(5, 25)
    for step in range(300):
        if step < dies_at:
            old.feed(source, rng, rng.randint(1, 4))
            old.advance()
        elif step == dies_at:
            kill(old.process)
        if step >= 4:
            new = new or Replica(objects, 1)
            new.feed(source, rng, rng.randint(1, 2))
            if rng.random() < 0.7:
                new.advance()
            if new.fed == end:
                break
    assert new is not None
    new.advance()
    assert new.view.frontier == end
    new.check(source)
    if step < dies_at:
        kill(old.process)
    new.process.close()
    assert check_log(objects, source) == end
