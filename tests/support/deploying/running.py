"""A real server in processes of its own, asked over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.engine.harness import until
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

ROOT = Path(__file__).parents[3]
APP = "tests.support.deploying"


class Service:
    def __init__(self, process: subprocess.Popen[bytes], port: int, output: Path) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}"
        self._output = output

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        return self._ask(path, None)

    def append(self, value: str) -> tuple[int, dict[str, Any]]:
        """The status, and what the service says."""
        return self._ask("/append", value.encode())

    def append_all(self, values: list[str]) -> list[tuple[int, dict[str, Any]]]:
        """Eight at a time, so that several workers have something to do."""
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(self.append, values))

    def _ask(self, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(self._url + path, body, timeout=PATIENCE_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def is_up(self) -> bool:
        assert self.process.poll() is None, f"it has ended: {self.log()}"
        try:
            return self.get("/ready")[0] == 200
        except OSError:
            return False

    def stop(self) -> int:
        """SIGTERM, as Kubernetes, systemd and `docker stop` send it. The exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def log(self) -> str:
        return self._output.read_text(errors="replace")


def environment(url: object, **settings: Any) -> dict[str, str]:
    ours = {"LOGSTORE_URL": str(url), "APP_SETTINGS": json.dumps(settings), "PYTHONPATH": str(ROOT)}
    return os.environ | ours


@contextmanager
def _served(command: list[str], port: int, home: Path, env: dict[str, str]) -> Iterator[Service]:
    output = home / f"server-{port}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=home, env=env, stdout=log, stderr=subprocess.STDOUT
        )
    service = Service(process, port, output)
    try:
        until(service.is_up)
        yield service
    finally:
        if process.poll() is None:
            service.stop()


@contextmanager
def uvicorn(home: Path, *, workers: int = 1, **settings: Any) -> Iterator[Service]:
    port = free_port()
    command = ["uvicorn", f"{APP}.asgi_app:app", "--port", f"{port}", "--workers", f"{workers}"]
    with _served(command, port, home, environment(home / "store", **settings)) as service:
        yield service


@contextmanager
def gunicorn(home: Path, *, workers: int = 1, **settings: Any) -> Iterator[Service]:
    port = free_port()
    conf = ROOT / "tests/support/deploying/gunicorn_conf.py"
    command = [
        "gunicorn",
        f"{APP}.wsgi_app:app",
        "-b",
        f"127.0.0.1:{port}",
        "-w",
        f"{workers}",
        "-c",
        f"{conf}",
    ]
    with _served(command, port, home, environment(home / "store", **settings)) as service:
        yield service
