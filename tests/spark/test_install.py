"""S01: the wheel alone makes `format("logstore")` work, in a fresh environment and with nothing on PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

import logstore
from tests.support.spark.material import numbered
from tests.support.wheel import build_wheel

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]
SESSION = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("logstore").option("subscribe", "orders").load(sys.argv[1])
rows.select("key", "value").write.format("logstore").option("topic", "copy").mode("append").save(sys.argv[1])
copied = spark.read.format("logstore").option("subscribe", "copy").load(sys.argv[1])
import logstore
found = [logstore.__file__, sorted(bytes(row.value).decode() for row in copied.collect())]
spark.stop()
print(json.dumps(found))
"""


def run(command: list[str], folder: Path) -> str:
    hidden = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_HOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(folder / "venv/bin/python")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_S01_a_wheel_in_a_fresh_environment_needs_no_jar_no_register_call_and_no_path(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    tested = "pyspark>=4.3,<4.4"
    run([python, "-m", "pip", "install", "--quiet", f"{wheel}[spark]", tested], tmp_path)

    url = (tmp_path / "log").as_uri()
    with logstore.open(url) as store:
        store.create_topic("orders").partition(0).append(numbered(0, 5))
        store.create_topic("copy")
    where, copied = json.loads(run([python, "-c", SESSION, url], tmp_path).splitlines()[-1])
    assert Path(where).is_relative_to(tmp_path / "venv"), "it is the wheel that was imported"
    assert copied == [f"v{n}" for n in range(5)]
