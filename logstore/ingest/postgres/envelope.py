"""Changes as records, in the shape that Debezium's users know.

A topic for each table (`‹prefix›‹schema›.‹table›`). The key is the row's identity as a JSON object. The
value is

    {"before": …, "after": …, "source": {…}, "op": "c" | "u" | "d" | "r" | "t", "ts_ms": …}

* `c` has `after`, `u` has `after` and as much of `before` as the replica identity gives, `d` has `before`;
  `r` is a row that the initial snapshot read. With `tombstones` a delete is followed by a record without a
  value.
* An update that changes the key is a delete of the old key and a create of the new one: they may lie in
  different partitions, and a reader that folds by key stays right.
* `t` (truncate) goes to every partition, without a key: what was there before is gone.

A pure function of the stream: a replay makes the same bytes. `ts_ms` is therefore the commit's time, not
ours.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from logstore.ingest.postgres.pgoutput import SNAPSHOT_XID, Begin, Change
from logstore.ingest.postgres.relation import Relation, one_topic
from logstore.ingest.route import EVERY_PARTITION, Routed

CONNECTOR_VERSION = "1"


class _Frame(NamedTuple):
    """What all changes of a table in a transaction share."""

    topic: str
    source: bytes
    end: bytes

    def value(self, change: Change, op: bytes, before: bytes, after: bytes) -> bytes:
        return b'{"before":%b,"after":%b%b%d},"op":"%b%b' % (
            before,
            after,
            self.source,
            change.lsn,
            op,
            self.end,
        )


class Envelope:
    """`route` for a collector. `name` is the source's name, `database` is where it reads."""

    def __init__(self, name: str, database: str, *, topic_prefix: str = "", tombstones: bool = False) -> None:
        self._name = name
        self._database = database
        self._topic_prefix = topic_prefix
        self._tombstones = tombstones
        self._begin: Begin | None = None
        self._frames: dict[Relation, _Frame] = {}  # of this transaction
        self._tables: dict[str, tuple[str, str]] = {}  # whose topic it is

    def route(self, change: Change) -> list[Routed]:
        """What a change becomes."""
        begin, _, relation, op, before, after, _ = change
        frame = self._frames.get(relation)
        if frame is None or begin is not self._begin:
            frame = self._frame(change)
        if op == "t":
            value = frame.value(change, b"t", b"null", b"null")
            return [Routed(frame.topic, None, value, partition=EVERY_PARTITION)]
        if after is None:
            return self._delete(frame, change)
        key = relation.key_json(after)
        if before is None:
            value = frame.value(change, op.encode(), b"null", relation.row_json(after))
            return [Routed(frame.topic, key, value)]
        if key != _old_key(change):
            created = frame.value(change, b"c", b"null", relation.row_json(after))
            return [*self._delete(frame, change), Routed(frame.topic, key, created)]
        updated = frame.value(change, b"u", _before(change), relation.row_json(after))
        return [Routed(frame.topic, key, updated)]

    def _delete(self, frame: _Frame, change: Change) -> list[Routed]:
        key = _old_key(change)
        deleted = Routed(frame.topic, key, frame.value(change, b"d", _before(change), b"null"))
        if self._tombstones and key is not None:
            return [deleted, Routed(frame.topic, key, None)]
        return [deleted]

    def _frame(self, change: Change) -> _Frame:
        relation, begin = change.relation, change.begin
        if begin is not self._begin:
            self._begin, self._frames = begin, {}  # what was described before may never come again
        source = {
            "version": CONNECTOR_VERSION,
            "connector": "postgresql",
            "name": self._name,
            "db": self._database,
            "schema": relation.schema,
            "table": relation.table,
            "ts_ms": begin.commit_ms,
            "snapshot": "true" if begin.xid == SNAPSHOT_XID else "false",
            "txId": begin.xid,
        }
        head = b',"source":%b,"lsn":' % json.dumps(source, separators=(",", ":")).encode()[:-1]
        end = b'","ts_ms":%d}' % begin.commit_ms
        table = (relation.schema, relation.table)
        if (owner := self._tables.setdefault(relation.name, table)) != table:
            raise one_topic(owner, table)
        frame = self._frames[relation] = _Frame(self._topic_prefix + relation.name, head, end)
        return frame


def _old_key(change: Change) -> bytes | None:
    assert change.before is not None, "a delete has the old row's identity, or the server refuses it"
    if change.before_is_identity:
        return change.relation.key_json_of_identity(change.before)
    return change.relation.key_json(change.before)


def _before(change: Change) -> bytes:
    assert change.before is not None, "asked for only where there is one"
    if change.before_is_identity:
        return change.relation.identity_json(change.before)
    return change.relation.row_json(change.before)
