"""T04: retention does not outrun a table that is being filled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.format.stored.document import pack_document
from logstore.lake import Materializer, forget, registered
from logstore.layout.holds import Hold, hold_key
from logstore.layout.paths import HOLDS_PREFIX
from logstore.objects import MemoryStore
from tests.golden import write_formats
from tests.support.lake.tables import durable, places, rows_of, target

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open((tmp_path / "log").as_uri()) as opened:
        yield opened


@pytest.fixture
def where(tmp_path: Path) -> str:
    return target("delta", tmp_path / "lake")


def make(store: logstore.Store, **settings: float) -> logstore.Topic:
    """Ten segments of ten records, an hour apart; the newest is of now."""
    topic = store.create_topic("orders", **settings)  # type: ignore[arg-type]
    for hours in reversed(range(10)):
        records = [logstore.Record(b"%d" % n, timestamp_ms=NOW_MS - hours * HOUR_MS) for n in range(10)]
        topic.partition(0).append(records)
    return topic


def expire(topic: logstore.Topic) -> int:
    return topic.partition(0)._internal.maintenance.expire(NOW_MS)


def test_T04_without_a_table_retention_takes_what_is_due(store: logstore.Store) -> None:
    assert expire(make(store, retention_seconds=3 * 3600)) == 60


@pytest.mark.parametrize("settings", [{"retention_seconds": 3 * 3600}, {"retention_bytes": 1}], ids=str)
def test_T04_records_that_are_not_in_a_registered_table_are_kept_until_they_are(
    store: logstore.Store, where: str, settings: dict[str, float]
) -> None:
    topic = make(store, **settings)
    copier = Materializer(topic, where, commit_bytes=1)
    table_commit = copier._table.commit
    commits: list[int] = []

    def two_commits_and_out(files: object, offsets: object) -> bool:
        if len(commits) == 2:
            raise KeyboardInterrupt
        commits.append(1)
        return bool(table_commit(files, offsets))  # type: ignore[arg-type]

    copier._table.commit = two_commits_and_out  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        copier.run_once()
    (known,) = registered(topic)
    assert (known.target, known.offsets, known.hold_seconds) == (where, {0: 2}, 7 * 24 * 3600)
    assert expire(topic) <= 2, "records 0 and 1 are in the table, and no others"
    Materializer(topic, where).run_once()
    assert expire(topic) >= 60
    assert rows_of(where).num_rows == 100


def test_T04_nothing_is_kept_longer_than_the_stated_limit_for_a_table_that_makes_no_progress(
    store: logstore.Store, where: str
) -> None:
    topic = make(store, retention_seconds=3 * 3600)
    copier = Materializer(topic, where, hold_seconds=2 * 3600)
    copier._table.commit = lambda *_: False  # type: ignore[method-assign]
    with pytest.raises(logstore.StoreUnavailable):
        copier.run_once()
    assert expire(topic) == 40, "retention says 3 hours, the table may have 2 more"
    copier = Materializer(topic, where)
    copier.run_once()
    assert rows_of(where)["offset"].to_pylist() == list(range(40, 100)), (
        "a new table begins where the log does"
    )


def test_T04_records_that_retention_took_first_are_an_error_or_counted(
    store: logstore.Store, where: str
) -> None:
    topic = make(store)
    Materializer(topic, where, hold_seconds=0).run_once()
    topic.partition(0).append([b"100", b"101", b"102"])
    assert registered(topic) == [], "hold_seconds=0 holds nothing"
    topic.partition(0).delete_before(102)
    with pytest.raises(logstore.OffsetOutOfRange, match="offset 100 is outside of orders/0"):
        Materializer(topic, where, hold_seconds=0).run_once()
    progress = Materializer(topic, where, hold_seconds=0, on_lost="skip").run_once()
    assert (progress.rows, progress.lost) == (1, 2)
    assert sorted(rows_of(where)["offset"].to_pylist()) == [*range(100), 102]


def test_T04_a_table_that_is_forgotten_holds_nothing_and_a_deleted_topics_holds_are_swept(
    store: logstore.Store, where: str
) -> None:
    topic = make(store, retention_seconds=3 * 3600)
    objects, incarnation = topic.partition(0)._internal.objects, topic._internal.descriptor.incarnation
    objects.put(hold_key("orders", incarnation, "delta:/gone"), Hold("delta:/gone", 1e9, {0: 0}, 0).pack())
    assert expire(topic) == 0
    forget(topic, "delta:/gone")
    assert registered(topic) == []
    assert expire(topic) == 60
    Materializer(topic, where).run_once()
    assert [one.target for one in registered(topic)] == [where]
    store.delete_topic("orders")
    again = store.create_topic("orders")
    Materializer(again, where).run_once()
    assert len(list(objects.list(HOLDS_PREFIX))) == 2
    store.collect_garbage()
    assert [info.key.split("/")[2] for info in objects.list(HOLDS_PREFIX)] == [
        again._internal.descriptor.incarnation
    ]


def test_T04_no_hold_is_swept_while_nobody_can_tell_which_topic_is_alive() -> None:
    with logstore.open(MemoryStore()) as store:
        store.create_topic("orders")
        store.objects.put("catalog/orders", b"what is this")
        for incarnation in ("0" * 16, "f" * 16):
            hold = Hold("delta:/here", 1e9, {0: 0}, 0)
            store.objects.put(hold_key("orders", incarnation, "delta:/here"), hold.pack())
        store.collect_garbage()
        assert len(list(store.objects.list(HOLDS_PREFIX))) == 2


def test_T04_a_hold_that_cannot_be_read_holds_everything_and_is_said(
    store: logstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make(store, retention_seconds=3 * 3600)
    objects, incarnation = topic.partition(0)._internal.objects, topic._internal.descriptor.incarnation
    objects.put(hold_key("orders", incarnation, "x"), b"what is this")
    assert expire(topic) == 0
    assert "nothing is expired" in caplog.text
    with pytest.raises(logstore.CorruptData, match="holds/orders"):
        registered(topic)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_T04_a_hold_is_for_a_time_that_ends(store: logstore.Store, where: str, seconds: float) -> None:
    """One without an end ended each retention of the topic with an error."""
    topic = make(store, retention_seconds=3 * 3600)
    with pytest.raises(ValueError, match=r"hold_seconds=.*it is a number of seconds"):
        Materializer(topic, where, hold_seconds=seconds)
    objects, incarnation = topic.partition(0)._internal.objects, topic._internal.descriptor.incarnation
    objects.put(hold_key("orders", incarnation, "x"), Hold("x", seconds, {}, NOW_MS).pack())
    assert expire(topic) == 0
    with pytest.raises(logstore.CorruptData, match=f"it holds for {seconds} seconds"):
        registered(topic)


def test_T04_what_a_catalog_needs_to_know_is_not_kept_with_its_name(
    store: logstore.Store, tmp_path: Path
) -> None:
    topic = make(store)
    where = target("iceberg", tmp_path / "lake")
    Materializer(topic, where).run_once()
    (known,) = registered(topic)
    assert known.target.startswith("iceberg:shop.orders#")
    assert "sqlite" not in known.target
    assert places(rows_of(where)) == durable(topic)
    forget(topic, where)
    assert registered(topic) == []


def test_T04_a_hold_of_every_version_is_read_and_a_newer_one_refused() -> None:
    assert Hold.parse("hold", (write_formats.FOLDER / "hold-v1").read_bytes()) == write_formats.HOLD
    newer = pack_document({"format": 2})
    with pytest.raises(logstore.UnsupportedStore, match="use a newer release"):
        Hold.parse("hold", newer)
