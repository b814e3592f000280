"""T05, T02 in a session that has a table format's jar: the table is read by that, and others maintain it by the same jar.

Jars come from Maven Central: so only in `make spark-versions` and `make soak`. Not every release of Spark has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.__main__ import Skipped, jars
from tests.support.lake.tables import FORMATS

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
# Delta 4.1 and 4.2 are built for Spark 4.1.0: on 4.1.4 they read no checkpoint (NoSuchMethodError).
JARS = {
    ("delta", "4.0"): ["io.delta:delta-spark_2.13:4.0.1"],
    ("iceberg", "4.0"): ["org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0", SQLITE],
    ("iceberg", "4.1"): ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", SQLITE],
}
THEIRS = ("delta-", "iceberg-", "sqlite-")
SCANS = {"delta": "PreparedDeltaFileIndex", "iceberg": ".metadata.json"}


def found_by(form: str, folder: Path) -> dict[str, Any]:
    """What `jar_job` saw."""
    import pyspark

    release = pyspark.__version__.rpartition(".")[0]
    if (form, release) not in JARS:
        pytest.skip(f"no jar of {form} is known to work with Spark {pyspark.__version__}")
    try:
        installed = jars(f"{form}-{release}", *JARS[form, release])
    except Skipped as why:
        pytest.skip(str(why))
    names = ",".join(str(jar) for jar in sorted(installed.glob("*.jar")) if jar.name.startswith(THEIRS))
    job = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.jar_job", form, str(folder), names],
        capture_output=True,
        timeout=600,
        env=os.environ,
        check=False,
    )
    assert job.returncode == 0, job.stderr.decode(errors="replace")[-3000:]
    found: dict[str, Any] = json.loads(job.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_T05_T02_a_session_with_the_formats_jar_reads_table_and_log_as_one(form: str, tmp_path: Path) -> None:
    """Each record once and fresh to the last durable one: also behind a compaction, without history, and when rows were
    deleted by others, who leave the data files as they are."""
    found = found_by(form, tmp_path)
    for name, count in (("half copied", 80), ("fresh", 90), ("maintained", 95)):
        read, durable = found[name]
        assert read == durable, name
        assert len(read) == count
    assert found["ids"] == list(range(79))
    assert found["snapshot"] == 80, "a frame is a snapshot"
    assert SCANS[form] in found["plan"]
    if form == "delta":  # Iceberg's plan does not tell which fields it reads
        assert "ReadSchema: struct<price:struct<amount:bigint>>" in found["narrow plan"]
    assert found["narrow"] == "struct<price:struct<amount:bigint>,id:bigint>"
    assert found["amounts"] == [1] * 10 + [2] * 5
    assert found["no struct"] == 80
    seen, behind, refused = found["deleted"]
    left = [number for number in range(95) if number not in (3, 79)]  # 79 was no JSON
    assert seen == [left, left]
    assert behind == 0
    assert refused.startswith("UnsupportedStore"), "without the jar it would come back"
