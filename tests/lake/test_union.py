"""T05: a union read of table and log gives each record once, fresh to the last durable record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import logstore
from logstore.lake import Materializer, table
from logstore.lake.union import open_table
from logstore.objects import open_url
from tests.support.lake.tables import FORMATS, durable, events, half_copied, places, target


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open((tmp_path / "log").as_uri()) as opened:
        yield opened


@pytest.fixture(params=FORMATS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return target(request.param, tmp_path / "lake")


def test_T05_table_and_log_are_one_stream_for_duckdb_and_polars(store: logstore.Store, where: str) -> None:
    import duckdb
    import polars

    topic = half_copied(store, where, schema="infer")
    assert places(table(topic, where).read_all()) == durable(topic)
    stream = table(topic, where, ["kind", "id"])  # noqa: F841  (DuckDB finds it by its name)
    found = duckdb.sql(
        "select kind, count(*), sum(id) from stream where kind is not null group by kind order by kind"
    )
    assert found is not None
    by_kind = {n: [one for one in range(79) if one % 3 == n] for n in range(3)}
    assert found.fetchall() == [(f"kind-{n}", len(ids), sum(ids)) for n, ids in by_kind.items()]
    frame = polars.DataFrame(table(topic, where, ["id", "value_raw"]))
    assert frame["id"].sum() == sum(range(79))
    assert [raw for raw in frame["value_raw"].to_list() if raw is not None] == [b"no json"]
    topic.append_many(events(79, 80))
    assert places(table(topic, where).read_all()) == durable(topic), "fresh to the last durable record"


def test_T05_raw_tables_and_recreated_topics_too(store: logstore.Store, where: str) -> None:
    topic = half_copied(store, where)
    old = durable(topic)
    assert sorted(table(topic, where, ["value"]).read_all()["value"].to_pylist()) == sorted(
        [b"no json", *(one.value or b"" for one in events(0, 79))]
    )
    Materializer(topic, where).run_once()
    store.delete_topic("orders")
    again = store.create_topic("orders")
    again.append_many(events(0, 5))
    assert places(table(again, where).read_all()) == old + durable(again), (
        "the table keeps what the topic was"
    )


def test_T05_each_record_is_there_once_while_somebody_copies_and_compacts(
    store: logstore.Store, tmp_path: Path
) -> None:
    where = target("delta", tmp_path / "lake")
    topic = store.create_topic("orders", partitions=2)
    topic.append_many(events(0, 20))
    Materializer(topic, where, schema="infer").run_once()
    done = threading.Event()

    def copy() -> None:
        copier = Materializer(topic, where, schema="infer")
        for first in range(20, 120, 20):
            topic.append_many(events(first, first + 20))
            copier.run_once()
            copier.compact()
        done.set()

    copying = threading.Thread(target=copy)
    copying.start()
    looks = 0
    while not done.is_set() or looks < 2:
        found = places(table(topic, where, ["incarnation", "partition", "offset"]).read_all())
        assert set(found.values()) == {1}
        for partition in range(2):
            offsets = sorted(offset for _, number, offset in found if number == partition)
            assert offsets == list(range(len(offsets))), "no hole before the last one"
        looks += 1
    copying.join()
    assert places(table(topic, where).read_all()) == durable(topic)


@pytest.mark.parametrize("name", ["a table", "täble", "t#1", "day=1"])
@pytest.mark.parametrize("partition_by", [None, "hour"])
def test_T05_the_files_of_a_table_are_where_it_says_whatever_its_folder_is_called(
    store: logstore.Store, tmp_path: Path, name: str, partition_by: str | None
) -> None:
    """Spark reads them by these paths, without Delta's jar."""
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    for folder in (str(tmp_path / name), (tmp_path / f"{name} too").as_uri()):
        Materializer(topic, f"delta:{folder}", partition_by=partition_by).run_once()
        files = open_table(f"delta:{folder}").files()
        assert pq.read_table(files[0], partitioning=None).num_rows == 10


