"""Fills tables in a process whose memory is its own: `python -m benchmarks.lake_child URL FOLDER ROUNDS`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa

import logstore
from logstore.lake import Materializer

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("actor", pa.struct([("id", pa.int64()), ("login", pa.string()), ("url", pa.string())])),
        ("repo", pa.struct([("id", pa.int64()), ("name", pa.string())])),
        ("payload", pa.struct([("push_id", pa.int64()), ("size", pa.int64()), ("message", pa.string())])),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)


def fill(url: str, folder: str, rounds: int) -> None:
    """The CPU of each round is told; the first one imports, too."""
    spent, rows = [], 0
    with logstore.open(url, writer="read_only", cache_bytes=1 << 20) as store:
        for turn in range(rounds):
            copier = Materializer(
                store.topic("events"), f"delta:{folder}/{turn}", schema=SCHEMA, hold_seconds=0
            )
            began = time.process_time()
            rows = copier.run_once().rows
            spent.append(time.process_time() - began)
    # Not ru_maxrss: that of a child begins with what its parent held when it was forked.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(json.dumps({"rows": rows, "cpu": spent, "peak": peak}))


if __name__ == "__main__":
    fill(sys.argv[1], sys.argv[2], int(sys.argv[3]))
