"""Replicated writers as a state machine: one to three replicas feed, submit ahead, lag, crash, restart, promote.

The oracle is the source itself: at every moment the partition holds exactly its beginning, and the upper says how much.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.engine.replicated.source_ranges import Applied
from logstore.errors import Fenced, GapError, LogStoreError
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore
from tests.support.engine.actors import Process, contents, kill
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("quiet")

FAULTS = (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.REFUSE, Fault.CONFLICT)


def source(lower: int, upper: int) -> list[bytes]:
    return [b"%d" % at for at in range(lower, upper)]


class Replica:
    def __init__(self, objects: MemoryStore, name: int, *, standby: bool = False) -> None:
        self.faulty = FaultyStore(objects, seed=name)
        self.process = Process(self.faulty, name, lambda _: None, append_timeout=PATIENCE_S)
        self.writer: ReplicatedWriter = self.process.log.replicated(f"replica-{name}", standby=standby)
        self.fed = 0
        self.highest = self.writer.frontier
        self.ahead: list[tuple[Future[Applied], int]] = []


class ReplicatedModel(RuleBasedStateMachine):
    @initialize(replicas=st.integers(1, 3))
    def start(self, replicas: int) -> None:
        self.objects = MemoryStore()
        self.names = iter(range(1_000_000))
        self.replicas = [Replica(self.objects, next(self.names)) for _ in range(replicas)]
        self.acked = 0
        self.sent = 0

    @rule(number=st.integers(0, 2), size=st.integers(1, 5))
    def feed(self, number: int, size: int) -> None:
        """The next piece of the source, from where this replica is: it may be far behind the others."""
        replica = self.pick(number)
        lower, upper = replica.fed, replica.fed + size
        self.sent = max(self.sent, upper)
        with self.fences(number):
            applied = replica.writer.compare_and_append(source(lower, upper), lower, upper)
            assert applied.upper >= upper
            replica.fed = upper
            self.acked = max(self.acked, upper)

    @rule(number=st.integers(0, 2), skip=st.integers(1, 4))
    def a_gap_is_refused(self, number: int, skip: int) -> None:
        """Above everything that was ever sent: what a replica holds ahead, or sent as it died, may land at any moment."""
        replica = self.pick(number)
        with self.fences(number):
            lower = max(replica.writer.upper(), self.sent) + skip
            with pytest.raises(GapError):
                replica.writer.compare_and_append(source(lower, lower + 1), lower, lower + 1)

    @rule(number=st.integers(0, 2), skip=st.integers(0, 4), size=st.integers(1, 3))
    def submit_ahead(self, number: int, skip: int, size: int) -> None:
        """Above the frontier: kept until somebody has filled what is before it."""
        replica = self.pick(number)
        with self.fences(number):
            lower = replica.writer.frontier + skip
            self.sent = max(self.sent, lower + size)
            future = replica.writer.submit(source(lower, lower + size), lower, lower + size)
            replica.ahead.append((future, lower + size))

    @rule(number=st.integers(0, 2))
    def look(self, number: int) -> None:
        with self.fences(number):
            self.pick(number).writer.upper()

    @rule(number=st.integers(0, 2), fault=st.sampled_from(FAULTS))
    def next_put_ends_badly(self, number: int, fault: Fault) -> None:
        self.pick(number).faulty.fail("put", suffix=".seg", with_=fault)

    @rule(number=st.integers(0, 2), in_the_middle=st.booleans(), cold=st.booleans())
    def crash_and_restart(self, number: int, in_the_middle: bool, cold: bool) -> None:
        replica = self.pick(number)
        if in_the_middle:
            replica.faulty.fail("put", suffix=".seg", with_=Fault.LOSE_ANSWER)
            replica.faulty.fail("get", suffix=".seg", with_=Fault.UNAVAILABLE, times=None)
            self.sent = max(self.sent, replica.fed + 2)
            with suppress(LogStoreError):
                replica.writer.submit(source(replica.fed, replica.fed + 2), replica.fed, replica.fed + 2)
        self.restart(number)
        if not cold:
            fresh = self.pick(number)
            fresh.fed = fresh.writer.upper()

    @rule(number=st.integers(0, 2))
    def a_standby_takes_over(self, number: int) -> None:
        """Started beside the others, promoted: they are all fenced, and it goes on from the upper."""
        self.restart(number, standby=True)
        replica = self.pick(number)
        replica.fed = replica.writer.promote()
        assert replica.fed >= self.acked

    def restart(self, number: int, *, standby: bool = False) -> None:
        place = number % len(self.replicas)
        kill(self.replicas[place].process)
        self.replicas[place] = Replica(self.objects, next(self.names), standby=standby)

    def pick(self, number: int) -> Replica:
        return self.replicas[number % len(self.replicas)]

    def fences(self, number: int) -> Fencing:
        return Fencing(self, number)

    @precondition(lambda self: hasattr(self, "replicas"))
    @invariant()
    def the_partition_holds_the_beginning_of_the_source(self) -> None:
        stored = contents(self.objects)
        assert stored == list(enumerate(source(0, len(stored))))
        assert len(stored) >= self.acked
        for replica in self.replicas:
            assert replica.writer.frontier >= replica.highest
            replica.highest = replica.writer.frontier

    def teardown(self) -> None:
        """If one runs, the partition moves: the first replica feeds on to a new end, and what it held ahead comes true."""
        if not hasattr(self, "replicas"):
            return
        with self.fences(0):
            self.pick(0).writer.upper()
        last = self.pick(0)
        end = max([len(contents(self.objects)), *(upper for _, upper in last.ahead)]) + 3
        assert last.writer.compare_and_append(source(last.fed, end), last.fed, end).upper >= end
        assert all(future.result(PATIENCE_S).upper >= upper for future, upper in last.ahead)
        assert last.writer.health()["state"] == "writing"
        for replica in self.replicas[1:]:
            kill(replica.process)
        last.process.close()
        stored = contents(self.objects)  # what others had held ahead may stand behind our end
        assert len(stored) >= end
        assert stored == list(enumerate(source(0, len(stored))))


class Fencing:
    """A replica that finds itself fenced is started again, as its platform would."""

    def __init__(self, model: ReplicatedModel, number: int) -> None:
        self.model = model
        self.number = number

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Fenced):
            return False
        with pytest.raises(Fenced):
            self.model.pick(self.number).writer.upper()  # for good
        self.model.restart(self.number)
        return True


ReplicatedModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.timeout(900)
class TestW07ToW14ReplicatedModel(ReplicatedModel.TestCase):  # type: ignore[misc, valid-type]
    """Any mix of lag, crash, restart and promotion: the partition holds the source, once, in order."""
