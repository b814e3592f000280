"""`RetryingStore`: what is repeated, what never is, and how long it waits. No test here waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from logstore.errors import (
    Determinate,
    Indeterminate,
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
)
from logstore.objects import MemoryStore, ObjectStore, RetryingStore, RetryPolicy
from logstore.objects.protocol import ObjectInfo
from logstore.testing import Fault, FaultyStore

POLICY = RetryPolicy(attempts=4, base_s=0.1, cap_s=0.3)

IDEMPOTENT: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k"),
    "head": lambda store: store.head("k"),
    "list": lambda store: [info.key for info in store.list("k")],
    "put": lambda store: store.put("k", b"new"),
    "delete": lambda store: store.delete("k"),
}


@pytest.fixture
def faulty() -> FaultyStore:
    inner = MemoryStore()
    inner.put("k", b"old")
    return FaultyStore(inner)


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def store(faulty: FaultyStore, slept: list[float]) -> RetryingStore:
    return RetryingStore(faulty, POLICY, sleep=slept.append, rng=lambda: 1.0)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("verb", IDEMPOTENT)
def test_W03_what_may_be_done_twice_is_repeated(
    store: RetryingStore, faulty: FaultyStore, slept: list[float], verb: str, fault: Fault
) -> None:
    faulty.fail(verb, times=3, with_=fault)
    IDEMPOTENT[verb](store)
    assert [call.outcome for call in faulty.calls] == [fault.name] * 3 + ["ok"]
    assert slept == pytest.approx([0.1, 0.2, 0.3]), "doubled each time, up to the cap"
    assert {"put": b"new", "delete": None}.get(verb, b"old") == (
        faulty.inner.get("k") if faulty.inner.head("k") else None
    )


@pytest.mark.parametrize("verb", IDEMPOTENT)
def test_it_gives_up_with_the_last_error(
    store: RetryingStore, faulty: FaultyStore, slept: list[float], verb: str
) -> None:
    faulty.down()
    with pytest.raises(StoreUnavailable):
        IDEMPOTENT[verb](store)
    assert len(faulty.calls) == 4
    assert len(slept) == 3


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("condition", ["if_absent", "if_match"])
def test_W03_a_conditional_put_is_never_repeated(
    store: RetryingStore, faulty: FaultyStore, slept: list[float], condition: str, fault: Fault
) -> None:
    etag = faulty.inner.put("k", b"old").etag
    faulty.fail("put", with_=fault)
    with pytest.raises((Determinate, Indeterminate)):
        if condition == "if_absent":
            store.put("new", b"x", if_absent=True)
        else:
            store.put("k", b"x", if_match=etag)
    assert faulty.count("put") == 1
    assert slept == []


def test_W03_why_not_a_repeated_create_reports_failure_for_its_own_success(faulty: FaultyStore) -> None:
    """The broken way, kept as a contrast: the answer is lost, the retry meets the caller's own object."""
    faulty.fail("put", with_=Fault.LOSE_ANSWER)
    with pytest.raises(Indeterminate):
        faulty.put("new", b"mine", if_absent=True)
    with pytest.raises(PreconditionFailed):
        faulty.put("new", b"mine", if_absent=True)
    assert faulty.get("new") == b"mine"


def test_answers_are_not_repeated(store: RetryingStore, faulty: FaultyStore, slept: list[float]) -> None:
    with pytest.raises(ObjectNotFound):
        store.get("missing")
    with pytest.raises(InvalidKey):
        store.get("../bad")
    assert len(faulty.calls) == 2
    assert slept == []


def test_what_only_a_person_can_mend_is_not_repeated(slept: list[float]) -> None:
    class Forbidden(MemoryStore):
        calls = 0

        def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
            self.calls += 1
            error = StoreUnavailable("403 AccessDenied")
            error.retriable = False
            raise error

    inner = Forbidden()
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        RetryingStore(inner, POLICY, sleep=slept.append).get("k")
    assert inner.calls == 1
    assert slept == []


class TestList:
    def test_a_cut_listing_goes_on_behind_the_last_key(self, slept: list[float]) -> None:
        faulty = FaultyStore(MemoryStore())
        wanted = [f"k{number:02}" for number in range(16)]
        for key in wanted:
            faulty.inner.put(key, b"x")
        faulty.fail("list", times=4, with_=Fault.CUT)
        store = RetryingStore(faulty, RetryPolicy(attempts=2), sleep=slept.append)
        assert [info.key for info in store.list("")] == wanted
        assert len(slept) == 4, "each cut listing brought keys, so each failure counts as the first"

    def test_a_listing_that_brings_nothing_gives_up(self, slept: list[float]) -> None:
        faulty = FaultyStore(MemoryStore())
        faulty.fail("list", times=None, with_=Fault.CUT)
        store = RetryingStore(faulty, POLICY, sleep=slept.append)
        with pytest.raises(Determinate):
            list(store.list(""))
        assert faulty.count("list") == POLICY.attempts

    def test_a_caller_that_raises_in_its_loop_is_left_alone(self, slept: list[float]) -> None:
        inner = MemoryStore()
        inner.put("k", b"x")

        def consume(found: Iterator[ObjectInfo]) -> None:
            for _ in found:
                raise Determinate("the caller's own")

        with pytest.raises(Determinate, match="the caller's own"):
            consume(RetryingStore(inner, POLICY, sleep=slept.append).list(""))
        assert slept == []


class TestPolicy:
    def test_full_jitter_is_anywhere_below_the_bound(self) -> None:
        assert POLICY.pause_s(1, lambda: 0.0) == 0.0
        assert POLICY.pause_s(1, lambda: 0.5) == pytest.approx(0.05)
        assert POLICY.pause_s(50, lambda: 0.5) == pytest.approx(0.15)

    @pytest.mark.parametrize("bad", [{"attempts": 0}, {"base_s": -1.0}, {"cap_s": -1.0}])
    def test_a_bad_policy_is_refused(self, bad: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="attempts must be"):
            RetryPolicy(**bad)  # type: ignore[arg-type]


def test_waits_double_up_to_the_limit_however_often_it_fails() -> None:
    endless = RetryPolicy(None, base_s=0.1, cap_s=5.0)
    assert [endless.limit_s(failures) for failures in (1, 2, 3, 10, 10_000)] == [0.1, 0.2, 0.4, 5.0, 5.0]
    assert endless.pause_s(10_000, lambda: 0.5) == 2.5
    assert endless.allows(Indeterminate("no answer"), 10_000)
    assert not endless.allows(InvalidKey("bad"), 1)
