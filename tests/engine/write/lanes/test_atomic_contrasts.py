"""Atomic appends without one of their rules: what goes wrong then."""

from __future__ import annotations

import pytest

from logstore.engine.write.lanes.flight import Flight
from logstore.engine.write.undecided import UndecidedAppends
from logstore.errors import (
    Fenced,
)
from logstore.objects import MemoryStore
from logstore.testing import GatedStore
from tests.support.engine.harness import crash, open_store, running
from tests.support.lanes.atomic import opened, submit
from tests.support.lanes.entries import place, seen
from tests.support.patience import PATIENCE_S

# The broken ways, so that the tests above are known to bite


def test_N09_contrast_without_the_rule_half_of_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flight, "lost", lambda flight, atomic: None)
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1)
    logs = opened(store, 2)
    with place(gated, 2) as gate, running(objects, lanes=1) as other:
        half = submit((logs[0], b"x"), (logs[1], b"y"))
        gate.wait_held()
        other.topic("t").partition(1).append(b"taken")
        gate.open()
        half.result(PATIENCE_S)
    crash(store)
    assert [value for _, value in seen(objects, 0)] == [b"opened", b"x"]
    assert [value for _, value in seen(objects, 1)] == [b"opened", b"taken"]


def test_N09_contrast_what_is_shown_behind_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UndecidedAppends, "__bool__", lambda undecided: False)
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = open_store(gated, lanes=1, ack="buffered")
    logs = opened(store, 2)
    store.flush()
    with place(gated, 1) as gate, running(objects, lanes=1) as other:
        lost = submit((logs[0], b"x"), (logs[1], b"y"))
        gate.wait_held()
        shown = logs[0].append(b"shown").offset
        other.topic("t").partition(1).append(b"taken")
        gate.open()
        with pytest.raises(Fenced):
            lost.result(PATIENCE_S)
        logs[0].flush()
    crash(store)
    assert shown == 2
    assert seen(objects, 0) == [(0, b"opened"), (1, b"shown")], "told to be at 2, and stored at 1"
