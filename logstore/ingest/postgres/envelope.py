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

from json.encoder import encode_basestring

from logstore.ingest.postgres.pgoutput import Change
from logstore.ingest.postgres.relation import Relation
from logstore.ingest.route import EVERY_PARTITION, Routed

CONNECTOR_VERSION = "1"


class Envelope:
    """`route` for a collector. `name` is the source's name, `database` is where it reads."""

    def __init__(self, name: str, database: str, *, topic_prefix: str = "", tombstones: bool = False) -> None:
        self._name = name
        self._database = database
        self._topic_prefix = topic_prefix
        self._tombstones = tombstones
        self._tables: dict[Relation, tuple[str, bytes]] = {}

    def topic(self, relation: Relation) -> str:
        return self._topic_prefix + relation.name

    def route(self, change: Change) -> list[Routed]:
        """What a change becomes."""
        topic, source = self._table(change.relation)
        op, before, after = change.op, change.before, change.after
        relation = change.relation
        if op == "t":
            return [
                Routed(topic, None, _value(b"null", b"null", source, change, b"t"), partition=EVERY_PARTITION)
            ]
        if after is None:
            return self._delete(topic, source, change)
        key = relation.key_json(after)
        if before is None:
            value = _value(b"null", relation.row_json(after), source, change, op.encode())
            return [Routed(topic, key, value)]
        if key != relation.key_json(before):
            created = _value(b"null", relation.row_json(after), source, change, b"c")
            return [*self._delete(topic, source, change), Routed(topic, key, created)]
        return [Routed(topic, key, _value(_before(change), relation.row_json(after), source, change, b"u"))]

    def _delete(self, topic: str, source: bytes, change: Change) -> list[Routed]:
        assert change.before is not None
        key = change.relation.key_json(change.before)
        deleted = Routed(topic, key, _value(_before(change), b"null", source, change, b"d"))
        if self._tombstones and key is not None:
            return [deleted, Routed(topic, key, None)]
        return [deleted]

    def _table(self, relation: Relation) -> tuple[str, bytes]:
        known = self._tables.get(relation)
        if known is None:
            fields = {
                "version": CONNECTOR_VERSION,
                "connector": "postgresql",
                "name": self._name,
                "db": self._database,
                "schema": relation.schema,
                "table": relation.table,
            }
            fixed = ",".join(f'"{name}":{encode_basestring(value)}' for name, value in fields.items())
            known = self._tables[relation] = (self.topic(relation), fixed.encode())
        return known


def _before(change: Change) -> bytes:
    assert change.before is not None
    if change.before_is_identity:
        return change.relation.identity_json(change.before)
    return change.relation.row_json(change.before)


def _value(before: bytes, after: bytes, source: bytes, change: Change, op: bytes) -> bytes:
    begin = change.begin
    return (
        b'{"before":%b,"after":%b,"source":{%b,"ts_ms":%d,"snapshot":"%b","txId":%d,"lsn":%d},"op":"%b","ts_ms":%d}'
        % (
            before,
            after,
            source,
            begin.commit_ms,
            b"true" if change.op == "r" else b"false",
            begin.xid,
            change.lsn,
            op,
            begin.commit_ms,
        )
    )
