"""The five compression codecs of Kafka's record batches.

`decompress` gives exactly what one well-formed stream holds, or raises `FormatError`: a stream that is cut,
has bytes after its end, or would grow past `max_size` is refused, and a bomb is refused before its memory is
taken. `compress` writes what Kafka's own clients write (snappy in xerial framing, lz4 frames of independent
blocks).

Decompressed sizes are bounded by reading the stream's own block headers first; the codec is then given a
buffer of that size, so neither a declared nor an undeclared length can make us allocate more than `max_size`.
"""

from __future__ import annotations

import struct
import threading
import zlib

import cramjam
import zstandard

from logstore.format.errors import FormatError, UnsupportedVersion

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_IDS: dict[str, int] = {name: number for number, name in enumerate(CODEC_NAMES)}

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_MAX = 1 << 17
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024  # the block size of xerial's library, which Kafka's Java clients use
_DEFAULT_LEVELS = {GZIP: 6, LZ4: 1, ZSTD: 1}

Buffer = bytes | bytearray | memoryview


class _PerThread(threading.local):
    """zstandard's objects are not safe for threads, and too costly to build for every batch."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _PerThread()


def compress(codec_id: int, data: bytes | memoryview, level: int | None = None) -> bytes:
    """`data` as one stream of the codec. `level` is the codec's own; snappy has none."""
    if codec_id == ZSTD:
        level = 1 if level is None else level
        compressor = _zstd.compressors.get(level)
        if compressor is None:
            compressor = _zstd.compressors[level] = zstandard.ZstdCompressor(level=level)
        return compressor.compress(data)
    if codec_id == NONE:
        return bytes(data)
    if codec_id == GZIP:
        return zlib.compress(data, _DEFAULT_LEVELS[GZIP] if level is None else level, wbits=31)
    if codec_id == LZ4:
        # Kafka's reader knows independent blocks only.
        stream = cramjam.lz4.Compressor(
            level=_DEFAULT_LEVELS[LZ4] if level is None else level, content_checksum=False, block_linked=False
        )
        stream.compress(bytes(data))
        return bytes(stream.finish())
    if codec_id == SNAPPY:
        return _compress_xerial(memoryview(data))
    raise _unknown(codec_id)


