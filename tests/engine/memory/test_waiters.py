"""Who waits for an offset: the future that is handed out, and the one of a thread that waits for it by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from logstore.engine.memory.waiters import BlockingWait, OffsetWaiters, complete, fail
from logstore.errors import Fenced

KINDS = pytest.mark.parametrize("kind", [Future, BlockingWait])
Kind = Callable[[], "Future[str]"]


@KINDS
def test_one_who_waits_is_told_by_another_thread(kind: Kind) -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    future = waiters.add(3, "three", kind())
    assert waiters.release(3) == []
    teller = threading.Thread(target=lambda: complete(waiters.release(4)))
    teller.start()
    assert future.result(60) == "three"
    teller.join()
    assert (future.done(), future.cancelled(), future.result(0)) == (True, False, "three")


@KINDS
def test_bad_news_are_raised_where_somebody_waits(kind: Kind) -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    future = waiters.add(0, "never", kind())
    fail(waiters.take_all(), Fenced("taken over"))
    with pytest.raises(Fenced, match="taken over"):
        future.result(60)
    assert future.done()


@KINDS
def test_one_who_gives_up_is_left_alone(kind: Kind) -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    future = waiters.add(0, "too late", kind())
    with pytest.raises(FutureTimeout):
        future.result(0)
    waiters.discard(future)
    complete(waiters.release(1))
    assert (future.cancelled(), future.done()) == (True, True)
    with pytest.raises(CancelledError):
        future.result(0)


@KINDS
def test_an_ack_that_has_come_cannot_be_given_up(kind: Kind) -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    future = waiters.add(0, "in time", kind())
    complete(waiters.release(1))
    waiters.discard(future)
    assert (future.cancelled(), future.result(0)) == (False, "in time")


def test_an_ack_in_the_moment_of_giving_up_harms_nobody() -> None:
    """The teller has looked, and its owner gives up before he is told."""
    future: BlockingWait[str] = BlockingWait()
    assert future.set_running_or_notify_cancel()
    assert future.cancel()
    future.set_result("both")
    with pytest.raises(CancelledError):
        future.result(0)
