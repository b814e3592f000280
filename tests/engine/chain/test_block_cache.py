"""The block cache: its limit holds while pieces are on their way, not only once they are there."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from logstore.engine.chain import block_cache as cache_module
from logstore.engine.chain.block_cache import BlockCache, Sized

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Piece:
    name: str
    cached_bytes: int


def test_L30_room_is_made_before_a_load_begins() -> None:
    """Two pieces fill the cache; while a third is being loaded, the oldest of them is gone already."""
    cache = BlockCache(100)
    for name in ("old", "new"):
        cache.get(name, 50, lambda name=name: Piece(name, 50))  # type: ignore[misc]
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Piece:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return Piece("next", 50)

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(cache.get, "next", 50, slow)
        assert begun.wait(PATIENCE_S)
        assert (cache.peek("old"), cache.peek("new")) == (None, Piece("new", 50))
        assert cache.used == 50
        go_on.set()
        assert coming.result(PATIENCE_S) == Piece("next", 50)
    assert cache.peek("next") == Piece("next", 50)
    assert cache.used == 100


def test_L30_a_load_that_fails_gives_its_room_back() -> None:
    cache = BlockCache(100)

    def fail() -> Piece:
        raise OSError("not today")

    for _ in range(5):
        try:
            cache.get("bad", 60, fail)
        except OSError:
            continue
    cache.get("a", 50, lambda: Piece("a", 50))
    cache.get("b", 50, lambda: Piece("b", 50))
    assert (cache.peek("a"), cache.peek("b")) == (Piece("a", 50), Piece("b", 50))


def test_L30_a_piece_that_can_never_stay_pushes_nothing_out() -> None:
    cache = BlockCache(100)
    cache.get("small", 50, lambda: Piece("small", 50))
    assert cache.get("huge", 101, lambda: Piece("huge", 101)) == Piece("huge", 101)
    assert cache.peek("huge") is None
    assert cache.peek("small") == Piece("small", 50)


def test_L30_an_interrupt_of_the_one_who_loads_is_not_raised_in_those_who_wait() -> None:
    """Ctrl-C reaches the main thread inside a load that another thread waits for: that one loads the piece itself."""
    cache = BlockCache(100)
    begun, interrupt = threading.Event(), threading.Event()

    def interrupted() -> Piece:
        begun.set()
        assert interrupt.wait(PATIENCE_S)
        raise KeyboardInterrupt

    asked = threading.Event()

    class Waited(Future[Sized]):
        """Tells that somebody waits for it."""

        def result(self, timeout: float | None = None) -> Sized:
            asked.set()
            return super().result(timeout)

    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "Future", Waited)
        first = pool.submit(cache.get, "piece", 50, interrupted)
        assert begun.wait(PATIENCE_S)
        second = pool.submit(cache.get, "piece", 50, lambda: Piece("piece", 50))
        assert asked.wait(PATIENCE_S)
        interrupt.set()
        assert second.result(PATIENCE_S) == Piece("piece", 50)
        assert isinstance(first.exception(PATIENCE_S), KeyboardInterrupt)
    assert cache.used == 50
