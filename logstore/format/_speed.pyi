from collections.abc import Sequence

from logstore.format.batches.area import Area
from logstore.format.batches.record import Record

_Binary = tuple[bytes | None, bytes, bytes]

def encode(records: Sequence[Record], now_ms: int, /) -> tuple[bytes, int, int, int]: ...
def records(area: Area, base_offset: int, first: int, stop: int, /) -> list[Record]: ...
def check(area: Area, /) -> tuple[int, int]: ...
def gather(
    areas: Sequence[Area],
    first: int,
    stop: int,
    timestamps: bool,
    keys: bool,
    values: bool,
    headers: bool,
    /,
) -> tuple[
    bytes | None,
    _Binary | None,
    _Binary | None,
    tuple[bytes, bytes, _Binary, _Binary, int] | None,
]: ...
def cut(records: list[Record], limit: int, /) -> list[tuple[int, int]] | None: ...
def stamp(records: list[Record], now_ms: int, /) -> tuple[list[Record], int]: ...
def murmur2(key: bytes, /) -> int: ...
