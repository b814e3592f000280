"""Follower: the messages of one stream into a collector, in fragments, so that neither side waits for the
other.

Changes are handed over a few hundred at a time. Transactions that are at hand together share an append:
while messages keep coming a commit may wait up to `linger` seconds for the next one, and when none is at
hand everything goes out at once. So no transaction waits for a later one to arrive.
"""

from __future__ import annotations

import time

from logstore.ingest.collector import Collector
from logstore.ingest.postgres.pgoutput import Begin, Change, Commit, Decoder
from logstore.ingest.postgres.settings import PostgresSettings
from logstore.ingest.postgres.stream import Stream

FRAGMENT_CHANGES = 500


class Follower:
    """One stream's life: it starts at a boundary, with no table described yet."""

    def __init__(self, stream: Stream, collector: Collector[Change], settings: PostgresSettings) -> None:
        self._stream = stream
        self._collector = collector
        self._linger_s = settings.linger
        self._decoder = Decoder(settings.keys)
        self._changes: list[Change] = []
        self._inside = False
        self._pushed_s = time.monotonic()

    def step(self) -> bool:
        """Take the next message. False if there is none: then everything that came has been handed over."""
        message = self._stream.read()
        if message is None:
            self._pause()
            return False
        decoded = self._decoder.decode(message.payload, message.data_start)
        if type(decoded) is list:
            self._changes += decoded
            if len(self._changes) >= FRAGMENT_CHANGES:
                self._hand_over()
        elif type(decoded) is Begin:
            self._collector.begin(decoded.final_lsn, decoded.xid, timestamp_ms=decoded.commit_ms)
            self._inside = True
        elif type(decoded) is Commit:
            self._hand_over()
            self._inside = False
            now_s = time.monotonic()
            more = now_s - self._pushed_s < self._linger_s
            self._collector.commit(decoded.end_lsn, more=more)
            if not more:
                self._pushed_s = now_s
        return True

    def _pause(self) -> None:
        self._hand_over()
        self._collector.push()
        self._pushed_s = time.monotonic()
        if not self._inside:
            # Everything before this was sent to us, and all of it is in the collector's hands.
            self._collector.heartbeat(self._stream.seen)

    def _hand_over(self) -> None:
        if self._changes:
            changes, self._changes = self._changes, []
            self._collector.changes(changes)
