"""What a steady rate of small appends costs in requests, at S3's latency: `python -m benchmarks.cost`.

The rate is kept whatever the store answers (`submit`, one thread), so the PUTs are those of group commit. The bill is
S3 Standard's list price in us-east-1, which is theirs and not measured: 5 dollars a million PUTs, LISTs included.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import Future

import logstore
from logstore.config import Ack
from logstore.objects import MemoryStore
from logstore.testing import S3_LATENCY, SlowStore

DOLLARS_A_MILLION = {"put": 5.0, "list": 5.0, "get": 0.4, "head": 0.4, "delete": 0.0}
MONTH_S = 30 * 86400


def measure(rate: int, partitions: int, ack: Ack, seconds: float) -> str:
    """One row of the table: requests a second, dollars a month, and how long an ack took."""
    objects = SlowStore(MemoryStore(), **S3_LATENCY)  # type: ignore[arg-type]
    waits: list[float] = []
    with logstore.open(objects, ack=ack) as store:
        topic = store.create_topic("cost", partitions=partitions)
        logs = [topic.partition(number) for number in range(partitions)]
        for log in logs:
            log.append(b"opens the writer", ack="durable")
        before = {name: stats.requests for name, stats in store.metrics().items()}
        begun = time.perf_counter()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            sent = time.perf_counter()

            def acked(done: Future[logstore.Receipt], sent: float = sent) -> None:
                waits.append(time.perf_counter() - sent)

            logs[number % partitions].submit(b"x" * 200).add_done_callback(acked)
        took = time.perf_counter() - begun
        made = {name: stats.requests - before[name] for name, stats in store.metrics().items()}
    bill = sum(made[name] * DOLLARS_A_MILLION[name] / 1e6 for name in made) / took * MONTH_S
    waits.sort()
    half, most = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    return (
        f"| {rate:,} | {partitions} | `{ack}` | {made['put'] / took:.1f} | ${bill:,.0f} "
        f"| {half * 1e3:.1f} ms | {most * 1e3:.0f} ms |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    print("| appends/s | partitions | ack | PUT/s | requests a month | ack, p50 | ack, p99 |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    acks: tuple[Ack, ...] = ("durable", "buffered")
    for ack in acks:
        for partitions in (1, 4):
            for rate in (50, 1000):
                print(measure(rate, partitions, ack, args.seconds), flush=True)


if __name__ == "__main__":
    main()
