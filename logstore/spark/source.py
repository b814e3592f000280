"""The data source `logstore`, as Spark sees it. Options and schema are those of Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from logstore.spark.options.write_options import WriteOptions


class LogStoreDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `format("logstore")`.

    Imports of the parts wait for their use: Spark loads this class in many short-lived processes.
    """

    @classmethod
    def name(cls) -> str:
        return "logstore"

    def schema(self) -> StructType:
        from logstore.spark.options.read_options import read_options
        from logstore.spark.read.views import schema_of

        return schema_of(read_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        from logstore.spark.options.read_options import read_options
        from logstore.spark.read.batch import LogReader

        return LogReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from logstore.spark.options.read_options import read_options
        from logstore.spark.read.stream import LogStreamReader

        return LogStreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from logstore.spark.write.writer import LogWriter

        return LogWriter(self._write_options(schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from logstore.spark.write.stream_writer import LogStreamWriter

        return LogStreamWriter(self._write_options(schema, overwrite, streaming=True))

    def _write_options(self, schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
        from logstore.spark.options.write_options import write_options
        from logstore.spark.write.rows import check_write_schema

        if overwrite:
            raise ValueError(
                'a log cannot be overwritten: use mode("append") or, for a stream, outputMode("append")'
            )
        options = write_options(self.options, streaming=streaming)
        check_write_schema(schema, options.topic)
        return options
