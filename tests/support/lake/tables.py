"""Logs to copy, tables to copy them to, and what is compared: which records a table holds."""

from __future__ import annotations

import importlib.util
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

import logstore
from logstore.lake import Materializer
from logstore.lake.target import open_target
from tests.support.servers import BUCKET, CREDENTIALS, REGION

FORMATS = ("delta", "iceberg")
Place = tuple[str, int, int]


def target(form: str, folder: Path, server: Any = None) -> str:
    """A table in the folder, or in the server's bucket."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "delta":
        return f"delta:{folder / 'table'}" if server is None else f"delta:{server.url()}"
    properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": folder.as_uri()}
    if server is not None:
        properties |= {
            "warehouse": f"s3://{BUCKET}/{uuid.uuid4().hex}",
            "s3.endpoint": server.endpoint_url,
            "s3.access-key-id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "s3.region": REGION,
        }
    return f"iceberg:shop.orders?{urlencode(properties)}"


def events(first: int, stop: int, **more: object) -> list[logstore.Record]:
    return [
        logstore.Record(
            json.dumps({"id": n, "kind": f"kind-{n % 3}", **more}).encode(),
            b"k%d" % (n % 5),
            (("h", b"%d" % n),),
            1_700_000_000_000 + n,
        )
        for n in range(first, stop)
    ]


def rows_of(where: str) -> pa.Table:
    """All rows of a table, through its own library."""
    found = open_target(where)
    assert found.load()
    return found.read(None).read_all()


def places(table: pa.Table) -> Counter[Place]:
    """How often each record is there."""
    return Counter(
        zip(
            table["incarnation"].to_pylist(),
            table["partition"].to_pylist(),
            table["offset"].to_pylist(),
            strict=True,
        )
    )


def places_by_others(where: str) -> dict[str, Counter[Place]]:
    """The same of a table in a folder, by who reads it without us, each by its own means; DuckDB through Arrow. Daft if it
    is installed, being 150 MB."""
    import duckdb
    import polars

    columns = ["incarnation", "partition", "offset"]
    table: Any = open_target(where)
    assert table.load()
    is_delta = where.startswith("delta:")
    path = where.removeprefix("delta:")
    stream = table.read(columns)  # DuckDB finds it by its name
    rows: Any = duckdb.sql('select incarnation, partition, "offset" from stream')
    found: dict[str, Any] = {"duckdb": rows.to_arrow_table()}
    frame: Any = polars.scan_delta(path) if is_delta else polars.scan_iceberg(table._loaded)
    found["polars"] = frame.select(columns).collect().to_arrow()
    if importlib.util.find_spec("daft") is not None:
        daft: Any = importlib.import_module("daft")
        lazy = daft.read_deltalake(path) if is_delta else daft.read_iceberg(table._loaded)
        found["daft"] = lazy.select(*columns).to_arrow()
    del stream
    return {name: places(each) for name, each in found.items()}


def durable(topic: logstore.Topic) -> Counter[Place]:
    """Each durable record of the topic, once."""
    found = topic.to_arrow(["partition", "offset"])
    here = topic._internal.descriptor.incarnation
    return Counter((here, row["partition"], row["offset"]) for row in found.to_pylist())


def half_copied(store: logstore.Store, where: str, **given: Any) -> logstore.Topic:
    """60 records in the table, 20 behind it in the log, one of which does not fit."""
    topic = store.create_topic("orders", partitions=2)
    topic.append_many(events(0, 60))
    Materializer(topic, where, partition_by="hour", **given).run_once()
    topic.append_many([*events(60, 79), logstore.Record(b"no json", b"k")])
    return topic


def maintained(where: str, turn: int) -> None:
    """What owners of tables do to them: every third turn few large files, every fourth no history. Delta: compaction,
    checkpoint, clean-up of the log, vacuum. Iceberg: a rewrite of all rows, snapshots expired."""
    form = open_target(where)
    if not form.load():
        return
    if where.startswith("delta:"):
        if turn % 3 == 2:
            form.compact()
        if turn % 4 == 3:
            assert form.load(), "a vacuum takes all files that its handle does not know"
            table: Any = form._loaded  # type: ignore[attr-defined]
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        return
    loaded: Any = form._loaded  # type: ignore[attr-defined]
    if turn % 3 == 2:
        loaded.overwrite(loaded.scan().to_arrow())
    current = loaded.refresh().current_snapshot()
    if turn % 4 == 3 and current is not None:
        expired = [one.snapshot_id for one in loaded.snapshots() if one.snapshot_id != current.snapshot_id]
        loaded.maintenance.expire_snapshots().by_ids(expired).commit()
