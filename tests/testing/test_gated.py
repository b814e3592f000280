"""`GatedStore`: a call is where the test wants it, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from logstore.errors import Determinate, Indeterminate, PreconditionFailed
from logstore.objects import MemoryStore, ObjectInfo, ObjectStore
from logstore.testing import GatedStore, HeldCall
from tests.support.patience import PATIENCE_S


@pytest.fixture
def gated() -> GatedStore:
    return GatedStore(MemoryStore())


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def keys(calls: tuple[HeldCall, ...]) -> list[str]:
    return [call.key for call in calls]


def test_a_held_put_has_not_happened_until_it_is_released(
    gated: GatedStore, pool: ThreadPoolExecutor
) -> None:
    with gated.hold("put", prefix="log/") as gate:
        put = pool.submit(gated.put, "log/1", b"x", if_absent=True)
        (call,) = gate.wait_held()
        assert (call.operation, call.key) == ("put", "log/1")
        assert gated.head("log/1") is None
        assert not put.done()
        gate.release()
        assert put.result(PATIENCE_S).key == "log/1"
    assert gated.get("log/1") == b"x"


def test_only_what_matches_is_held(gated: GatedStore) -> None:
    with gated.hold("put", prefix="log/", suffix=".seg") as gate:
        gated.put("other.seg", b"x")
        gated.put("log/manifest", b"x")
        gated.head("log/1.seg")
        gated.delete("log/1.seg")
        assert gate.held == ()


def test_a_failed_call_is_not_carried_out(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("put") as gate:
        put = pool.submit(gated.put, "k", b"x")
        gate.wait_held()
        gate.fail(Determinate("503"))
        with pytest.raises(Determinate, match="503"):
            put.result(PATIENCE_S)
    assert gated.head("k") is None


def test_a_lost_answer_is_carried_out(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("put") as gate:
        put = pool.submit(gated.put, "k", b"x")
        gate.wait_held()
        gate.release_lost()
        with pytest.raises(Indeterminate):
            put.result(PATIENCE_S)
    assert gated.get("k") == b"x"


def test_a_lost_answer_may_be_any_error(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("delete") as gate:
        gated.put("k", b"x")
        delete = pool.submit(gated.delete, "k")
        gate.wait_held()
        gate.release_lost(error=TimeoutError("no answer"))
        with pytest.raises(TimeoutError, match="no answer"):
            delete.result(PATIENCE_S)
    assert gated.head("k") is None


def test_after_holds_the_answer_of_a_call_that_has_happened(
    gated: GatedStore, pool: ThreadPoolExecutor
) -> None:
    with gated.hold("put", after=True) as gate:
        put = pool.submit(gated.put, "k", b"x", if_absent=True)
        gate.wait_held()
        assert gated.get("k") == b"x"
        assert not put.done()
        gate.release()
        assert put.result(PATIENCE_S).size == 1


def test_what_the_store_says_passes_through_the_gate(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("put") as gate:
        put = pool.submit(gated.put, "k", b"mine", if_absent=True)
        gate.wait_held()
        gated.inner.put("k", b"a peer's")
        gate.release()
        with pytest.raises(PreconditionFailed):
            put.result(PATIENCE_S)
    assert gated.get("k") == b"a peer's"


def test_calls_are_let_go_one_by_one_oldest_first(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("put") as gate:
        puts: list[Future[ObjectInfo]] = []
        for number in range(3):
            puts.append(pool.submit(gated.put, f"{number}", b"x"))
            gate.wait_held(count=number + 1)
        assert keys(gate.held) == ["0", "1", "2"]
        gate.release(1)
        assert puts[0].result(PATIENCE_S).key == "0"
        gate.fail(Determinate("the second"), 1)
        with pytest.raises(Determinate, match="the second"):
            puts[1].result(PATIENCE_S)
        assert keys(gate.held) == ["2"]
        late = pool.submit(gated.put, "3", b"x")
        assert keys(gate.wait_held(count=2)) == ["2", "3"], "a gate that let calls go holds the next again"
        gate.open()
        assert (puts[2].result(PATIENCE_S).key, late.result(PATIENCE_S).key) == ("2", "3")
        gated.put("4", b"x")
    assert [info.key for info in gated.list("")] == ["0", "2", "3", "4"]


def test_leaving_lets_go_of_everything(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("*") as gate:
        calls: list[Future[Any]] = [
            pool.submit(gated.put, "k", b"x"),
            pool.submit(gated.head, "other"),
            pool.submit(lambda: list(gated.list("none/"))),
            pool.submit(gated.delete, "none"),
        ]
        gate.wait_held(count=4)
        assert sorted(call.operation for call in gate.held) == ["delete", "head", "list", "put"]
    for call in calls:
        call.result(PATIENCE_S)
    assert gated.get("k") == b"x"


def test_the_last_gate_that_covers_a_call_holds_it(gated: GatedStore, pool: ThreadPoolExecutor) -> None:
    with gated.hold("put") as outer, gated.hold("put", prefix="a/") as inner:
        first = pool.submit(gated.put, "a/1", b"x")
        second = pool.submit(gated.put, "b/1", b"x")
        assert keys(inner.wait_held()) == ["a/1"]
        assert keys(outer.wait_held()) == ["b/1"]
        inner.release()
        first.result(PATIENCE_S)
        assert not second.done()
        outer.release()
        second.result(PATIENCE_S)


def test_waiting_for_what_never_comes_says_so(gated: GatedStore) -> None:
    with gated.hold("put", prefix="log/") as gate:
        with pytest.raises(TimeoutError, match=r"0 of 1 calls .*log/"):
            gate.wait_held(0.01)


def test_an_unknown_operation_is_refused(gated: GatedStore) -> None:
    with pytest.raises(ValueError, match="'post': use one of get, put"):
        with gated.hold("post"):
            pass


def test_it_is_an_object_store(gated: GatedStore) -> None:
    assert isinstance(gated, ObjectStore)
