"""Kill -9 of a real process at each step of a flush and of a WAL write; then reopen.

Whatever the step: nothing acked `durable` or `local` is missing or at another offset, nothing is there twice, an atomic
append is whole or absent, and no offset that anybody was told is ever given to another record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import logstore

CHILD = Path(__file__).parents[3] / "tests/support/engine/kill9_child.py"
STEPS_MAX = 400


@dataclass(frozen=True)
class Ack:
    level: str
    offset: int
    values: tuple[bytes, ...]


class Children:
    """The fork server, and one job at a time for it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def run(self, **job: Any) -> bool:
        """Run a child until its kill. False if it came to its end before that step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["signal"] == signal.SIGKILL, f"the child failed by itself: {answer}"
        return not answer["ended"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


def read_acks(path: Path) -> list[Ack]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [Ack(level, offset, tuple(value.encode() for value in values)) for level, offset, *values in lines]


def check_after_crash(url: str, wal_dir: str | None, acks: list[Ack]) -> None:
    """Open it twice: as the next writer, and once more to see that what it found is there to stay."""
    with logstore.open(url, wal_dir=wal_dir) as store:
        if "t" not in store.topics():
            assert not acks
            return
        log = store.topic("t").partition(0)
        ours = log.append(b"the next writer's")
        found = {record.offset: record.value for record in log.records()}
        lost = {
            offset
            for lost in log.lost_ranges()
            for offset in range(lost.start, min(lost.end, lost.start + 100))
        }
    check_contents(found, lost, acks, ours.offset)
    with logstore.open(url, writer="read_only") as store:
        again = {record.offset: record.value for record in store.topic("t").partition(0).records()}
    assert again == found


def check_contents(
    found: dict[int | None, bytes | None], lost: set[int], acks: list[Ack], next_offset: int
) -> None:
    told = {ack.offset + place: value for ack in acks for place, value in enumerate(ack.values)}
    assert len(told) == sum(len(ack.values) for ack in acks), "an offset was told twice before the crash"
    for ack in acks:
        for place, value in enumerate(ack.values):
            offset = ack.offset + place
            if ack.level == "buffered":
                assert found.get(offset, value) == value, f"offset {offset} was given to another record"
                assert offset in found or offset in lost, f"offset {offset} is gone and nobody says so"
            else:
                assert found.get(offset) == value, (
                    f"{value!r} was acked {ack.level} at {offset} and is not there"
                )
    values = list(found.values())
    assert len(values) == len(set(values)), f"a record is there twice: {values}"
    assert (b"pair-a" in values) == (b"pair-b" in values), "half of an atomic append"
    assert all(offset < next_offset for offset in told), (
        "the next writer was given an offset that was told before"
    )
    assert found[next_offset] == b"the next writer's"


def every_step(
    children: Children, tmp_path: Path, url_of: Callable[[int], str], *, stride: int = 1, **job: Any
) -> int:
    """Run the scenario again for each step, until one run comes to its end. Returns how many steps there were."""
    for step in range(1, STEPS_MAX, stride):
        acks = tmp_path / f"acks-{step}"
        wal_dir = str(tmp_path / f"wal-{step}") if job["scenario"] == "local" else None
        killed = children.run(step=step, url=url_of(step), wal_dir=wal_dir, acks=str(acks), **job)
        check_after_crash(url_of(step), wal_dir, read_acks(acks))
        if not killed:
            return step
    raise AssertionError(f"more than {STEPS_MAX} steps")


def each(*strides: int) -> pytest.MarkDecorator:
    """Every so many steps, and, in `make soak`, all of them."""
    few, all_of_them = strides
    return pytest.mark.parametrize("stride", [few, pytest.param(all_of_them, marks=pytest.mark.soak)])


@each(3, 1)
@pytest.mark.parametrize("scenario", ["durable", "local"])
def test_L01_L09_L17_kill_9_at_each_system_call(
    children: Children, tmp_path: Path, scenario: str, stride: int
) -> None:
    """`local` is a WAL write at each of its steps; `durable` a flush."""
    steps = every_step(
        children,
        tmp_path,
        lambda step: str(tmp_path / f"objects-{step}"),
        stride=stride,
        scenario=scenario,
        count="disk",
    )
    assert steps > 40, "a flush and a WAL write have more steps than these: what was counted?"


@pytest.mark.s3
@each(5, 2)
@pytest.mark.parametrize("server", ["moto", "seaweedfs"])
def test_L01_kill_9_around_each_request_to_s3(
    children: Children, tmp_path: Path, server: str, stride: int, request: pytest.FixtureRequest
) -> None:
    """Of all of them every other one: right after one request is right before the next."""
    urls: dict[int, str] = {}
    make = request.getfixturevalue(server).url

    def url_of(step: int) -> str:
        return urls.setdefault(step, make())

    steps = every_step(children, tmp_path, url_of, scenario="durable", count="store", stride=stride)
    assert steps > 20
