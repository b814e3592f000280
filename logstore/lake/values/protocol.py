"""What makes columns of values, whatever they are encoded in: JSON (`json_columns`), Avro, Protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Parsed:
    """Columns as long as the values that they came from. `raw` holds the values that are not in the columns, or not
    wholly."""

    columns: pa.Table
    raw: pa.Array
    unparsed: int


class Values(Protocol):
    """Pickles: it travels to Spark's executors."""

    @property
    def encoding(self) -> str:
        """What a table remembers: who reads on behind its end must decode as it was filled."""

    @property
    def columns(self) -> pa.Schema:
        """The columns that values become."""

    def learn(self, columns: pa.Schema) -> None:
        """Of a table: its columns are among ours from now on."""

    def leave_out(self, columns: Iterable[str]) -> bool:
        """The table refuses these columns. Whether we can do without."""

    def parse(self, values: pa.Array) -> Parsed:
        """`values` are binary, or null for a tombstone."""
