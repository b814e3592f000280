"""N01, N04: what a lane costs and carries, at S3's latency, beside a store that commits each partition by itself.

Requests are counted at the store. Times are ratios of two runs that take turns in one process: over 1,000 partitions to over
one, an ack to a PUT. Every ack is checked against the log before a figure counts.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

import logstore
from benchmarks.far_stores import Timed, far_away, fill_and_close, fill_and_kill, slow
from benchmarks.measure import Figures, percentile
from logstore.config import StoreConfig
from logstore.objects import LocalStore, MemoryStore
from logstore.testing import S3_LATENCY, FaultyStore, SlowStore

SUITE = "lanes"
MANY = 1000
PRODUCERS = 64
PUT_S = S3_LATENCY["put"].p50_s


def puts(counted: FaultyStore) -> int:
    return counted.count("put")


def test_flush_rounds(figures: Figures) -> None:
    """10 rounds of 64 open partitions."""
    for lanes, name in ((1, "one lane"), (0, "without")):
        counted = slow(MemoryStore())
        with logstore.open(counted, lanes=lanes, flush_interval=3600) as store:
            topic = store.create_topic("t", 64)
            logs = [topic.partition(number) for number in range(64)]
            for log in logs:
                log.append(b"open", ack="buffered")
            store.flush()
            counted.forget_calls()
            for _ in range(10):
                for log in logs:
                    log.append(b"x" * 100, ack="buffered")
                store.flush()
            assert all(log.durable_high_watermark == 11 for log in logs)
            ceiling = 12 if lanes else None
            figures.add(
                SUITE,
                f"10 flush rounds of 64 partitions, {name}",
                puts(counted),
                "PUT",
                target=ceiling,
                lower_is_better=True,
            )


def produce(
    append: Sequence[Callable[[bytes], tuple[int, int]]], seconds: float
) -> tuple[list[float], dict[tuple[int, int], bytes], float]:
    """A thread for each, appending again as soon as it is acked: ack latencies, what was acked where, how long it took."""
    latencies: list[float] = []
    acked: dict[tuple[int, int], bytes] = {}
    lock, start, end = threading.Lock(), threading.Barrier(len(append) + 1), 0.0

    def run(number: int) -> None:
        mine: list[float] = []
        stored: dict[tuple[int, int], bytes] = {}
        start.wait()
        while time.perf_counter() < end:
            value = b"%d-%d" % (number, len(mine))
            began = time.perf_counter()
            stored[append[number](value)] = value
            mine.append(time.perf_counter() - began)
        with lock:
            assert not acked.keys() & stored.keys(), "an offset was acked twice"
            latencies.extend(mine)
            acked.update(stored)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(append))]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    end = began + seconds
    start.wait()
    for thread in threads:
        thread.join()
    return latencies, acked, time.perf_counter() - began


def in_turn(topic: logstore.Topic, number: int) -> Callable[[bytes], tuple[int, int]]:
    """Appends to one partition after the other, durably."""
    turn = number

    def append(value: bytes) -> tuple[int, int]:
        nonlocal turn
        place = turn % topic.partitions
        turn += PRODUCERS
        return place, topic.partition(place).append(value).offset

    return append


def test_durable_producers_over_many_partitions(figures: Figures, quick: bool) -> None:
    """64 producers over 1,000 partitions, and over one, in turns."""
    seconds, turns = (1.0, 3) if quick else (3.0, 5)
    found: dict[int, list[tuple[float, float, float]]] = {1: [], MANY: []}
    counted = {partitions: slow(MemoryStore()) for partitions in found}
    stores = {partitions: logstore.open(counted[partitions], lanes=1) for partitions in found}
    topics = {partitions: store.create_topic("t", partitions) for partitions, store in stores.items()}
    for partitions, topic in topics.items():
        for ack in [topic.partition(number).submit(b"open") for number in range(partitions)]:
            ack.result()
    for _ in range(turns):
        for partitions, topic in topics.items():
            counted[partitions].forget_calls()
            producers = [in_turn(topic, number) for number in range(PRODUCERS)]
            latencies, acked, took = produce(producers, seconds)
            rate = len(latencies) / took
            found[partitions].append((rate, percentile(latencies, 0.5), puts(counted[partitions]) / took))
            for (place, offset), value in list(acked.items())[:: max(1, len(acked) // 50)]:
                assert next(topic.partition(place).records(offset, offset + 1)).value == value
    for store in stores.values():
        store.close()
    one, many = (
        [statistics.median(column) for column in zip(*found[partitions], strict=True)]
        for partitions in (1, MANY)
    )
    name = "64 durable producers, 1,000 partitions to 1"
    figures.add(SUITE, f"{name}: acks", many[0] / one[0], "×", target=0.9, acks_per_s=round(many[0]))
    figures.add(
        SUITE,
        f"{name}: p50 of an ack",
        many[1] / one[1],
        "×",
        target=1.3,
        lower_is_better=True,
        p50_ms=round(many[1] * 1e3, 1),
    )
    figures.add(
        SUITE,
        "64 durable producers, 1,000 partitions",
        many[2],
        "PUT/s",
        target=40,
        lower_is_better=True,
    )


def repeatedly(append: Sequence[Callable[[bytes], object]], times: int) -> list[list[float]]:
    """A thread for each, so many appends one after the other, as long as all of them are at it: when each was acked."""
    acked: list[list[float]] = [[] for _ in append]
    over = threading.Event()

    def run(number: int) -> None:
        while len(acked[number]) < times and not over.is_set():
            append[number](b"%d" % len(acked[number]))
            acked[number].append(time.perf_counter())
        over.set()

    with ThreadPoolExecutor(len(append)) as threads:
        list(threads.map(run, range(len(append))))
    return acked


def append_next(logs: Iterator[logstore.PartitionLog], value: bytes) -> None:
    next(logs).append(value)


def add_shares(figures: Figures, name: str, counted: FaultyStore, acked: list[list[float]]) -> None:
    """What is put beside the lanes' entries, and whether anybody was served less than the others."""
    keys = [call.key for call in counted.calls if call.operation == "put"]
    entries = sum(key.endswith(".seg") for key in keys)
    figures.add(
        SUITE,
        f"{name}: other PUTs to those of entries",
        (len(keys) - entries) / entries,
        "×",
        target=0.1,
        lower_is_better=True,
        entries=entries,
    )
    counts = [len(one) for one in acked]
    figures.add(
        SUITE, f"{name}: fewest acks of a producer to the mean", min(counts) / statistics.mean(counts), "×"
    )


