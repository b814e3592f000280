"""Fetch requests as they come in: which of them go on with a session, repeat what was asked before, or are new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import cast
from uuid import UUID

from broker_shim.handlers.records.fetch import Fetch, MayRead
from broker_shim.handlers.records.fetch_sessions import INITIAL_EPOCH, NO_SESSION, ClientFetches, KeptFetches
from broker_shim.metrics import Counters
from broker_shim.net.connection import Connection, Parts
from broker_shim.net.deadlines import Deadlines
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.wire import fetch_codec
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import RequestHeader
from logstore.errors import LogStoreError

REPEATS_UP_TO_BYTES = 1 << 20
"""A request up to this size is kept: a consumer with nothing to read asks the same thing again and again."""
Rules = Callable[[], object]


class FetchHandler:
    """`rules`: what `may_read` answers from. As long as that is the same object, so are its answers."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        counters: Counters,
        loop: asyncio.AbstractEventLoop,
        may_read: MayRead,
        rules: Rules,
        *,
        max_bytes: int,
    ) -> None:
        self.partitions = partitions
        self.counters = counters
        self.loop = loop
        self.may_read = may_read
        self._rules = rules
        self.max_bytes = max_bytes
        self.deadlines = Deadlines(loop)
        self.waiting: set[Fetch] = set()
        self.kept: KeptFetches[Fetch] = KeptFetches()

    def handle(
        self, connection: Connection, header: RequestHeader, frame: memoryview
    ) -> Parts | asyncio.Future[Parts]:
        body = frame[header.body :]
        if connection.fetches is None:
            connection.fetches = ClientFetches(self.kept)
        fetches = cast(ClientFetches[Fetch], connection.fetches)
        repeated = fetches.repeated(header.version, body)
        if repeated is not None and not repeated.is_busy:
            self.kept.use(repeated)
            return self._start(repeated)
        request = fetch_codec.read(frame, header.body, header.version)
        if request.session_epoch > INITIAL_EPOCH:
            found = fetches.find(request.session_id, request.session_epoch)
            if isinstance(found, Code):
                return fetch_codec.write(header.version, [], request.isolation, found)
            if found.has_ids != (header.version >= fetch_codec.IDS_FROM):
                fetches.end()
                return fetch_codec.write(
                    header.version, [], request.isolation, Code.FETCH_SESSION_TOPIC_ID_ERROR
                )
            found.update(request, header.version)
            self.kept.use(found)
            return self._start(found)
        if request.session_id != NO_SESSION:
            fetches.end()
        fetch = Fetch(self, connection, request, header.version)
        fetch.name(request.topics)
        if request.session_epoch == INITIAL_EPOCH:
            fetch.session_id = fetches.begin(fetch)
        answer = self._start(fetch)
        # One that is answered at once is followed by another: only who waits will ask the same again.
        if isinstance(answer, asyncio.Future) and not fetch.session_id and len(body) <= REPEATS_UP_TO_BYTES:
            fetches.keep(header.version, body, fetch)
        return answer

    def _start(self, fetch: Fetch) -> Parts | asyncio.Future[Parts]:
        unresolved = fetch.unresolved()
        if not unresolved:
            return fetch.run()
        unknown = self.partitions.missing(topic for topic in unresolved if isinstance(topic, str))
        if fetch.has_ids:
            ids = (UUID(bytes=topic) for topic in unresolved if isinstance(topic, bytes))
            wanted = self.partitions.missing_id(ids)
        else:
            wanted = None
        if unknown or wanted is not None:
            return self.loop.create_task(self._look_up_first(fetch, unknown, wanted))
        return fetch.run()

    async def _look_up_first(self, fetch: Fetch, unknown: list[str], wanted: UUID | None) -> Parts:
        fetch.is_starting = True
        try:
            await self.partitions.look_up(unknown)
            if wanted is not None:
                with suppress(LogStoreError, OSError):
                    await self.partitions.find_id(wanted)  # and with it all the others
        finally:
            fetch.is_starting = False
        answer = fetch.run()
        return await answer if isinstance(answer, asyncio.Future) else answer

    def stamp(self, connection: Connection) -> object:
        """As long as it is equal, every partition is where it was, and the client may read what it might."""
        return self.partitions.stamp, self._rules(), connection.principal

    def end_all(self) -> None:
        """The broker stops: whoever waits gets what there is."""
        for fetch in tuple(self.waiting):
            fetch.finish()
