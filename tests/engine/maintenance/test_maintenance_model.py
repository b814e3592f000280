"""L01, L15, L17, L18, L23, L24, W05, W06: any order of appends, merges, expiries, collections, crashes and long pauses.

A few processes on one store, on one clock: writers that take over from each other or share, readers that look now and then,
maintenance in all of them. Each may be killed at any request that it makes, before or after it is carried out. After every
step the log is compared with a list of what was acked: what a newcomer reads, and what those read who were there before.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

import logstore
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import Fenced, LogStoreError, OffsetOutOfRange, OutcomeUnknown
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.dying import DiesAt
from tests.support.engine.harness import crash, open_store, until

pytestmark = pytest.mark.usefixtures("no_checkpoints")

GRACE_S = 3600.0
STEPS = 60  # enough for a sleeper to find its place taken, merged and free again
PROCESSES_MAX = 4
REQUESTS_MAX = 40  # a process is killed at one of so many, if it gets there
PAUSES_S = (1.0, 1.0, 60.0, GRACE_S / 3, GRACE_S, 3 * GRACE_S)


@dataclass
class Process:
    store: logstore.Store
    lifeline: DiesAt
    writes: bool
    low: int = 0
    high: int = 0

    @property
    def log(self) -> PartitionLog:
        return self.store.topic("t").partition(0)

    def end(self) -> None:
        crash(self.store)


@dataclass
class World:
    """`values` are those that were acked, by offset; `doubtful` one that may have been stored and nobody heard of."""

    seed: int
    writer: str
    objects: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    values: list[bytes] = field(default_factory=list)
    doubtful: bytes | None = None
    low: int = 0
    processes: list[Process] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        with self._opened(self.objects) as store:
            store.create_topic("t", segment_bytes=4000, retention_bytes=self.rng.choice([None, 3000]))

    def _opened(self, objects: object, writer: str | None = None) -> logstore.Store:
        seed = self.rng.getrandbits(64)
        return open_store(
            objects,  # type: ignore[arg-type]
            self.clock,
            writer=writer or self.writer,
            delete_grace=GRACE_S,
            seed=seed,
            cache_bytes=self.rng.choice([0, 1 << 20]),
        )

    # What happens

    def step(self) -> None:
        rng = self.rng
        if not self.processes or (len(self.processes) < PROCESSES_MAX and rng.random() < 0.1):
            self._start()
        process = rng.choice(self.processes)
        actions = [self._append] * 6 + [self._read] * 3 + [self._checkpoint, self._merge, self._collect] * 2
        actions += [self._pause] * 2 + [self._expire, self._delete_before, self._sweep]
        action = rng.choice(actions)
        self.trail.append(f"{self.processes.index(process)} {action.__name__}")
        if rng.random() < 0.15:
            process.lifeline.die_at(rng.randrange(REQUESTS_MAX), after=rng.random() < 0.5)
        try:
            action(process)
        except LogStoreError as error:
            if not process.lifeline.died:
                raise AssertionError(f"{action.__name__}: {error!r}") from error
        if process.lifeline.died:
            self.trail.append("  and dies")
            self.processes.remove(process)
            process.end()
        else:
            process.lifeline.die_at(-1, after=False)

    def _start(self) -> None:
        lifeline, writes = DiesAt(self.objects), self.rng.random() < 0.7
        store = self._opened(lifeline, None if writes else "read_only")
        process = Process(store, lifeline, writes)
        self.processes.append(process)
        self.trail.append(f"{len(self.processes) - 1} opens{'' if writes else ' to read'}")

    def _append(self, process: Process) -> None:
        if not process.writes:
            return
        for _ in range(self.rng.choice([1, 1, 5, 12])):
            value = b"%d-" % len(self.values) + self.rng.randbytes(self.rng.choice([4, 4, 600]))
            self.doubtful = value
            try:
                future = process.log.submit(value)
                until(lambda future=future: future.done() or process.lifeline.died)  # type: ignore[misc]
                if process.lifeline.died:
                    return
                receipt = future.result()
            except (Fenced, OutcomeUnknown) as error:
                self.trail.append(f"  {type(error).__name__}")
                process.log.reopen()
                self._settle()
                return
            self._settle()
            if self.values[receipt.offset : receipt.offset + 1] != [value]:
                raise AssertionError(f"acked at {receipt.offset} and not there")

    def _settle(self) -> None:
        """Whether what is in doubt was stored: a newcomer sees it, or nobody ever will."""
        with self._opened(self.objects, "read_only") as store:
            log = store.topic("t").partition(0)
            end = log.durable_high_watermark
            if end == len(self.values) + 1 and self.doubtful is not None:
                (record,) = log.records(len(self.values))
                assert record.value == self.doubtful, "somebody else's record"
                self.values.append(self.doubtful)
        self.doubtful = None

    def _read(self, process: Process) -> None:
        self._check(process.log, process)

    def _checkpoint(self, process: Process) -> None:
        if process.writes:
            log = process.log
            log.refresh()
            assert log._internal._checkpointer is not None
            with suppress(LogStoreError):
                log._internal._checkpointer._maintain(log._internal._checkpointer.write())

    def _merge(self, process: Process) -> None:
        process.log._internal.maintenance.compact(self.clock.now_ms(), self.rng.randbytes(16))

    def _collect(self, process: Process) -> None:
        process.log._internal.maintenance.collect(self.clock.now_ms(), self.rng.choice([None, 3]))

    def _sweep(self, process: Process) -> None:
        process.store.collect_garbage()

    def _expire(self, process: Process) -> None:
        process.log._internal.maintenance.expire(self.clock.now_ms())

    def _delete_before(self, process: Process) -> None:
        if process.writes:
            log = process.log
            offset = self.rng.randint(0, len(self.values))
            if self.rng.random() < 0.8:
                offset = min(offset, self.low + 5)
            log.refresh()
            offset = min(offset, log.durable_high_watermark)
            assert log.delete_before(offset) >= offset

    def _pause(self, process: Process) -> None:
        self.clock.advance(self.rng.choice(PAUSES_S))

    # What must hold

    def check(self) -> None:
        self._settle()
        with self._opened(self.objects, "read_only") as store:
            newcomer = Process(store, DiesAt(self.objects), False)
            self._check(newcomer.log, newcomer)
            assert newcomer.low >= self.low, "the log begins earlier again"
            self.low = newcomer.low

    def _check(self, log: PartitionLog, process: Process) -> None:
        log.refresh()
        low, high = log.low_watermark, log.durable_high_watermark
        assert process.low <= low <= high, "a mark moved back"
        # A writer that does not know of its successor yet knows of nothing that came since.
        assert high == len(self.values) or not log._internal.follows, (
            f"sees {high} of {len(self.values)} records"
        )
        assert process.high <= high, "a mark moved back"
        for _ in range(2):
            try:
                records = list(log.records(low))
                break
            except OffsetOutOfRange as trimmed:  # its objects are gone: it knows of that by now
                low = trimmed.low
        assert [record.offset for record in records] == list(range(low, high))
        assert [record.value for record in records] == self.values[low:high]
        process.low, process.high = low, high


def run(seed: int, steps: int) -> None:
    world = World(seed, "exclusive" if seed % 2 else "shared")
    try:
        for _ in range(steps):
            world.step()
            world.check()
    except BaseException as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(world.trail))
        raise
    finally:
        for process in world.processes:
            process.end()


@pytest.mark.parametrize("seed", range(12))
def test_L23_L24_any_order_of_appends_and_upkeep(seed: int) -> None:
    run(seed, STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 1400, 40))
def test_L23_L24_any_order_of_appends_and_upkeep_for_long(first: int) -> None:
    for seed in range(first, first + 40):
        run(seed, 3 * STEPS)
