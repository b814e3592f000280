"""A union read in a session that has a table format's jar: `python -m tests.support.spark.jar_job FORMAT FOLDER JARS`. The
last line of stdout is what it found, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import logstore
from logstore.lake import Materializer
from logstore.lake.target import open_target
from logstore.spark import table
from tests.support.lake.tables import events, half_copied, maintained, target

SESSIONS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
    },
}
"""The catalog is for those who maintain the table: a union read asks none of Spark's."""


def session(form: str, folder: Path, jars: str) -> SparkSession:
    settings: dict[str, Any] = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **SESSIONS[form],
    }
    if form == "iceberg":
        settings |= {
            "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}",
            "spark.sql.catalog.lake.warehouse": (folder / "lake").as_uri(),
        }
    found = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def places(frame: DataFrame) -> list[list[int]]:
    return sorted([row.partition, row.offset] for row in frame.collect())


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def main(form: str, folder: Path, jars: str) -> dict[str, Any]:
    spark = session(form, folder, jars)
    url = (folder / "log").as_uri()
    where = target(form, folder / "lake").replace("iceberg:", "iceberg:lake/")
    found: dict[str, Any] = {}

    def seen(name: str) -> DataFrame:
        """What the union read gives now, and what is durable now."""
        frame = table(spark, url, "orders", lake=where)
        durable = topic.to_arrow(["partition", "offset"]).to_pylist()
        found[name] = [places(frame), sorted([row["partition"], row["offset"]] for row in durable)]
        return frame

    with logstore.open(url) as store:
        topic = half_copied(store, where, schema="infer")
        frame = seen("half copied")
        found["plan"] = plan_of(frame)
        found["ids"] = ids(frame)
        topic.append_many(events(80, 90, price={"amount": 1, "text": "x"}))
        seen("fresh")
        found["snapshot"] = frame.count()
        Materializer(topic, where, schema="infer").run_once()
        topic.append_many(events(90, 95, price={"amount": 2, "text": "y"}))
        maintain(spark, where)
        seen("maintained")
        narrow = table(spark, url, "orders", lake=where, columns=["price.amount", "id"])
        found["narrow"] = narrow.schema.simpleString()
        found["narrow plan"] = plan_of(narrow.selectExpr("price.amount"))
        amounts = narrow.selectExpr("price.amount as amount").where("amount is not null").collect()
        found["amounts"] = sorted(row.amount for row in amounts)
        found["no struct"] = narrow.where("price is null").count()
        found["deleted"] = delete(spark, topic, url, where)
    return found


def maintain(spark: SparkSession, where: str) -> None:
    """Few large files, and no history."""
    if where.startswith("delta:"):
        maintained(where, 11)
        return
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'shop.orders', options => map('rewrite-all', 'true'))"
    )
    spark.sql(
        "CALL lake.system.expire_snapshots(table => 'shop.orders', older_than => now(), retain_last => 1)"
    )


def delete(spark: SparkSession, topic: logstore.Topic, url: str, where: str) -> list[Any]:
    """Somebody deletes a row in a way that data files do not show: a session with the jar knows. The table is filled on."""
    name, switch = "lake.shop.orders", "'write.delete.mode' = 'merge-on-read'"
    if where.startswith("delta:"):
        name, switch = f"delta.`{where.removeprefix('delta:')}`", "'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({switch})")
    spark.sql(f"DELETE FROM {name} WHERE id = 3")
    seen = [ids(table(spark, url, "orders", lake=where))]
    copied = Materializer(topic, where, schema="infer").run_once()
    seen.append(ids(table(spark, url, "orders", lake=where)))
    return [seen, copied.behind, refused_without_it(where)]


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect() if row.id is not None)


def refused_without_it(where: str) -> str:
    """What a union read says to whom has no jar."""
    found = open_target(where)
    found.load()
    try:
        found.files()
    except logstore.LogStoreError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
