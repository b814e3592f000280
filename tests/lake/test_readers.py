"""T02: what is in a table is read by others, each by its own means: Polars, DuckDB and daft. (Spark: tests/spark.)"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest

import logstore
from logstore.lake import Materializer
from logstore.lake import table as union
from logstore.lake.dictionaries import that_repeat
from logstore.lake.target import open_target
from tests.support.lake.tables import FORMATS, events, half_copied, target

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string())])


def filled(tmp_path: Path, form: str) -> str:
    where = target(form, tmp_path / "lake")
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders", partitions=2)
        copier = Materializer(topic, where, schema=SCHEMA, partition_by="day")
        for first in (0, 30):
            topic.append_many(events(first, first + 30))
            copier.run_once()
    return where


def files(where: str) -> list[str]:
    table = open_target(where)
    assert table.load()
    return table.files()


def test_T02_a_delta_table_is_read_by_polars_and_duckdb(tmp_path: Path) -> None:
    where = filled(tmp_path, "delta")
    frame: Any = polars.scan_delta(where.removeprefix("delta:")).collect()
    assert sorted(frame["id"].to_list()) == list(range(60))
    assert {str(day) for day in frame["day"].to_list()} == {"2023-11-14"}
    assert duckdb.read_parquet(files(where)).aggregate("count(*), sum(id)").fetchall() == [
        (60, sum(range(60)))
    ]


def test_T02_an_iceberg_table_is_read_by_polars_and_duckdb(tmp_path: Path) -> None:
    where = filled(tmp_path, "iceberg")
    table: Any = open_target(where)
    assert table.load()
    frame: Any = polars.scan_iceberg(table._loaded).collect()
    assert sorted(frame["id"].to_list()) == list(range(60))
    found = table._loaded.scan(row_filter="id >= 50").to_duckdb("orders")
    assert found.sql("select count(*), min(id) from orders").fetchall() == [(10, 50)]
    ids = [
        field.metadata[b"PARQUET:field_id"] for path in files(where) for field in pa.parquet.read_schema(path)
    ]
    assert len(ids) == 2 * len(table.file_schema), "readers that go by field ids find them in the files"


@pytest.mark.parametrize("form", FORMATS)
def test_T02_a_table_is_read_by_daft(form: str, tmp_path: Path) -> None:
    """Daft goes by the field ids of Iceberg's files alone. It is 150 MB, so it is in no extra of ours."""
    daft: Any = pytest.importorskip("daft", reason="daft is not here: pip install daft, and this test runs")
    where = filled(tmp_path, form)
    if form == "delta":
        frame = daft.read_deltalake(where.removeprefix("delta:"))
    else:
        table: Any = open_target(where)
        assert table.load()
        frame = daft.read_iceberg(table._loaded)
    found = frame.select("id", "kind", "partition", "offset").to_pydict()
    assert sorted(found["id"]) == list(range(60))
    assert all(kind == f"kind-{number % 3}" for number, kind in zip(found["id"], found["kind"], strict=True))
    assert len(set(zip(found["partition"], found["offset"], strict=True))) == 60


def test_T05_table_and_log_as_one_are_read_by_daft(tmp_path: Path) -> None:
    """From the stream of Arrow batches that DuckDB and Polars take."""
    daft: Any = pytest.importorskip("daft", reason="daft is not here: pip install daft, and this test runs")
    where = target("delta", tmp_path / "lake")
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = half_copied(store, where, schema="infer")
        frame = daft.from_arrow(union(topic, where, ["kind", "id"]).read_all())
        assert frame.sum("id").to_pydict() == {"id": [sum(range(79))]}
        assert frame.count_rows() == 80


def test_T02_what_hardly_repeats_is_written_without_a_dictionary(tmp_path: Path) -> None:
    """A dictionary of distinct values makes a file larger, costs time when it is written, and again when it is read."""
    where = target("delta", tmp_path / "lake")
    rng = random.Random(2)
    values = [
        b'{"id": %d, "kind": "k%d", "name": "%040x"}' % (n, n % 3, rng.getrandbits(160))
        for n in range(20_000)
    ]
    with logstore.open((tmp_path / "log").as_uri()) as store:
        topic = store.create_topic("orders")
        topic.append_many([logstore.Record(value) for value in values])
        Materializer(topic, where, schema="infer").run_once()
    (path,) = files(where)
    group = pa.parquet.ParquetFile(path).metadata.row_group(0)
    columns = {one.path_in_schema: one for one in map(group.column, range(group.num_columns))}
    assert group.num_rows == 20_000
    plain = {path for path, column in columns.items() if not column.has_dictionary_page}
    assert plain == {"offset", "id", "name"}
    assert columns["kind"].total_compressed_size < 20_000, "what repeats has one"


def test_T02_columns_that_repeat_are_found_at_any_depth(tmp_path: Path) -> None:
    """Under the names that Parquet has for them; of lists and maps all are taken to repeat."""
    inner = pa.struct([("few", pa.int64()), ("many", pa.string())])
    listed = pa.list_(pa.field("element", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])))
    rows = pa.table(
        {
            "few": pa.array([n % 7 for n in range(100)]),
            "many": pa.array(range(100)),
            "twice": pa.array([n // 2 for n in range(100)]),
            "none": pa.nulls(100, pa.binary()),
            "inner": pa.array([{"few": n % 3, "many": f"{n}"} for n in range(100)], inner),
            "listed": pa.array([[{"a": n, "b": ["x"]}] for n in range(100)], listed),
            "mapped": pa.array([[("k", n)] for n in range(100)], pa.map_(pa.string(), pa.int64())),
        }
    )
    found = that_repeat(rows)
    with pa.parquet.ParquetWriter(tmp_path / "file", rows.schema, use_dictionary=found) as writer:
        writer.write_table(rows)
    group = pa.parquet.ParquetFile(tmp_path / "file").metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert [one.path_in_schema for one in columns if one.has_dictionary_page] == found
    assert {one.path_in_schema for one in columns} - {*found} == {"many", "inner.many"}
    assert that_repeat(rows.slice(0, 0)) == []
