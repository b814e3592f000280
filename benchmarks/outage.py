"""A service at full load through an outage of ten minutes, in a process of its own: how much memory does it hold?

    python -m benchmarks.outage {bulk|single} ‹folder› ‹buffer limit› ‹cache limit› ‹minutes›

Time is driven by hand, so ten minutes take seconds; the producers never stop trying. First the cache is filled by a
scan and the writers are brought up to speed (a busy one reserves a million offsets). Then the store goes down, the
buffer fills and every append is refused for lack of room, over and over, while a reader goes on reading the acked tail.
At the end the store comes back: everything that was acked must be there, once, in order, and nothing that was refused.
Prints one JSON object: resident memory after each simulated minute, its peak, and what happened. The store is a folder,
so that no object counts as our memory.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
from pathlib import Path

import logstore
from logstore.objects import LocalStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import ManualClock

MIB = 1 << 20
PRODUCERS = 2
STEP_S = 1.0
VALUE_SIZE = 100
BULK = 1000
RNG = random.Random(9)
TAIL = RNG.randbytes(VALUE_SIZE - 16)


class Folder(LocalStore):
    """Refuses every write while `down`."""

    down = False
    refused = 0

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self.down:
            self.refused += 1
            raise logstore.StoreUnavailable("the store is down")
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


def status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


class Producer(threading.Thread):
    """Appends without a pause. `acked` counts the records that were taken, `refused` the appends that were not."""

    def __init__(self, log: logstore.PartitionLog, bulk: bool, answered: threading.Condition) -> None:
        super().__init__(daemon=True)
        self.acked = self.refused = 0
        self.stopping = False
        self._log = log
        self._bulk = bulk
        self._answered = answered

    def run(self) -> None:
        while not self.stopping:
            count = BULK if self._bulk else 1
            values = [b"%016d" % number + TAIL for number in range(self.acked, self.acked + count)]
            try:
                self._log.append(values, ack="buffered", timeout=STEP_S / 2)
                self.acked += count
            except logstore.BufferFull:
                with self._answered:
                    self.refused += 1
                    self._answered.notify_all()


def through(bulk: bool, folder: str, buffer_bytes: int, cache_bytes: int, minutes: int) -> dict[str, object]:
    clock, objects = ManualClock(), Folder(folder)
    store = logstore.open(
        objects, clock=clock, compression="none", max_buffered_bytes=buffer_bytes, cache_bytes=cache_bytes
    )
    topic = store.create_topic("t", partitions=PRODUCERS, segment_bytes=8 * MIB)
    logs = [topic.partition(number) for number in range(PRODUCERS)]
    fill_cache(store, logs, cache_bytes)
    get_up_to_speed(store, logs)  # at the end: what a busy writer reserves shrinks with each quiet flush
    starts = [log.durable_high_watermark for log in logs]
    objects.down = True
    answered = threading.Condition()
    producers = [Producer(log, bulk, answered) for log in logs]
    for producer in producers:
        producer.start()
    resident = [status_mib("VmRSS")]
    for _ in range(minutes):
        for _ in range(round(60 / STEP_S)):
            advance(clock, producers, answered)
        for log in logs:
            log.read(max(log.low_watermark, log.buffered_high_watermark - BULK))
        resident.append(status_mib("VmRSS"))
    peak, used = status_mib("VmHWM"), store._runtime.budget.used_max
    objects.down = False
    for producer in producers:
        producer.stopping = True
    while any(producer.is_alive() for producer in producers):
        clock.advance(STEP_S)
        producers[0].join(0.001)
    drain(store, clock, logs)
    for log, start, producer in zip(logs, starts, producers, strict=True):
        found = [record.value for record in log.records(start, visibility="durable")]
        assert found == [b"%016d" % number + TAIL for number in range(producer.acked)]
    return {
        "resident_mib": resident,
        "peak_mib": peak,
        "buffered_max": used,
        "cached": store._runtime.cache.used,
        "refused_puts": objects.refused,
        "refused_appends": sum(producer.refused for producer in producers),
        "acked_records": sum(producer.acked for producer in producers),
    }


def get_up_to_speed(store: logstore.Store, logs: list[logstore.PartitionLog]) -> None:
    """Append until the writers reserve as many offsets at a time as they ever do."""
    block = [b"x"] * 10_000
    for log in logs:
        for _ in range(40):
            log.append(block, ack="buffered")
    store.flush()


def fill_cache(store: logstore.Store, logs: list[logstore.PartitionLog], cache_bytes: int) -> None:
    block = RNG.randbytes(MIB // 2)
    for number in range(cache_bytes // len(block) + PRODUCERS):
        logs[number % PRODUCERS].append(block, ack="buffered")
    store.flush()
    for log in logs:
        for _ in log.records(visibility="durable"):
            pass


def advance(clock: ManualClock, producers: list[Producer], answered: threading.Condition) -> None:
    """One step of simulated time, in which every producer has been refused at least once; in the first step, after all the
    appends for which there was room."""
    before = [producer.refused for producer in producers]
    while any(producer.refused == count for producer, count in zip(producers, before, strict=True)):
        clock.advance(STEP_S / 2)
        with answered:
            answered.wait(0.005)


def drain(store: logstore.Store, clock: ManualClock, logs: list[logstore.PartitionLog]) -> None:
    flushing = threading.Thread(target=store.flush, args=(3600.0,))
    flushing.start()
    while flushing.is_alive():
        clock.advance(0.1)
        flushing.join(0.005)
    assert all(log.durable_high_watermark == log.buffered_high_watermark for log in logs)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # an outage is loud, and this one is wanted
    kind, place, *numbers = sys.argv[1:]
    print(json.dumps(through(kind == "bulk", place, *(int(number) for number in numbers))))
