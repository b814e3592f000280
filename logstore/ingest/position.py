"""Where in the source a record comes from, written into the record itself.

Every record that a collector appends carries two headers, and the last one of a transaction in each
partition a third. They are what makes replay exact: after a restart a partition's own tail says what it
has, and nothing else has to be kept anywhere.

    source-position     ‹source›/‹transaction›/‹ordinal›     where it is; transactions and ordinals only rise
    source-transaction  ‹id›                                 the source's own name for the transaction
    source-end          (empty)                              this partition has all of that transaction
"""

from __future__ import annotations

import re
from typing import NamedTuple

from logstore.format.batches.record import Headers

POSITION = "source-position"
TRANSACTION = "source-transaction"
END = "source-end"

_POSITION_OF = re.compile(rb"([^/]+)/([0-9]{1,1000})/([0-9]{1,1000})")

END_HEADER: tuple[str, bytes | None] = (END, b"")


class Position(NamedTuple):
    """A transaction's place in the source, and a record's ordinal among all records routed from it."""

    transaction: int
    ordinal: int


class Upper(NamedTuple):
    """The newest position that a partition has. `ended` says that it has its whole share of that transaction."""

    position: Position
    ended: bool


def position_prefix(source: str, transaction: int) -> bytes:
    """What all position headers of a transaction begin with; the ordinal follows."""
    return f"{source}/{transaction}/".encode()


def check_source(source: str) -> str:
    """The name is in every record's header, before a slash."""
    if not source or "/" in source:
        raise ValueError(f"source={source!r}: it is a name without '/', and not empty")
    return source


def read_upper(headers: Headers, source: str) -> Upper | None:
    """What a record's headers say of `source`; None if the record is not from there.

    A header of the same name that has another form is somebody else's: a collector writes none like that.
    """
    position, ended = None, False
    for name, value in headers:
        if name == POSITION and value is not None:
            found = _POSITION_OF.fullmatch(value)
            if found is not None and found[1] == source.encode():
                position = Position(int(found[2]), int(found[3]))
        elif name == END:
            ended = True
    return None if position is None else Upper(position, ended)
