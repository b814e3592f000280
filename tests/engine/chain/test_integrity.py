"""L20: damage is found before data reaches a caller, names object and offset, and stays where it is.

Every byte of a segment is flipped in turn; it is cut at every length; bytes are added, moved and exchanged. Whatever
happens, a read gives the very record that was appended or raises `CorruptData` for the object that is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as every

import pytest

import logstore
from logstore.engine.chain import segment_reader
from logstore.engine.maintenance.compaction import batches_of
from logstore.engine.memory.catch_up import reload
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import CorruptData
from logstore.format.stored.segment import FOOTER_SIZE, HEADER_SIZE, INDEX_ROW_SIZE, parse_segment
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.damage import Damaged, cuts, extensions, flips, shifts, swaps
from tests.support.engine.harness import lone_log

BATCHES = 3
BATCH = 4
VALUES = [b"segment-%d batch-%d record-%d" % (s, b, r) for s in range(3) for b in range(3) for r in range(4)]
PER_SEGMENT = BATCHES * BATCH
PROBES = (11, 13, 16, 23, 24)  # the neighbours of the damaged segment, and an offset of each of its batches


class Place:
    """A partition of three segments (behind the fence at 0), of which the middle one is to be damaged."""

    def __init__(self, *, compression: str = "none") -> None:
        self.objects = MemoryStore()
        with logstore.open(self.objects, clock=ManualClock(), compression=compression, lanes=0) as store:
            log = store.create_topic("t").partition(0)
            for first in range(0, len(VALUES), PER_SEGMENT):
                # Batches that are handed in together are one append, and so one segment.
                log.append_batches(
                    b"".join(
                        _batch(VALUES[at : at + BATCH]) for at in range(first, first + PER_SEGMENT, BATCH)
                    )
                )
            self.paths = log._internal.paths
            self.refs = log._internal.state.segments.all()
        assert [(ref.base_offset, ref.end_offset) for ref in self.refs] == [(0, 12), (12, 24), (24, 36)]
        self.victim = self.refs[1]
        self.sound = self.objects.get(self.victim.key)
        self.reader = logstore.open(self.objects, writer="read_only", clock=ManualClock())

    def damaged(self, data: bytes) -> PartitionLog:
        """The partition as one sees it who opens it now, with nothing in the cache."""
        self.objects.put(self.victim.key, data)
        self.reader._runtime.cache.clear()
        return lone_log(self.reader._runtime, self.paths)

    def check(self, name: str, data: bytes) -> int:
        """Read one offset of each batch. Returns how many batches of the damaged segment could still be read."""
        log = self.damaged(data)
        assert log.durable_high_watermark == len(VALUES), name
        readable = 0
        for offset in PROBES:
            value = VALUES[offset]
            inside = self.victim.base_offset <= offset < self.victim.end_offset
            found = read_or_damage(log, offset)
            if isinstance(found, CorruptData):
                assert inside, f"{name}: offset {offset} lies in a sound segment, and still: {found}"
                assert found.key == self.victim.key, name
                assert found.offset is not None, name
                assert self.victim.base_offset <= found.offset < self.victim.end_offset, name
            else:
                assert found == value, f"{name}: offset {offset}"
                readable += inside
        return readable


def _batch(values: list[bytes]) -> bytes:
    from logstore.format.batches.batch import encode_batch
    from logstore.format.batches.record import Record

    return encode_batch([Record(value) for value in values], now_ms=1_700_000_000_000, codec_id=0)[0]


def read_or_damage(log: PartitionLog, offset: int) -> bytes | CorruptData | None:
    try:
        (value,) = [record.value for record in log.read(offset, 0).records() if record.offset == offset]
    except CorruptData as damage:
        return damage
    return value


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture(params=["whole", "ranged"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small segments come with one GET; large ones by their tail and blocks. Here the same small one goes either way."""
    if request.param == "ranged":
        monkeypatch.setattr(segment_reader, "WHOLE_BYTES", 0)
        monkeypatch.setattr(segment_reader, "SCAN_WHOLE_BYTES", 0)
        monkeypatch.setattr(segment_reader, "BLOCK_BYTES", 100)
    return str(request.param)


