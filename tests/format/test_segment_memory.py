"""What a process keeps of the segments that it has built: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logstore.format.batch import PATCH_SIZE, encode_batch, patch_head
from logstore.format.record import Record
from logstore.format.segment import EncodedBatch, SegmentHeader, build_segment, parse_segment

MIB = 1 << 20

BUILDS_SEGMENTS = """
import sys, threading
from pathlib import Path
from tests.format.test_segment_memory import MIB, segment_of

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB

def work():
    for _ in range(3):
        segment_of(8 * MIB)
    built.release()
    done.wait()  # a thread that ends takes its heap with it; a flusher's threads stay

built, done = threading.Semaphore(0), threading.Event()
before = resident_mib()
workers = [threading.Thread(target=work) for _ in range(6)]
for worker in workers:
    worker.start()
    built.acquire()
print(resident_mib() - before)
done.set()
"""


def segment_of(size: int) -> memoryview:
    """A segment whose records take about `size` bytes, of one batch that many offsets share."""
    raw, info = encode_batch([Record(bytes(64 * 1024))], now_ms=5, codec_id=0)
    batches = [
        EncodedBatch(patch_head(offset, info.size, 1), memoryview(raw)[PATCH_SIZE:], offset, 1, 5, 5)
        for offset in range(size // info.size)
    ]
    header = SegmentHeader(0, 1, 0, len(batches), bytes(16), 0, len(batches))
    return build_segment(header, batches)[0]


@pytest.mark.parametrize("size", [64 * 1024, MIB - 40_000, MIB, 3 * MIB])
def test_a_segment_of_any_size_is_whole_and_cannot_be_changed(size: int) -> None:
    data = segment_of(size)
    assert data.readonly
    summary, index = parse_segment(data, strict=True)
    assert summary.object_size == len(data)
    assert [int(row["base_offset"]) for row in index] == list(range(summary.records))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is asked of Linux")
def test_threads_that_have_built_segments_keep_no_memory_of_them() -> None:
    """Six threads build three segments of 8 MiB each and stay; a heap for each of them would hold one each."""
    ended = subprocess.run(
        [sys.executable, "-c", BUILDS_SEGMENTS],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert float(ended.stdout) < 12
