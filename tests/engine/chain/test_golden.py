"""Files on disk from earlier releases: every later release reads them, field by field. They are never written again."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from logstore.errors import CorruptData
from logstore.format.batches.batch import split
from logstore.format.batches.records import decode_records
from logstore.format.stored.former_wal import parse_epoch, parse_payloads
from logstore.format.stored.manifest import FRONT_SIZE, Manifest, parse_front
from logstore.format.stored.owner import Owner
from logstore.format.stored.segment import SegmentFlags, parse_segment
from logstore.format.stored.wal import parse_frames, parse_header
from tests.golden import write_formats as written

GOLDEN = Path(__file__).parents[2] / "golden"

DIGESTS = {
    "adoption-v1.seg": "d78d7f127247a3e0c4bad1ea89f03482f40a7e9a011bf4f4b6af8404f471aa2e",
    "ask-v1.seg": "6b5173ee0c4285193249f6a55a65b7d779984a80f83c4b2a51baa6e493c3e9b4",
    "collected-v1.seg": "8d99d05c8c86d1486a7f47498c06898b9109a677a6c497c96a22cd83067a1d10",
    "entry-v1.seg": "521c5bb0b92e3bbd865d580c22f8f79f078ac8851c5180156e66eb5c494afd2b",
    "entry-v1-told-twice.seg": "c545ed3b3b8e6b1164f9eb92562304f4eb0d1994aba00c121d2823ac6454dd00",
    "hold-v1": "4569666300a4fc0026a0fa94fb2ac0fa5ad611f8b2ba2620a3614a38a7840c9e",
    "lane-checkpoint-v1": "6a9ab08988c440975f445a5d53e61ca0100ae40e0361f9832159b315a52629a4",
    "lane-checkpoint-v2": "31e463af3a4cf10c7d3f95dea7b78ed21238767c702110c3d93db92fc428f4a7",
    "lane-checkpoint-v3": "e0c6a2c3feedb16e8defd63345ffc933100dd715b86ad2812deeea69c3218105",
    "lane-checkpoint-v4": "8593cb3d6179679b4863d9970798e1c68c9a21b41e11541c813d03b7ef1531f3",
    "lane-checkpoint-v5": "31c20541182b4b804796ac692595e82ab4594fde106233e605b6fc310a478eaf",
    "manifest-v1": "e73b4573fa2dddf20acfd35a6865ee3f7b34287b44877e62d2d590c23eca0245",
    "manifest-v2": "fa157c0b1679c08e5ef5cb8d9b94a986c59c582b0a100ed5ae461b30e9dd3b06",
    "manifest-v3": "721bfb9828329fa00e1bb000c7b51832d8034a5ede2834f4fbdf724dbc6546f4",
    "manifest-v4": "f8c02828efbfb55fe143c809235c86a98a0ede6865153f756f4daa3ea64f8fe1",
    "segment-v1.seg": "0d9b454b781aa11ff875029f61fb35f8f2a733734667e793e480da782a91dcb6",
    "segment-v2.seg": "bbd4bed2f01c527fc043c50babd3b63908d3d9c8898ae1f1859c76c13b8e2efe",
    "segment-v3.seg": "96d4225d37b9f4485eeffc3be8e594111dee7e2974eb32c84aad1eb4d3214f28",
    "transfer-v1.seg": "bc1ce9fe6d8933d36d04bd467102d6be0c99adf5654551ef582e0728c99ea0cd",
    "wal-v1.wal": "f5629184abe6b9f372eb7d28a592ae7d6dcc6d681851d0cb54d0b6174eb5035a",
    "wal-v2.wal": "f728ec97d15f134a4668462b17fb01530dc606a72b04abce554561e26a222774",
}


def golden(name: str) -> bytes:
    return (written.FOLDER / name).read_bytes()


def test_the_golden_files_are_the_ones_that_were_written_once() -> None:
    """Changing one silently would turn a promise to old data into a test of today's writer against itself."""
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in written.FOLDER.iterdir()}
    assert found == DIGESTS


def test_L20_a_golden_segment_gives_its_records() -> None:
    data = golden("segment-v1.seg")
    summary, index = parse_segment(data)
    assert summary.header == written.HEADER
    assert (summary.records, summary.batches) == (23, 3)
    assert (summary.min_timestamp_ms, summary.max_timestamp_ms) == (
        written.STAMP_MS - 1000,
        written.STAMP_MS + 19,
    )
    assert index["base_offset"].tolist() == [1000, 1002, 1003]
    first = int(index["position"][0])
    raw = data[first : summary.index_position]
    expected = [record for batch in written.RECORDS for record in batch]
    found = [record for info in split(raw) for record in decode_records(raw, info)]
    assert found == [record._replace(offset=1000 + place) for place, record in enumerate(expected)]


def test_L20_a_golden_segment_gives_what_it_says_beside_its_records() -> None:
    data = golden("segment-v2.seg")
    summary, index = parse_segment(data, strict=True)
    assert (summary.header, summary.records) == (written.HEADER, 23)
    assert index.tobytes() == parse_segment(golden("segment-v1.seg"))[1].tobytes()
    assert summary.parse_extras(data) == summary.parse_extras(data[-400:]) == written.EXTRAS