def decompress(codec_id: int, data: Buffer, *, max_size: int) -> bytes:
    """What one whole stream holds; anything else, or more than `max_size` bytes, is a `FormatError`."""
    if codec_id == NONE:
        if len(data) > max_size:
            raise too_large(max_size)
        return bytes(data)
    try:
        if codec_id == ZSTD:
            return _decompress_zstd(data, max_size)
        if codec_id == LZ4:
            return _decompress_lz4(bytes(data), max_size)
        if codec_id == SNAPPY:
            return _decompress_snappy(bytes(data), max_size)
        if codec_id == GZIP:
            return _decompress_gzip(bytes(data), max_size)
    except (zstandard.ZstdError, cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise FormatError(f"damaged {CODEC_NAMES[codec_id]} data: {error}") from error
    raise _unknown(codec_id)


def _decompress_zstd(data: Buffer, max_size: int) -> bytes:
    if data[:4] != _ZSTD_MAGIC:
        raise FormatError("not a zstd frame")
    frame = zstandard.get_frame_parameters(data)
    size = frame.content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        size = _zstd_bound(data, 4 if frame.has_checksum else 0)
    elif size > max_size:
        raise too_large(max_size)
    room = max(1, min(size, max_size))  # zero would mean "no limit"
    try:
        out = _zstd.decompressor.decompress(data, max_output_size=room, allow_extra_data=False)
    except zstandard.ZstdError as error:
        if size > max_size:
            raise FormatError(f"damaged zstd data, or more than {max_size} bytes of it: {error}") from error
        raise
    if len(out) > max_size:
        raise too_large(max_size)
    return out


def _zstd_bound(data: Buffer, checksum: int) -> int:
    """Walk the blocks of one frame that declares no size (streams do not): the most that it can hold."""
    position = zstandard.frame_header_size(data)
    bound = last = 0
    while not last:
        head = int.from_bytes(data[position : position + 3], "little")
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        # Kind 0 holds `size` bytes as they are, kind 1 one byte `size` times, kind 2 up to a full block.
        bound += _ZSTD_BLOCK_MAX if kind == 2 else size
        position += 3 + (1 if kind == 1 else size)
        if position > len(data):
            raise FormatError("zstd data ends inside a frame")
    if position + checksum != len(data):
        raise FormatError("a zstd frame that does not end where its data ends")
    return bound


def _decompress_lz4(data: bytes, max_size: int) -> bytes:
    out = bytearray(min(_lz4_bound(data), max_size))
    try:
        size = cramjam.lz4.decompress_into(data, out)
    except cramjam.DecompressionError as error:
        if len(out) == max_size:
            raise FormatError(f"damaged lz4 data, or more than {max_size} bytes of it: {error}") from error
        raise
    return bytes(memoryview(out)[:size])


def _lz4_bound(data: bytes) -> int:
    """Walk the blocks of one frame: the most that it can hold. It must end where the data ends."""
    if data[:4] != _LZ4_MAGIC or len(data) < 7:
        raise FormatError("not an lz4 frame")
    flags, block_max = data[4], _LZ4_BLOCK_SIZES.get(data[5] >> 4 & 7)
    if flags >> 6 != 1 or block_max is None:
        raise FormatError("an lz4 frame of unknown version or block size")
    if flags & 1:
        raise FormatError("an lz4 frame that needs a dictionary")
    position = 7 + (8 if flags & 8 else 0)
    checksum = 4 if flags & 0x10 else 0
    bound = 0
    while True:
        if position + 4 > len(data):
            raise FormatError("lz4 data ends inside a frame")
        size = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if size == 0:
            break
        size &= 0x7FFFFFFF
        bound += min(block_max, 255 * size)
        position += size + checksum
    if position + (4 if flags & 4 else 0) != len(data):
        raise FormatError("an lz4 frame that does not end where its data ends")
    return bound


def _compress_xerial(view: memoryview) -> bytes:
    parts = [_XERIAL_HEAD]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK])))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, max_size: int) -> bytes:
    """Xerial framing (Java, Python clients) or one raw block (librdkafka)."""
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_snappy_block(data, max_size, max_size)
    position = len(_XERIAL_HEAD)
    if len(data) < position:
        raise FormatError("snappy data ends inside its head")
    parts = []
    room = max_size
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if position + size > len(data):
            raise FormatError("snappy data ends inside a block")
        part = _decompress_snappy_block(data[position : position + size], room, max_size)
        room -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_snappy_block(data: bytes, room: int, max_size: int) -> bytes:
    if not data:
        raise FormatError("an empty snappy block")
    if cramjam.snappy.decompress_raw_len(data) > room:
        raise too_large(max_size)
    return bytes(cramjam.snappy.decompress_raw(data))


def _decompress_gzip(data: bytes, max_size: int) -> bytes:
    """One or more gzip members, as Java's reader takes them."""
    parts = []
    room = max_size
    while data:
        member = zlib.decompressobj(wbits=31)
        part = member.decompress(data, room + 1)
        if len(part) > room:
            raise too_large(max_size)
        if not member.eof:
            raise FormatError("gzip data ends inside a member")
        room -= len(part)
        parts.append(part)
        data = member.unused_data
    if not parts:
        raise FormatError("empty gzip data")
    return b"".join(parts)


def too_large(max_size: int) -> FormatError:
    """The error for data that is larger than its reader allows."""
    return FormatError(f"compressed data holds more than the {max_size} bytes allowed")


def _unknown(codec_id: int) -> UnsupportedVersion:
    known = ", ".join(f"{number} {name}" for number, name in enumerate(CODEC_NAMES))
    return UnsupportedVersion(f"unknown compression codec {codec_id}; known are {known}")
