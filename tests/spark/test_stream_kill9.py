"""S06, S07: a stream whose driver is killed again and again copies each record once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logstore

from .material import numbered

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]
KILLS = 6
PATIENCE_S = 600.0


def run(url: str, checkpoint: Path, kill_after_s: float | None) -> bool:
    """One life of the stream; True if it came to its end. The clock runs from when Spark is up."""
    job = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("stream_job.py")), url, str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that the JVM and Python's workers go with it
    )
    assert job.stdout is not None
    timer = threading.Timer(PATIENCE_S, os.killpg, (job.pid, signal.SIGKILL))
    try:
        assert job.stdout.readline() == b"session\n"
        if kill_after_s is not None:
            timer = threading.Timer(kill_after_s, os.killpg, (job.pid, signal.SIGKILL))
        timer.start()
        return job.stdout.readline() == b"done\n"
    finally:
        timer.cancel()
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


@pytest.mark.parametrize("seed", range(1, 6))
def test_S07_a_stream_that_is_killed_again_and_again_stores_each_record_once(tmp_path: Path, seed: int):
    dice = random.Random(seed)
    url = (tmp_path / "log").as_uri()
    with logstore.open(url) as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(2):
            orders.partition(number).append(numbered(number * 200, number * 200 + 200))
        store.create_topic("copy", partitions=3)
    for _ in range(KILLS):
        if run(url, tmp_path / "checkpoint", dice.uniform(1, 20)):
            break
    assert run(url, tmp_path / "checkpoint", None)
    with logstore.open(url, writer="read_only") as store:
        copy = store.topic("copy")
        found = [record.value for number in range(3) for record in copy.partition(number).records()]
    assert sorted(found) == sorted(b"v%d" % n for n in range(400)), f"seed {seed}"
