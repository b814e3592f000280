"""T02, T03, T05 where others are at topic or table: transactions, moves between lanes, foreign commits, clocks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

import logstore
from logstore.format.batches.markers import Marker, encode_marker
from logstore.lake import Materializer, table
from logstore.lake.target import open_target
from logstore.objects import ObjectStore
from logstore.objects.wrappers.wrapped import WrappedStore
from tests.support.lake.tables import FORMATS, durable, events, places, rows_of, target
from tests.support.patience import PATIENCE_S


@pytest.fixture(params=FORMATS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return target(request.param, tmp_path / "lake")


def test_T02_T05_markers_of_transactions_are_gaps_and_no_rows(where: str, tmp_path: Path) -> None:
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        log = topic.partition(0)
        for turn, committed in enumerate((True, False, True)):
            log.append(events(turn * 10, turn * 10 + 10))
            marker = encode_marker(Marker(7, 0, committed, 0), now_ms=1)
            log._internal.submit_batches(marker, control=True).result(timeout=PATIENCE_S)
            if turn < 2:
                progress = Materializer(topic, where, schema="infer").run_once()
                assert progress.behind == 0, "the marker at the end is passed, too"
        union = table(topic, where).read_all()
        assert places(union) == durable(topic)
        assert sorted(union["id"].to_pylist()) == list(range(30)), "of aborted ones, too: the docs say so"


def test_T02_who_opens_a_new_catalog_at_the_same_time_as_another_finds_the_tables_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked, and there was nothing; the other was faster."""
    create = SqlCatalog.create_tables

    def create_after_another(catalog: SqlCatalog) -> None:
        monkeypatch.setattr(SqlCatalog, "create_tables", create)
        create(catalog)
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalog, "create_tables", create_after_another)
    assert not open_target(target("iceberg", tmp_path), None).load()


def test_T02_who_makes_a_namespace_at_the_same_time_as_another_finds_that_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked, and there was none; the other was faster, and has not made the table yet."""
    where = target("iceberg", tmp_path)
    exists, another = SqlCatalog.namespace_exists, open_target(where, None)

    def look_before_another(catalog: SqlCatalog, namespace: Any) -> bool:
        monkeypatch.setattr(SqlCatalog, "namespace_exists", exists)
        found = exists(catalog, namespace)
        catalog.create_namespace(namespace)
        return found

    mine = open_target(where, None)
    monkeypatch.setattr(SqlCatalog, "namespace_exists", look_before_another)
    mine.create(pa.schema([pa.field("id", pa.int64())]), "raw")
    assert mine.load()
    assert another.load()


def test_T02_T05_a_topic_that_changes_its_lane_goes_on_in_its_table(where: str, tmp_path: Path) -> None:
    """Sixteen partitions begin in a lane that nobody owns; each life of a store is an owner of its own."""
    url = (tmp_path / "log").as_uri()
    with logstore.open(url) as store:
        store.create_topic("orders", partitions=16)
    at = 0
    for lane in ("one", "two", "one"):
        with logstore.open(url, lane=lane) as store:
            topic = store.topic("orders")
            topic.append_many(events(at, at + 40))
            at += 40
            if lane == "two":
                Materializer(topic, where, schema="infer").run_once()
            union = table(topic, where).read_all() if at > 40 else None
    with logstore.open(url, writer="read_only") as store:
        topic = store.topic("orders")
        assert union is not None
        assert places(union) == durable(topic)
        Materializer(topic, where, schema="infer").run_once()
        assert places(rows_of(where)) == durable(topic)
        assert sorted(rows_of(where)["id"].to_pylist()) == list(range(at))


def test_T03_a_field_whose_type_changes_keeps_its_column_and_its_raw_value(
    where: str, tmp_path: Path
) -> None:
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        kinds: list[Any] = [1, "two", 3.5, [4], {"five": 5}, None, True]
        for kind in kinds:
            topic.append(json.dumps({"n": kind}).encode())
            Materializer(topic, where, schema="infer").run_once()
        found = rows_of(where)
        assert places(found) == durable(topic)
        assert found.schema.field("n").type == pa.int64()
        rows = sorted(found.select(["offset", "n", "value_raw"]).to_pylist(), key=lambda row: row["offset"])
        assert [row["n"] for row in rows] == [1] + [None] * 6
        raw = [None if row["value_raw"] is None else json.loads(row["value_raw"])["n"] for row in rows]
        assert raw == [None, *kinds[1:5], None, True]


def test_T02_clocks_a_year_apart_make_no_difference(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that take turns at a table one lives a year before the other."""
    import time

    real, real_ns = time.time, time.time_ns
    year = 365 * 86_400
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders", partitions=2)
        for turn in range(4):
            topic.append_many(events(turn * 20, turn * 20 + 20))
            ahead = year if turn % 2 else -year
            with monkeypatch.context() as clock:
                clock.setattr(time, "time", lambda ahead=ahead: real() + ahead)
                clock.setattr(time, "time_ns", lambda ahead=ahead: real_ns() + ahead * 10**9)
                assert Materializer(topic, where, schema="infer").run_once().rows == 20
        assert places(rows_of(where)) == durable(topic)


