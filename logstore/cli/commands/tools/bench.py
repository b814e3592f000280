"""Measure this store from this machine: appends at each ack level, group commit, and reading back.

Also how many requests each takes, and what a million records like that cost in S3 Standard. Uses a topic of its own and
deletes it afterwards. For comparisons with other systems see `make bench`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import logstore
from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import size
from logstore.cli.terminal.usage import positive
from logstore.config import Ack
from logstore.cost.prices import STANDARD
from logstore.engine.partition.partition_log import PartitionLog

_PRODUCERS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--records", type=positive, default=200_000, help="appended in bulk (default: 200,000)"
    )
    parser.add_argument("--value-bytes", type=size, default=100, help="of each: 100 (default), 1kB")
    parser.add_argument(
        "--durable-appends", type=positive, default=200, help="with a durable ack each (default: 200)"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    values = [os.urandom(args.value_bytes) for _ in range(1000)]
    name = f"bench-{os.urandom(4).hex()}"
    with open_store(args) as store:
        log = store.create_topic(name).partition(0)
        try:
            rows = _measure(store, log, values, args)
        finally:
            store.delete_topic(name)
        out.table(rows)
    return 0


def _measure(
    store: logstore.Store, log: PartitionLog, values: list[bytes], args: argparse.Namespace
) -> list[dict[str, object]]:
    log.append(b"warm-up")
    rounds = max(1, int(args.records) // len(values))

    def bulk() -> int:
        for _ in range(rounds):
            log.append(values, ack="buffered")
        log.flush()
        return rounds * len(values)

    def one_by_one(ack: Ack, count: int) -> int:
        for number in range(count):
            log.append(values[number % len(values)], ack=ack)
        return count

    def side_by_side() -> int:
        each = max(1, args.durable_appends // _PRODUCERS)
        with ThreadPoolExecutor(_PRODUCERS) as pool:
            return sum(pool.map(lambda _: one_by_one("durable", each), range(_PRODUCERS)))

    def read() -> int:
        return sum(1 for _ in log.records(visibility="durable"))

    def timed(what: str, work: Callable[[], int]) -> dict[str, object]:
        return _timed(store, what, work)

    found = [
        timed("1,000 at once, buffered", bulk),
        timed("one by one, buffered", lambda: one_by_one("buffered", min(args.records, 100_000))),
        timed("one by one, durable", lambda: one_by_one("durable", min(args.durable_appends, 50))),
        timed(f"{_PRODUCERS} threads, durable", side_by_side),
    ]
    log.flush()
    found.append(timed("read back", read))
    stored = found[-1]["records"]
    if stored != log.durable_high_watermark:
        raise logstore.CorruptData(
            log._internal.paths.prefix, None, f"{stored} records read, {log.durable_high_watermark} stored"
        )
    return found


def _timed(store: logstore.Store, what: str, work: Callable[[], int]) -> dict[str, object]:
    before, began = store.metrics(), time.perf_counter()
    count = work()
    seconds = time.perf_counter() - began
    after = store.metrics()
    made = {name: after[name].requests - before[name].requests for name in after}
    carried = {name: after[name].bytes - before[name].bytes for name in after}
    dollars = sum(STANDARD.of(name, made[name], carried[name]) for name in made)
    return {
        "what": what,
        "records": count,
        "seconds": round(seconds, 3),
        "records/s": round(count / seconds),
        "puts": made["put"],
        "gets": made["get"],
        "$/million": round(dollars / count * 1e6, 3),
    }
