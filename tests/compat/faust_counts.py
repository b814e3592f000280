"""A table of Faust's, which lies in a compacted changelog: `python faust_counts.py HOST:PORT LIFE`.

The second life has nothing of its own and takes what the first one counted from the changelog.
"""

from __future__ import annotations

import os
import sys
import time

import faust

address, life = sys.argv[1], int(sys.argv[2])
NAME = f"a table with its changelog, life {life}"
EXPECTED = {f"word{number}": 20 * life for number in range(5)}
app = faust.App(
    "faust", broker=f"kafka://{address}", store="memory://", topic_partitions=1, web_enabled=False
)
words = app.topic("faust-words", key_type=str, value_type=str)
counts = app.Table("counts", default=int, partitions=1)
began = time.monotonic()


@app.agent(words)  # type: ignore[untyped-decorator]
async def count(stream: faust.Stream[str]) -> None:
    async for word in stream:
        counts[word] += 1


@app.task()  # type: ignore[untyped-decorator]
async def send() -> None:
    for number in range(100):
        word = f"word{number % 5}"
        await words.send(key=word, value=word)


@app.timer(1.0)  # type: ignore[untyped-decorator]
async def judge() -> None:
    # The worker takes standard output for its log.
    found = dict(counts.items())
    if found == EXPECTED:
        print(f"ok {NAME}", file=sys.__stdout__, flush=True)
    elif time.monotonic() - began > 90:
        print(f"failed {NAME}: {found}, not {EXPECTED}", file=sys.__stdout__, flush=True)
    else:
        return
    await app.stop()
    os._exit(0)


faust.Worker(app, loglevel="ERROR").execute_from_commandline()
