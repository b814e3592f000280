"""S02–S10 by name on `local[2]` and on a real cluster, on a folder, on moto and on SeaweedFS: the same rows everywhere.

And once with Unix sockets between Python's workers and the JVM, which docs/spark.md recommends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Record
from logstore.format.batches.codecs import CODEC_NAMES
from logstore.objects import open_url
from tests.support.spark.cluster import spark_cluster
from tests.support.spark.material import numbered, plan

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.soak, pytest.mark.timeout(900)]
JOB = Path(__file__).parents[2] / "tests/support/spark/everywhere_job.py"
PLACES = [
    pytest.param((master, home, "false"), id=f"{master}-{home}")
    for master in ("local", "cluster")
    for home in ("moto", "seaweedfs", "folder")
]
PLACES.append(pytest.param(("local", "folder", "true"), id="local-folder-unix-sockets"))
ORDERS: list[Any] = [[number, n, f"k{n % 5}", f"v{n}"] for number in range(2) for n in range(40)]
MIXED = [
    record
    for n in range(len(CODEC_NAMES))
    for record in (
        Record(b"plain %d" % n, b"key", (("a", b"1"), ("none", None), ("a", b"2")), 1_700_000_000_000),
        Record(None, b"tombstone %d" % n),
        Record(b"\x00\xff" * 600, None),
        Record(b"", b""),
    )
]


def make_log(url: str) -> None:
    with logstore.open(url) as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(2):
            for first in (0, 20):
                orders.partition(number).append(numbered(first, first + 20))
        for name in ("streamed", "written", "empty"):
            store.create_topic(name, partitions=2)
        store.create_topic("mixed")
        store.create_topic("damaged").partition(0).append(numbered(0, 50))
    for n, codec in enumerate(CODEC_NAMES):
        with logstore.open(url, compression=codec) as store:
            store.topic("mixed").partition(0).append(MIXED[n * 4 : n * 4 + 4])


def damage(url: str) -> str:
    """Flip a bit in the middle of the only segment; returns its name."""
    (split,) = plan(url, subscribe="damaged")
    key = split.refs[0].key
    objects = open_url(url)
    data = bytearray(objects.get(key))
    data[len(data) // 3] ^= 0x40
    objects.delete(key)
    objects.put(key, bytes(data))
    return key


@pytest.fixture(scope="module", params=PLACES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver in `everywhere_job.py` found in that place."""
    master, home, unix_sockets = request.param
    folder = tmp_path_factory.mktemp("everywhere")
    url = (folder / "log").as_uri() if home == "folder" else request.getfixturevalue(home).url()
    make_log(url)
    damaged = damage(url)
    with spark_cluster(folder) if master == "cluster" else nullcontext("local[2]") as address:
        job = subprocess.run(
            [sys.executable, str(JOB), address, url, str(folder), unix_sockets],
            capture_output=True,
            timeout=800,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
    assert job.returncode == 0, job.stderr.decode(errors="replace")[-3000:]
    answer: dict[str, Any] = json.loads(job.stdout.splitlines()[-1])
    assert answer["unix sockets"] == unix_sockets
    return answer | {"damaged key": damaged}


def test_S01_S02_the_kafka_row_partial_offsets_and_an_error_that_names_what_is_allowed(
    found: dict[str, Any],
) -> None:
    assert found["S02 schema"] == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int>"
    )
    assert found["S02 partial offsets"] == [row for row in ORDERS if row[0] == 0 or row[1] >= 35]
    assert "startingOffsets" in found["S02 bad option"]


def test_S03_the_same_range_read_twice_gives_the_same_rows(found: dict[str, Any]) -> None:
    assert found["S03 twice"] == [ORDERS, ORDERS]


def test_S04_S05_filters_leave_one_task_and_minPartitions_makes_many(found: dict[str, Any]) -> None:
    assert found["S04 pruned"] == [1, [row for row in ORDERS if row[0] == 1 and row[1] >= 30]]
    assert found["S05 tasks"] >= 6


def test_S06_a_stream_keeps_to_its_rate_and_a_restart_adds_nothing(found: dict[str, Any]) -> None:
    assert found["S06 micro-batches"] == [30, 30, 20]
    assert found["S06 restarted"] == []
    assert found["S06 streamed"] == ORDERS


def test_S07_a_write_that_is_run_again_is_stored_once(found: dict[str, Any]) -> None:
    rows = [[number, key, value] for number, _, key, value in found["S07 written"]]
    assert sorted(rows) == sorted([number, key, value] for number, n, key, value in ORDERS if n < 5)


def test_S08_a_damaged_segment_fails_the_query_with_the_objects_name(found: dict[str, Any]) -> None:
    assert found["damaged key"] in found["S08 damaged"]


def test_S10_every_codec_headers_null_keys_and_tombstones_come_back(found: dict[str, Any]) -> None:
    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode("latin-1")

    assert found["S10 mixed"] == [[0, n, text(one.key), text(one.value)] for n, one in enumerate(MIXED)]
    assert found["S10 headers"] == [
        [[key, text(value)] for key, value in one.headers] or None for one in MIXED
    ]
    assert found["S10 empty"] == 0
