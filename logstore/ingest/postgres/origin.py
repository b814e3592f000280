"""Which database a slot's records in this store come from: a note beside them, made before the slot exists.

A slot says how far *some* store is. Pointed at another one, the ingester would go on from there and leave a
hole that nobody sees. So the store keeps a topic `_ingest.‹slot›` whose last record names the server and
the database, written when the snapshot is durable and before the slot gets its lasting name: a slot without
its note belongs elsewhere.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from logstore.errors import UnknownTopic, UnsupportedStore
from logstore.format.record import Record
from logstore.store import Store


class Origin(NamedTuple):
    """A database of one PostgreSQL cluster; the cluster's identifier was made when it was."""

    system: str
    database: str


def note_origin(store: Store, slot: str, origin: Origin) -> None:
    """Durable when this returns."""
    log = store.create_topic(_topic(slot), 1, exist_ok=True).partition(0)
    log.append(Record(json.dumps(origin._asdict()).encode(), slot.encode()), ack="durable")


def check_origin(store: Store, slot: str, origin: Origin) -> None:
    """Raises unless the slot's records in this store come from there."""
    noted = None
    try:
        log = store.topic(_topic(slot)).partition(0)
    except UnknownTopic:
        raise UnsupportedStore(
            f"slot {slot!r} exists, but it was not filled into this store: going on would leave a hole. Use the "
            f"store that it belongs to, another slot, or drop it to start over with a snapshot"
        ) from None
    for record in log.records(visibility="durable"):
        noted = Origin(**json.loads(record.value or b"{}"))
    if noted != origin:
        raise UnsupportedStore(
            f"the records of slot {slot!r} in this store come from {noted}, not from {origin}: use another slot or "
            f"another store"
        )


def _topic(slot: str) -> str:
    return f"_ingest.{slot}"
