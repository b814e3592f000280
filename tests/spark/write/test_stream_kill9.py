"""S06, S07: a stream whose driver is killed again and again copies each record once."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import logstore
from tests.support.spark.material import numbered

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3000)]
KILLS = 6
FILES_MAX = 24
"""A micro-batch makes about ten files in log and checkpoint, and there are 16: so many lives do not come to the end."""


def files(home: Path) -> set[str]:
    return {os.path.join(folder, name) for folder, _, names in os.walk(home) for name in names}


def live(home: Path, files_to_make: float = math.inf) -> str:
    """One life of the stream, and what it said at its end, or why it failed. It is killed when it has made so many new
    files, whatever it is doing then."""
    errors = home / "errors"
    errors.touch()
    known = files(home)
    made: set[str] = set()
    job = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).parents[3] / "tests/support/spark/stream_job.py"),
            (home / "log").as_uri(),
            str(home / "checkpoint"),
        ],
        stdout=subprocess.PIPE,
        stderr=errors.open("wb"),
        start_new_session=True,  # so that the JVM and Python's workers go with it
    )
    try:
        while job.poll() is None and len(made) < files_to_make:
            with suppress(subprocess.TimeoutExpired):
                job.wait(0.005)
            made |= files(home) - known
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        said, _ = job.communicate()
    if job.returncode:
        return "killed" if job.returncode == -signal.SIGKILL else errors.read_text(errors="replace")[-3000:]
    return said.decode().strip()


@pytest.mark.parametrize("seed", range(1, 6))
def test_S07_a_stream_that_is_killed_again_and_again_stores_each_record_once(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    url = (tmp_path / "log").as_uri()
    with logstore.open(url) as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(2):
            orders.partition(number).append(numbered(number * 200, number * 200 + 200))
        store.create_topic("copy", partitions=3)
    for _ in range(KILLS):
        assert live(tmp_path, rng.randint(1, FILES_MAX)) == "killed"
    assert live(tmp_path) == "done"
    with logstore.open(url, writer="read_only") as store:
        copy = store.topic("copy")
        found = [record.value for number in range(3) for record in copy.partition(number).records()]
    assert sorted(found) == sorted(b"v%d" % n for n in range(400)), f"seed {seed}"  # type: ignore[type-var]
