"""Threads that race: producers at every level, readers, flushes, failing uploads, crashes; judged by the history.

The state machine next door is sequential and exact; this one is neither, and meets the interleavings of locks instead.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from random import Random

import pytest

from logstore.config import Ack, Visibility
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import AppendTimeout, BufferFull
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, History, check_history
from tests.support.engine.harness import background, crash, disk_of, open_store, partition
from tests.support.patience import PATIENCE_S

PRODUCERS = 6
ROUNDS = 25


class Racers:
    """The threads of one life."""

    def __init__(self, history: History, process: str, log: PartitionLog, seed: int) -> None:
        self.history = history
        self.process = process
        self.log = log
        self.seed = seed
        self.stop = threading.Event()

    def run(self) -> None:
        producers = [background(self.produce, number) for number in range(PRODUCERS)]
        others: list[Future[None]] = [background(self.watch, number) for number in range(3)]
        others.append(background(self.flush))
        for producer in producers:
            producer.result(PATIENCE_S * 2)
        self.stop.set()
        for other in others:
            other.result(PATIENCE_S)

    def produce(self, number: int) -> None:
        rng = Random(f"{self.seed}/{number}")
        acks: tuple[Ack, ...] = ("buffered", "local", "durable")
        for turn in range(ROUNDS):
            values = [
                b"%s/%d/%d/%d" % (self.process.encode(), number, turn, n) for n in range(rng.randint(1, 3))
            ]
            ack = rng.choice(acks)
            with self.history.append(self.process, values, ack) as call:
                try:
                    receipt = self.log.append(values, ack=ack, timeout=rng.choice((0.002, PATIENCE_S)))
                except BufferFull:
                    call.failed(certain=True)
                except AppendTimeout:
                    call.failed(certain=False)
                else:
                    call.acked(receipt.offset)
            if rng.random() < 0.3:
                self.look(rng)

    def watch(self, number: int) -> None:
        rng = Random(f"{self.seed}/reader/{number}")
        while not self.stop.is_set():
            self.look(rng)

    def look(self, rng: Random) -> None:
        kinds: tuple[Visibility, ...] = ("buffered", "durable")
        visibility = rng.choice(kinds)
        offset = rng.randint(0, self.log._internal.high_watermark(visibility))
        with self.history.read(self.process, offset, visibility) as call:
            call.returned(self.log.read(offset, rng.choice((0, 200, 1 << 20)), visibility=visibility))

    def flush(self) -> None:
        rng = Random(f"{self.seed}/flush")
        while not self.stop.wait(rng.uniform(0, 0.01)):
            try:
                self.log.flush(timeout=0.2)
            except AppendTimeout:
                continue


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_L01_L03_L09_L11_L13_L15_L17_L19_racing_threads_through_three_lives(
    seed: int, tmp_path: Path
) -> None:
    history, objects = History(), MemoryStore()
    disk, before = tmp_path / "disk-0", None
    for number in range(3):
        process = f"life-{number}"
        faulty = FaultyStore(objects, seed=seed * 10 + number)
        history.opened(process)
        store = open_store(
            faulty,
            wal_dir=str(disk),
            probe_interval=0.002,
            max_buffered_bytes=20_000,
            max_batch_bytes=4000,
            flush_bytes=1000,
            cache_bytes=5000,
            seed=seed * 10 + number,
        )
        log = partition(store)
        log.open_writer()
        history.recovered(process, before)
        faulty.random(put=0.25, suffix=".seg")
        Racers(history, process, log, seed * 100 + number).run()
        assert store._runtime.budget.used_max <= 20_000
        crash(store, faulty)
        history.crashed(process)
        disk, before = disk_of(disk, tmp_path / f"disk-{number + 1}"), process
    history.opened("judge")
    store = open_store(objects, wal_dir=str(disk))
    log = partition(store)
    log.open_writer()
    history.recovered("judge", before)
    position = 0
    while position < log.buffered_high_watermark:
        with history.read("judge", position) as call:
            result = log.read(position)
            call.returned(result)
        position = result.next_offset
    store.close()
    check_history(history.events)
    assert len(history.events) > 1000
