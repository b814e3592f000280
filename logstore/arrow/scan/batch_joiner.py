"""Blocks of small segments, decoded together, so that a thousand tiny segments are not a thousand tiny Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from logstore.arrow.scan.fetch import Fetched
from logstore.errors import CorruptData
from logstore.format.batches.batch import read_info
from logstore.format.batches.columns import Located, column_chunks
from logstore.format.batches.transactions import Aborted, AbortedBatches
from logstore.format.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS = 16_384
_ENOUGH_BYTES = 4 << 20


class BatchJoiner:
    """Checked blocks of one partition, in offset order. `aborted`: the transactions whose batches are left out."""

    def __init__(self, aborted: Iterable[Aborted] = ()) -> None:
        self._aborted = AbortedBatches(aborted)
        self._blocks: list[Fetched] = []
        self._batches: list[Located] = []
        self._bytes = 0
        self._rows = 0

    @property
    def full(self) -> bool:
        return self._rows >= CHUNK_ROWS or self._bytes >= _ENOUGH_BYTES

    @property
    def end_offset(self) -> int:
        """How far the scan is once these are decoded."""
        return self._blocks[-1].end_offset

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, fetched: Fetched) -> None:
        data, start = fetched.block.data, fetched.block.start
        for position in fetched.rows["position"].tolist():
            info = read_info(data, position - start)
            if self._aborted.holds(info):
                continue
            self._batches.append((data, info))
            self._rows += info.count
        self._blocks.append(fetched)
        self._bytes += len(data)

    def chunks(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to `stop`, in pieces that Spark likes."""
        try:
            yield from column_chunks(
                self._batches, columns=columns, start_offset=start, stop_offset=stop, rows=CHUNK_ROWS
            )
        except FormatError as damage:
            raise self._blamed(damage) from damage

    def _blamed(self, damage: FormatError) -> CorruptData:
        """Which object holds batches that have their checksum and still cannot be decoded."""
        for fetched in self._blocks:
            for position in fetched.rows["position"].tolist():
                info = read_info(fetched.block.data, position - fetched.block.start)
                try:
                    for _ in column_chunks([(fetched.block.data, info)]):
                        pass
                except FormatError as found:
                    return CorruptData(fetched.key, info.base_offset, found.why)
        return CorruptData(self._blocks[0].key, self._batches[0][1].base_offset, damage.why)
