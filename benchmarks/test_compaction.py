"""Compaction by key against merging, which copies batches as they are: CPU seconds for the same bytes, in turns. And the
memory that it takes, in a process of its own."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

import logstore
from benchmarks.measure import Figures, in_turns
from logstore import Record
from logstore.engine.maintenance import checkpoint
from logstore.engine.maintenance.maintenance import Maintenance
from logstore.format.batches import codecs
from logstore.format.batches.batch import BatchInfo, record_area, split
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


class Kind(NamedTuple):
    """What a log is made of. `table`: keys come one after the other, and again from the first one on, four times in all;
    else they are drawn at random, as many as there are records."""

    codec: str
    value_bytes: int
    table: bool

    def __str__(self) -> str:
        order = "a table written four times" if self.table else "random keys"
        return f"{self.codec}, {self.value_bytes} B, {order}"


KINDS = [
    Kind(codec, size, table) for codec in ("none", "zstd") for size in (1000, 100) for table in (False, True)
]


def fill(objects: ObjectStore, size: int, kind: Kind) -> None:
    """Records of which half is random."""
    rng = random.Random(1)
    half = kind.value_bytes // 2
    values = [rng.randbytes(half) + bytes(half) for _ in range(500)]
    records, many = size // kind.value_bytes, APPEND_BYTES // kind.value_bytes
    with logstore.open(objects, compression=kind.codec) as store:
        log = store.create_topic("t", compact=True).partition(0)
        for first in range(0, records, many):
            keys = (
                [n % (records // 4) for n in range(first, first + many)]
                if kind.table
                else [rng.randrange(records) for _ in range(many)]
            )
            log.append([Record(rng.choice(values), key=b"user-%012d" % key) for key in keys])
        log.append(Record(b"end", key=b"end"))


@contextmanager
def upkeep(made: MemoryStore) -> Iterator[Maintenance]:
    """Of a copy of what was made."""
    objects = MemoryStore()
    for info in made.list(""):
        objects.put(info.key, made.get(info.key))
    with logstore.open(objects, writer="read_only", cache_bytes=0) as store:
        yield store.topic("t").partition(0)._internal.maintenance


def batches_of(objects: ObjectStore) -> list[tuple[bytes, BatchInfo]]:
    found: list[tuple[bytes, BatchInfo]] = []
    with logstore.open(objects, writer="read_only", cache_bytes=0) as store:
        log, position = store.topic("t").partition(0), 0
        while position < log.durable_high_watermark:
            result = log.read(position, 8 << 20, visibility="durable")
            for part in map(bytes, result.parts):
                found += [(part, info) for info in split(part)]
            position = result.next_offset
    return found


def codec_alone(made: MemoryStore) -> Callable[[], None]:
    """Nothing but what a codec must do in a pass: decompress every batch to see its keys; of those that lose some of their
    records, decompress once more and compress the rest."""
    before = batches_of(made)
    with upkeep(made) as maintenance:
        maintenance.clean(LATER_MS)
        left = batches_of(maintenance._chain.store)
    thinned = {
        info.base_offset: record_area(raw, info).data for raw, info in left if info.is_sparse and info.count
    }

    def run() -> None:
        for raw, info in before:
            record_area(raw, info)
            if info.base_offset in thinned:
                record_area(raw, info)
                codecs.compress(info.codec_id, thinned[info.base_offset])

    return run


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_compaction_by_key_against_merging(figures: Figures, quick: bool, kind: Kind) -> None:
    """Of what is compressed, merging copies bytes that compaction has to decompress and compress again: beside the figure is
    what the codec alone leaves of it, which no pass can reach."""
    size = (64 if quick else 256) << 20
    made = MemoryStore()
    fill(made, size, kind)

    def merge() -> None:
        with upkeep(made) as maintenance:
            turns = count()
            while maintenance.compact(LATER_MS, b"%016d" % next(turns)):
                pass

    def compact() -> None:
        with upkeep(made) as maintenance:
            assert maintenance.clean(LATER_MS).records > size // kind.value_bytes // 4

    turns: dict[str, Callable[[], None]] = {"merge": merge, "compact": compact}
    if kind.codec != "none":
        turns["codec"] = codec_alone(made)
    found = in_turns(turns, 3 if quick else 5)
    speed = size / found["compact"].best_cpu / 1e6
    figures.add(SUITE, f"compaction by key, {kind}, MB a CPU second", speed, "MB/s")
    if kind.codec != "none":
        figures.add(
            SUITE,
            f"the codec alone, to merging: {kind}",
            found["merge"].best_cpu / found["codec"].best_cpu,
            "x",
        )
    figures.add(
        SUITE,
        f"compaction by key, to merging: {kind}",
        found["merge"].best_cpu / found["compact"].best_cpu,
        "x",
        target=0.3,
    )


def test_memory_of_a_pass(figures: Figures, quick: bool, tmp_path: Path) -> None:
    size = (64 if quick else 1024) << 20
    fill(LocalStore(tmp_path / "store"), size, Kind("none", VALUE_BYTES, table=False))
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "store")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(told[0]) > size // VALUE_BYTES // 4
    figures.add(
        SUITE,
        f"memory of compacting {size >> 20} MiB with {size // VALUE_BYTES:,} keys",
        float(told[1]),
        "MiB",
        target=400,
        lower_is_better=True,
    )


if __name__ == "__main__":
    pytest.main([__file__, "-q"])