@pytest.mark.s3
def test_T05_the_files_of_a_table_in_a_bucket_are_where_it_says(store: logstore.Store, moto: Any) -> None:
    topic = store.create_topic("orders")
    topic.append_many(events(0, 10))
    url, _, query = moto.url().partition("?")
    for name in ("a table", "täble", "day=1"):
        target = f"delta:{url}/{name}?{query}"
        Materializer(topic, target).run_once()
        (file,) = open_table(target).files()
        folder, _, key = file.rpartition("/")
        assert folder == f"{url}/{name}"
        assert open_url(f"{url}/{name}?{query}").head(key) is not None
        assert table(topic, target).read_all().num_rows == 10


def test_T05_a_table_that_cannot_be_loaded_now_is_said_in_a_line(
    store: logstore.Store, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("orders")
    Materializer(topic, where).run_once()

    def refused(*_: object, **__: object) -> None:
        raise OSError("Generic error\n  \x1b[31m↳\x1b[0m refused")

    monkeypatch.setattr("logstore.lake.delta.DeltaTable.__init__", refused)
    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.load_table", refused)
    with pytest.raises(logstore.StoreUnavailable, match=r"cannot be used now .Generic error refused.$"):
        table(topic, where)


def test_T05_a_place_that_delta_rs_would_take_for_another_is_refused(
    store: logstore.Store, tmp_path: Path
) -> None:
    """In a bucket its log was in one place and the files in the other: rows that were committed could not be read."""
    for place in (f"{tmp_path}/a%20table", "s3://bucket/a%20table"):
        with pytest.raises(logstore.UnsupportedStore, match="takes a % in a table's place"):
            Materializer(store.create_topic("orders", exist_ok=True), f"delta:{place}")


def test_T05_what_cannot_be_read_is_said(store: logstore.Store, where: str, tmp_path: Path) -> None:
    topic = half_copied(store, where)
    with pytest.raises(ValueError, match="there is no table"):
        table(topic, target("delta", tmp_path / "other"))
    with pytest.raises(ValueError, match="name some of partition, offset"):
        table(topic, where, ["colour"])
    topic.partition(0).delete_before(topic.partition(0).durable_high_watermark)
    with pytest.raises(logstore.OffsetOutOfRange):
        table(topic, where)


def test_T05_a_table_with_deletion_vectors_is_refused_by_name(store: logstore.Store, tmp_path: Path) -> None:
    """Its files alone would show rows that were deleted."""
    from deltalake import DeltaTable, TableFeatures

    where = target("delta", tmp_path / "lake")
    half_copied(store, where)
    path = where.removeprefix("delta:")
    DeltaTable(path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(logstore.UnsupportedStore, match="deletionVectors"):
        open_table(where).files()


def test_T05_fields_of_structs_are_read_alone_and_misfits_stay_misfits(
    store: logstore.Store, where: str
) -> None:
    """A row reads the same before it is in the table and after, whichever columns are asked for."""
    topic = store.create_topic("orders")
    topic.append_many(events(0, 5, price={"amount": 1, "unit": {"name": "EUR", "of": 2}}))
    copier = Materializer(topic, where, schema="infer")
    copier.run_once()
    topic.append_many(
        [
            *events(5, 7, price={"amount": 2, "unit": {"name": "USD", "of": 2}}),
            *events(7, 8, price=None),
            logstore.Record(b'{"id": 8, "price": "free", "kind": "odd"}'),
        ]
    )

    def seen() -> dict[str, list[str]]:
        wanted = (
            ["price.amount", "id"],
            ["price.unit.name", "price.amount"],
            ["kind"],
            ["id", "value_raw"],
            ["incarnation"],
            ["offset", "key"],
        )
        return {
            " ".join(names): sorted(map(str, table(topic, where, names).read_all().to_pylist()))
            for names in wanted
        }

    before = seen()
    assert str({"price": {"amount": 2}, "id": 5}) in before["price.amount id"]
    assert str({"price": None, "id": 7}) in before["price.amount id"]
    assert before["kind"].count(str({"kind": None})) == 1, "the price is no struct, so the row has no fields"
    assert str({"price": {"amount": 2, "unit": {"name": "USD"}}}) in before["price.unit.name price.amount"]
    copier.run_once()
    assert seen() == before
    for names in (["price", "price.amount"], ["price.colour"], ["id.amount"], ["id", "id"], []):
        with pytest.raises(ValueError, match="name some of"):
            table(topic, where, names)
