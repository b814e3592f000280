"""`FaultyStore`: each fault does to the object and to the caller what it says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from logstore.errors import Determinate, Indeterminate, PreconditionFailed, StoreError, StoreUnavailable
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import ANY_DELIVERY, Call, Delivery, Fault, FaultyStore

VERBS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k"),
    "head": lambda store: store.head("k"),
    "list": lambda store: list(store.list("")),
    "put": lambda store: store.put("k", b"new"),
    "delete": lambda store: store.delete("k"),
}


@pytest.fixture
def faulty() -> FaultyStore:
    inner = MemoryStore()
    inner.put("k", b"old")
    return FaultyStore(inner, seed=7)


@pytest.mark.parametrize(
    ("fault", "kind", "carried_out"),
    [
        (Fault.REFUSE, Determinate, False),
        (Fault.SLOW_DOWN, Determinate, False),
        (Fault.CONFLICT, Determinate, False),
        (Fault.UNAVAILABLE, StoreUnavailable, False),
        (Fault.LOSE_REQUEST, Indeterminate, False),
        (Fault.LOSE_ANSWER, Indeterminate, True),
        (Fault.CUT, Indeterminate, True),
    ],
)
@pytest.mark.parametrize("verb", ["put", "delete"])
def test_W03_what_a_fault_does_to_a_write(
    faulty: FaultyStore, verb: str, fault: Fault, kind: type, carried_out: bool
) -> None:
    faulty.fail(verb, with_=fault)
    with pytest.raises(StoreError) as caught:
        VERBS[verb](faulty)
    assert type(caught.value) is kind
    changed = faulty.inner.head("k") is None or faulty.inner.get("k") == b"new"
    assert changed is carried_out
    assert faulty.calls == [Call(verb, "k", fault.name)]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("verb", ["get", "head", "list"])
def test_W03_a_read_that_fails_is_determinate(faulty: FaultyStore, verb: str, fault: Fault) -> None:
    faulty.fail(verb, with_=fault)
    with pytest.raises(Determinate):
        VERBS[verb](faulty)
    VERBS[verb](faulty)


def test_a_lost_answer_of_a_refused_put_is_lost_too(faulty: FaultyStore) -> None:
    faulty.fail("put", with_=Fault.LOSE_ANSWER)
    with pytest.raises(Indeterminate):
        faulty.put("k", b"new", if_absent=True)
    assert faulty.get("k") == b"old"


def test_a_cut_listing_gives_its_first_half(faulty: FaultyStore) -> None:
    for number in range(4):
        faulty.inner.put(f"d/{number}", b"x")
    faulty.fail("list", with_=Fault.CUT)
    seen = []
    with pytest.raises(Determinate):
        for info in faulty.list("d/"):
            seen.append(info.key)  # noqa: PERF401 - what came before the error counts
    assert seen == ["d/0", "d/1"]


class TestDeliveries:
    """Writes that reach the store otherwise than once and at once."""

    def test_C03_a_conditional_put_is_done_and_denied(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Delivery.DENIED, times=None)
        with pytest.raises(PreconditionFailed):
            faulty.put("new", b"x", if_absent=True)
        assert faulty.inner.get("new") == b"x"
        info = faulty.head("k")
        assert info is not None
        with pytest.raises(PreconditionFailed):
            faulty.put("k", b"new", if_match=info.etag)
        assert faulty.inner.get("k") == b"new"
        assert [call.outcome for call in faulty.calls if call.operation == "put"] == ["DENIED", "DENIED"]

    def test_C03_a_true_refusal_stays_one_and_changes_nothing(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Delivery.DENIED)
        with pytest.raises(PreconditionFailed):
            faulty.put("k", b"new", if_absent=True)
        assert faulty.inner.get("k") == b"old"
        assert faulty.calls == [Call("put", "k", "PreconditionFailed")]

    def test_C03_what_has_no_condition_cannot_be_denied(self, faulty: FaultyStore) -> None:
        faulty.fail("*", with_=Delivery.DENIED, times=2)
        faulty.put("k", b"new")
        assert faulty.inner.get("k") == b"new"
        faulty.delete("k")
        assert faulty.inner.head("k") is None

    def test_C05_a_late_put_is_carried_out_when_the_test_says_so(self, faulty: FaultyStore) -> None:
        faulty.fail("put", prefix="new", with_=Delivery.LATE)
        buffer = bytearray(b"first")
        with pytest.raises(Indeterminate):
            faulty.put("new", buffer, if_absent=True)
        buffer[:] = b"other"
        assert faulty.inner.head("new") is None
        assert faulty.undelivered == [("put", "new")]
        assert faulty.deliver() == [Call("put", "new", "LATE ok")]
        assert faulty.inner.get("new") == b"first"
        assert faulty.undelivered == []
        assert faulty.deliver() == []
        assert faulty.calls == [Call("put", "new", "LATE"), Call("put", "new", "LATE ok")]

    def test_C05_its_condition_is_looked_at_when_it_comes(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Delivery.LATE, times=2)
        info = faulty.inner.head("k")
        assert info is not None
        for condition in ({"if_absent": True}, {"if_match": info.etag}):
            with pytest.raises(Indeterminate):
                faulty.put("k", b"late", **condition)
        faulty.put("k", b"meanwhile")
        assert [call.outcome for call in faulty.deliver()] == ["LATE PreconditionFailed"] * 2
        assert faulty.inner.get("k") == b"meanwhile"

    def test_C05_a_put_delivered_twice_is_answered_once(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Delivery.TWICE)
        faulty.put("new", b"x", if_absent=True)
        assert [call.outcome for call in faulty.deliver()] == ["TWICE PreconditionFailed"]
        faulty.fail("put", with_=Delivery.TWICE)
        faulty.put("again", b"x", if_absent=True)
        faulty.delete("again")
        assert [call.outcome for call in faulty.deliver()] == ["TWICE ok"]  # what was deleted is back
        assert faulty.inner.get("again") == b"x"

    def test_C05_a_late_delete(self, faulty: FaultyStore) -> None:
        faulty.fail("delete", with_=Delivery.LATE)
        with pytest.raises(Indeterminate):
            faulty.delete("k")
        faulty.put("k", b"newer")
        faulty.deliver()
        assert faulty.inner.head("k") is None

    def test_deliveries_are_chosen_by_key_and_number_oldest_first(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Delivery.LATE, times=None)
        for key in ("a/1.seg", "b/1", "a/2.seg", "a/3"):
            with pytest.raises(Indeterminate):
                faulty.put(key, b"x")
        assert [call.key for call in faulty.deliver(prefix="a/", suffix=".seg", count=1)] == ["a/1.seg"]
        assert [call.key for call in faulty.deliver(prefix="a/")] == ["a/2.seg", "a/3"]
        assert faulty.undelivered == [("put", "b/1")]

    @pytest.mark.parametrize("delivery", [Delivery.LATE, Delivery.TWICE])
    def test_C05_the_seed_says_before_which_call_it_comes(self, delivery: Delivery) -> None:
        def arrivals(seed: int) -> list[int]:
            store = FaultyStore(MemoryStore(), seed=seed)
            store.fail("put", with_=delivery, within=10, times=None)
            places = []
            for number in range(20):
                with suppress(Indeterminate):
                    store.put(f"{number}", b"x")
                before = len(store.calls)
                for _ in range(10):
                    store.head("k")
                came = [nth for nth, call in enumerate(store.calls[before:]) if call.operation == "put"]
                assert len(came) == 1  # each within its ten calls, and only once
                places += came
            return places

        places = arrivals(1)
        assert len(set(places)) > 3
        assert arrivals(1) == places
        assert arrivals(2) != places

    def test_rates_of_every_kind_side_by_side(self) -> None:
        faulty = FaultyStore(MemoryStore(), seed=4)
        faulty.random(put=0.3, faults=ANY_DELIVERY, within=5, prefix="log/")
        for number in range(500):
            for key in (f"log/{number}", f"other/{number}"):
                try:
                    faulty.put(key, b"x", if_absent=True)
                except StoreError:
                    assert key.startswith("log/")
        sent = [call.outcome for call in faulty.calls if call.outcome in ("DENIED", "LATE")]
        assert 60 <= len(sent) <= 140
        came = {call.outcome for call in faulty.calls} - {"ok", "DENIED", "LATE"}
        assert came == {"LATE ok", "TWICE PreconditionFailed"}

    def test_what_is_on_its_way_survives_the_healing(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Delivery.LATE)
        with pytest.raises(Indeterminate):
            faulty.put("new", b"x")
        faulty.heal()
        assert faulty.undelivered == [("put", "new")]

    @pytest.mark.parametrize("delivery", Delivery)
    @pytest.mark.parametrize("verb", ["get", "head", "list"])
    def test_W03_a_read_cannot_be_misdelivered_and_fails(
        self, faulty: FaultyStore, verb: str, delivery: Delivery
    ) -> None:
        faulty.fail(verb, with_=delivery)
        with pytest.raises(Determinate):
            VERBS[verb](faulty)
        VERBS[verb](faulty)
        assert faulty.undelivered == []


class TestRules:
    def test_times_skip_prefix_and_suffix(self, faulty: FaultyStore) -> None:
        rule = faulty.fail("put", prefix="log/", suffix=".seg", times=2, skip=1)
        outcomes = []
        for key in ("log/1.seg", "log/2.seg", "log/manifest", "other/2.seg", "log/3.seg", "log/4.seg"):
            try:
                faulty.put(key, b"x")
                outcomes.append("ok")
            except Determinate:
                outcomes.append("refused")
        assert outcomes == ["ok", "refused", "ok", "ok", "refused", "ok"]
        assert rule.hits == 2

    def test_down_comes_before_everything_and_heal_ends_it(self, faulty: FaultyStore) -> None:
        faulty.fail("put", with_=Fault.LOSE_ANSWER)
        faulty.down()
        for verb in VERBS.values():
            with pytest.raises(StoreUnavailable):
                verb(faulty)
        faulty.heal()
        for verb in VERBS.values():
            verb(faulty)

    def test_one_rule_can_be_taken_back(self, faulty: FaultyStore) -> None:
        faulty.fail("get", times=None)
        outage = faulty.down()
        faulty.remove(outage)
        faulty.remove(outage)
        faulty.put("k", b"x")
        with pytest.raises(Determinate):
            faulty.get("k")

    def test_delays_go_through_the_sleep_and_add_up_with_a_fault(self) -> None:
        slept: list[float] = []
        faulty = FaultyStore(MemoryStore(), sleep=slept.append)
        faulty.delay("put", 0.5, times=2)
        faulty.fail("put", skip=1)
        faulty.put("a", b"x")
        with pytest.raises(Determinate):
            faulty.put("b", b"x")
        faulty.put("c", b"x")
        assert slept == [0.5, 0.5]

    def test_an_unknown_operation_is_refused(self, faulty: FaultyStore) -> None:
        with pytest.raises(ValueError, match="'post': use one of get, put"):
            faulty.fail("post")
        with pytest.raises(ValueError, match="'pot': use one of"):
            faulty.random(pot=0.1)


class TestChance:
    def outcomes(self, seed: int, threads: int) -> list[tuple[str, str]]:
        faulty = FaultyStore(MemoryStore(), seed=seed)
        faulty.random(put=0.5, get=0.3)

        def work(number: int) -> None:
            for verb in (lambda key: faulty.put(key, b"x"), faulty.get):
                try:
                    verb(f"{number}")
                except StoreError:
                    continue

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(200)))
        return sorted((f"{call.operation} {call.key}", call.outcome) for call in faulty.calls)

    def test_the_same_seed_fails_the_same_calls_whatever_the_threads_do(self) -> None:
        one = self.outcomes(seed=1, threads=1)
        assert self.outcomes(seed=1, threads=8) == one
        assert self.outcomes(seed=2, threads=1) != one

    def test_the_rate_is_the_one_asked_for_and_every_fault_comes(self) -> None:
        found = [outcome for name, outcome in self.outcomes(seed=3, threads=1) if name.startswith("put")]
        failed = [outcome for outcome in found if outcome != "ok"]
        assert 70 <= len(failed) <= 130
        assert set(failed) == {fault.name for fault in Fault}

    def test_faults_can_be_chosen(self, faulty: FaultyStore) -> None:
        faulty.random(put=1.0, faults=(Fault.CONFLICT,))
        with pytest.raises(Determinate):
            faulty.put("k", b"x")
        assert faulty.calls[-1].outcome == "CONFLICT"


def test_the_log_of_calls(faulty: FaultyStore) -> None:
    faulty.put("a/1", b"x")
    faulty.get("a/1")
    with pytest.raises(StoreError):
        faulty.get("missing")
    list(faulty.list("a/"))
    assert faulty.calls == [
        Call("put", "a/1", "ok"),
        Call("get", "a/1", "ok"),
        Call("get", "missing", "ObjectNotFound"),
        Call("list", "a/", "ok"),
    ]
    assert (faulty.count("get"), faulty.count("*", prefix="a/"), faulty.count("put", suffix="2")) == (2, 3, 0)
    faulty.forget_calls()
    assert faulty.calls == []
    assert isinstance(faulty, ObjectStore)
