"""Stores as far away as S3, and an owner that was killed: what the suites of lanes start from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from logstore.objects import ObjectStore
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.testing import S3_LATENCY, FaultyStore, SlowStore

_FILL = """
import sys, time, logstore
store = logstore.open(sys.argv[1], lane=sys.argv[3] if len(sys.argv) > 3 else None)
topic = store.create_topic("t", int(sys.argv[2]), exist_ok=True)
waiting = [topic.partition(n).submit(b"a") for n in range(topic.partitions)]
assert len({ack.result().offset for ack in waiting}) == 1
print("filled", flush=True)
sys.stdin.readline()
store.close()
"""


def far_away(objects: ObjectStore) -> SlowStore:
    """As S3 is."""
    get, put = S3_LATENCY["get"], S3_LATENCY["put"]
    return SlowStore(objects, get=get, put=put, head=get, list=get, delete=get)


def slow(objects: ObjectStore) -> FaultyStore:
    """The same; what is asked of it is counted."""
    return FaultyStore(far_away(objects))


class Timed(SlowStore):
    """As far away as S3. Notes from when to when each request for an entry, or for the lane's split mark, was under way."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, **S3_LATENCY)  # type: ignore[arg-type]
        self.spans: list[tuple[float, float]] = []

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        began = time.perf_counter()
        try:
            return super().get(key, start, end)
        finally:
            self._note(key, began)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        began = time.perf_counter()
        try:
            return super().put(key, data, if_absent=if_absent, if_match=if_match)
        finally:
            self._note(key, began)

    def _note(self, key: str, began: float) -> None:
        if key.startswith("lanes/"):
            self.spans.append((began, time.perf_counter()))

    def slowest_in(self, began: float, ended: float) -> float:
        """Of the requests that were under way in that time."""
        return max(end - start for start, end in list(self.spans) if start < ended and end > began)


def fill_and_kill(home: Path, partitions: int, *lane: str) -> None:
    """A process that has appended once to each partition of a topic, under that name, and died."""
    filled = _filled(home, partitions, *lane)
    filled.kill()
    filled.wait()


def fill_and_close(home: Path, partitions: int) -> None:
    """The same, but it has closed its store."""
    filled = _filled(home, partitions)
    filled.communicate(b"close\n")
    assert filled.returncode == 0


def _filled(home: Path, partitions: int, *lane: str) -> subprocess.Popen[bytes]:
    filled = subprocess.Popen(
        [sys.executable, "-c", _FILL, str(home), str(partitions), *lane],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert filled.stdout is not None
    assert filled.stdout.readline() == b"filled\n"
    return filled
