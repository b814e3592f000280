"""What one commit of a view carries: the changes that its updates make to the values as they were at one place in the log.

It changes nothing by itself. When the log is read on from that place and these very changes are there, they need not be
checked against the values a second time: it was those values that they were computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter, ne
from typing import NamedTuple

from logstore.format.batches.record import Record
from logstore.format.batches.records import RECORD_OVERHEAD
from logstore.upsert.changes import encode_changes
from logstore.upsert.stash import Latest

_key, _value = itemgetter(1), itemgetter(0)  # of a Record: twice as fast as by name
_update_value = itemgetter(1)


class Emission(NamedTuple):
    """`keys` and `changes`: the records, one by one. `values`: what each gives its key. `grown`: how many more keys are
    alive after it. `left_from`: the first time that did not fit; None if all did."""

    position: int
    keys: list[bytes]
    changes: list[bytes]
    values: list[bytes | None]
    grown: int
    left_from: int | None = None

    def stands_in(self, records: Sequence[Record], position: int) -> bool:
        """Whether `records`, read from the log at `position`, are this commit, all of it."""
        return (
            position == self.position
            and len(records) == len(self.keys)
            and list(map(_key, records)) == self.keys
            and list(map(_value, records)) == self.changes
        )


def emission(
    due: Sequence[tuple[int, Latest]], known: dict[bytes, bytes | None], position: int, max_bytes: int
) -> Emission:
    """For `due`, times that follow each other, on the values `known`. Each time sees what those before it changed, through
    an overlay that is thrown away. Takes whole times, at least one, and no more than fit `max_bytes`."""
    made = Emission(position, [], [], [], 0)
    overlay: dict[bytes, bytes | None] = {}
    grown, size = 0, 0
    for number, (time, latest) in enumerate(due):
        keys, new = list(latest), list(map(_update_value, latest.values()))
        old = list(map(known.get, keys))
        if overlay:
            old = [overlay.get(key, value) for key, value in zip(keys, old, strict=True)]
        if number + 1 < len(due):
            overlay.update(zip(keys, new, strict=True))
        differs = list(map(ne, old, new))
        if not all(differs):
            keys, old, new = (list(compress(column, differs)) for column in (keys, old, new))
        changes = encode_changes(old, new, time)
        size += sum(map(len, keys)) + sum(map(len, changes)) + RECORD_OVERHEAD * len(keys)
        if number and size > max_bytes:
            return made._replace(grown=grown, left_from=time)
        made.keys.extend(keys)
        made.changes.extend(changes)
        made.values.extend(new)
        grown += old.count(None) - new.count(None)
    return made._replace(grown=grown)
