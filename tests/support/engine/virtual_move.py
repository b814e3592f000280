"""One partition moves out of a busy lane, in virtual time: every request takes as long as every other, and all else nothing.

So a time is a number of requests that somebody waited for, one after the other. Or requests take what S3's take.
A run is a function of its arguments.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from itertools import count
from unittest.mock import patch

import logstore
from logstore.errors import Closed, Fenced
from logstore.objects import MemoryStore
from logstore.objects.fan_out import fan_out
from logstore.testing import S3_LATENCY, SlowStore
from tests.simulation.kernel import Kernel, Life
from tests.support.engine.virtual_race import VirtualClock

REQUEST_S = 0.025
"""What a request takes."""


@dataclass
class Move:
    """All in request times. `elsewhere`: how long each ack of another partition took while the move was under way; `before`:
    in as long a time before it. `took`: until the first append of the taker was acked."""

    elsewhere: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    fenced: int = 0
    took: float = 0.0
    objects: MemoryStore = field(default_factory=MemoryStore)


def run_move(
    partitions: int,
    *,
    seed: int = 1,
    consent: bool = False,
    takers: int = 1,
    as_s3: bool = False,
    **settings: object,
) -> Move:
    """Each partition of the owner has a producer, which appends one record after the other, `durable`; the first `takers` of
    them are taken over by processes of their own, at the same time. `consent`: the owner gives the first up before.
    `as_s3`: requests take what S3's take; times are told in the median of a PUT."""
    move, faults = Move(), list[BaseException]()
    kernel = Kernel(seed, lambda task, error: faults.append(error))
    acked: list[tuple[int, int, bytes]] = []
    moves_at, is_over = [float("inf")], False
    stores, request_s = count(), S3_LATENCY["put"].p50_s if as_s3 else REQUEST_S

    def opened(name: str, **more: object) -> logstore.Store:
        times = S3_LATENCY if as_s3 else dict.fromkeys(S3_LATENCY, request_s)
        slow = SlowStore(move.objects, sleep=kernel.sleep, seed=seed * 100 + next(stores), **times)
        rng = random.Random(f"{seed}/{name}")
        return logstore.open(slow, clock=VirtualClock(kernel), rng=rng, take_over=True, **more)  # type: ignore[arg-type]

    def produce(log: logstore.PartitionLog, number: int) -> None:
        while not is_over:
            began = kernel.now
            value = b"%d" % len(acked)
            try:
                acked.append((number, log.append(value, timeout=1e6).offset, value))
            except (Fenced, Closed) as error:
                if number >= takers:
                    move.failed.append(error)
                move.fenced += 1
                return
            if number >= takers:
                told = move.elsewhere if kernel.now > moves_at[0] else move.before
                told.append((kernel.now - began) / request_s)

    def take(number: int) -> None:
        with opened(f"taker {number}", **settings) as taker:
            value = b"taken %d" % number
            log = taker.topic("t").partition(number)
            acked.append((number, log.append(value, timeout=1e6).offset, value))
            move.took = max(move.took, (kernel.now - moves_at[0]) / request_s)

    def drive() -> None:
        nonlocal is_over
        owner = opened("owner", lanes=1, flush_interval=60.0)
        topic = owner.create_topic("t", partitions)
        for ack in [topic.partition(number).submit(b"first") for number in range(partitions)]:
            ack.result()
        acked.extend((number, 0, b"first") for number in range(partitions))
        logs = [topic.partition(number) for number in range(partitions)]
        producers = [threading.Thread(target=produce, args=(log, number)) for number, log in enumerate(logs)]
        for thread in producers:
            thread.start()
        kernel.sleep(40 * request_s)
        moves_at[0] = kernel.now
        if consent:
            logs[0].reopen()
        threads = [threading.Thread(target=take, args=(number,)) for number in range(takers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kernel.sleep(20 * request_s)
        is_over = True
        for thread in producers:
            thread.join()
        owner.close()

    def first() -> None:
        task = kernel.start(drive, Life("move"), "move")
        task.joiners.append(kernel.current)
        kernel.park()

    with patch.object(fan_out, "__defaults__", (lambda: kernel.now,)):  # else all requests look quick
        kernel.run(first)
    if faults:
        raise faults[0]
    with logstore.open(move.objects, writer="read_only") as store:
        stored = [
            (number, record.offset, record.value)
            for number in range(partitions)
            for record in store.topic("t").partition(number).records()
        ]
    assert sorted(acked) == stored, "what was acked is stored, once, where its ack says"
    return move