def test_T02_a_delta_table_that_others_write_to_keeps_both(tmp_path: Path) -> None:
    """Their append, their column and their overwrite of a row come between a copier's look and its commit."""
    from deltalake import DeltaTable, write_deltalake

    where = target("delta", tmp_path / "lake")
    path = where.removeprefix("delta:")
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        topic.append_many(events(0, 10))
        Materializer(topic, where, schema="infer").run_once()
        foreign = rows_of(where).slice(0, 1).set_column(0, "partition", pa.array([99], pa.int32()))
        topic.append_many(events(10, 20))
        copier = Materializer(topic, where, schema="infer")
        form: Any = copier._table
        commit = form.commit

        def late(*given: Any) -> bool:
            if DeltaTable(path).version() < 3:
                write_deltalake(path, foreign, mode="append")
            return bool(commit(*given))

        form.commit = late
        copier.run_once()
        union = table(topic, where).read_all()
        theirs = union.filter(pa.compute.equal(union["partition"], 99))
        assert theirs.num_rows == 1
        ours = union.filter(pa.compute.not_equal(union["partition"], 99))
        assert places(ours) == durable(topic)


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["columnMapping"],
            "writerFeatures": ["columnMapping"],
        },
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
    ],
)
def test_T05_a_delta_table_whose_files_do_not_tell_its_rows_is_not_read_by_its_files(
    protocol: dict[str, Any], tmp_path: Path
) -> None:
    """Somebody switched it on: renamed columns would be null, deleted rows would come back."""
    where = target("delta", tmp_path / "lake")
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        topic.append_many(events(0, 10))
        Materializer(topic, where, schema="infer").run_once()
        form = open_target(where)
        assert form.load()
        assert len(form.files()) == 1
        log = Path(where.removeprefix("delta:")) / "_delta_log"
        (log / f"{int(form.version) + 1:020d}.json").write_text(json.dumps({"protocol": protocol}))
        assert form.load()
        with pytest.raises(logstore.UnsupportedStore, match="its files alone do not show"):
            form.files()


class Asked(WrappedStore):
    """Who asked the store: thread objects, as the system gives their numbers again."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.by: set[threading.Thread] = set()

    def _through(self, operation: str, key: str, call: Callable[[], Any]) -> Any:
        self.by.add(threading.current_thread())
        return call()


def test_T02_a_commit_is_read_by_the_same_few_threads_however_many_parts_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        for first in range(0, 240, 10):
            topic.append_many(events(first, first + 10))
        copier = Materializer(topic, target("delta", tmp_path / "lake"))
        asked = copier._objects = Asked(copier._objects)
        monkeypatch.setattr("logstore.lake.materializer._SPLIT_BYTES", 3_000)
        assert copier.run_once().rows == 240
    fetched = [thread for thread in asked.by if thread.name.startswith("logstore-scan")]
    assert 1 <= len(fetched) <= 3


def test_T02_one_table_after_the_other_is_filled_by_the_same_few_threads(tmp_path: Path) -> None:
    """Each thread may have a heap of its own, which keeps what was freed there."""
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        for first in range(0, 240, 10):
            topic.append_many(events(first, first + 10))
        by: set[threading.Thread] = set()
        for number in range(5):
            copier = Materializer(topic, target("delta", tmp_path / f"lake{number}"))
            asked = copier._objects = Asked(copier._objects)
            assert copier.run_once().rows == 240
            by |= asked.by
    assert 1 <= len([thread for thread in by if thread.name.startswith("logstore-scan")]) <= 3
