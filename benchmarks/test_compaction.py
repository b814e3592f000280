"""Compaction by key against merging, which copies batches as they are: CPU seconds for the same bytes, in turns. And the
memory that it takes, in a process of its own."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

import logstore
from benchmarks.measure import Figures, in_turns
from logstore import Record
from logstore.engine.maintenance import checkpoint
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.objects import LocalStore, MemoryStore, ObjectStore

SUITE = "compaction"
VALUE_BYTES = 1000
APPEND_BYTES = 256 << 10
LATER_MS = 1 << 50
_CHILD = """
import re, sys
from pathlib import Path
import logstore
with logstore.open(sys.argv[1], writer="read_only", cache_bytes=8 << 20) as store:
    log = store.topic("t").partition(0)._internal
    done = log.maintenance.clean(log.now_ms)
    status = Path("/proc/self/status").read_text()
    print(done.records, int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 1024)
"""
"""(`getrusage` would tell of the process that started this one, if that was larger.)"""


@pytest.fixture(autouse=True)
def _nobody_maintains_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "EVERY_SEGMENTS", 1 << 30)


def fill(objects: ObjectStore, size: int, keys: int) -> None:
    """Records of a kilobyte, half of it random, with keys drawn at random."""
    rng = random.Random(1)
    values = [rng.randbytes(VALUE_BYTES // 2) + bytes(VALUE_BYTES // 2) for _ in range(500)]
    with logstore.open(objects, compression="none") as store:
        log = store.create_topic("t", compact=True).partition(0)
        for _ in range(size // APPEND_BYTES):
            log.append(
                [
                    Record(rng.choice(values), key=b"user-%012d" % rng.randrange(keys))
                    for _ in range(APPEND_BYTES // VALUE_BYTES)
                ]
            )
        log.append(Record(b"end", key=b"end"))


@contextmanager
def upkeep(made: MemoryStore) -> Iterator[Maintenance]:
    """Of a copy of what was made."""
    objects = MemoryStore()
    for info in made.list(""):
        objects.put(info.key, made.get(info.key))
    with logstore.open(objects, writer="read_only", cache_bytes=0) as store:
        yield store.topic("t").partition(0)._internal.maintenance


def test_compaction_by_key_against_merging(figures: Figures, quick: bool) -> None:
    size = (64 if quick else 256) << 20
    made = MemoryStore()
    fill(made, size, size // VALUE_BYTES)

    def merge() -> None:
        with upkeep(made) as maintenance:
            turns = count()
            while maintenance.compact(LATER_MS, b"%016d" % next(turns)):
                pass

    def compact() -> None:
        with upkeep(made) as maintenance:
            assert maintenance.clean(LATER_MS).records > size // VALUE_BYTES // 4

    found = in_turns({"merge": merge, "compact": compact}, 3 if quick else 5)
    speed = size / found["compact"].best_cpu / 1e6
    figures.add(SUITE, "compaction by key, 1 KB records, MB a CPU second", speed, "MB/s")
    figures.add(
        SUITE,
        "compaction by key, to merging",
        found["merge"].best_cpu / found["compact"].best_cpu,
        "x",
        target=0.3,
    )


def test_memory_of_a_pass(figures: Figures, quick: bool, tmp_path: Path) -> None:
    size = (64 if quick else 1024) << 20
    fill(LocalStore(tmp_path / "store"), size, size // 1024)
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "store")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(told[0]) > size // VALUE_BYTES // 4
    figures.add(
        SUITE,
        f"memory of compacting {size >> 20} MiB with {size >> 10:,} keys",
        float(told[1]),
        "MiB",
        target=400,
        lower_is_better=True,
    )


if __name__ == "__main__":
    pytest.main([__file__, "-q"])
