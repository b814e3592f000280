"""A Delta table through deltalake (Rust): one commit, so one Parquet file and one log entry, for each append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.material import Row
from tests.support.servers import BUCKET, CREDENTIALS, REGION, Server


class DeltaTable:
    level = "in the object store"

    def __init__(self, deltalake: Any, url: str, options: dict[str, str]) -> None:
        self._deltalake = deltalake
        self._url = url
        self._options = options
        self._table: Any = None
        self._next = 0

    def append(self, rows: Sequence[Row]) -> None:
        import pyarrow

        columns = {
            "position": pyarrow.array(range(self._next, self._next + len(rows))),
            "key": pyarrow.array([key for key, _ in rows]),
            "value": pyarrow.array([value for _, value in rows]),
        }
        self._next += len(rows)
        if self._table is None:
            self._write(self._url, columns, storage_options=self._options)
            self._table = self._deltalake.DeltaTable(self._url, storage_options=self._options)
        else:
            self._write(self._table, columns)

    def _write(self, where: Any, columns: Any, **more: Any) -> None:
        import pyarrow

        self._deltalake.write_deltalake(where, pyarrow.table(columns), mode="append", **more)

    def scan(self) -> Iterator[Row]:
        table = self._table.to_pyarrow_table().sort_by("position")
        return zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)


@contextmanager
def opened(server: Server, prefix: str) -> Iterator[DeltaTable]:
    import deltalake

    options = {
        "AWS_ENDPOINT_URL": server.endpoint_url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "conditional_put": "etag",
        **CREDENTIALS,
    }
    yield DeltaTable(deltalake, f"s3://{BUCKET}/{prefix}", options)
