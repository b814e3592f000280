"""Stream: one replication connection, and the sub-protocol that PostgreSQL speaks inside of COPY BOTH.

libpq carries the bytes, and knows nothing of what they say; every message is taken apart and put together
here. So the server hears of one position, the boundary that was given to `confirm`, and of no other:
nothing below us draws conclusions from what has arrived. A keepalive moves `seen`, which the caller may
offer to its collector as a heartbeat; when it asks for an answer it gets the boundary once more.

    server  w ‹start› ‹end› ‹time› ‹payload›     a message of the plugin's
            k ‹end› ‹time› ‹answer?›             everything committed before ‹end› was sent
    client  r ‹written› ‹flushed› ‹applied› ‹time› ‹answer?›
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from logstore.errors import InvalidRecord
from logstore.ingest.postgres.origin import Origin
from logstore.ingest.postgres.pgoutput import EPOCH_MS, PROTOCOL_VERSION, format_lsn, parse_lsn

_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")
_CANCEL_S = 5.0


class Message(NamedTuple):
    """A message of the plugin's, and where in the WAL it comes from: for a row that is the row's own place."""

    payload: bytes
    data_start: int


class Stream:
    """A temporary slot to take a snapshot from, then the messages of the lasting one. One thread uses it;
    `cancel` alone may be called by another.
    """

    def __init__(self, connection: psycopg.Connection[Any], slot: str) -> None:
        self.slot = slot
        self.connection = connection
        self._pgconn = connection.pgconn
        self.confirmed = 0
        """What the server was told last."""
        self.seen = 0
        """The server has sent everything that was committed before this."""
        self.patience_s = math.inf
        """How long the server waits for a word of ours before it ends the stream; known once it has started."""
        self._unsent = False  # of our answers: the socket was full

    def identify(self) -> Origin:
        """Which database this is."""
        system, _, _, database = self._row("IDENTIFY_SYSTEM")
        return Origin(str(system), str(database))

    def create_temporary(self) -> tuple[int, str]:
        """A temporary slot; returns its consistent point and the name of the snapshot that goes with it.

        The snapshot can be used until the next command on this connection.
        """
        _, consistent_point, snapshot, _ = self._row(
            f'CREATE_REPLICATION_SLOT "{self._temporary}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT'
        )
        return parse_lsn(consistent_point), snapshot

    def cancel(self) -> None:
        """End the command that is under way, from another thread."""
        self.connection.cancel_safe(timeout=_CANCEL_S)

    def make_lasting(self) -> None:
        """Everything before the temporary slot's consistent point is stored: keep the slot under its own name."""
        self._row(f"SELECT pg_copy_logical_replication_slot('{self._temporary}', '{self.slot}', false)")
        self._row(f"SELECT pg_drop_replication_slot('{self._temporary}')")

    def start(self, publication: str, at: int) -> None:
        """Stream what was committed after `at`."""
        self.confirmed = self.seen = at
        (timeout_ms,) = self._row("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")
        self.patience_s = int(timeout_ms) / 1000 or math.inf
        # The name is a list's element in the option, quoted as an identifier, and the option a string.
        name = publication.replace('"', '""').replace("'", "''")
        self._pgconn.send_query(
            f'START_REPLICATION SLOT "{self.slot}" LOGICAL {format_lsn(at)} '
            f'("proto_version" \'{PROTOCOL_VERSION}\', "publication_names" \'"{name}"\')'.encode()
        )
        while self._pgconn.flush():
            select.select([], [self._pgconn.socket], [])
        while self._pgconn.is_busy():
            select.select([self._pgconn.socket], [], [])
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._ended(result)

    def read(self) -> Message | None:
        """The next message that has arrived; None if there is none. Never waits."""
        pgconn, looked = self._pgconn, False
        while True:
            size, data = pgconn.get_copy_data(1)
            if size > 0:
                kind = bytes(data[:1])
                if kind == b"w":
                    return Message(bytes(data[_DATA.size :]), _DATA.unpack_from(data)[1])
                if kind != b"k":
                    raise InvalidRecord(
                        f"the server sent a replication message {kind!r}, which we do not know"
                    )
                _, end, _, wants_answer = _KEEPALIVE.unpack(data)
                self.seen = max(self.seen, end)
                if wants_answer:
                    self.confirm(self.confirmed, force=True)
            elif size < 0:
                raise self._ended(pgconn.get_result())
            elif looked:
                return None
            else:
                self._push()
                pgconn.consume_input()
                looked = True

    def wait(self, wake: socket.socket, timeout: float) -> None:
        """Until a message arrives, `wake` becomes readable, or `timeout` seconds have passed."""
        mine: list[int] = [self._pgconn.socket]
        select.select([*mine, wake.fileno()], mine if self._unsent else [], [], timeout)

    def confirm(self, boundary: int, *, force: bool = False) -> None:
        """Everything before `boundary` is stored: the server may forget it."""
        if boundary > self.confirmed or force:
            lsn = self.confirmed = max(boundary, self.confirmed)
            now_us = time.time_ns() // 1000 - EPOCH_MS * 1000
            # False: there was no room for it, and what is queued already says nearly the same.
            if self._pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, now_us, 0)):
                self._push()

    def close(self) -> None:
        self.connection.close()

    def _push(self) -> None:
        self._unsent = bool(self._pgconn.flush())

    def _row(self, command: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self.connection.execute(command.encode()).fetchone()
        assert row is not None, "each of these commands answers with one row"
        return row

    def _ended(self, result: pq.abc.PGresult | None) -> psycopg.Error:
        """Why there is no stream, or no more of it."""
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return error_from_result(result)
        return psycopg.OperationalError("the server ended the stream, or the connection to it was lost")

    @property
    def _temporary(self) -> str:
        return f"{self.slot}_snapshot"
