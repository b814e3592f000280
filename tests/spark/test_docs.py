"""The code of docs/spark.md runs, in order, as a reader would run it; only where things lie is another place."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import logstore
from tests.support.spark.material import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_S01_the_page_about_spark_tells_the_truth(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "shop").as_uri()
    with logstore.open(url) as store:
        store.create_topic("orders", partitions=4).partition(3).append(numbered(0, 20))
        store.create_topic("totals")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"spark": spark}
    for block in blocks:
        placed = block.replace("s3://bucket/shop", url).replace("s3://bucket", str(tmp_path))
        exec(compile(placed, str(PAGE), "exec"), names)
    query = names["query"]
    query.awaitTermination()  # type: ignore[attr-defined]
    spark.streams.removeListener(names["listener"])  # type: ignore[arg-type]
    logging.getLogger("logstore").setLevel(logging.NOTSET)
    assert spark.read.parquet(str(tmp_path / "orders.parquet")).count() == 20
    with logstore.open(url, writer="read_only") as store:
        totals = {record.key: record.value for record in store.topic("totals").partition(0).records()}
    assert totals == {b"k%d" % n: b"4" for n in range(5)}
    assert names["all_orders"].count() == 20  # type: ignore[attr-defined]
    assert names["rows"].count() == 20  # type: ignore[attr-defined]
