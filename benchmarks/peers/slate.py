"""SlateDB through its Python binding: one write batch for each append, its WAL object awaited.

Its `flush_interval` is how long a write waits for company before its WAL object goes out. It is set to 1 ms, so that an
append waits for the store and for nothing else, as ours does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.material import KEY_SIZE, Row
from tests.support.servers import BUCKET, CREDENTIALS, REGION, Server

PAGE = 10_000


class Slate:
    level = "in the object store"

    def __init__(self, loop: asyncio.AbstractEventLoop, slatedb: Any, database: Any) -> None:
        self.loop = loop
        self._slatedb = slatedb
        self._database = database
        self._next = 0

    def append(self, rows: Sequence[Row]) -> None:
        self.loop.run_until_complete(self.append_later(rows))

    async def append_later(self, rows: Sequence[Row]) -> None:
        first, self._next = self._next, self._next + len(rows)
        batch = self._slatedb.WriteBatch()
        for position, (key, value) in enumerate(rows, start=first):
            batch.put(position.to_bytes(8, "big"), key + value)
        written = await self._database.write(batch)
        await written.await_durable()

    def scan(self) -> Iterator[Row]:
        everything = self._slatedb.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False)
        iterator = self.loop.run_until_complete(self._database.scan(everything))
        while page := self.loop.run_until_complete(iterator.next_batch(PAGE)):
            for pair in page:
                yield pair.value[:KEY_SIZE], pair.value[KEY_SIZE:]


@contextmanager
def opened(server: Server, prefix: str) -> Iterator[Slate]:
    import slatedb.uniffi as slatedb

    loop = asyncio.new_event_loop()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        environment.setenv("AWS_ENDPOINT", server.endpoint_url)
        environment.setenv("AWS_ALLOW_HTTP", "true")
        environment.setenv("AWS_REGION", REGION)
        store = slatedb.ObjectStore.resolve(f"s3://{BUCKET}")
    settings = slatedb.Settings.default()
    settings.set("flush_interval", '"1ms"')
    builder = slatedb.DbBuilder(prefix, store)
    builder.with_settings(settings)
    database = loop.run_until_complete(builder.build())
    yield Slate(loop, slatedb, database)
    loop.run_until_complete(database.shutdown())
    loop.close()
