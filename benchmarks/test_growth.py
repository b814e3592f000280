"""How cost grows: one thing is made larger, the rest stays, and the exponent is fitted: 1 is linear, 0 is constant.

An exponent says more than a time: it holds on any machine. Each sweep checks what it stored. All run in memory, so that
what grows is ours and not a server's, and all sizes are measured in turns.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import logstore
from benchmarks.material import rows
from benchmarks.measure import Figures, Point, in_turns
from logstore.objects import MemoryStore
from logstore.testing import SlowStore

SUITE = "growth"
ROOM: dict[str, Any] = {"max_buffered_bytes": 1 << 30, "flush_bytes": 8 << 20}


def sweep(work: dict[int, Callable[[], None]], turns: int) -> list[Point]:
    """Seconds of the best turn of each size."""
    found = in_turns({str(size): run for size, run in work.items()}, turns)
    return [(size, found[str(size)].best) for size in work]


def test_records_in_an_append(figures: Figures, quick: bool) -> None:
    sizes, turns = (1, 10, 100, 1_000, 10_000), 3 if quick else 7
    records = [logstore.Record(value, key) for key, value in rows(max(sizes))]
    with logstore.open(MemoryStore(), compression="none", **ROOM) as store:
        topic = store.create_topic("t", partitions=len(sizes))
        rounds = {size: max(1, 10_000 // size) for size in sizes}

        def run(place: int, size: int) -> None:
            log, some = topic.partition(place), records[:size]
            for _ in range(rounds[size]):
                log.append(some, ack="buffered")

        points = sweep({size: functools.partial(run, n, size) for n, size in enumerate(sizes)}, turns)
        for place, size in enumerate(sizes):
            found = [(record.key, record.value) for record in topic.partition(place).records()]
            assert found == [(r.key, r.value) for r in records[:size]] * rounds[size] * (turns + 1)
    figures.add_sweep(
        SUITE,
        "time of an append, with its records",
        "records in an append",
        "seconds an append",
        [(size, seconds / rounds[int(size)]) for size, seconds in points],
        target=1.0,
    )


def test_bytes_in_a_record(figures: Figures, quick: bool) -> None:
    sizes, turns, count = (16, 256, 4 << 10, 64 << 10, 900 << 10), 3 if quick else 7, 20
    values = {size: random.Random(size).randbytes(size) for size in sizes}
    with logstore.open(MemoryStore(), compression="none", **ROOM) as store:
        topic = store.create_topic("t", partitions=len(sizes))

        def run(place: int, size: int) -> None:
            for _ in range(count):
                topic.append(values[size], partition=place, ack="buffered")
            topic.partition(place).flush()

        points = sweep({size: functools.partial(run, n, size) for n, size in enumerate(sizes)}, turns)
        for place, size in enumerate(sizes):
            found = [record.value for record in topic.partition(place).records()]
            assert found == [values[size]] * count * (turns + 1)
    figures.add_sweep(
        SUITE,
        "time of an append and its share of a flush, with the size of its record",
        "bytes in a record",
        "seconds an append",
        [(size, seconds / count) for size, seconds in points],
        target=1.0,
    )


def test_partitions(figures: Figures, quick: bool) -> None:
    """The same records over more partitions: what one costs should not depend on how many there are. No flush by age comes
    in between: those are paid for by the second, not by the append."""
    sizes, turns, many = (1, 4, 16, 64, 256), 3 if quick else 7, rows(5_000 if quick else 20_000)
    with ExitStack() as stack:
        stores = {
            size: stack.enter_context(
                logstore.open(MemoryStore(), compression="none", flush_interval=3600, **ROOM)
            )
            for size in sizes
        }
        topics = {size: store.create_topic("t", partitions=size) for size, store in stores.items()}

        def run(size: int) -> None:
            append = topics[size].append
            for key, value in many:
                append(value, key=key, ack="buffered")

        points = sweep({size: functools.partial(run, size) for size in sizes}, turns)
        for size, topic in topics.items():
            logs = [topic.partition(number) for number in range(size)]
            found = [(record.key, record.value) for log in logs for record in log.records()]
            assert sorted(found) == sorted((key, value) for key, value in many * (turns + 1))
    figures.add_sweep(
        SUITE,
        "time of an append, with the partitions in use",
        "partitions",
        "seconds an append",
        [(size, seconds / len(many)) for size, seconds in points],
        target=0.15,
    )


def test_producers(figures: Figures, quick: bool) -> None:
    """Group commit: while one PUT is on its way, all who arrive share the next. Acks a second grow with the producers."""
    sizes, seconds_each = (1, 4, 16, 64), 0.6 if quick else 2.0
    points = []
    for size in sizes:
        with logstore.open(SlowStore(MemoryStore(), put=0.040)) as store:
            log = store.create_topic("t").partition(0)
            log.append(b"open the writer")
            stop_at = time.perf_counter() + seconds_each

            def produce(
                number: int, log: logstore.PartitionLog = log, stop_at: float = stop_at
            ) -> list[bytes]:
                mine: list[bytes] = []
                while time.perf_counter() < stop_at:
                    mine.append(b"%d-%d" % (number, len(mine)))
                    log.append(mine[-1])
                return mine

            with ThreadPoolExecutor(size) as pool:
                acked = [value for mine in pool.map(produce, range(size)) for value in mine]
            assert sorted(acked) == sorted(record.value for record in log.records(1, visibility="durable"))  # type: ignore[type-var]
            points.append((size, len(acked) / seconds_each))
    figures.add_sweep(
        SUITE,
        "durable acks a second, with the producers (40 ms PUT)",
        "producers",
        "acks/s",
        points,
        target=0.85,
        lower_is_better=False,
    )


def chain_of(segments: int) -> MemoryStore:
    objects = MemoryStore()
    with logstore.open(objects, compression="none") as store:
        log = store.create_topic("t").partition(0)
        for number in range(segments):
            log.append(b"%d" % number)
    return objects


def test_segments(figures: Figures, quick: bool) -> None:
    """A partition that has grown: opening it, and finding an offset in it. The manifest is read whole, so opening grows with
    its bytes but not in requests. Reads find nothing in the cache: each is one look-up and one GET."""
    sizes, turns = (10, 100, 1_000) if quick else (10, 100, 1_000, 4_000), 3 if quick else 7
    stored = {size: chain_of(size) for size in sizes}
    rng = random.Random(1)

    def reopen(size: int) -> None:
        with logstore.open(stored[size], writer="read_only") as store:
            assert store.topic("t").partition(0).durable_high_watermark == size

    with ExitStack() as stack:
        logs = {
            size: stack.enter_context(logstore.open(objects, writer="read_only", cache_bytes=0))
            .topic("t")
            .partition(0)
            for size, objects in stored.items()
        }

        def look_up(size: int) -> None:
            log = logs[size]
            for offset in [rng.randrange(size) for _ in range(200)]:
                found = next(log.read(offset, 0).records())
                assert (found.offset, found.value) == (offset, b"%d" % offset)

        opened = sweep({size: functools.partial(reopen, size) for size in sizes}, turns)
        found = sweep({size: functools.partial(look_up, size) for size in sizes}, turns)
    figures.add_sweep(
        SUITE, "opening a partition, with its segments", "segments", "seconds", opened, target=0.75
    )
    figures.add_sweep(
        SUITE,
        "reading at a random offset, with the segments",
        "segments",
        "seconds a read",
        [(size, seconds / 200) for size, seconds in found],
        target=0.15,
    )


def test_commits_of_a_long_chain(figures: Figures, quick: bool) -> None:
    """Does the thousandth commit cost more than the tenth? Checkpoints and maintenance come beside them, on a thread of its
    own: the median time of a commit leaves out the few that meet one, the CPU time has them all."""
    sizes = (250, 500, 1_000, 2_000) if quick else (1_000, 2_000, 4_000, 8_000, 16_000)
    run_of = sizes[0] // 2
    with logstore.open(MemoryStore(), compression="none") as store:
        log = store.create_topic("t").partition(0)
        done, points, cpu_points = 0, [], []
        for size in sizes:
            seconds, cpu, first = [], time.process_time(), done
            while done < size:
                began = time.perf_counter()
                log.append(b"%d" % done)
                seconds.append(time.perf_counter() - began)
                done += 1
            cpu_points.append((size, (time.process_time() - cpu) / (size - first)))
            points.append((size, statistics.median(seconds[-run_of:])))
        assert [record.value for record in log.records()] == [b"%d" % number for number in range(done)]
    figures.add_sweep(
        SUITE,
        "time of a durable append, with the segments before it",
        "segments",
        "seconds an append",
        points,
        target=0.3,
    )
    figures.add_sweep(
        SUITE,
        "CPU of a durable append, checkpoints and maintenance included, with the segments before it",
        "segments",
        "CPU seconds an append",
        cpu_points,
        target=0.3,
    )
