"""A real Spark cluster on loopback: a master and two workers from the pip package, each a process of its own.

The workers have different addresses, so that Spark may run a speculative copy of a task on the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.spark.java_process import java_process

HOSTS = ("127.0.0.1", "127.0.0.2")


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """The master's URL, once both workers have registered. Everything is gone when this returns."""
    with ExitStack() as stack:
        address = ["--host", HOSTS[0], "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(
            java_process(folder, "spark-class", "org.apache.spark.deploy.master.Master", *address)
        )
        url = master.wait_for(r"Starting Spark master at (spark://\S+)").group(1)
        for number, host in enumerate(HOSTS):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}")]
            worker = ["--host", host, "--webui-port", "0", *size, url]
            stack.enter_context(
                java_process(folder, "spark-class", "org.apache.spark.deploy.worker.Worker", *worker)
            )
        master.wait_for("Registering worker", times=len(HOSTS))
        yield url
