"""The five codecs: what goes in comes out, other libraries agree, and no stream can hurt us."""

from __future__ import annotations

import contextlib
import gzip
import threading
import tracemalloc

import cramjam
import pytest
import zstandard
from aiokafka import codec as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.format.batches.codecs import CODEC_IDS, CODEC_NAMES, compress, decompress
from logstore.format.errors import FormatError, UnsupportedVersion

REAL = (1, 2, 3, 4)
LIMIT = 1 << 24
SAMPLES = [b"x", b"abc" * 1000, bytes(range(256)) * 700, b"y" * 300_000, b"\0" * (4 << 20)]

ENCODERS = {1: theirs.gzip_encode, 2: theirs.snappy_encode, 3: theirs.lz4_encode, 4: theirs.zstd_encode}
DECODERS = {1: theirs.gzip_decode, 2: theirs.snappy_decode, 3: theirs.lz4_decode, 4: theirs.zstd_decode}


def test_the_ids_are_kafkas() -> None:
    assert CODEC_IDS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    assert [CODEC_IDS[name] for name in CODEC_NAMES] == [0, 1, 2, 3, 4]


@settings(deadline=None)
@given(st.sampled_from(range(5)), st.binary(max_size=3000))
def test_round_trip(codec_id: int, data: bytes) -> None:
    packed = compress(codec_id, data)
    assert decompress(codec_id, packed, max_size=len(data)) == data
    assert decompress(codec_id, memoryview(packed), max_size=LIMIT) == data


@pytest.mark.parametrize("sample", SAMPLES, ids=len)
@pytest.mark.parametrize("codec_id", REAL)
def test_another_library_reads_ours_and_we_read_theirs(codec_id: int, sample: bytes) -> None:
    assert DECODERS[codec_id](compress(codec_id, memoryview(sample))) == sample
    assert decompress(codec_id, ENCODERS[codec_id](sample), max_size=len(sample)) == sample


def _zstd_without_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    return stream.compress(data) + stream.flush()


def _lz4_linked_with_checksum(data: bytes) -> bytes:
    stream = cramjam.lz4.Compressor(level=9, content_checksum=True, block_linked=True)
    stream.compress(data)
    return bytes(stream.finish())


VARIANTS = {
    "zstd as a stream, no size declared": (4, _zstd_without_size),
    "zstd level 19": (4, lambda data: zstandard.ZstdCompressor(level=19).compress(data)),
    "snappy raw, as librdkafka sends it": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4 with linked blocks and a content checksum": (3, _lz4_linked_with_checksum),
    "gzip in two members": (1, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sample", SAMPLES, ids=len)
def test_streams_that_other_encoders_make(variant: str, sample: bytes) -> None:
    codec_id, encode = VARIANTS[variant]
    assert decompress(codec_id, encode(sample), max_size=len(sample)) == sample


@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("codec_id", REAL)
def test_levels(codec_id: int, level: int) -> None:
    data = bytes(range(256)) * 700
    assert decompress(codec_id, compress(codec_id, data, level), max_size=LIMIT) == data


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param((codec_id, compress(codec_id, bytes(64 << 20))), id=CODEC_NAMES[codec_id])
        for codec_id in REAL
    ]
    + [
        pytest.param((codec_id, encode(bytes(64 << 20))), id=name)
        for name, (codec_id, encode) in VARIANTS.items()
    ],
)
def test_L27_a_bomb_is_refused_and_takes_no_memory(bomb: tuple[int, bytes]) -> None:
    codec_id, packed = bomb
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="1000000"):
            decompress(codec_id, packed, max_size=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec_id", REAL)
def test_L20_a_cut_stream_or_one_with_more_behind_it_is_refused(codec_id: int) -> None:
    for packed in [
        compress(codec_id, b"some text, some more text, some text again" * 3),
        *(encode(b"some text" * 20) for number, encode in VARIANTS.values() if number == codec_id),
    ]:
        whole = decompress(codec_id, packed, max_size=LIMIT)
        for size in range(len(packed)):
            with pytest.raises(FormatError):
                # A stream of several parts that is cut between two of them is shorter, and still whole.
                if len(decompress(codec_id, packed[:size], max_size=LIMIT)) < len(whole):
                    raise FormatError("a part is missing")
        for extra in (b"\0", b"\xff\xff\xff\xff\xff"):
            with pytest.raises(FormatError):
                decompress(codec_id, packed + extra, max_size=LIMIT)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(REAL), st.binary(max_size=100), st.integers(0, 40))
def test_L20_junk_is_refused_with_our_error(codec_id: int, junk: bytes, keep: int) -> None:
    start = compress(codec_id, b"some text, some more text" * 5)[:keep]
    with contextlib.suppress(FormatError):
        assert len(decompress(codec_id, start + junk, max_size=10_000)) <= 10_000


def test_an_unknown_codec_says_which_are_known() -> None:
    for codec_id in (5, 7, -1):
        with pytest.raises(UnsupportedVersion, match="4 zstd"):
            compress(codec_id, b"x")
        with pytest.raises(UnsupportedVersion, match="4 zstd"):
            decompress(codec_id, b"x", max_size=10)
    with pytest.raises(FormatError):
        decompress(0, b"xxx", max_size=2)


def test_threads_do_not_share_a_zstd_context() -> None:
    """The library's contexts are not safe for threads: sharing one gives corrupt data, or a crash."""
    failures: list[BaseException] = []
    gate = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            gate.wait()
            for turn in range(200):
                data = bytes([seed, turn % 256]) * 5000
                assert decompress(4, compress(4, data), max_size=10_000) == data
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
