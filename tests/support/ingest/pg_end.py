"""Waiting until a slot has come to the end of the WAL."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from logstore.ingest.postgres.slot import connect, slot_state
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
_LOOK_S = 0.05


def wait_for_the_end(dsn: str, slot: str, child: subprocess.Popen[bytes]) -> None:
    """The load has stopped: the slot's lag goes to zero. However much there is to catch up with, as long as it moves."""
    pause = threading.Event()
    with connect(dsn) as connection:
        looks, before = 0, None
        while looks < PATIENCE_S / _LOOK_S:
            assert child.poll() is None, f"the ingester ended by itself: {child.returncode}"
            state = slot_state(connection, slot)
            if state is not None and state.lag_bytes == 0:
                return
            looks, before = (looks + 1, before) if state == before else (0, state)
            pause.wait(_LOOK_S)
    raise AssertionError(f"the slot never reached the end of WAL: {state}")
