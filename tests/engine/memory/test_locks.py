"""A partition's lock, and a lane's, are held for memory work alone: no request to the store is made under one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.engine.memory import partition_state
from logstore.engine.write.lanes import lane_book
from logstore.objects import MemoryStore, ObjectInfo
from logstore.objects.protocol import Buffer
from tests.support.engine.harness import numbered, running


class Watched(MemoryStore):
    """Notes each request that comes from a thread which holds one of `locks`."""

    def __init__(self, locks: list[Any]) -> None:
        super().__init__()
        self._locks = locks
        self.requests = 0
        self.under_a_lock: list[str] = []

    def _note(self, request: str) -> None:
        self.requests += 1
        if any(lock._is_owned() for lock in self._locks):
            self.under_a_lock.append(request)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._note(f"get {key}")
        return super().get(key, start, end)

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self._note(f"put {key}")
        return super().put(key, data, if_absent=if_absent, if_match=if_match)

    def head(self, key: str) -> ObjectInfo | None:
        self._note(f"head {key}")
        return super().head(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self._note(f"list {prefix}")
        return super().list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._note(f"delete {key}")
        super().delete(key)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Locks that know who holds them."""
    made: list[Any] = []

    def lock() -> Any:
        made.append(threading.RLock())
        return made[-1]

    for module in (partition_state, lane_book):
        monkeypatch.setattr(module, "threading", SimpleNamespace(Lock=lock, Condition=threading.Condition))
    return Watched(made)


@pytest.mark.parametrize("settings", [{"lanes": 1}, {"lanes": 0}, {"writer": "shared"}], ids=str)
def test_no_request_is_made_under_a_lock(watched: Watched, settings: dict[str, Any]) -> None:
    for life in range(2):
        with running(watched, take_over=True, **settings) as store:
            topic = store.create_topic("t", 3, exist_ok=True)
            for log in (topic.partition(number) for number in range(3)):
                log.append(numbered(0, 3))
                if "writer" not in settings:
                    log.append(b"shown", ack="buffered")
                assert list(log.records())
                assert log.offset_for_timestamp(0) == life
                log.delete_before(life + 1)
            store.flush()
            store.collect_garbage()
            topic.partition(0).reopen().append(b"after")
            store.health()
    with running(watched, writer="read_only") as store:
        assert [log.refresh() for log in (store.topic("t").partition(number) for number in range(3))]
    assert watched.requests > 20
    assert not watched.under_a_lock


def test_contrast_a_request_under_the_lock_is_noticed(watched: Watched) -> None:
    with running(watched) as store:
        log = store.create_topic("t").partition(0)
        log.append(b"one")
        with log._internal.state._lock:
            watched.head("t")
    assert watched.under_a_lock == ["head t"]
