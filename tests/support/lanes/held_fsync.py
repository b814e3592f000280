"""An fsync that the test holds: the disk is as slow as it likes."""

from __future__ import annotations

import os
import threading

import pytest

from tests.support.patience import PATIENCE_S


class HeldFsync:
    """From now on, until `monkeypatch.undo()`, each fsync of the process waits for `let_go`. `calls`: how many came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._real, self._arrived, self._go = os.fsync, threading.Event(), threading.Event()
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, handle: int) -> None:
        self.calls += 1
        self._arrived.set()
        assert self._go.wait(PATIENCE_S)
        self._real(handle)

    def wait(self) -> None:
        """Until one has come."""
        assert self._arrived.wait(PATIENCE_S)

    def let_go(self) -> None:
        self._go.set()
