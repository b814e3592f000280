"""Which database and publication a slot's records in this store come from: noted in the source's journal before the slot
exists.

A slot says how far *some* store is. Pointed at another one, the ingester would go on from there and leave a
hole that nobody sees. So the journal (the topic `_ingest.‹slot›`) names the server and the database, written
when the snapshot is durable and before the slot gets its lasting name: a slot without its note belongs elsewhere.

It names the publication too, by its identifier. From PostgreSQL 18 on a publication that is missing is passed over
without a word, and so is what was committed until it was made again, under the same name.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.errors import UnsupportedStore
from logstore.ingest.journal import Journal
from logstore.store import Store


class Origin(NamedTuple):
    """A database of one PostgreSQL cluster, whose identifier was made when it was, and a publication's."""

    system: str
    database: str
    publication: int | None = None


def read_origin(store: Store, slot: str) -> Origin | None:
    """Where the slot's records in this store come from, as far as anybody noted."""
    noted = Journal(store, slot).read().origin
    return None if noted is None else Origin(**noted)


def check_origin(noted: Origin | None, slot: str, origin: Origin) -> None:
    """Raises unless the slot's records in this store come from there."""
    if noted is None:
        raise UnsupportedStore(
            f"slot {slot!r} exists, but it was not filled into this store: going on would leave a hole. Use the "
            f"store that it belongs to, another slot, or drop it to start over with a snapshot"
        )
    if noted[:2] != origin[:2]:
        raise UnsupportedStore(
            f"the records of slot {slot!r} in this store come from {noted}, not from {origin}: use another slot or "
            f"another store"
        )
    if noted.publication not in (None, origin.publication):
        raise UnsupportedStore(
            f"the publication that slot {slot!r} was filled from was dropped, and is gone or was made again since: what "
            f"was committed in between is not in the stream. Drop the slot to start over with a new snapshot"
        )
