"""`collect_garbage` and what Spark staged: only what no commit can still need goes, and only after the grace period."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import logstore
from logstore.errors import StoreUnavailable
from logstore.layout import paths
from logstore.layout.paths import SPARK_PREFIX, StagedName
from logstore.objects import MemoryStore, ObjectStore
from logstore.spark.options.transaction import Transaction
from logstore.spark.write import publish as publishing
from logstore.spark.write.publish import make_plan, store_once
from logstore.spark.write.txn_ledger import Ledger
from logstore.testing import ManualClock
from tests.support.spark.staging import QUERY, keys, new_store, stage, staged, stored

pytestmark = pytest.mark.spark
GRACE_S = 3600.0
NEXT = Transaction(QUERY.app, QUERY.version + 1)


@pytest.fixture
def objects() -> MemoryStore:
    return new_store()


@contextmanager
def later(objects: ObjectStore, seconds: float) -> Iterator[logstore.Store]:
    """The store, so long after now: what tasks stage carries the system's time."""
    clock = ManualClock(start_ms=time.time_ns() // 1_000_000 + int(seconds * 1000))
    with logstore.open(objects, writer="read_only", clock=clock, delete_grace=GRACE_S) as store:
        yield store


def collected(objects: ObjectStore, seconds: float) -> list[str]:
    """What goes; that it is what was listed before, and that it is gone afterwards."""
    with later(objects, seconds) as store:
        listed = [item.key for item in store.collect_garbage(dry_run=True)]
        assert [item.key for item in store.collect_garbage("out")] == [], "it belongs to no topic"
        assert [item.key for item in store.collect_garbage()] == listed
    assert not set(listed) & set(staged(objects))
    return listed


def test_the_keys_are_those_of_the_layout(objects: MemoryStore) -> None:
    stage(objects, QUERY, 5)
    app = QUERY.home.removeprefix(SPARK_PREFIX).rstrip("/")
    assert SPARK_PREFIX == paths.SPARK_PREFIX
    assert QUERY.ledger == paths.spark_ledger(app)
    for key in staged(objects):
        name = StagedName.parse(key)
        assert name is not None
        assert (name.app, name.version) == (app, QUERY.version)
    assert StagedName.parse(QUERY.ledger) is None


def test_what_a_job_that_died_has_staged_goes_after_the_grace_period(objects: MemoryStore) -> None:
    stage(objects, QUERY, 5)
    left = staged(objects)
    assert collected(objects, GRACE_S / 2) == []
    assert collected(objects, GRACE_S + 60) == left


def test_what_a_pending_plan_names_stays_however_old_and_is_published_by_whoever_comes(
    objects: MemoryStore,
) -> None:
    lost = [part.key for part in stage(objects, QUERY, 5)]  # an attempt that no plan names
    parts = stage(objects, QUERY, 5)
    assert Ledger(objects, QUERY).begin(make_plan(objects, parts)) is not None  # and the driver dies
    assert collected(objects, 1000 * GRACE_S) == sorted(set(lost))
    assert staged(objects) == sorted({part.key for part in parts})
    store_once(objects, NEXT, stage(objects, NEXT, 6))
    assert sorted(stored(objects)) == sorted(keys(5) + keys(6))


def test_what_a_task_stages_after_its_version_was_stored_goes_though_the_next_version_is_under_way(
    objects: MemoryStore,
) -> None:
    store_once(objects, QUERY, stage(objects, QUERY, 5))
    stage(objects, QUERY, 5)  # a task that outlived its job
    late = staged(objects)
    assert collected(objects, GRACE_S / 2) == []
    assert collected(objects, GRACE_S + 60) == late
    assert sorted(stored(objects)) == sorted(keys(5))


def test_a_job_that_still_stages_keeps_all_it_has_staged(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first tasks ended longer ago than the grace period, the last one has just staged something."""
    early = stage(objects, QUERY, 5, tasks=2)[:1]
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(3 * GRACE_S * 1e9))
    late = stage(objects, QUERY, 6, tasks=2)
    monkeypatch.undo()
    assert collected(objects, 3 * GRACE_S + 60) == []
    assert {part.key for part in early + late} <= set(staged(objects))
    assert len(collected(objects, 4 * GRACE_S + 60)) == 4


def test_an_app_whose_ledger_cannot_be_read_keeps_what_it_has_staged_and_others_do_not(
    objects: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    stage(objects, QUERY, 5)
    kept = staged(objects)
    stage(objects, Transaction("another", 1), 5)
    others = [key for key in staged(objects) if key not in kept]
    for ledger in (
        b"{",
        b"[]",
        b'{"format": 1}',
        json.dumps({"format": 2, "version": 9, "plan": None}).encode(),
    ):
        objects.put(QUERY.ledger, ledger)
        with later(objects, 2 * GRACE_S) as store:
            assert [item.key for item in store.collect_garbage(dry_run=True)] == others
        assert QUERY.ledger in caplog.text
        caplog.clear()


def test_a_driver_that_dies_in_its_commit_loses_nothing_to_a_sweep(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise StoreUnavailable("this driver is dead")

    parts = stage(objects, QUERY, 5)
    with monkeypatch.context() as patched, suppress(StoreUnavailable):
        patched.setattr(publishing, "publish", die)
        store_once(objects, QUERY, parts)
    assert collected(objects, 1000 * GRACE_S) == []
    store_once(objects, QUERY, stage(objects, QUERY, 5))
    assert sorted(stored(objects)) == sorted(keys(5))
