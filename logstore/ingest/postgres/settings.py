"""What to read from PostgreSQL, and how it is laid out in the store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from logstore.errors import InvalidTopicName
from logstore.layout.catalog import PARTITIONS_MAX
from logstore.layout.paths import check_topic_name

MIB = 1 << 20
_SLOT = re.compile(r"[a-z0-9_]{1,54}")


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Times are in seconds, sizes in bytes.

    >>> PostgresSettings(dsn="host=127.0.0.1 dbname=shop", publication="shop").slot
    'logstore'
    """

    dsn: str = field(repr=False)
    """How to connect: libpq's keywords or URL. It may hold a password, so it is never shown."""
    publication: str
    """Created if it is missing."""
    slot: str = "logstore"
    """The replication slot, and the source's name in the records. One slot feeds one store."""
    tables: tuple[str, ...] | None = None
    """`schema.table` names for a publication that is created here; None is all tables."""
    topic_prefix: str = ""
    partitions: int = 1
    """Of a topic that is created here. One that exists keeps its own."""
    tombstones: bool = False
    """Follow each delete with a record without a value."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """The columns that identify a row of `schema.table`, where the replica identity is not meant."""
    snapshot: bool = True
    """Read the tables first when the slot is new. Without it only changes from now on are stored."""
    max_buffered_bytes: int = 32 * MIB
    chunk_bytes: int = 1 * MIB
    """An append takes at most about this much; small transactions that are at hand together share one."""
    linger: float = 0.05
    """How long a transaction waits for others to share its append while the stream does not pause."""
    status_interval: float = 10.0
    """How often the server gets a status from us when there is nothing to report; more often if its `wal_sender_timeout` is
    short."""
    stop_timeout: float = 10.0
    """How long a stop waits for what is on its way."""
    retry_max: float = 30.0
    """The longest pause between two attempts to connect."""

    def __post_init__(self) -> None:
        if not _SLOT.fullmatch(self.slot):
            raise ValueError(f"slot={self.slot!r}: up to 54 lower-case letters, digits and '_'")
        for table in self.tables or ():
            if "." not in table:
                raise ValueError(f"tables: {table!r} is not of the form schema.table")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise ValueError(f"partitions={self.partitions!r}: a number from 1 to {PARTITIONS_MAX}")
        try:
            check_topic_name(f"{self.topic_prefix}schema.table")
        except InvalidTopicName as error:
            raise ValueError(f"topic_prefix={self.topic_prefix!r}: {error}") from error
