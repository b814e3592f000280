"""A real Spark cluster on loopback: a master and two workers from the pip package, each a process of its own.

The workers have different addresses, so that Spark may run a speculative copy of a task on the other one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark
from servers import free_port

START_TIMEOUT_S = 120.0
HOSTS = ("127.0.0.1", "127.0.0.2")


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """The master's URL, once both workers have registered. Everything is gone when this returns."""
    port, web_port = free_port(), free_port()
    with ExitStack() as stack:
        master = ["--host", HOSTS[0], "--port", str(port), "--webui-port", str(web_port)]
        _start(stack, folder, "master", "org.apache.spark.deploy.master.Master", *master)
        url = f"spark://{HOSTS[0]}:{port}"
        for number, host in enumerate(HOSTS):
            worker = [
                "--host",
                host,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(folder / f"work{number}"),
            ]
            web = ["--webui-port", str(free_port()), url]
            _start(stack, folder, f"worker{number}", "org.apache.spark.deploy.worker.Worker", *worker, *web)
        _wait_for_workers(f"http://{HOSTS[0]}:{web_port}/json/", folder)
        yield url


def _start(stack: ExitStack, folder: Path, name: str, main: str, *arguments: str) -> None:
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    command = [str(home / "bin" / "spark-class"), main, *arguments]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    stack.callback(process.wait)
    stack.callback(process.kill)


def _wait_for_workers(address: str, folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            if answer.read().count(b'"ALIVE"') >= len(HOSTS) + 1:  # the master says so of itself too
                return
        time.sleep(0.2)
    logs = "\n".join(
        f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in folder.glob("*.log")
    )
    raise TimeoutError(f"the cluster was not ready in {START_TIMEOUT_S} s\n{logs}")
