"""A Spark process of its own from the pip package, whose log says when it is ready."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

START_TIMEOUT_S = 300.0
HOME = Path(pyspark.__file__).parent


class JavaProcess:
    """Its output is read as it comes, so that a line of it can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, name="java-process-log", daemon=True)
        self.reader.start()

    def wait_for(self, pattern: str, times: int = 1) -> re.Match[str]:
        """The last of the first `times` lines that hold the pattern; an error with the log if they do not come."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._changed:
            while True:
                found = [match for line in self._said if (match := re.search(pattern, line))]
                if len(found) >= times:
                    return found[times - 1]
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    log = "".join(self._said[-40:])
                    raise TimeoutError(f"{pattern!r} was said {len(found)} of {times} times\n{log}")
                self._changed.wait(left)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._said.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@contextmanager
def java_process(folder: Path, program: str, *arguments: str) -> Iterator[JavaProcess]:
    """A program of Spark's `bin`; it is killed when this returns."""
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "640m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    process = subprocess.Popen(
        [str(HOME / "bin" / program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        cwd=folder,
    )
    running = JavaProcess(process)
    try:
        yield running
    finally:
        process.kill()
        process.wait()
        running.reader.join(10)
