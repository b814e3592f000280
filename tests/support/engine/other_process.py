"""A store in another process, driven from a test: it does one thing for each line that it is sent, and answers with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

_PROGRAM = """
import json, os, sys
import logstore

where, name, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
partitions, count = settings.pop("partitions", 1), settings.pop("topics", 1)
store = logstore.open(where, **settings)
names = [name, *(f"{name}{n}" for n in range(1, count))]
topics = [store.create_topic(each, partitions, exist_ok=True) for each in names]
topic = topics[0]
for line in sys.stdin:
    what, *words = json.loads(line)
    try:
        if what == "append":
            receipt = topic.append(words[0].encode(), **words[1])
            answer = [receipt.partition, receipt.offset]
        elif what == "append to all":
            futures = [one.partition(n).submit(words[0].encode()) for one in topics for n in range(partitions)]
            answer = [future.result(60).offset for future in futures]
        elif what == "close":
            store.close()
            answer = "closed"
        elif what == "fork":
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(writing)
                os.read(reading, 1)  # which ends when the parent does
                os._exit(0)
            answer = child
    except logstore.LogStoreError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(answer), flush=True)
"""


class OtherProcess:
    """It appends to `topic`, which it creates if it is not there, with `partitions=1`, or as many as the settings say. With
    `topics`, so many in all: the others are called the same with a number, from 1 on."""

    def __init__(self, where: object, topic: str = "t", **settings: Any) -> None:
        command = [sys.executable, "-c", _PROGRAM, str(where), topic, json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def append(self, value: str, **how: Any) -> Any:
        """Partition and offset, or the error's name and text."""
        return self._ask("append", value, how)

    def append_to_all(self, value: str) -> Any:
        """One record to each partition of all topics. Their offsets, or the error's name and text."""
        return self._ask("append to all", value)

    def close_store(self) -> None:
        assert self._ask("close") == "closed"

    def fork(self) -> int:
        """The child does nothing, and lives as long as this one."""
        return int(self._ask("fork"))

    def _ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def kill(self, *, wait: bool = True) -> None:
        """SIGKILL. Without `wait` it stays in the process table, dead."""
        self._process.kill()
        if wait:
            self._process.wait()
        else:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
