"""Fuzz the C kernels under AddressSanitizer and UndefinedBehaviorSanitizer, against the plain ones.

    python tests/fuzz/fuzz_speed.py --seconds 60 [--seed 1]

Builds `_speed.c` with both sanitizers into a temporary folder and starts itself again with that build in place. Each
round takes a batch, damages it as no CRC would let through, and wants one outcome from both kernels: the same records,
columns and timestamps, or a refusal. Areas lie in memory of exactly their size, so that reading one byte too many is
seen. Ends with 0 if nothing was found; a sanitizer's report, or the seed of the round that differs, if something was.
"""

from __future__ import annotations

import argparse
import array
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "logstore" / "format" / "_speed.c"
BUILT = "LOGSTORE_FUZZ_BUILD"
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(folder: str, source: Path = SOURCE, compiler: str = "gcc") -> dict[str, str]:
    """Compile into `folder`; return the environment for the child. Raises if there is no such compiler."""
    target = Path(folder) / "_speed.so"
    include = sysconfig.get_paths()["include"]
    command = [compiler, *FLAGS, "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    runtimes = [
        subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {
        BUILT: str(target),
        "LOGSTORE_PURE": "1",
        "LD_PRELOAD": ":".join(run.stdout.strip() for run in runtimes),
        # Each object in memory of its own, with red zones around it. The interpreter's own leaks are not our concern.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
    }


def load() -> Any:
    spec = importlib.util.spec_from_file_location("logstore.format._speed", os.environ[BUILT])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    from logstore.format.errors import FormatError

    try:
        return call(*args)
    except FormatError:
        return "refused"


def random_records(rng: random.Random) -> list[Any]:
    from logstore.format.batches.record import Record

    def blob(*more: object) -> object:
        size = rng.choice([0, 1, 12, 13, 63, 64, 65, 200, rng.randrange(300), 8191, 8192])
        return rng.choice([None, rng.randbytes(size), rng.randbytes(size), *more])

    def headers() -> Any:
        pairs = [("häder"[: rng.randrange(6)], blob()) for _ in range(rng.choice([0, 0, 0, 1, 3]))]
        return rng.choice([tuple(pairs)] * 12 + [None, pairs, "ab", ((b"k", b"v"),), (("\ud800", None),)])

    def stamp() -> Any:
        usual = [None, 1_700_000_000_000, 1_700_000_000_000 + rng.randrange(-100_000, 100_000)]
        return rng.choice(usual * 6 + [0, -1, -2, 1 << 53, 1 << 63, 1.5])

    wild = rng.random() < 0.3
    return [
        Record(
            blob(*(("text", bytearray(2), 3) if wild else ())),  # type: ignore[arg-type]
            blob(),  # type: ignore[arg-type]
            headers() if wild else tuple((f"k{n}", b"v") for n in range(rng.choice([0, 0, 2]))),
            stamp() if wild else 1_700_000_000_000 + rng.randrange(3),
        )
        for _ in range(rng.choice([1, 2, 5, 30, 100]))
    ]


def damage(rng: random.Random, data: bytes) -> bytes:
    area = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        position = rng.randrange(min(len(area), rng.choice([8, 40, 400, len(area)])))
        area[position] = rng.choice([0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del area[rng.randrange(len(area) + 1) :]
    return bytes(area)


def taken(cut: Any, records: list[Any], max_batch_bytes: int) -> Any:
    """The runs that an append would be cut into; whether it is refused, if it is."""
    from logstore.engine.write.admission import admit_records
    from logstore.errors import LogStoreError
    from logstore.format import kernels

    kernels.active = kernels.PLAIN._replace(cut=cut)
    try:
        return admit_records(records, max_batch_bytes)
    except LogStoreError as refusal:
        return str(refusal)


def one_round(speed: Any, seed: int) -> None:
    """Raises AssertionError where the kernels differ."""
    import numpy as np

    from logstore.format import kernels
    from logstore.format.batches.area import Area
    from logstore.format.batches.arrays import Plan
    from logstore.format.plain import encode

    check_offset_map(speed, seed)
    rng = random.Random(seed)
    kernels.speed = speed
    records = random_records(rng)
    max_batch_bytes = (200, 9_000, 20_000, 1 << 20)[seed % 4]
    assert taken(speed.cut, records, max_batch_bytes) == taken(kernels.PLAIN.cut, records, max_batch_bytes), (
        "cut"
    )
    checked = [record for record in records if isinstance(record.timestamp_ms, int | None)]
    assert not checked or speed.stamp(checked, 7) == kernels.PLAIN.stamp(checked, 7), "stamp"
    try:
        encoded = speed.encode(records, 1_700_000_000_000)
    except (TypeError, ValueError, OverflowError):
        encoded = "refused"
    assert encoded == outcome(encode.encode, records, 1_700_000_000_000), "encode"
    if encoded == "refused":
        return
    data, base_ms, _, _ = encoded
    data = damage(rng, data)
    exact = memoryview(array.array("B", data)).toreadonly()
    count = rng.choice([len(records)] * 8 + [1, len(records) + 1, 1 << 31])
    append = rng.choice([None, None, None, 5, -2])
    area = Area(exact, count, base_ms, append)
    plain = Area(data, count, base_ms, append)
    first, stop = rng.choice([(0, count), (0, count), (1, 3), (count, count)])
    assert outcome(speed.records, area, 7, first, stop) == outcome(
        kernels.PLAIN.records, plain, 7, first, stop
    )
    assert outcome(speed.check, area) == outcome(kernels.PLAIN.check, plain), "check"

    stop = min(stop, count, 1 << 20)
    first = min(first, stop)
    wanted = [rng.random() < 0.8 for _ in range(4)]
    columns = [
        name for name, want in zip(("timestamp", "key", "value", "headers"), wanted, strict=True) if want
    ]
    # Areas of several sizes: columns grow from one to the next.
    few = records[: rng.choice([1, 2, 20])]
    data, base_ms, _, _ = speed.encode(few, 1_700_000_000_000)
    small = Area(data, len(few), base_ms, None)
    times = rng.choice([1, 1, 2, 9])
    before = rng.choice([[], [small], [small] * 5])
    first, stop = sorted(
        (rng.choice([0, 0, first, first + 3]), stop + rng.choice([0, 0, count * (times - 1)]))
    )
    ours = outcome(speed.gather, iter([*before, *[area] * times]), first, stop, *wanted)
    theirs = outcome(kernels.PLAIN.gather, iter([*before, *[plain] * times]), first, stop, *wanted)
    assert (ours == "refused") == (theirs == "refused"), "gather"
    if ours != "refused":
        total = len(few) * len(before) + count * times
        first, stop = min(first, total), min(stop, total)
        for name, make in zip(columns, Plan(columns).makers, strict=True):
            left, right = (make([], found, first, stop) for found in (ours, theirs))
            left.validate(full=True)
            assert left.equals(right), name
    # What compaction by key does with it: a batch with as many records as offsets, or with fewer.
    span = count + rng.choice([0, 0, 0, 1, 5])
    factors = np.random.default_rng(seed).integers(0, 1 << 64, (rng.choice([0, 1, 5, 40]), 2), np.uint64)
    ours = outcome(speed.keys, [area, area], [span, span], factors)
    theirs = outcome(kernels.PLAIN.keys, [plain, plain], [span, span], factors)
    assert same_columns(ours, theirs), "keys"
    if count < 1 << 20:
        keep = array.array("B", [rng.random() < 0.5 for _ in range(count - 1)] + [1])
        assert outcome(speed.pick, area, span, keep) == outcome(kernels.PLAIN.pick, plain, span, keep), "pick"


def same_columns(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return isinstance(ours, str) and isinstance(theirs, str)
    return [bytes(column) for column in ours[:4]] == [bytes(column) for column in theirs[:4]] and (
        ours[4] == theirs[4]
    )


def check_offset_map(speed: Any, seed: int) -> None:
    """A small table, keys that meet often, and one more key than fits now and then."""
    import numpy as np

    from logstore.format import kernels

    rng = np.random.default_rng(seed)
    slots = 1 << int(rng.integers(1, 6))
    keys = int(rng.integers(1, slots + 2))
    hashes = rng.integers(0, 1 << 64, (keys, 2), np.uint64)
    hashes[:, 0] >>= rng.choice(np.array([0, 58, 63], np.uint64), keys)
    chosen = rng.integers(0, keys, 20)
    one, two = (np.ascontiguousarray(hashes[chosen, half]) for half in (0, 1))
    offsets = np.sort(rng.integers(0, 1 << 40, 20))
    tables = [np.zeros((slots, 3), np.uint64) for _ in range(2)]
    found = []
    for table, kernel in zip(tables, (speed, kernels.PLAIN), strict=True):
        try:
            added = kernel.remember(table, one, two, offsets)
        except ValueError:
            added = "full"
        left, right = (np.ascontiguousarray(hashes[:, half]) for half in (0, 1))
        found.append((added, added == "full" or bytes(kernel.recall(table, left, right))))
    assert found[0] == found[1], "offset map"


def child(seconds: float, seed: int) -> None:
    speed = load()
    deadline = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < deadline:
        try:
            one_round(speed, seed + rounds)
        except AssertionError as error:
            raise SystemExit(f"seed {seed + rounds}: the kernels differ: {error}") from error
        rounds += 1
    print(f"{rounds} rounds from seed {seed}, nothing found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if BUILT in os.environ:
        child(chosen.seconds, chosen.seed)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([sys.executable, *sys.argv], env=build(folder), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