def test_L20_every_flipped_byte_of_a_segment_is_found_or_harmless(place: Place, path: str) -> None:
    index_at = parse_segment(place.sound)[0].index_position
    for position, (name, data) in enumerate(flips(place.sound)):
        readable = place.check(name, data)
        if position >= index_at:
            assert readable == BATCHES, f"{name}: index and footer can be rebuilt from the batches"
        elif path == "whole" and position >= HEADER_SIZE:
            assert readable == 0, f"{name}: a damaged batch was not noticed"
        elif position >= HEADER_SIZE:
            assert readable == BATCHES - 1, f"{name}: the other blocks are sound, this one is not"


def test_L20_every_cut_of_a_segment_is_found(place: Place, path: str) -> None:
    for name, data in cuts(place.sound):
        if len(data) >= HEADER_SIZE:
            assert place.check(name, data) == 0, name
    # Without its header not even the offsets are known, but the next segment tells where they ended.
    for name, data in list(cuts(place.sound))[0:HEADER_SIZE:16]:
        assert place.check(name, data) == 0, name


def test_L20_added_moved_and_exchanged_bytes_of_a_segment_are_found(place: Place, path: str) -> None:
    sizes = (INDEX_ROW_SIZE, 61, 16)
    kinds: Iterator[Damaged] = every(
        extensions(place.sound), shifts(place.sound, 13), *(swaps(place.sound, size) for size in sizes)
    )
    for name, data in kinds:
        place.check(name, data)


def test_L20_a_segment_of_another_place_is_not_believed(place: Place, path: str) -> None:
    """Every byte is sound, only the object is the wrong one: a restore that mixed up two files."""
    for other in (place.refs[0], place.refs[2]):
        assert place.check(f"{other.key} in its place", place.objects.get(other.key)) == 0


def test_L20_a_missing_segment_is_reported_and_the_rest_is_readable(place: Place) -> None:
    place.objects.delete(place.victim.key)
    store = logstore.open(place.objects, writer="read_only", clock=ManualClock())
    log = store.topic("t").partition(0)
    assert log.durable_high_watermark == len(VALUES)
    for offset, value in enumerate(VALUES):
        if place.victim.base_offset <= offset < place.victim.end_offset:
            with pytest.raises(CorruptData, match="missing") as caught:
                log.read(offset, 0)
            assert caught.value.key == place.victim.key
        else:
            assert next(log.read(offset, 0).records()).offset <= offset  # type: ignore[operator]
            assert value in [record.value for record in log.read(offset, 0).records()]


def test_L20_a_read_gives_what_lies_before_the_damage_and_raises_only_when_it_comes_to_it(
    place: Place,
) -> None:
    log = place.damaged(place.sound[:-1])
    got: list[bytes | None] = []
    with pytest.raises(CorruptData) as caught:
        got.extend(record.value for record in log.records())
    assert got == VALUES[:PER_SEGMENT]
    assert (caught.value.key, caught.value.offset) == (place.victim.key, PER_SEGMENT)
    rest = [record.value for record in log.records(start=place.victim.end_offset)]
    assert rest == VALUES[2 * PER_SEGMENT :]


def test_L20_two_unreadable_objects_in_a_row_do_not_make_the_partition_unopenable(place: Place) -> None:
    for ref in place.refs[:2]:
        place.objects.put(ref.key, b"x")
    log = place.damaged(b"y")
    for offset in range(2 * PER_SEGMENT):
        with pytest.raises(CorruptData):
            log.read(offset, 0)
    assert [record.value for record in log.records(start=24)] == VALUES[24:]


@pytest.mark.usefixtures("begin_in_own_chains")
def test_L20_unreadable_fences_in_a_row_hide_no_record() -> None:
    """They hold no offset, so the segment behind them starts where the one before them ended."""
    objects = MemoryStore()
    with logstore.open(objects, clock=ManualClock()) as store:
        store.create_topic("t").append(b"first")
    for _ in range(2):
        with logstore.open(objects, clock=ManualClock()) as store:
            store.topic("t").partition(0).open_writer()
    with logstore.open(objects, clock=ManualClock()) as store:
        log = store.topic("t").partition(0)
        log.append(b"second")
        for seq in (2, 3):
            objects.put(log._internal.paths.segment(seq), b"junk")
    with logstore.open(objects, clock=ManualClock()) as store:
        log = store.topic("t").partition(0)
        assert [(record.offset, record.value) for record in log.records()] == [(0, b"first"), (1, b"second")]
        assert log.append(b"third").offset == 2


