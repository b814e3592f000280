"""Zigzag varints, as Kafka's records use them for every length and delta.

Small numbers are few and used all the time, so the encodings of 0 to 16,383 are ready in `TABLE`; encoding is
then a list lookup. Reading is strict: a varint that runs past the end, is longer than its type allows or does
not fit in it is a `FormatError`.

>>> encode(-1), encode(300), read(encode(300), 0)
(b'\\x01', b'\\xd8\\x04', (300, 2))
"""

from __future__ import annotations

from logstore.format.errors import FormatError

INT_BYTES = 5
# Timestamp deltas are 64-bit in Kafka, but two timestamps that an Arrow microsecond column can hold differ by
# less than 2**54 ms. Eight bytes carry 56 bits, so sums stay far away from any 64-bit overflow, in Python,
# NumPy and C alike.
LONG_BYTES = 8


def encode(number: int) -> bytes:
    """`number` (any 64-bit signed integer) as a zigzag varint."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


TABLE_SIZE = 1 << 14
TABLE: list[bytes] = [encode(number) for number in range(TABLE_SIZE)]
NULL = encode(-1)


def read(data: bytes, position: int) -> tuple[int, int]:
    """A 32-bit varint at `position`, and the position after it."""
    number, after = read_unsigned(data, position)
    return (number >> 1) ^ -(number & 1), after


def read_unsigned(data: bytes, position: int, max_bytes: int = INT_BYTES) -> tuple[int, int]:
    """The same before the zigzag is undone: an odd number is a negative one."""
    number = shift = 0
    at = position
    try:
        while (byte := data[at]) > 0x7F:
            number |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if at == position + max_bytes:
                raise FormatError(f"a varint is longer than {max_bytes} bytes", position)
    except IndexError:
        raise FormatError("the data ends inside a varint", position) from None
    number |= byte << shift
    if max_bytes == INT_BYTES and number >> 32:
        raise FormatError("a varint does not fit in 32 bits", position)
    return number, at + 1
