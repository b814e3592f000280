"""Which kernels are used, and what they let other threads do meanwhile."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from logstore.format import kernels
from logstore.format.batches import columns
from logstore.format.batches.area import Area
from logstore.format.batches.arrays import Plan
from logstore.format.batches.batch import BatchInfo, Buffer, encode_batch, record_area
from logstore.format.batches.columns import COLUMNS
from logstore.format.batches.record import Record
from tests.support.format.material import NOW_MS

needs_speed = pytest.mark.skipif(len(kernels.ALL) == 1, reason="the C kernels are not built")


@pytest.mark.parametrize("setting", ["1", "0", ""])
def test_an_environment_variable_turns_the_c_kernels_off(setting: str) -> None:
    code = "from logstore.format import kernels; print(kernels.active.name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LOGSTORE_PURE": setting},
        check=True,
        capture_output=True,
        text=True,
    )
    built = importlib.util.find_spec("logstore.format._speed") is not None
    assert done.stdout.strip() == ("speed" if built and setting != "1" else "plain")


@needs_speed
@pytest.mark.parametrize("what", ["encode", "check", "gather", "keys", "pick"])
def test_other_threads_run_while_c_works_on_raw_memory(what: str) -> None:
    """With a switch interval of an hour, another thread runs only when the GIL is given up of free will."""
    records = [Record(b"v" * 1000, b"key")] * 2000
    raw, info = encode_batch(records, now_ms=NOW_MS, codec_id=0)
    area: Area = record_area(raw, info)
    speed = kernels.ALL[-1]
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: speed.encode(records, NOW_MS),
        "check": lambda: speed.check(area),
        "gather": lambda: speed.gather([area], 0, 2000, True, True, True, True),
        "keys": lambda: speed.keys([area], [2000], bytes(64)),
        "pick": lambda: speed.pick(area, 2000, bytes([1]) * 2000),
    }
    call, seen, started = calls[what], threading.Event(), threading.Event()
    calls_made = 0
    most = 20_000

    def work() -> None:
        nonlocal calls_made
        started.set()
        while not seen.is_set() and calls_made < most:
            call()
            calls_made += 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        worker = threading.Thread(target=work)
        worker.start()
        started.wait()
        seen.set()
        worker.join()
    finally:
        sys.setswitchinterval(before)
    assert calls_made < most


@needs_speed
@pytest.mark.parametrize("names", [COLUMNS, ("value",)])
def test_an_area_is_let_go_of_before_the_next_is_decompressed(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that each may lie in the same memory, which the processor still has at hand."""
    raw, info = encode_batch([Record(b"v" * 1000, b"key")] * 100, now_ms=NOW_MS)
    batches = [(raw, info._replace(base_offset=100 * n)) for n in range(10)]
    held: list[weakref.ref[np.ndarray]] = []
    alive = []

    def area_of(raw: Buffer, info: BatchInfo) -> Area:
        alive.append(sum(each() is not None for each in held))
        area = record_area(raw, info)
        copy = np.frombuffer(area.data, np.uint8).copy()
        copy.flags.writeable = False
        held.append(weakref.ref(copy))
        return area._replace(data=copy.data)

    monkeypatch.setattr(kernels, "active", kernels.ALL[-1])
    monkeypatch.setattr(columns, "record_area", area_of)
    (chunk,) = columns.column_chunks(batches, columns=names)
    assert alive == [0] * 10
    assert chunk.column("value").to_pylist() == [b"v" * 1000] * 1000


@needs_speed
@pytest.mark.parametrize("sizes", [[1, 400, 3], [300, 1, 1, 700], [1] * 50, [5, 0, 900]])
@pytest.mark.parametrize("said", [1, 4, 100_000])
def test_columns_grow_over_areas_of_any_sizes(sizes: list[int], said: int) -> None:
    """Room is made by what the first areas hold, and by how many rows are said to come: neither has to be right."""
    records = [
        Record(b"v" * (n * 7 % 300), None if n % 5 else b"k" * (n % 90), (("h", b"x" * n),) * (n % 3))
        for n in range(1000)
    ]
    areas = []
    for number, size in enumerate(sizes):
        some = [records[(number * 31 + n) % 1000] for n in range(size + 1)]
        areas.append(record_area(*encode_batch(some, now_ms=NOW_MS, codec_id=0)))
    rows = sum(area.records for area in areas)
    for first, stop in ((0, rows), (1, rows), (0, rows * said), (rows // 2, rows // 2 + 1)):
        found = [
            [
                make([], gathered, first, min(stop, rows))
                for make in Plan(("timestamp", "key", "value", "headers")).makers
            ]
            for kernel in (kernels.ALL[-1], kernels.PLAIN)
            for gathered in [kernel.gather(iter(areas), first, stop, True, True, True, True)]
        ]
        for ours, theirs in zip(*found, strict=True):
            ours.validate(full=True)
            assert ours.equals(theirs)


@needs_speed
def test_an_area_that_could_change_under_the_reader_is_refused() -> None:
    raw, info = encode_batch([Record(b"value")] * 3, now_ms=NOW_MS, codec_id=0)
    area = record_area(raw, info)
    changing = area._replace(data=memoryview(bytearray(area.data)))
    for call in (
        lambda: kernels.ALL[-1].check(changing),
        lambda: kernels.ALL[-1].records(changing, 0, 0, 3),
        lambda: kernels.ALL[-1].gather([changing], 0, 3, True, True, True, True),
    ):
        with pytest.raises(TypeError, match="read-only"):
            call()
