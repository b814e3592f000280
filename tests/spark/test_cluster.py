"""S09: a real multi-process cluster, an S3 server, executors that are killed and tasks that run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.layout.paths import SPARK_PREFIX
from logstore.objects import open_url
from tests.support.spark.cluster import spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.timeout(1500)]
EXPECTED = [400, 400, sum(range(400))]


@pytest.fixture(
    scope="module",
    params=[
        "moto",
        pytest.param("seaweedfs", marks=pytest.mark.soak),
        pytest.param("folder", marks=pytest.mark.soak),
    ],
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver in `cluster_job.py` found, and the URL of the log it worked on."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "flags").mkdir()
    home = request.param
    url = (folder / "log").as_uri() if home == "folder" else request.getfixturevalue(home).url()
    with logstore.open(url) as store:
        orders = store.create_topic("orders", partitions=2)
        for n in range(0, 400, 50):
            records = [logstore.Record(b"%d" % i, b"%d" % i) for i in range(n, n + 50)]
            orders.partition(n // 50 % 2).append(records)
        store.create_topic("copied", partitions=3)
        store.create_topic("speculated", partitions=3)
    with spark_cluster(folder) as master:
        job = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).parents[2] / "tests/support/spark/cluster_job.py"),
                master,
                url,
                str(folder / "flags"),
            ],
            capture_output=True,
            timeout=1200,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
    assert job.returncode == 0, job.stderr.decode(errors="replace")[-3000:]
    return json.loads(job.stdout.splitlines()[-1]) | {"url": url}  # type: ignore[no-any-return]


def test_S09_both_executors_read_straight_from_the_object_store(outcome: dict[str, Any]) -> None:
    assert outcome["scan"] == EXPECTED
    assert outcome["executors"] >= 2


def test_S09_an_executor_killed_in_the_middle_of_a_scan_costs_no_row_and_doubles_none(
    outcome: dict[str, Any],
) -> None:
    assert "killed-in-scan" in outcome["flags"]
    assert outcome["scan with a killed executor"] == EXPECTED


def test_S07_S09_an_executor_killed_in_the_middle_of_a_write_leaves_each_row_once(
    outcome: dict[str, Any],
) -> None:
    assert "killed-in-write" in outcome["flags"]
    assert outcome["write with a killed executor"] == EXPECTED


def test_S07_S09_a_speculative_copy_of_a_writing_task_leaves_each_row_once(outcome: dict[str, Any]) -> None:
    assert "copy-started" in outcome["flags"], "Spark ran a second copy of the slow task"
    assert outcome["speculative write"] == EXPECTED


def test_S07_S09_nothing_that_was_staged_is_part_of_the_log(
    outcome: dict[str, Any], partitions: Callable[[str], list[list[bytes | None]]]
) -> None:
    for topic in ("copied", "speculated"):
        stored = partitions(topic)
        assert sorted(int(value or b"") for values in stored for value in values) == list(range(400))
    left = [info.key for info in open_url(outcome["url"]).list(SPARK_PREFIX)]
    assert all("/staged/" in key for key in left), (
        "a task that outlived its job may leave what it staged, no more"
    )


@pytest.fixture
def partitions(outcome: dict[str, Any]) -> Callable[[str], list[list[bytes | None]]]:
    """The values of each partition of a topic, read without Spark."""

    def read(topic: str) -> list[list[bytes | None]]:
        with logstore.open(outcome["url"], writer="read_only") as store:
            opened = store.topic(topic)
            return [
                [record.value for record in opened.partition(n).records()] for n in range(opened.partitions)
            ]

    return read
