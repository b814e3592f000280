"""S01, S02: over Spark Connect the format is there too, read, written and streamed by a client without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
from tests.support.spark.java_process import java_process
from tests.support.spark.material import numbered

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(300)]
STORED: list[Any] = [[number, n, f"k{n % 5}", f"v{n}"] for number in range(2) for n in range(6)]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client in `connect_job.py` found."""
    folder = tmp_path_factory.mktemp("connect")
    url = (folder / "log").as_uri()
    with logstore.open(url) as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(2):
            orders.partition(number).append(numbered(0, 6))
        store.create_topic("written", partitions=2)
        store.create_topic("streamed", partitions=2)
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *given, "spark-internal"]
    with java_process(folder, "spark-submit", *server) as running:
        port = running.wait_for(r"Spark Connect server started at: .*:(\d+)").group(1)
        job = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).parents[2] / "tests/support/spark/connect_job.py"),
                f"sc://127.0.0.1:{port}",
                url,
                str(folder / "checkpoint"),
            ],
            capture_output=True,
            timeout=240,
            env=os.environ,
            check=False,
        )
    assert job.returncode == 0, job.stderr.decode(errors="replace")[-3000:]
    found: dict[str, Any] = json.loads(job.stdout.splitlines()[-1])
    return found


def test_S01_over_connect_the_format_is_known_without_a_register_call(outcome: dict[str, Any]) -> None:
    assert outcome["client"].startswith("pyspark.sql.connect")
    assert outcome["read"] == STORED


def test_S02_over_connect_the_helpers_give_the_same_rows(outcome: dict[str, Any]) -> None:
    assert outcome["scan"] == STORED
    assert outcome["described"] == [[0, 0, 6], [1, 0, 6]]


def test_S07_over_connect_a_write_stores_each_row_once(outcome: dict[str, Any]) -> None:
    assert outcome["written"] == [row for row in STORED if row[1] < 3]


def test_S06_over_connect_a_stream_reads_and_writes(outcome: dict[str, Any]) -> None:
    assert outcome["streamed"] == STORED


def test_S02_over_connect_an_error_reaches_the_client_with_its_words(outcome: dict[str, Any]) -> None:
    assert "'none'" in outcome["error"]
