"""One small Spark session for all files of this folder, and the log stores that they read."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# These JVMs live for a minute: the second compiler and a parallel collector cost more than they save.
os.environ["JDK_JAVA_OPTIONS"] = " ".join(
    filter(None, (os.environ.get("JDK_JAVA_OPTIONS"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))
)
# Spark lists the modules on the path, and an editable install is no module on the path: an import hook finds it.
_ROOT = str(Path(__file__).parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        pytest.skip("SPARK WAS NOT TESTED: there is no Java")


@pytest.fixture(scope="session", autouse=True)
def alone_in_this_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of several workers one runs all of this folder. Two would start two of everything, and take twice as long."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        (tmp_path_factory.getbasetemp().parent / "spark-has-a-worker").touch(exist_ok=False)


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark without its folder `python`, for every process that the tests start: workers import pyspark as it is installed.

    In that folder it lies as an archive, which comes first on their path and is compiled again by each of them: a quarter of
    a stream's CPU. And Spark gives a worker ten seconds to call back, which a busy machine needs for that alone.
    """
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = tmp_path_factory.mktemp("spark-home")
    for part in Path(found.origin).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)


@pytest.fixture(scope="session")
def credentials_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every process of the session `spark` looks for the profiles that a URL names. There are none in it."""
    path = tmp_path_factory.mktemp("aws") / "credentials"
    path.touch()
    return path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, credentials_file: Path) -> Iterator[SparkSession]:
    """Two cores, a task may fail three times; no register call anywhere: Spark finds the source by itself."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials_file)  # the JVM hands it on to all it starts
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("logstore-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", "120s")  # a busy machine starts Python slowly
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
