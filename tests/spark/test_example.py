"""The example runs, twice on the same folder, and its three ways to the sums agree."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.support.spark.releases import HAS_ADMISSION_CONTROL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "orders_pipeline.py"
    spec = importlib.util.spec_from_file_location("orders_pipeline", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(frame: DataFrame) -> dict[str, tuple[int, int]]:
    return {
        row.minute: (row.orders, row.cents) for row in frame.select("minute", "orders", "cents").collect()
    }


def test_S07_the_orders_pipeline_adds_up_and_goes_on_where_it_was(
    spark: SparkSession, pipeline: ModuleType, where: str, tmp_path: Path
) -> None:
    for seed in (1, 2):
        pipeline.serve(where, orders=300, seed=seed)
        pipeline.publish_running_sums(spark, where, tmp_path)
    expected = table(pipeline.batch_sums(spark, where))
    assert sum(orders for orders, _ in expected.values()) == 600
    assert table(pipeline.latest_sums(spark, where)) == expected
    pipeline.keep_finished_minutes(spark, where, tmp_path)
    finished = spark.read.parquet(str(tmp_path / "minutes"))
    closed = {f"{row.minute:%Y-%m-%d %H:%M}": (row.orders, row.cents) for row in finished.collect()}
    # An older Spark ends after one batch, before the one in which that batch's watermark would close them.
    finished_minutes = sorted(expected)[:-1] if HAS_ADMISSION_CONTROL else []
    assert closed == {minute: expected[minute] for minute in finished_minutes}