def test_a_thousand_topics_of_one_partition(figures: Figures, quick: bool) -> None:
    """64 producers over all of them, through one lane. The topics were written before: of a new one the lane in which it
    begins has a checkpoint, once, which is a PUT for each of them."""
    objects = MemoryStore()
    with logstore.open(objects) as store:
        topics = [store.create_topic(f"t{number}") for number in range(MANY)]
        for ack in [topic.partition(0).submit(b"new") for topic in topics]:
            ack.result()
    counted = slow(objects)
    with logstore.open(counted, lanes=1) as store:
        logs = [store.topic(f"t{number}").partition(0) for number in range(MANY)]
        with ThreadPoolExecutor(PRODUCERS) as threads:
            list(threads.map(lambda log: log.append(b"open"), logs))
        counted.forget_calls()
        producers = [cycle(logs[number::PRODUCERS]) for number in range(PRODUCERS)]
        acked = repeatedly([partial(append_next, mine) for mine in producers], 70 if quick else 200)
        add_shares(figures, "1,000 topics of one partition, 64 producers", counted, acked)
        assert sum(log.durable_high_watermark - 2 for log in logs) == sum(map(len, acked))


def test_fifty_lanes_of_one_topic(figures: Figures, quick: bool) -> None:
    """50 stores, each of which writes 4 of its 200 partitions through a lane of its own."""
    counted = slow(MemoryStore())
    lanes = 50
    with ExitStack() as closing:
        stores = [closing.enter_context(logstore.open(counted, lanes=1)) for _ in range(lanes)]
        stores[0].create_topic("t", 4 * lanes)
        topics = [store.topic("t") for store in stores]
        places = range(4 * lanes)
        for number, topic in enumerate(
            topics
        ):  # one after the other: all of them claim in the lane where it begins
            for ack in [topic.partition(place).submit(b"open") for place in places[number::lanes]]:
                ack.result()
        counted.forget_calls()
        mine = [
            cycle([topics[number].partition(place) for place in range(number, 4 * lanes, lanes)])
            for number in range(lanes)
        ]
        acked = repeatedly([partial(append_next, logs) for logs in mine], 70 if quick else 200)
        add_shares(figures, "50 lanes of one topic, a producer each", counted, acked)
        marks = [topics[place % lanes].partition(place).durable_high_watermark for place in places]
        assert sum(marks) - 4 * lanes == sum(map(len, acked))


