"""A writer that has stopped tells everybody who still comes why, for as long as they come: it must not grow by it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import logstore
from logstore.config import WriterKind
from logstore.engine.memory.waiters import fail
from logstore.errors import fresh
from logstore.objects import MemoryStore


def depth(error: BaseException) -> int:
    """How many frames its traceback holds."""
    frames, at = 0, error.__traceback__
    while at is not None:
        frames, at = frames + 1, at.tb_next
    return frames


def refused(call: Callable[[], object]) -> logstore.Fenced:
    with pytest.raises(logstore.Fenced) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("writer", ["exclusive", "shared", "replicated"])
def test_the_hundredth_refusal_holds_no_more_frames_than_the_first(writer: str) -> None:
    objects = MemoryStore()
    kind: WriterKind = "shared" if writer == "shared" else "exclusive"
    with logstore.open(objects, writer=kind) as store, logstore.open(objects, take_over=True) as other:
        log = store.create_topic("t").partition(0)
        if writer == "replicated":
            replica = log.replicated("replica-1")
            replica.compare_and_append([b"r0"], 0, 1)

            def append() -> object:
                return replica.compare_and_append([b"late"], 1, 2)
        else:
            log.append(b"first")

            def append() -> object:
                return log.append(b"late")

        other.topic("t").partition(0).append(b"takes over")
        refused(append)  # it learns of it
        first = refused(append)
        for _ in range(100):
            last = refused(append)
        assert str(last) == str(first)
        assert depth(last) == depth(first)


def test_those_who_wait_each_get_an_error_of_their_own() -> None:
    """Raised in many threads, one object would mix up their tracebacks."""
    waiting: list[Future[int]] = [Future(), Future()]
    error = logstore.Fenced("a newer one")
    fail(waiting, error)
    first, second = (future.exception() for future in waiting)
    assert (str(first), str(second)) == ("a newer one", "a newer one")
    assert len({id(error), id(first), id(second)}) == 3


def test_a_fresh_error_says_all_that_the_kept_one_says() -> None:
    kept = logstore.CorruptData("some/key", 17, "the bytes are damaged")
    kept.__cause__ = ValueError("why")
    again = fresh(kept)
    assert (type(again), str(again), again.key, again.offset) == (type(kept), str(kept), "some/key", 17)
    assert again.__cause__ is kept.__cause__
    hopeless = logstore.StoreUnavailable("no bucket")
    hopeless.retriable = False
    assert fresh(hopeless).retriable is False
    assert str(pickle.loads(pickle.dumps(again))) == str(kept)
