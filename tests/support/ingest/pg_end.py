"""Waiting until a slot has come to the end of the WAL."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from logstore.ingest.postgres.slot import connect, slot_state

ROOT = Path(__file__).parents[3]


def wait_for_the_end(dsn: str, slot: str, child: subprocess.Popen[bytes]) -> None:
    """The load has stopped: the slot's lag goes to zero."""
    pause = threading.Event()
    with connect(dsn) as connection:
        for _ in range(1_200):
            assert child.poll() is None, "the ingester ended by itself"
            state = slot_state(connection, slot)
            if state is not None and state.lag_bytes == 0:
                return
            pause.wait(0.05)
    raise AssertionError(f"the slot never reached the end of WAL: {state}")
