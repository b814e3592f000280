"""What the Spark that runs these tests cannot do, for `make spark-versions`: older releases have less to offer a source."""

from __future__ import annotations

from importlib.metadata import version

import pytest

SPARK = tuple(int(part) for part in version("pyspark").split(".")[:2])
HAS_ADMISSION_CONTROL = SPARK >= (4, 2)
HAS_STREAM_WRITER = SPARK >= (4, 1)

needs_stream_writer = pytest.mark.skipif(
    not HAS_STREAM_WRITER, reason="before Spark 4.1 a stream cannot be written to logstore"
)
