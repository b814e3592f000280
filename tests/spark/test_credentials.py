"""What a user of Spark hears when a real S3 server refuses the credentials: which error, of which object, and what to do.

The credentials are a profile in a file, which each Python process of Spark reads for itself: so they can go bad between
the planning of a query and its tasks, as a token does that expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import logstore
from tests.support.servers import CREDENTIALS
from tests.support.spark.material import numbered, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.timeout(300)]
RIGHT, WRONG = CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "this-is-not-the-secret"


@pytest.fixture
def set_secret(credentials_file: Path) -> Iterator[Callable[[str], None]]:
    """Call it to give the profile `shop` another secret."""

    def change(secret: str) -> None:
        credentials_file.write_text(
            f"[shop]\naws_access_key_id = {CREDENTIALS['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {secret}\n"
        )

    change(WRONG)
    yield change
    credentials_file.write_text("")


@pytest.fixture
def log(seaweed_url: Callable[[], str]) -> str:
    url = seaweed_url()
    with logstore.open(url) as store:
        store.create_topic("orders").partition(0).append(numbered(0, 10))
    return url


def read(spark: SparkSession, log: str) -> DataFrame:
    return spark.read.format("logstore").option("subscribe", "orders").load(f"{log}&profile=shop")


def refused(doing: Callable[[], object]) -> str:
    with pytest.raises(Exception, match="StoreUnavailable") as caught:
        doing()
    said = str(caught.value)
    assert "the secret key is wrong: check the environment or the profile" in said
    assert RIGHT not in said
    assert WRONG not in said
    return said


def bucket_and_prefix(log: str) -> str:
    return log.partition("?")[0]


def test_a_read_with_a_wrong_secret_names_the_object_and_what_to_do(
    spark: SparkSession, log: str, set_secret: Callable[[str], None]
) -> None:
    assert f"get {bucket_and_prefix(log)}/" in refused(read(spark, log).collect)
    set_secret(RIGHT)
    assert sorted(bytes(row.value) for row in read(spark, log).collect()) == [b"v%d" % n for n in range(10)]


def test_credentials_that_go_bad_after_planning_fail_the_task_with_the_segments_name(
    spark: SparkSession, log: str, set_secret: Callable[[str], None]
) -> None:
    (split,) = plan(log, subscribe="orders")
    set_secret(RIGHT)
    frame = read(spark, log)
    assert frame.rdd.getNumPartitions() == 1, "planned, with credentials that are right"
    set_secret(WRONG)
    assert f"{bucket_and_prefix(log)}/{split.refs[0].key.split('@')[0]}" in refused(frame.collect)


def test_a_write_with_a_wrong_secret_stores_nothing_and_says_why(
    spark: SparkSession, log: str, set_secret: Callable[[str], None]
) -> None:
    rows = spark.sql("select 'v' value").write.format("logstore").option("topic", "orders").mode("append")
    assert bucket_and_prefix(log) in refused(lambda: rows.save(f"{log}&profile=shop"))
    with logstore.open(log, writer="read_only") as store:
        assert [record.value for record in store.topic("orders").partition(0).records()] == [
            b"v%d" % n for n in range(10)
        ]


def test_a_stream_with_a_wrong_secret_ends_and_says_why(
    spark: SparkSession, log: str, set_secret: Callable[[str], None], tmp_path: Path
) -> None:
    source = spark.readStream.format("logstore").option("subscribe", "orders").load(f"{log}&profile=shop")
    sink = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    assert bucket_and_prefix(log) in refused(query.awaitTermination)
