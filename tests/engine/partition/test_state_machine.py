"""The whole engine against everything that can happen to it, in any order that Hypothesis can think of.

Appends at every level, flushes, uploads that fail, lose their answer or hang, crashes with and without the disk, clean
closes, and a second writer that takes over while the first goes on without knowing. Everything that anybody saw is written
down and judged by `check_history`; what was acked durable is also kept in a plain list, and a fresh reader must find exactly
that at the end, in that order, and nothing that nobody appended.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import Future
from concurrent.futures import wait as wait_all
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import (
    AppendTimeout,
    BufferFull,
    Closed,
    Determinate,
    Fenced,
    LogStoreError,
    OutcomeUnknown,
)
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore, Gate, GatedStore, History, ManualClock, check_history
from logstore.testing.history_events import AppendCall
from tests.support.engine.harness import background, crash, disk_of, drive, open_store, pairs, partition

ACKS = st.sampled_from(["buffered", "local", "durable"])
APPENDS = st.lists(st.tuples(ACKS, st.integers(1, 3)), min_size=1, max_size=4)
VISIBILITIES = st.sampled_from(["buffered", "durable"])
FAULTS = st.sampled_from(
    [Fault.REFUSE, Fault.CONFLICT, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.UNAVAILABLE]
)


@dataclass
class Life:
    """One process: a store, its way to the objects, its disk, and the uploads that hang."""

    name: str
    faulty: FaultyStore
    gated: GatedStore
    store: logstore.Store
    log: PartitionLog
    disk: Path | None
    gate: Gate | None = None
    gates: ExitStack = field(default_factory=ExitStack)
    pending: list[Future[logstore.Receipt]] = field(default_factory=list)

    def let_go(self) -> None:
        self.gates.close()
        self.gate = None


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="logstore-machine-"))
        self.objects = MemoryStore()
        self.clock = ManualClock()
        self.history = History()
        self.names = iter(range(10_000))
        self.values = iter(range(1_000_000))
        self.model: list[tuple[int, bytes]] = []
        self.wrong: list[str] = []
        self.old: Life | None = None

    @initialize(ack=ACKS)
    def begin(self, ack: str) -> None:
        self.default_ack = ack
        self.life = self._new_life(self.folder / "disk", after=None)
        self.history.opened("reader")
        self.reader = open_store(self.objects, self.clock, writer="read_only")
        self.watched = self.reader.topic("t").partition(0)

    def _new_life(self, disk: Path | None, after: str | None) -> Life:
        name = f"life-{next(self.names)}"
        faulty = FaultyStore(self.objects)
        gated = GatedStore(faulty)
        self.history.opened(name)
        store = open_store(
            gated,
            self.clock,
            ack=self.default_ack if disk is not None or self.default_ack != "local" else "durable",
            wal_dir=None if disk is None else str(disk),
            append_timeout=5.0,
            flush_interval=2.0,
            flush_bytes=400,
            probe_interval=0.5,
            seed=len(self.history.events),
        )
        life = Life(name, faulty, gated, store, partition(store), disk)
        drive(self.clock, background(life.log.open_writer, timeout=1e6))  # another thread makes the claim
        self.history.recovered(name, after)
        return life

    # What a producer does

    @rule(appends=APPENDS)
    def append(self, appends: list[tuple[str, int]]) -> None:
        for ack, count in appends:
            self._append(self.life, ack, count)

    @rule(appends=APPENDS, after=st.booleans(), visibility=VISIBILITIES)
    def append_while_uploads_hang(self, appends: list[tuple[str, int]], after: bool, visibility: str) -> None:
        """Some of it in a window whose upload hangs (`after`: is carried out, and its answer hangs), some behind it."""
        self._hang(after)
        self.append(appends)
        self.clock.advance(2.0)
        self.append(appends)
        self._scan(self.life.name, self.life.log, visibility, 0)

    def _append(self, life: Life, ack: str, count: int) -> None:
        if ack == "local" and life.disk is None:
            ack = "buffered"
        values = [b"value-%d" % next(self.values) for _ in range(count)]
        call = self.history.begin_append(life.name, values, ack)  # type: ignore[arg-type]
        try:
            future = drive(self.clock, background(life.log.submit, values, ack=ack))
        except (BufferFull, Fenced, Closed):
            call.failed(certain=True)  # it was refused, so it has taken nothing
            return
        future.add_done_callback(lambda done: self._ended(call, done, values, ack))
        life.pending.append(future)

    def _ended(self, call: AppendCall, done: Future[logstore.Receipt], values: list[bytes], ack: str) -> None:
        if done.exception() is not None:
            call.failed(certain=False)
            return
        receipt = done.result()
        assert receipt.last_offset - receipt.offset + 1 == len(values)
        assert receipt.durability == ack
        call.acked(receipt.offset)
        if ack == "durable":
            self.model.extend(enumerate(values, receipt.offset))
            self.watched.refresh()
            if self.watched.durable_high_watermark <= receipt.last_offset:
                self.wrong.append(f"{receipt} was acked and another process does not find it")

    @rule(seconds=st.sampled_from([None, 0.1, 1.0, 3.0]))
    def flush_or_let_time_pass(self, seconds: float | None) -> None:
        if seconds is not None:
            self.clock.advance(seconds)
            return
        # A caller waits in real time, which the manual clock does not shorten: where uploads hang, not for long.
        timeout = 3.0 if self.life.gate is None else 0.1
        try:
            mark = drive(self.clock, background(self.life.log.flush, timeout=timeout))
        except AppendTimeout:
            return  # its uploads hang, or fail for longer than that
        assert mark == self.life.log.buffered_high_watermark

    # What the object store does

    @rule(fault=FAULTS, times=st.integers(1, 3))
    def uploads_fail(self, fault: Fault, times: int) -> None:
        self.life.faulty.fail("put", suffix=".seg", times=times, with_=fault)

    def _hang(self, after: bool) -> None:
        life = self.life
        if life.gate is None:
            life.gate = life.gates.enter_context(life.gated.hold("put", suffix=".seg", after=after))

    @precondition(lambda self: self.life.gate is not None)
    @rule(how=st.sampled_from(["release", "lose", "fail"]), for_good=st.booleans())
    def uploads_go_on(self, how: str, for_good: bool) -> None:
        gate = self.life.gate
        assert gate is not None
        if how == "lose":
            gate.release_lost()
        elif how == "fail":
            gate.fail(ConnectionError("reset by peer"))
        else:
            gate.release()
        if for_good:
            self.life.let_go()

    # Death, and others

    @rule(how=st.sampled_from(["crash", "crash, disk lost", "close", "taken over"]), lands=st.booleans())
    def end(self, how: str, lands: bool) -> None:
        if how == "close":
            self._close_and_reopen()
        elif how == "taken over" and self.old is None:
            # The old writer goes on and does not know. Its uploads may hang, before or after they are carried out.
            self.old, self.life = self.life, self._new_life(None, after=None)
        else:
            self._crash_and_reopen(lands, disk_survives=how == "crash")

    def _crash_and_reopen(self, lands: bool, disk_survives: bool) -> None:
        """`lands`: uploads that hang reach the store before the process dies; else they never will."""
        life = self.life
        self._kill(life, lands)
        disk = None
        if life.disk is not None and disk_survives:
            disk = disk_of(life.disk, self.folder / f"disk-{next(self.names)}")
        kept = life.name if disk is not None else None
        self.life = self._new_life(disk or self.folder / f"disk-{next(self.names)}", after=kept)

    def _kill(self, life: Life, lands: bool) -> None:
        if life.gate is not None and not lands:
            life.gate.fail(Determinate("the process died before its request left"))
        if not lands:
            life.faulty.down()
        life.let_go()
        life.faulty.down()
        crash(life.store)
        self.history.crashed(life.name)

    def _close_and_reopen(self) -> None:
        life = self.life
        life.let_go()
        state, lost = life.log._internal.state, life.log.lost_ranges()
        drive(self.clock, background(life.store.close, timeout=1e6))
        assert state.durable == state.buffered
        with open_store(self.objects, writer="read_only") as fresh:
            # Tells the judge that all of it is durable now.
            self._scan(life.name, fresh.topic("t").partition(0), "buffered", 1 << 20)
        self.history.crashed(life.name)
        self.life = self._new_life(self.folder / f"disk-{next(self.names)}", after=None)
        assert self.life.log.lost_ranges() == lost, "a clean close leaves no gap"

    @precondition(lambda self: self.old is not None)
    @rule(ack=ACKS, lands=st.booleans())
    def the_old_writer_ends(self, ack: str, lands: bool) -> None:
        old = self.old
        assert old is not None
        already = {id(future) for future in old.pending if future.done()}
        self._append(old, "buffered" if ack == "local" else ack, 1)
        self._scan(old.name, old.log, "durable", 0)
        old.let_go()
        if lands:
            self._settle(old)
            for future in old.pending:
                if id(future) not in already and future.exception() is not None:
                    assert isinstance(future.exception(), Fenced)
        self._kill(old, lands=False)
        self.old = None

    def _settle(self, life: Life) -> None:
        """Let everything that is pending end."""
        everything: Future[None] = background(lambda: wait_all(life.pending) and None)
        drive(self.clock, everything)

    # What readers see

    @rule(place=st.floats(0, 1), visibility=VISIBILITIES)
    def look(self, place: float, visibility: str) -> None:
        self._scan("reader", self.watched, visibility, 300)
        log = self.life.log
        offset = int(place * log._internal.high_watermark(visibility))  # type: ignore[arg-type]
        with self.history.read(self.life.name, offset, visibility) as call:  # type: ignore[arg-type]
            call.returned(log.read(offset, 0, visibility=visibility))  # type: ignore[arg-type]

    @invariant()
    def every_acked_record_is_there(self) -> None:
        self._scan(self.life.name, self.life.log, "buffered", 150)

    def _scan(self, name: str, log: PartitionLog, visibility: str, max_bytes: int) -> None:
        position = 0
        while True:
            with self.history.read(name, position, visibility) as call:  # type: ignore[arg-type]
                result = log.read(position, max_bytes, visibility=visibility)  # type: ignore[arg-type]
                call.returned(result)
            if result.next_offset == position:
                return
            position = result.next_offset

    @invariant()
    def every_durable_ack_was_true(self) -> None:
        assert self.wrong == []

    @invariant()
    def marks_are_in_order(self) -> None:
        log = self.life.log
        with log._internal.state._lock:
            state = log._internal.state
            assert state.low <= state.durable <= state.buffered
            assert state.buffered <= max(state.tail.reserved_until, state.durable), (
                "shown without a reservation"
            )

    def teardown(self) -> None:
        try:
            self._judge()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _judge(self) -> None:
        if not hasattr(self, "life"):
            return
        if self.old is not None:
            self._kill(self.old, lands=True)
        life = self.life
        life.let_go()
        life.faulty.heal()
        self._settle(life)
        drive(self.clock, background(life.store.close, timeout=1e6))
        used = life.store.health()["buffered_bytes"]
        self.reader.close()
        with open_store(self.objects, writer="read_only") as fresh:
            log = fresh.topic("t").partition(0)
            self.history.opened("judge")
            self._scan("judge", log, "durable", 1 << 20)
            stored = pairs(log)
        check_history(self.history.events)
        assert sorted(self.model) == [record for record in stored if record in set(self.model)]
        assert used == 0
        for future in life.pending:
            error = future.exception()
            assert error is None or isinstance(error, OutcomeUnknown | LogStoreError)


QUICK = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_L01_L02_L03_L09_L11_L13_L15_L17_L19_W05_any_order_of_events() -> None:
    run_state_machine_as_test(LogMachine, settings=QUICK)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_order_of_events_for_long() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(QUICK, max_examples=3000, stateful_step_count=60, derandomize=False)
    )
