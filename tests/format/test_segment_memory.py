"""What a process keeps of the segments that it has built: the pages of the last ones, for the next."""

from __future__ import annotations

import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from logstore.format.stored.segment import parse_segment
from tests.support.format.segments import MIB, segment_of

BUILDS_SEGMENTS = """
import sys, threading
from pathlib import Path
from tests.support.format.segments import MIB, segment_of

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB

def work():
    for _ in range(3):
        segment_of(8 * MIB)
    built.release()
    done.wait()  # a thread that ends takes its heap with it; a task pool's threads stay

built, done = threading.Semaphore(0), threading.Event()
import numpy  # that building a large one takes
segment_of(1000)
before = resident_mib()
workers = [threading.Thread(target=work) for _ in range(6)]
for worker in workers:
    worker.start()
    built.acquire()
print(resident_mib() - before)
done.set()
"""


@pytest.mark.parametrize("size", [64 * 1024, MIB - 40_000, MIB, 3 * MIB])
def test_a_segment_of_any_size_is_whole_and_cannot_be_changed(size: int) -> None:
    data = segment_of(size)
    assert data.readonly
    summary, index = parse_segment(data, strict=True)
    assert summary.object_size == len(data)
    assert [int(row["base_offset"]) for row in index] == list(range(summary.records))


def test_pages_are_used_again_only_when_nobody_looks_at_them_any_more() -> None:
    """A slice of a slice is enough to hold them: a reader may still send it while the next segment is built."""
    first = segment_of(3 * MIB)
    content, held = bytes(first), first[MIB : 2 * MIB][10:20].cast("B")
    place = np.frombuffer(first, np.uint8).ctypes.data
    del first
    second = segment_of(3 * MIB)
    assert np.frombuffer(second, np.uint8).ctypes.data != place
    assert bytes(held) == content[MIB + 10 : MIB + 20]
    del held
    third = segment_of(3 * MIB)
    assert np.frombuffer(third, np.uint8).ctypes.data == place
    assert bytes(third) == bytes(second) == content


def test_pages_of_several_that_are_under_way_at_once_are_all_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane sends a few entries beside each other."""
    under_way = [segment_of(3 * MIB) for _ in range(4)]
    del under_way
    monkeypatch.setattr(mmap, "mmap", None)  # none is made
    again = [segment_of(3 * MIB) for _ in range(4)]
    assert {parse_segment(data, strict=True)[0].object_size for data in again} == {len(again[0])}


def test_a_smaller_segment_in_pages_that_were_used_ends_where_it_ends() -> None:
    assert len(segment_of(4 * MIB)) > 3.9 * MIB
    data = segment_of(3 * MIB)
    assert parse_segment(data, strict=True)[0].object_size == len(data) < 3.1 * MIB


def test_segments_built_by_several_threads_do_not_share_pages() -> None:
    def build(size: int) -> list[bool]:
        built = [segment_of(size) for _ in range(4)]
        return [parse_segment(data, strict=True)[0].object_size == len(data) for data in built]

    with ThreadPoolExecutor(4) as pool:
        for whole in pool.map(build, [2 * MIB, 3 * MIB, 2 * MIB, 4 * MIB] * 4):
            assert whole == [True] * 4


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
