"""The one writer of Parquet files, for both formats: batches in, files of about the wanted size out, in bounded memory.

A file holds rows of one day or hour if the table is partitioned by that, or rows without a timestamp. Files lie in
temporary ones until they are whole, because an object store takes an object whole: so what is open is counted, and where it
becomes too much the largest one is ended early.
"""

from __future__ import annotations

import mmap
import tempfile
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.lake.dictionaries import that_repeat
from logstore.lake.table_format import DataFile, TableFormat

FILE_BYTES = 32 << 20
_OPEN_BYTES = 48 << 20
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 1 << 16
_DICTIONARY_BYTES = 64 << 10
"""A column that was thought to repeat, and whose distinct values take more than this in a row group, is written plain from
there on."""
_BUCKET_US = {"day": 86_400_000_000, "hour": 3_600_000_000}


class _Open:
    """A file that is being written."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.sink = tempfile.TemporaryFile()  # noqa: SIM115  (it goes with this object)
        self.writer: pq.ParquetWriter | None = None  # its first row group says which columns get a dictionary
        self.waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = self.waiting_rows = self.rows = self.without_time = 0
        self.offsets: list[int] = []
        self.times_us: list[int] = []

    @property
    def size(self) -> int:
        return int(self.sink.tell())

    @property
    def held(self) -> int:
        return self.size + self.waiting_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self.waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self.waiting_rows += batch.num_rows
        self.rows += batch.num_rows
        for column, seen in (("offset", self.offsets), ("timestamp", self.times_us)):
            ends = pc.min_max(batch.column(column).cast(pa.int64()))
            if ends["min"].is_valid:
                seen[:] = [min([*seen, ends["min"].as_py()]), max([*seen, ends["max"].as_py()])]
        self.without_time += batch.column("timestamp").null_count
        if self.waiting_bytes >= _GROUP_BYTES or self.waiting_rows >= _GROUP_ROWS:
            self.write()

    def write(self) -> None:
        if self.waiting:
            rows = pa.Table.from_batches(self.waiting, self.schema)
            if self.writer is None:
                self.writer = pq.ParquetWriter(
                    self.sink,
                    self.schema,
                    compression="zstd",
                    use_dictionary=that_repeat(rows),
                    dictionary_pagesize_limit=_DICTIONARY_BYTES,
                )
            self.writer.write_table(rows, row_group_size=_GROUP_ROWS)
        self.waiting, self.waiting_bytes, self.waiting_rows = [], 0, 0


class ParquetFiles:
    """Of one commit."""

    def __init__(self, table: TableFormat, file_bytes: int = FILE_BYTES) -> None:
        self._table = table
        self._partition_by = table.partition_by
        self._file_bytes = file_bytes
        self._open: dict[int | None, _Open] = {}
        self._done: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """With columns `offset` and `timestamp`. A batch with other columns than the last one begins another file."""
        if self._partition_by is None:
            self._add(None, batch)
            return
        if batch.column("timestamp").null_count:
            is_known = pc.is_valid(batch.column("timestamp"))
            self._add(None, batch.filter(pc.invert(is_known)))
            batch = batch.filter(is_known)
        stamps = batch.column("timestamp").cast(pa.int64()).to_numpy()
        buckets = stamps // _BUCKET_US[self._partition_by]
        found = np.unique(buckets)
        for bucket in found:
            self._add(int(bucket), batch if len(found) == 1 else batch.filter(pa.array(buckets == bucket)))

    def close(self) -> list[DataFile]:
        """All files, stored."""
        for bucket in list(self._open):
            self._end(bucket)
        return self._done

    def _add(self, bucket: int | None, batch: pa.RecordBatch) -> None:
        known = self._open.get(bucket)
        if known is not None and not known.schema.equals(batch.schema):
            self._end(bucket)
            known = None
        if known is None:
            known = self._open[bucket] = _Open(batch.schema)
        known.add(batch)
        if known.size >= self._file_bytes:
            self._end(bucket)
        elif sum(each.held for each in self._open.values()) > max(_OPEN_BYTES, self._file_bytes):
            self._end(max(self._open, key=lambda each: self._open[each].held))

    def _end(self, bucket: int | None) -> None:
        ended = self._open.pop(bucket)
        ended.write()
        assert ended.writer is not None, "a file is begun with a batch"
        ended.writer.close()
        ended.sink.flush()
        # What follows maps the whole file. Arrow keeps what it freed: it goes back first, so that the two do not add up.
        pa.default_memory_pool().release_unused()
        name = f"{self._table.folder(bucket)}{uuid.uuid4().hex}.parquet"
        with mmap.mmap(ended.sink.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            with memoryview(mapped) as data:
                size = len(data)
                self._table.put(name, data)
        ended.sink.close()
        self._done.append(
            DataFile(
                name,
                size,
                ended.rows,
                bucket,
                (ended.offsets[0], ended.offsets[1]),
                (ended.times_us[0], ended.times_us[1]) if ended.times_us else None,
                ended.without_time,
            )
        )
