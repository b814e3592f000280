"""Eight real processes append to one partition on S3 servers; two of them are killed in the middle and started again."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logstore
from logstore.objects import open_url
from tests.support.servers import Server

WORKERS = 8
TOPIC = "shared"
WORKER = Path(__file__).parents[3] / "tests/support/engine/shared_worker.py"


class Worker:
    """Reads what its process prints; kills it (SIGKILL) once and starts it again if `dies_after` acks were asked for."""

    def __init__(self, url: str, producer_id: int, appends: int, dies_after: int | None) -> None:
        self.acked: list[tuple[int, int]] = []
        self.lives = 0
        self._command = [sys.executable, str(WORKER), url, TOPIC, str(producer_id), str(appends)]
        self._dies_after = dies_after
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.status: int | None = None

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _follow(self) -> None:
        while self.status is None:
            self.lives += 1
            with subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if not line.endswith("\n"):
                        break  # cut off by the kill: an ack that nobody has heard
                    sequence, offset = line.split()
                    self.acked.append((int(sequence), int(offset)))
                    if self.lives == 1 and len(self.acked) == self._dies_after:
                        process.kill()
            if process.returncode >= 0:
                self.status = process.returncode


@pytest.mark.s3
@pytest.mark.timeout(900)
@pytest.mark.parametrize("home", ["moto", "seaweedfs"])
@pytest.mark.parametrize("appends", [300, pytest.param(1000, marks=pytest.mark.soak)])
def test_W11_W13_eight_processes_two_killed_every_acked_record_exactly_once(
    home: str, appends: int, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(home)
    url = server.url()
    with logstore.open(url, writer="shared") as store:
        store.create_topic(TOPIC)
    workers = [
        Worker(url, number, appends, dies_after=60 + 100 * number if number < 2 else None)
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.wait()
    empty = [info.key for info in open_url(url).list("topics/") if not info.size]
    if empty and home == "seaweedfs":
        pytest.xfail(f"the server has kept an object of no bytes, which nobody sent: {empty}")
    assert [worker.status for worker in workers] == [0] * WORKERS
    assert [worker.lives for worker in workers] == [2, 2, 1, 1, 1, 1, 1, 1]
    with logstore.open(url, writer="read_only") as store:
        stored = {record.offset: record.value for record in store.topic(TOPIC).partition(0).records()}
    assert list(stored) == list(range(WORKERS * appends))  # dense, and not one more than was sent
    for number, worker in enumerate(workers):
        assert {sequence for sequence, _ in worker.acked} <= set(range(appends))
        for sequence, offset in worker.acked:
            assert stored[offset] == b"%d-%d" % (number, sequence)
    assert len(set(stored.values())) == WORKERS * appends
