"""Batches as one Arrow batch, however large: what a test compares. The product decodes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from logstore.format.batches.batch import BatchInfo, Buffer
from logstore.format.batches.columns import COLUMNS, Located, column_chunks

if TYPE_CHECKING:
    import pyarrow as pa


def located(raw: Buffer, infos: Sequence[BatchInfo]) -> list[Located]:
    """Batches that lie in the same bytes."""
    return [(raw, info) for info in infos]


def decode_columns(
    raw: Buffer, infos: Sequence[BatchInfo], *, columns: Sequence[str] = COLUMNS, **bounds: Any
) -> pa.RecordBatch:
    """The records of the batches, in offset order, from `start_offset` up to before `stop_offset`."""
    found = list(column_chunks(located(raw, infos), columns=columns, rows=1 << 31, **bounds))
    if not found:
        import pyarrow

        from logstore.format.batches.arrays import Plan

        return pyarrow.RecordBatch.from_pylist([], Plan(columns).schema)
    assert len(found) == 1, "more than fits one piece"
    return found[0]
