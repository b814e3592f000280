"""A Spark session for measuring, and whose CPU time a query took: the JVM's or Python's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Two cores, everything in `folder`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # Spark does not see editable installs
    builder = SparkSession.builder.master("local[2]").appName("logstore-benchmarks")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


class CpuSeconds(NamedTuple):
    """So far, and of which Python processes: of one that ends, Spark's daemon does not keep the time."""

    jvm: float
    python: float
    processes: frozenset[int]

    def since(self, before: CpuSeconds) -> float | None:
        """What was used in all since then; None if a process has ended and took its time along."""
        if before.processes - self.processes:
            return None
        return self.jvm + self.python - before.jvm - before.python


def cpu_of(spark: SparkSession) -> CpuSeconds:
    """CPU seconds so far of the JVM and of all Python processes below it."""
    gateway: Any = spark.sparkContext._gateway
    root = int(gateway.jvm.java.lang.ProcessHandle.current().pid())
    own, _ = _times(root)
    processes = _descendants(root)
    below = sum(sum(_times(pid)) for pid in processes)
    return CpuSeconds(own, below + _times(root)[1], frozenset(processes))


def _times(pid: int) -> tuple[float, float]:
    """A process's own CPU seconds, and those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS, (int(fields[13]) + int(fields[14])) / _TICKS


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    left = [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