def test_L20_a_damaged_last_segment_stops_appends_but_no_reads(place: Place) -> None:
    """Where it ended is not known, so going on behind it could give an offset twice."""
    last = place.refs[2]
    sound = place.objects.get(last.key)
    place.objects.put(last.key, b"not a segment")
    with logstore.open(place.objects, clock=ManualClock()) as store:
        log = store.topic("t").partition(0)
        assert [record.value for record in log.records(stop=24)] == VALUES[:24]
        with pytest.raises(CorruptData) as caught:
            log.append(b"where would this go?")
        assert caught.value.key == last.key
    place.objects.put(last.key, sound)
    with logstore.open(place.objects, clock=ManualClock()) as store:
        log = store.topic("t").partition(0)
        assert log.append(b"after the repair").offset == len(VALUES)
        assert [record.value for record in log.records()] == [*VALUES, b"after the repair"]


def test_L20_a_follower_meets_the_same_damage_as_one_who_opens() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with (
        logstore.open(objects, clock=clock, lanes=0) as writer,
        logstore.open(objects, clock=clock, writer="read_only") as reader,
    ):
        log = writer.create_topic("t").partition(0)
        log.append(b"zero")
        follower = reader.topic("t").partition(0)
        assert [record.value for record in follower.records()] == [b"zero"]
        log.append(b"one")
        objects.put(log._internal.paths.segment(2), b"junk")
        log.append(b"two")
        assert [record.value for record in follower.records(stop=1)] == [b"zero"]
        with pytest.raises(CorruptData) as caught:
            follower.read(1, 0)
        assert caught.value.key == log._internal.paths.segment(2)
        assert [record.value for record in follower.records(start=2)] == [b"two"]


@pytest.mark.parametrize("part", ["index", "footer"])
def test_L20_a_damaged_index_does_not_hide_a_damaged_batch(place: Place, part: str) -> None:
    """Two damages at once: the rebuilt index must not vouch for bytes that an intact checksum contradicts."""
    summary, _ = parse_segment(place.sound)
    data = bytearray(place.sound)
    data[HEADER_SIZE + 13] ^= 1  # the leader epoch of the first batch: outside of the batch's own CRC
    where = summary.index_position if part == "index" else len(data) - FOOTER_SIZE
    data[where] ^= 1
    if part == "index":
        assert place.check("index and leader epoch", bytes(data)) == 0
    else:
        place.check("footer and leader epoch", bytes(data))


@pytest.mark.parametrize("reads", ["read", "merge"])
def test_L20_what_is_known_of_an_object_does_not_stand_for_those_missing_behind_it(reads: str) -> None:
    """Two segments in a row vanish, of which the first is still in the cache. Together they are one row, under its name."""
    objects, clock = MemoryStore(), ManualClock()
    with logstore.open(objects, clock=clock, lanes=0) as writing:
        log = writing.create_topic("t").partition(0)
        for n in range(6):
            log.append(b"v%d" % n)
        first, second = (ref.key for ref in log._internal.state.segments.all()[2:4])
    objects.delete(log._internal.paths.manifest)
    with logstore.open(objects, clock=clock, writer="read_only") as reading:
        log = reading.topic("t").partition(0)
        assert [record.value for record in log.records()] == [b"v%d" % n for n in range(6)]
        objects.delete(first)
        objects.delete(second)
        reload(log._internal._chain, log._internal.state)
        with pytest.raises(CorruptData) as damage:
            if reads == "read":
                list(log.records())
            else:
                batches_of(log._internal._runtime.reader, log._internal.state.segments.all()[2])
        assert (damage.value.key, damage.value.offset) == (first, 3)
        assert [record.value for record in log.records(4)] == [b"v4", b"v5"]
