"""The records of `__transaction_state`, in Kafka's layout: the key is the transactional id, the value its newest state, and
no value means that it has expired.

Version 1 of the value, with two tagged fields of our own: `last_epoch`, without which a producer that asks for a new epoch
(KIP-360) and loses the answer in a crash of the coordinator could not ask again; and the transaction before this one, if its
markers were on their way, as such a value.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from broker_shim.transactions.transaction import NO_EPOCH, State, Transaction
from broker_shim.wire import primitives
from broker_shim.wire.primitives import MalformedRequest, Reader

_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_LAST_EPOCH_TAG, _ENDING_TAG = 1000, 1001


def encode_key(transactional_id: str) -> bytes:
    return _I16.pack(0) + primitives.string(transactional_id, flexible=False)


def decode_key(data: bytes) -> str | None:
    """None for a key of a kind that we do not know."""
    reader = Reader(data)
    return reader.string() if reader.i16() == 0 else None


def encode(value: Transaction) -> bytes:
    topics = primitives.by_topic(value.places)
    is_active = value.state is State.ONGOING or value.state.is_decided
    out = [
        _HEAD.pack(1, value.producer_id, value.epoch, value.timeout_ms, value.state),
        primitives.array_header(len(topics) if is_active else None, flexible=True),
    ]
    for topic, indexes in topics.items() if is_active else ():
        out += (primitives.string(topic, flexible=True), primitives.array_header(len(indexes), flexible=True))
        out += map(_I32.pack, indexes)
        out.append(b"\0")
    out.append(_TIMES.pack(value.changed_at_ms, value.started_ms))
    tags: list[tuple[int, bytes]] = []
    if value.last_epoch != NO_EPOCH:
        tags.append((_LAST_EPOCH_TAG, _I16.pack(value.last_epoch)))
    if value.ending is not None:
        tags.append((_ENDING_TAG, encode(value.ending)))
    out.append(primitives.uvarint(len(tags)))
    for tag, content in tags:
        out += (primitives.uvarint(tag), primitives.uvarint(len(content)), content)
    return b"".join(out)


def decode(data: bytes) -> Transaction:
    reader = Reader(data, flexible=True)
    version, producer_id, epoch, timeout_ms, number = reader.unpack(_HEAD)
    try:
        state = State(number)
    except ValueError as error:
        raise MalformedRequest(f"a transaction in state {number}") from error
    if version not in (0, 1):
        raise MalformedRequest(f"a transaction of version {version}")
    reader.flexible = version == 1
    places = set()
    for _ in range(reader.array_length()):
        topic = reader.string()
        places |= {(topic, reader.i32()) for _ in range(reader.array_length())}
        reader.tags()
    changed_at_ms, started_ms = reader.unpack(_TIMES)
    known = Transaction(producer_id, epoch, timeout_ms, state, frozenset(places), started_ms, changed_at_ms)
    for _ in range(reader.uvarint() if reader.flexible else 0):
        tag, content = reader.uvarint(), reader.take(reader.uvarint())
        if tag == _LAST_EPOCH_TAG:
            known = replace(known, last_epoch=_I16.unpack(content)[0])
        elif tag == _ENDING_TAG:
            known = replace(known, ending=decode(bytes(content)))
    return known
