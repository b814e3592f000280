"""S01: the wheel alone makes `format("logstore")` work, in a fresh environment and with nothing on PYTHONPATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import logstore
from tests.support.spark.material import numbered

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SOURCES = ("logstore", "broker_shim", "pyspark_logstore", "pyproject.toml", "setup.py", "README.md")
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
    source = tmp_path / "source"
    source.mkdir()
    for (
        name
    ) in SOURCES:  # a copy, so that the build leaves nothing in the checkout and finds nothing built there
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", "dist", str(source)], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("logstore-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    tested = "pyspark>=4.2,<4.3"
    run([python, "-m", "pip", "install", "--quiet", f"{wheel}[spark]", tested], tmp_path)

    url = (tmp_path / "log").as_uri()
    with logstore.open(url) as store:
        store.create_topic("orders").partition(0).append(numbered(0, 5))
        store.create_topic("copy")
    where, copied = json.loads(run([python, "-c", SESSION, url], tmp_path).splitlines()[-1])
    assert Path(where).is_relative_to(tmp_path / "venv"), "it is the wheel that was imported"
    assert copied == [f"v{n}" for n in range(5)]
