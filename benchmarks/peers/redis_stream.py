"""A Redis stream in a server process of its own, over a Unix socket: one pipeline of XADD for each append."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.material import Row
from benchmarks.peers import Missing

PAGE = 10_000
START_TIMEOUT_S = 10.0


class RedisStream:
    def __init__(self, client: Any, server: int, level: str) -> None:
        self.level = level
        self.server = server
        self._client = client

    def append(self, rows: Sequence[Row]) -> None:
        pipeline = self._client.pipeline(transaction=True)
        for key, value in rows:
            pipeline.xadd("log", {b"k": key, b"v": value})
        pipeline.execute()

    def scan(self) -> Iterator[Row]:
        start = "-"
        while page := self._client.xrange("log", min=start, count=PAGE):
            for _, fields in page:
                yield fields[b"k"], fields[b"v"]
            start = "(" + page[-1][0].decode()


@contextmanager
def opened(folder: Path, *, synced: bool) -> Iterator[RedisStream]:
    import redis

    if shutil.which("redis-server") is None:
        raise Missing("no redis-server on PATH (Debian: apt-get install redis-server)")
    home = folder / "redis"
    home.mkdir()
    socket = home / "socket"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "dir": str(home),
        "appendonly": "yes",
        "appendfsync": "always" if synced else "no",
        "auto-aof-rewrite-percentage": "0",
        "save": "",
    }
    process = subprocess.Popen(
        ["redis-server", *(word for option, value in options.items() for word in (f"--{option}", value))],
        stdout=subprocess.DEVNULL,
    )
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        _wait_until_up(client, redis.ConnectionError)
        level = "on this disk, fsynced" if synced else "with the kernel, not fsynced"
        yield RedisStream(client, process.pid, level)
        client.close()
    finally:
        process.kill()
        process.wait()


def _wait_until_up(client: Any, not_yet: type[Exception]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.ping()
            return
        except not_yet:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