def test_adopting_many(tmp_path: Path, figures: Figures) -> None:
    """The next life of a named process that was killed: its 1,000 partitions are adopted with the first that is opened; what
    comes after that are entries with their records, and what checkpoints cost."""
    fill_and_kill(tmp_path, MANY, "service")
    counted = slow(LocalStore(tmp_path))
    with logstore.open(counted, lane="service") as store:
        topic = store.topic("t")
        counted.forget_calls()
        for number in range(MANY):
            topic.partition(number).open_writer()
        adopted = len(counted.calls)
        waiting = [topic.partition(number).submit(b"c") for number in range(MANY)]
        assert {ack.result().offset for ack in waiting} == {1}
        appended = len(counted.calls) - adopted
    name = "adopt 1,000 partitions of a dead named process"
    figures.add(SUITE, f"{name}: requests", adopted, "requests", target=80, lower_is_better=True)
    figures.add(SUITE, f"{name}: requests of an append to each", appended, "requests", lower_is_better=True)


@pytest.mark.parametrize("what", ["a new topic", "its owner closed", "its owner was killed"])
def test_opening_many(what: str, tmp_path: Path, figures: Figures, quick: bool) -> None:
    """Open and append once to each of 1,000 partitions: `submit` all, then wait. The least of some turns. Who had them
    before is a process of its own: what it leaves in memory would be the collector's work here."""
    spent: list[tuple[int, float, float]] = []
    for turn in range(1 if quick else 2):
        home = LocalStore(tmp_path / str(turn))
        if what != "a new topic":
            fill_and_kill(tmp_path / str(turn), MANY)
        if what == "its owner closed":
            fill_and_close(tmp_path / str(turn), MANY)
        counted = slow(home)
        with logstore.open(counted, lanes=1) as store:
            topic = store.create_topic("t", MANY, exist_ok=True)
            counted.forget_calls()
            began, cpu = time.perf_counter(), time.process_time()
            waiting = [topic.partition(number).submit(b"c") for number in range(MANY)]
            offsets = {ack.result().offset for ack in waiting}
            took = time.perf_counter() - began
            spent.append((len(counted.calls), took, time.process_time() - cpu))
            assert len(offsets) == 1
    requests, seconds, cpu = (min(column) for column in zip(*spent, strict=True))
    most = 200 if what == "its owner was killed" else 100
    name = f"open and append to 1,000 partitions, {what}"
    figures.add(SUITE, f"{name}: requests", requests, "requests", target=most, lower_is_better=True)
    figures.add(
        SUITE,
        f"{name}: time",
        seconds,
        "s",
        target=2.0 if most == 200 else 1.0,
        lower_is_better=True,
        cpu_s=round(cpu, 2),
    )


def test_one_partition_moves_under_load(figures: Figures, quick: bool) -> None:
    """1 of 64 partitions, whose owner has not been asked; all others go on meanwhile. An ack that was under way takes a few
    requests, one after the other, each of which takes as long as S3's distribution says: so it is told in the usual PUT's
    time, in that of the slowest request which it may have waited for, and beside the slowest ack of the second before."""
    objects = MemoryStore()
    found: list[tuple[float, float, float]] = []
    failed = 0
    for _ in range(1 if quick else 3):
        timed = Timed(objects)
        with logstore.open(timed, lanes=1) as owner:
            topic = owner.create_topic("t", 64, exist_ok=True)
            for ack in [topic.partition(number).submit(b"open") for number in range(64)]:
                ack.result()
            acks: list[tuple[float, float]] = []
            stop = threading.Event()

            def go_on(
                number: int, topic: logstore.Topic, stop: threading.Event, told: list[tuple[float, float]]
            ) -> None:
                nonlocal failed
                while not stop.is_set():
                    began = time.perf_counter()
                    try:
                        topic.partition(number).append(b"x")
                    except logstore.LogStoreError:
                        failed += 1
                    told.append((began, time.perf_counter()))

            threads = [
                threading.Thread(target=go_on, args=(number, topic, stop, acks)) for number in range(1, 64)
            ]
            for thread in threads:
                thread.start()
            time.sleep(1.3)
            moves_at = time.perf_counter()
            with logstore.open(slow(objects), lanes=1, take_over=True) as taker:
                taker.topic("t").partition(0).append(b"moved")
                time.sleep(0.2)
                stop.set()
                for thread in threads:
                    thread.join()
            began, ended = max(
                (span for span in acks if span[1] > moves_at), key=lambda span: span[1] - span[0]
            )
            before = max(end - start for start, end in acks if moves_at - 1.0 < start and end <= moves_at)
            took = ended - began
            found.append((took, took / timed.slowest_in(began, ended), before))
    took, requests, before = (statistics.median(column) for column in zip(*found, strict=True))
    name = "move 1 of 64 under load"
    figures.add(SUITE, f"{name}: failed acks elsewhere", failed, "acks", lower_is_better=True)
    figures.add(
        SUITE,
        f"{name}: the slowest ack elsewhere, in PUT times",
        took / PUT_S,
        "×",
        target=5.0,
        lower_is_better=True,
        before_the_move=round(before / PUT_S, 1),
    )
    figures.add(
        SUITE,
        f"{name}: the same, in times of the slowest request that it waited for",
        requests,
        "×",
        target=5.0,
        lower_is_better=True,
    )


