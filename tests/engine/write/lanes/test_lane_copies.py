"""How often the bytes of a record are copied on their way into an entry."""

from __future__ import annotations

import os
from typing import Any

import pytest

from logstore.engine.memory import flush_window
from logstore.format.stored import entry, pages
from logstore.objects import MemoryStore
from tests.support.engine.harness import pairs, partition, running


def test_L01_the_bytes_of_a_record_are_copied_once_into_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not into a segment first, and with that into the entry."""
    copied: list[int] = []

    def counting(pieces: Any, size: int) -> memoryview:
        copied.append(size)
        return pages.in_one_piece(pieces, size)

    value = os.urandom(100_000)  # no codec makes it smaller
    with running(MemoryStore(), lanes=1) as store:
        log = partition(store)
        log.append(b"first", ack="durable")
        for module in (entry, flush_window):
            monkeypatch.setattr(module, "in_one_piece", counting)
        log.append(value, ack="durable")
        assert [size > len(value) for size in copied] == [True]
        assert pairs(log) == [(0, b"first"), (1, value)]
