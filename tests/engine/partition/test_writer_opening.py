"""The first append opens the writer, and keeps its deadline although the store does not answer."""

from __future__ import annotations

import threading

import pytest

import logstore
from logstore.errors import Closed, StoreUnavailable
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore, GatedStore
from tests.support.engine.harness import background, pairs, stored
from tests.support.patience import PATIENCE_S


@pytest.fixture(params=["put", "get"])
def held(request: pytest.FixtureRequest) -> str:
    """Where the store hangs: at the fence, or when the partition is loaded."""
    return str(request.param)


def opened() -> tuple[MemoryStore, GatedStore, logstore.Store]:
    objects = MemoryStore()
    gated = GatedStore(objects)
    store = logstore.open(gated)
    store.create_topic("t")
    return objects, gated, store


def openers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "logstore-open"]


def test_L07_a_first_append_whose_fence_hangs_gives_up_in_time_and_the_next_one_finds_the_writer(
    held: str,
) -> None:
    objects, gated, store = opened()
    log = store.topic("t").partition(0)
    with gated.hold(held, prefix="topics/") as gate:
        with pytest.raises(StoreUnavailable, match="nothing was appended") as late:
            log.append(b"late", timeout=0.01)
        assert late.value.retriable
        waiting = background(log.append, b"patient", timeout=PATIENCE_S)
        with pytest.raises(StoreUnavailable, match="nothing was appended"):
            log.append([b"late", b"too"], timeout=0.01)
        gate.wait_held()
        assert len(openers()) == 1  # all wait for the same one
    assert waiting.result(PATIENCE_S).offset == 0
    assert log.append(b"after").offset == 1
    store.close()
    assert stored(objects) == [(0, b"patient"), (1, b"after")]
    assert openers() == []


def test_L06_a_close_does_not_wait_for_a_writer_whose_fence_hangs(held: str) -> None:
    objects, gated, store = opened()
    log = store.topic("t").partition(0)
    with gated.hold(held, prefix="topics/") as gate:
        waiting = background(log.append, b"never", timeout=PATIENCE_S)
        gate.wait_held()
        store.close(timeout=0.01)
        with pytest.raises(Closed):
            log.append(b"more")
        (opener,) = openers()
    assert isinstance(waiting.exception(PATIENCE_S), Closed)
    opener.join(PATIENCE_S)
    assert not opener.is_alive()
    assert stored(objects) == []


def test_L28_why_the_writer_could_not_be_opened_is_told_to_everybody_who_waits() -> None:
    faulty = FaultyStore(MemoryStore())
    with logstore.open(faulty, probe_interval=0.001) as store:
        log = store.create_topic("t").partition(0)
        faulty.fail("put", suffix=".seg", times=1 << 30, with_=Fault.UNAVAILABLE)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="could not be opened"):
                log.append(b"a", timeout=0.02)
        patient = background(log.append, b"b", timeout=PATIENCE_S)
        with pytest.raises(StoreUnavailable, match="could not be opened"):
            log.append(b"a", timeout=0.02)  # its end is not that of one who has more time
        faulty.heal()
        assert patient.result(PATIENCE_S).offset == 0
        assert pairs(log) == [(0, b"b")]
