"""`cp` and `mirror`: every record once, whatever interrupts them; `maintain`: idle topics lose what is too old."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import logstore
from logstore import Record
from logstore.cli import copying, main
from logstore.cli.commands.maintenance import maintain
from logstore.cli.terminal.progress import Progress


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "copy")


def records_of(where: str, topic: str = "t") -> list[list[tuple[object, ...]]]:
    with logstore.open(where, writer="read_only") as store:
        found = store.topic(topic)
        return [
            [
                (record.key, record.value, record.headers, record.timestamp_ms)
                for record in found.partition(n).records()
            ]
            for n in range(found.partitions)
        ]


def fill(url: str, count: int = 30) -> None:
    with logstore.open(url) as store:
        topic = store.create_topic("t", 2, exist_ok=True, retention_bytes=10**9)
        for number in range(count):
            topic.append(
                b"%d" % number, key=b"k%d" % number, headers=[("h", b"v")], timestamp_ms=1000 + number
            )


def test_cp_copies_every_record_and_only_what_is_new_the_next_time(
    url: str, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(url)
    assert main(["cp", "t", "--to", target, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 30
    assert records_of(target) == records_of(url)
    with logstore.open(target, writer="read_only") as store:
        assert store.topic("t").config.retention_bytes == 10**9
    fill(url, 5)
    assert main(["cp", "t", "--to", target, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 5
    assert records_of(target) == records_of(url)
    assert main(["cp", "t", "--to", url, "--as", "again"]) == 0
    assert records_of(url, "again") == records_of(url)
    assert main(["cp", "t", "--to", url]) == 2
    assert main(["cp", "nope", "--to", target]) == 1


def test_a_topic_is_not_copied_onto_itself_however_its_store_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(url)
    before = records_of(url)
    shutil.copytree(url, tmp_path / "backup")
    monkeypatch.chdir(tmp_path)
    for same in ("./store", url + "/", f"file://{url}", "backup"):
        assert main(["cp", "t", "--to", same]) == 2
        assert "has this very topic" in capfd.readouterr().err
        assert records_of(same) == before


def test_a_copy_is_not_copied_back_onto_what_it_was_made_from_nor_over_another_one(
    url: str, target: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every record would be there twice, and `mirror` would carry them over again."""
    fill(url)
    assert main(["cp", "t", "--to", target]) == 0
    before = records_of(url)
    assert main(["cp", "t", "--store", target, "--to", url]) == 2
    assert "offsets that are no copy" in capfd.readouterr().err
    assert records_of(url) == before
    other = str(tmp_path / "other")
    fill(other, 4)
    assert main(["cp", "t", "--store", other, "--to", target]) == 2
    assert "it is a copy of another topic" in capfd.readouterr().err
    assert records_of(target) == before


def test_cp_keeps_every_setting_and_goes_on_behind_a_compacted_copy(
    url: str, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A copy that forgot `compact` would keep deleted keys for ever; one that is compacted must still know how far it is."""
    kafka = {"cleanup.policy": "compact", "max.message.bytes": "1234"}
    settings = {"compact": True, "tombstone_seconds": 0.0, "dirty_ratio": 0.1, "segment_bytes": 2048}
    with logstore.open(url) as store:
        wanted = store._create_topic_of_kafka("t", 1, kafka, settings).config
    for turn in range(4):
        with logstore.open(url) as store:
            store.topic("t").partition(0).append([Record(b"%d" % turn, b"key")] * 10)
        assert main(["cp", "t", "--to", target]) == 0
    assert main(["compact", "t", "--store", target]) == 0
    with logstore.open(target, writer="read_only") as store:
        copied = store.topic("t")
        assert (copied.config, dict(copied._internal.descriptor.kafka)) == (wanted, kafka)
    left = records_of(target)[0]
    assert len(left) < 40, "it is compacted"
    with logstore.open(url) as store:
        store.topic("t").append(b"last", key=b"key")
    capfd.readouterr()
    assert main(["cp", "t", "--to", target, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 1
    assert records_of(target)[0][:-1] == left
    assert records_of(target)[0][-1][1] == b"last"


def test_O03_a_copy_that_is_interrupted_goes_on_exactly_where_it_was(
    url: str, target: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url)
    with logstore.open(url) as store:
        store.topic("t").partition(1).append([b"x" * 100] * 1000)
    monkeypatch.setattr(copying, "_READ_BYTES", 100)
    advanced: list[int] = []

    def interrupt(self: Progress, records: int = 0, size: int = 0, what: str | None = None) -> None:
        advanced.append(records)
        if len(advanced) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", interrupt)
        assert main(["cp", "t", "--to", target]) == 130
    said = capfd.readouterr().err
    assert "the same command goes on there" in said
    assert f"{sum(advanced):,} records were copied" in said
    assert main(["cp", "t", "--to", target]) == 0
    assert records_of(target) == records_of(url)


def test_a_copy_goes_on_behind_what_the_source_has_lost_or_deleted(url: str, target: str) -> None:
    fill(url)
    with logstore.open(url) as store:
        store.topic("t").partition(0).delete_before(5)
    assert main(["cp", "t", "--to", target]) == 0
    assert records_of(target) == records_of(url)


def test_mirror_goes_on_with_what_comes(url: str, target: str, capfd: pytest.CaptureFixture[str]) -> None:
    fill(url)
    assert main(["mirror", "t", "--to", target, "--every", "1ms", "--rounds", "2"]) == 0
    assert capfd.readouterr().out == "30 records, 30 in all\n"
    fill(url, 3)
    assert main(["mirror", "t", "--to", target, "--rounds", "1"]) == 0
    assert records_of(target) == records_of(url)


def test_maintain_expires_the_records_of_a_topic_that_nobody_writes(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logstore.open(url) as store:
        for name in ("idle", "kept"):
            log = store.create_topic(name, retention_seconds=60 if name == "idle" else None).partition(0)
            for stamp in range(12):
                log.append(logstore.Record(b"old", timestamp_ms=stamp))
    assert main(["maintain", "--grace", "0", "--json"]) == 0
    done = json.loads(capfd.readouterr().out)
    assert (done["partitions"], done["expired_offsets"], done["problems"]) == (2, 12, 0)
    assert done["deleted_objects"] > 10
    with logstore.open(url, writer="read_only") as store:
        assert store.topic("idle").partition(0).low_watermark == 12
        assert len(list(store.topic("kept").partition(0).records())) == 12


def test_maintain_goes_on_after_a_round_that_failed_and_after_a_topic_that_is_damaged(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert main(["maintain", "--every", "1ms", "--rounds", "2", "--store", nowhere]) == 1
    assert capfd.readouterr().err.count("the next round is in 1 ms") == 2
    assert main(["maintain", "--store", nowhere]) == 1
    with logstore.open(url) as store:
        for name in "ab":
            store.create_topic(name).append(b"x")
    (Path(url) / "catalog" / "a").write_bytes(b"damaged")
    capfd.readouterr()
    assert main(["maintain", "--json"]) == 1
    printed = capfd.readouterr()
    assert json.loads(printed.out)["partitions"] == 1
    assert "logstore maintain: a: CorruptData" in printed.err


def test_O03_maintain_that_is_interrupted_says_what_it_did(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logstore.open(url).close()

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    # Of this module alone: threads of other tests may wait for events as well.
    monkeypatch.setattr(maintain, "threading", SimpleNamespace(Event=Pause))
    assert main(["maintain", "--every", "1h"]) == 130
    assert "1 rounds were completed" in capfd.readouterr().err
