"""FastStream, a subscriber that publishes: `python faststream_echo.py HOST:PORT aiokafka|confluent`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from importlib import import_module
from typing import Any

ADDRESS, CLIENT = sys.argv[1:]
SENT = [f"word {number}" for number in range(200)]
PATIENCE_S = 60


async def main() -> None:
    faststream = import_module("faststream.kafka" if CLIENT == "aiokafka" else "faststream.confluent")
    broker: Any = faststream.KafkaBroker(ADDRESS)
    found: list[str] = []
    is_done = asyncio.Event()

    @broker.subscriber(f"in-{CLIENT}", group_id="echo", auto_offset_reset="earliest")  # type: ignore[untyped-decorator]
    @broker.publisher(f"out-{CLIENT}")  # type: ignore[untyped-decorator]
    async def echo(word: str) -> str:
        return word.upper()

    @broker.subscriber(f"out-{CLIENT}", group_id="reader", auto_offset_reset="earliest")  # type: ignore[untyped-decorator]
    async def read(word: str) -> None:
        found.append(word)
        if len(found) == len(SENT):
            is_done.set()

    async with broker:
        await broker.start()
        for word in SENT:
            await broker.publish(word, f"in-{CLIENT}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_done.wait(), PATIENCE_S)
    name = f"with {CLIENT}: a subscriber that publishes, and one that reads"
    is_all = sorted(found) == sorted(word.upper() for word in SENT)
    print(f"ok {name}" if is_all else f"failed {name}: {len(found)} of {len(SENT)} came")


asyncio.run(main())
