"""What a table format must offer, and where a target lies. Two implement it: `delta` and `iceberg`.

The whole of exactly-once is in `commit`: files and the offsets behind them become part of the table in one step, or
not at all, and only if nobody has moved these offsets since `load`. So whoever was slower, was killed, or never
learnt what became of its commit, loads the table again and goes on where that stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from logstore.errors import LogStoreError, StoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

ENCODING = "logstore.values"
"""The property of a table under which its encoding is."""
Bucket = Literal["day", "hour"]
"""Time, as a table is partitioned by it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One partition of one incarnation of a topic: what an offset counts in. A topic that was deleted and created
    again has another incarnation, so its offsets begin again beside the old ones."""

    topic: str
    incarnation: str
    partition: int

    def __str__(self) -> str:
        """How tables know it."""
        return f"logstore/{self.topic}/{self.incarnation}/{self.partition}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that was written and is not yet part of a table. `bucket` counts days or hours since 1970; None where
    the table is not partitioned, or the rows have no timestamp."""

    name: str
    size: int
    rows: int
    bucket: int | None
    offsets: tuple[int, int]
    times_us: tuple[int, int] | None
    without_time: int
    """Rows without a timestamp."""


@dataclass(frozen=True, slots=True)
class SparkRead:
    """`spark.read.format(form).options(**options).load(path)`. No catalog of Spark's is needed."""

    form: str
    path: str
    options: Mapping[str, str]


class TableFormat(Protocol):
    """Of one table. Not for threads."""

    def load(self) -> bool:
        """Look at the table as it is now; whether there is one."""

    def create(self, schema: pa.Schema, encoding: str) -> None:
        """Make the table, unless somebody was faster. `encoding`: what its values were."""

    @property
    def encoding(self) -> str:
        """What the values were that what was loaded is filled from; `json` if it does not say."""

    @property
    def partition_by(self) -> Bucket | None:
        """How what was loaded is partitioned."""

    @property
    def version(self) -> str:
        """Of what was loaded."""

    @property
    def schema(self) -> pa.Schema:
        """Of what was loaded, without columns that only say how it is partitioned."""

    @property
    def file_schema(self) -> pa.Schema:
        """What files must look like: the same columns, with what the format wants to find in them."""

    def next_offset(self, source: Source) -> int | None:
        """Where the rows of a partition end in what was loaded; None if there was nothing of it."""

    def folder(self, bucket: int | None) -> str:
        """Where files of a day or hour lie, below the table: a prefix of their names."""

    def put(self, name: str, data: memoryview) -> None:
        """Store a file. Nobody sees it before the commit."""

    def grow(self, schema: pa.Schema) -> None:
        """Give the table the columns, and fields of columns, that it lacks. `ValueError` if it can never have them; if it
        was changed meanwhile, nothing: load it and look."""

    def commit(self, files: Sequence[DataFile], offsets: Mapping[Source, int]) -> bool:
        """Whether files and offsets are part of the table now, surely. If not, they may be: load it and look."""

    def compact(self) -> dict[str, int]:
        """Make few large files of many small ones. The rows and the offsets stay."""

    def files(self) -> list[str]:
        """Where the files of what was loaded are, as any reader of Parquet takes them."""

    def read(self, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        """The rows of what was loaded."""

    def spark_read(self) -> SparkRead:
        """How a Spark that has the format's jar reads exactly what was loaded."""


def asked(shown: str, call: Callable[[], T]) -> T:
    """What a call of a table's library gives. Its errors, or those of a catalog's, have in common that they may pass."""
    try:
        return call()
    except (LogStoreError, ValueError, TypeError):
        raise
    except Exception as error:
        raise StoreUnavailable(f"{shown}: the table cannot be used now ({in_a_line(error)})") from error


def in_a_line(error: Exception) -> str:
    """What a library says, without colours, trees over many lines and backtraces, as delta-rs has them."""
    text = re.split(r"\n\s*0: ", str(error))[0]
    return " ".join(re.sub(r"\x1b\[[\d;]*m|↳", " ", text).split())


def bucket_of(given: str | None) -> Bucket | None:
    """`day` or `hour`, also as `day(timestamp)`."""
    name = None if given is None else given.removesuffix("(timestamp)")
    if name not in (None, "day", "hour"):
        raise ValueError(f"partition_by={given!r}: it is day, hour or None")
    return name  # type: ignore[return-value]
