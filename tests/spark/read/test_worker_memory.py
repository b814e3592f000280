"""What is imported is left out of the garbage collection that a reused Python worker of Spark does after each task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
THREE_TASKS = """
import gc, json, sys, weakref
from logstore.arrow.plan.log_partitions import open_store

ours = gc.get_freeze_count()  # Python 3.12 begins with some that it has frozen itself

class Cycle:
    def __init__(self):
        self.me = self

def task():
    open_store(sys.argv[1])
    import decimal, email.message  # as tasks do: late
    frozen, left = gc.get_freeze_count() - ours, weakref.ref(Cycle())
    gc.collect()
    return frozen, left() is None

first, clean_first = task()
there = len(gc.get_objects())
second, clean_second = task()
third, clean_third = task()
print(json.dumps({
    "frozen at first": first,
    "share frozen": second / there,
    "frozen later": third - second,
    "clean": clean_first and clean_second and clean_third,
}))
"""


def three_tasks(where: str, **environment: str) -> dict[str, float]:
    """One process that opens the store three times, as for three tasks: what is frozen during the first; during the second,
    of all that the first left; what more during the third; and whether the garbage of each was collected."""
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    run = subprocess.run(
        [sys.executable, "-c", THREE_TASKS, where],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode(errors="replace")
    found: dict[str, float] = json.loads(run.stdout)
    return found


def test_a_reused_worker_freezes_once_what_its_first_task_has_imported_and_still_collects_garbage(
    where: str,
) -> None:
    found = three_tasks(where, SPARK_REUSE_WORKER="1")
    assert found.pop("share frozen") > 0.95
    assert found == {"frozen at first": 0, "frozen later": 0, "clean": True}


def test_a_process_that_is_no_reused_worker_keeps_its_collector_as_it_was(where: str) -> None:
    nothing = {"frozen at first": 0, "share frozen": 0, "frozen later": 0, "clean": True}
    assert three_tasks(where) == nothing


def test_sparks_own_workers_are_such(spark: SparkSession, where: str) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        from logstore.arrow.plan.log_partitions import open_store

        for _ in batches:
            open_store(where)
            open_store(where)
            yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(frozen, "objects long").collect()
    assert row.objects > 1000