def test_B13_a_golden_sparse_segment_gives_what_is_left_of_its_records() -> None:
    data = golden("segment-v3.seg")
    summary, index = parse_segment(data, strict=True)
    assert (summary.header, summary.records) == (written.SPARSE_HEADER, len(written.SPARSE_OFFSETS))
    assert index["base_offset"].tolist() == [1000, 1003]
    assert index["count"].tolist() == [3, 20], "a row reaches as far as the next one"
    raw = data[int(index["position"][0]) : summary.index_position]
    found = [record for info in split(raw) for record in decode_records(raw, info)]
    expected = [record for batch in written.RECORDS for record in batch]
    assert found == [expected[offset - 1000]._replace(offset=offset) for offset in written.SPARSE_OFFSETS]


def test_L20_a_golden_manifest_gives_its_rows() -> None:
    assert Manifest.parse(golden("manifest-v1")) == written.MANIFEST_V1
    assert Manifest.parse(golden("manifest-v2")) == written.MANIFEST_V2
    assert Manifest.parse(golden("manifest-v3")) == written.MANIFEST
    assert Manifest.parse(golden("manifest-v4")) == written.MANIFEST_V4
    assert Owner.parse(Manifest.parse(golden("manifest-v4")).owner) == written.OWNER
    assert (
        parse_front(golden("manifest-v3")[:FRONT_SIZE]).collected_until
        == parse_front(golden("manifest-v4")[:FRONT_SIZE]).collected_until
        == 3
    )


def test_L20_a_golden_header_of_a_collected_segment_gives_its_offsets_and_no_record() -> None:
    summary, index = parse_segment(golden("collected-v1.seg"))
    assert summary.header == replace(written.HEADER, flags=SegmentFlags.COLLECTED)
    assert (summary.records, len(index)) == (0, 0)


def test_L20_a_golden_wal_gives_its_batches() -> None:
    data = golden("wal-v2.wal")
    parse_header(data)
    sections, good = parse_frames(data)
    assert good == len(data)
    assert [(one.prefix, one.epoch, one.is_sound) for one in sections] == [
        (written.WAL_PREFIXES[0], written.LEADER_EPOCH, True),
        (written.WAL_PREFIXES[1], 3, True),
        (written.WAL_PREFIXES[0], written.LEADER_EPOCH, True),
    ]
    payloads = [memoryview(data)[one.position : one.position + one.size] for one in sections]
    found = [[len(decode_records(payload, info)) for info in split(payload)] for payload in payloads]
    assert found == [[2, 1], [20], [20]]


def test_L20_a_golden_wal_of_one_partition_gives_its_batches() -> None:
    data = golden("wal-v1.wal")
    assert parse_epoch(data) == written.LEADER_EPOCH
    payloads, good = parse_payloads(data)
    assert good == len(data)
    found = [[len(decode_records(payload, info)) for info in split(payload)] for payload in payloads]
    assert found == [[2, 1], [20]]


def test_todays_writer_makes_the_same_bytes() -> None:
    """A change that old releases cannot read needs a new format version, and this test is where it is noticed."""
    assert written.segment_bytes() == golden("segment-v1.seg")
    assert written.extras_bytes() == golden("segment-v2.seg")
    assert written.sparse_bytes() == golden("segment-v3.seg")
    assert written.wal_bytes() == golden("wal-v2.wal")
    assert Manifest.parse(written.MANIFEST.pack()) == Manifest.parse(golden("manifest-v3"))
    assert Manifest.parse(written.MANIFEST_V4.pack()) == Manifest.parse(golden("manifest-v4"))
    assert written.collected_bytes() == golden("collected-v1.seg")


def test_the_writer_script_leaves_existing_files_alone(capsys: pytest.CaptureFixture[str]) -> None:
    written.main()
    assert capsys.readouterr().out.count("exists, left alone") == 17


def test_L20_golden_files_open_through_the_engine(tmp_path: Path) -> None:
    """The same segment, in its place in a partition: the engine reads it, and what is before it is missed by name."""
    import logstore
    from logstore.objects import LocalStore
    from tests.support.engine.harness import open_store, pairs

    objects = LocalStore(tmp_path)
    with open_store(objects) as store:
        log = store.create_topic("t").partition(0)
        objects.put(log._internal.paths.segment(42), golden("segment-v1.seg"))
    with logstore.open(objects, writer="read_only") as store:
        log = store.topic("t").partition(0)
        found = pairs(log, start=1000)
        assert [offset for offset, _ in found] == list(range(1000, 1023))
        assert found[-1][1] == b"line 19"
    for name in ("manifest-v1", "manifest-v2", "manifest-v3", "manifest-v4"):
        objects.put(log._internal.paths.manifest, golden(name))
        with logstore.open(objects, writer="read_only") as store:
            log = store.topic("t").partition(0)
            assert (log.low_watermark, log.durable_high_watermark) == (10, 1023)
            with pytest.raises(CorruptData, match="missing") as caught:
                log.read(10)
            assert caught.value.key == log._internal.paths.merged(1, 41, bytes(range(16)).hex())
