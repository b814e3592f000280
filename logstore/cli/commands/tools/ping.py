"""Ask the store for its smallest object, again and again, and say how long each answer took.

With --write also a conditional put of a new object, which is what a durable ack waits for; it is deleted at once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import positive
from logstore.layout.paths import PROBE_PREFIX, STORE_KEY
from logstore.objects.protocol import ObjectStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--count", type=positive, default=5, help="how often (default: 5)")
    parser.add_argument("--write", action="store_true", help="try puts, too")


def run(args: argparse.Namespace, out: Output) -> int:
    with open_store(args, writer="read_only") as store:
        _ask(out, "get", args.count, lambda: store.objects.get(STORE_KEY))
        if args.write:
            _ask(out, "put", args.count, lambda: _put(store.objects))
    return 0


def _put(objects: ObjectStore) -> float:
    """Only the put counts."""
    key = f"{PROBE_PREFIX}{os.urandom(16).hex()}"
    began = time.perf_counter()
    objects.put(key, b"ping", if_absent=True)
    took = time.perf_counter() - began
    objects.delete(key)
    return took


def _ask(out: Output, operation: str, count: int, call: Callable[[], object]) -> None:
    times = []
    for number in range(count):
        began = time.perf_counter()
        answer = call()
        took = answer if isinstance(answer, float) else time.perf_counter() - began
        times.append(took)
        out.row(
            {"operation": operation, "number": number, "ms": round(took * 1e3, 3)},
            f"{operation}: {took * 1e3:.2f} ms",
        )
    middle, most = statistics.median(times) * 1e3, max(times) * 1e3
    fields = {"operation": operation, "count": count, "median_ms": round(middle, 3), "max_ms": round(most, 3)}
    out.row(fields, f"{operation}: median {middle:.2f} ms, slowest {most:.2f} ms of {count}")