@pytest.mark.parametrize("partitions", [1, 4])
def test_buffered_throughput(partitions: int, figures: Figures, quick: bool) -> None:
    """Lists of 1,000 records of 1 KB, uncompressed, through one lane. Its limit is what its uploads in flight can carry: a
    PUT of 4 MiB takes S3 141 ms (median). For 1 GB, so that the beginning and the end, with fewer uploads in flight, are
    a small part: they cost a run of 256 MB a fifth of its rate."""
    value = os.urandom(1000)
    block = [value] * 1000
    size = 256 if quick else 1024
    with logstore.open(far_away(MemoryStore()), lanes=1, ack="buffered", compression="none") as store:
        topic = store.create_topic("t", partitions)
        for number in range(partitions):
            topic.partition(number).append(b"open")
        store.flush()
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(size):
            topic.partition(number % partitions).append(block)
        store.flush(timeout=120)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        assert sum(topic.partition(number).durable_high_watermark for number in range(partitions)) == (
            size * 1000 + partitions
        )
        limit = StoreConfig().uploads_max * 4 / (S3_LATENCY["put"].p50_large_s or 0)
    name = f"buffered throughput, one lane, {partitions} partition{'s' if partitions > 1 else ''}"
    rate = size * 1e6 / (1 << 20) / seconds
    figures.add(SUITE, name, rate, "MiB/s", target=150, MiB_per_cpu_s=round(rate * seconds / cpu))
    figures.add(SUITE, f"{name}: share of its uploads' limit", rate / limit, "×", target=0.75)


def test_a_lone_producer(figures: Figures, quick: bool) -> None:
    """Its durable ack, in PUT times: the same store is put to directly, in turns."""
    store = SlowStore(MemoryStore(), put=PUT_S)
    acks: list[float] = []
    direct: list[float] = []
    with logstore.open(store, lanes=1) as opened:
        log = opened.create_topic("t").partition(0)
        log.append(b"open")
        for number in range(30 if quick else 100):
            began = time.perf_counter()
            log.append(b"x")
            acks.append(time.perf_counter() - began)
            began = time.perf_counter()
            store.put(f"direct/{number}", b"x", if_absent=True)
            direct.append(time.perf_counter() - began)
    figures.add(
        SUITE,
        "a lone producer's durable ack, in PUT times",
        statistics.median(acks) / statistics.median(direct),
        "×",
        target=1.1,
        lower_is_better=True,
    )


@pytest.mark.parametrize("linger", [0.0, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("rate", [50, 1000])
def test_durable_linger(linger: float, rate: int, figures: Figures, quick: bool) -> None:
    """So many durable appends a second, one by one, over 64 partitions: what is paid, and how long an ack takes."""
    if quick:
        pytest.skip("nothing of it is guarded")
    seconds = 10.0
    counted = slow(MemoryStore())
    took: list[float] = []

    def noted(submitted: float, _: object) -> None:
        took.append(time.perf_counter() - submitted)

    with logstore.open(counted, lanes=1, durable_linger=linger) as store:
        topic = store.create_topic("t", 64)
        for ack in [topic.partition(number).submit(b"open") for number in range(64)]:
            ack.result()
        counted.forget_calls()
        began = time.perf_counter()
        waiting = []
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            submitted = time.perf_counter()
            ack = topic.partition(number % 64).submit(b"x" * 100)
            ack.add_done_callback(partial(noted, submitted))
            waiting.append(ack)
        for ack in waiting:
            ack.result()
        spent = time.perf_counter() - began
    a_second = puts(counted) / spent
    figures.add(
        SUITE,
        f"durable_linger={linger:g}, {rate:,} appends a second",
        a_second,
        "PUT/s",
        lower_is_better=True,
        dollars_a_month=round(a_second * 30 * 86400 * 5e-6),
        p50_ms=round(percentile(took, 0.5) * 1e3),
    )
