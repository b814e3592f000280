"""A broker that is told to stop while its store, or a thread of its own, never answers."""

from __future__ import annotations

import subprocess
import sys

from tests.support.patience import PATIENCE_S

SCRIPT = """
import asyncio, os, signal, sys, threading
from broker_shim import __main__, broker, server
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore

broker.SIGN_OFF_S = 0.1


def wait_for_ever():
    threading.Event().wait()


class Stuck(server.Server):
    def __init__(self, config):
        super().__init__(config, GatedStore(MemoryStore()))

    async def start(self):
        await super().start()
        await asyncio.to_thread(self.get_stuck)
        os.kill(os.getpid(), signal.SIGTERM)

    def get_stuck(self):
        match sys.argv[1]:
            case "store":
                log = self.store.create_topic("t").partition(0)
                log.append([b"0", b"1"], ack="buffered", timeout=30)
                log.flush(30)
                self.held = self._objects.hold("put", suffix=".seg")
                self.held.__enter__()
                log.append([b"2", b"3"], ack="buffered", timeout=30)
            case "workers":
                for _ in range(broker.WORKERS):
                    self.broker._workers.submit(wait_for_ever)


server.Server = Stuck
sys.exit(__main__.main(["--store", "memory://not-used", "--listen", "127.0.0.1:0", "--drain-timeout", "1"]))
"""


def stopped(trouble: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, trouble]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_B08_a_store_that_does_not_answer_does_not_keep_a_broker_from_stopping() -> None:
    end = stopped("store")
    assert end.returncode == 1, end.stderr
    assert "offsets 2 to 3" in end.stderr


def test_B08_workers_that_wait_for_ever_do_not_keep_a_broker_from_stopping() -> None:
    end = stopped("workers")
    assert end.returncode == 1, end.stderr
    assert "whoever waits for it is left behind" in end.stderr
