"""Opening a partition: its cost must not grow with the log. Real segments and a real manifest, in memory.

Most segments are covered by the manifest, `NEWER` of them are not; for comparison the same log is opened with its manifest
damaged, which reads the chain from its start.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import logstore
from benchmarks.measure import Figures, in_turns
from logstore.engine.chain.segment_table import Segments
from logstore.format.batches.batch import PATCH_SIZE, encode_batch, patch_head
from logstore.format.batches.record import Record
from logstore.format.stored.encoded_batch import EncodedBatch
from logstore.format.stored.manifest import Manifest, SegmentTable
from logstore.format.stored.segment import SegmentHeader, WriterMode, build_segment
from logstore.layout.paths import PartitionPaths
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore

SUITE = "recovery"
NEWER = 16
STAMP_MS = 1_700_000_000_000


def grow(objects: MemoryStore, paths: PartitionPaths, count: int) -> None:
    """`count` segments of one record each, and a manifest of all but the last `NEWER`."""
    raw, info = encode_batch([Record(b"x" * 100, b"key")], now_ms=STAMP_MS, codec_id=0)
    body = memoryview(raw)[PATCH_SIZE:]
    segments = Segments(paths, SegmentTable())
    rng = random.Random(1)
    for seq in range(count):
        batch = EncodedBatch(patch_head(seq, info.size, 1), body, seq, 1, STAMP_MS + seq, STAMP_MS + seq)
        header = SegmentHeader(seq, 1, seq, seq + 1, rng.randbytes(16), STAMP_MS + seq, seq + 1)
        data, summary = build_segment(header, [batch])
        objects.put(paths.segment(seq), data, if_absent=True)
        if seq < count - NEWER:
            segments.add(seq, len(data), summary)
    end = count - NEWER
    manifest = Manifest(1, end, 1, WriterMode.EXCLUSIVE, 0, end, end, -1, segments.table)
    objects.put(paths.manifest, manifest.pack())


def opener(objects: MemoryStore, count: int) -> Callable[[], float]:
    """Open, look at the mark, read the last record; returns how long the opening alone took."""

    def run() -> float:
        with logstore.open(objects, writer="read_only") as store:
            log = store.topic("t").partition(0)
            began = time.perf_counter()
            mark = log.durable_high_watermark
            took = time.perf_counter() - began
            assert mark == count
            assert [record.offset for record in log.read(count - 1).records()] == [count - 1]
            return took

    return run


def requests_to_open(objects: MemoryStore) -> int:
    counted = FaultyStore(objects)
    with logstore.open(counted, writer="read_only") as store:
        log = store.topic("t").partition(0)
        counted.forget_calls()
        assert log.durable_high_watermark > 0
        return len(counted.calls)


def test_opening_a_long_partition(figures: Figures, quick: bool) -> None:
    sizes = (1_000, 10_000) if quick else (1_000, 100_000)
    places: dict[int, MemoryStore] = {}
    for size in sizes:
        objects = places[size] = MemoryStore()
        with logstore.open(objects) as store:
            paths = store.create_topic("t").partition(0)._internal.paths
        grow(objects, paths, size)
    short, long = sizes
    took = {size: [opener(places[size], size)() for _ in range(5)] for size in sizes}
    name = f"open a partition of {long:,} segments"
    figures.add(SUITE, name, min(took[long]) * 1e3, "ms", target=300, lower_is_better=True)
    spent = requests_to_open(places[long])
    figures.add(SUITE, f"{name}: requests", spent, "requests", target=3 + NEWER, lower_is_better=True)
    assert spent == requests_to_open(places[short]), "the length of the log must not show"


def test_opening_without_a_manifest(figures: Figures, quick: bool) -> None:
    """The worst case: every segment's tail is read. No target; it says what a checkpoint is worth."""
    size = 1_000 if quick else 5_000
    sound, damaged = MemoryStore(), MemoryStore()
    for objects in (sound, damaged):
        with logstore.open(objects) as store:
            paths = store.create_topic("t").partition(0)._internal.paths
        grow(objects, paths, size)
        if objects is damaged:
            objects.put(paths.manifest, b"scribble")
    times = in_turns({"sound": opener(sound, size), "damaged": opener(damaged, size)}, turns=3)
    figures.add(
        SUITE,
        f"open {size:,} segments with a damaged manifest",
        times["damaged"].best * 1e6 / size,
        "µs a segment",
    )
