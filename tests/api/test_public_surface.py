"""What a user's own code relies on besides behaviour: names, types, settings that fit together."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore import RecordTooLarge, StoreConfig
from logstore.config import Ack
from logstore.objects import MemoryStore, ObjectInfo

SCRIPT = """
from pathlib import Path

import logstore


def main() -> None:
    with logstore.open(Path("shop")) as store:
        topic = store.create_topic("t", partitions=2, exist_ok=True)
        topic.append(b"v", key=b"k", headers=[("a", b"1"), ("b", None)])
        offset: int | None = topic.partition(0).offset_for_timestamp(ms=3)
        print(offset)
    tracker = logstore.ingest.FlushTracker(0, print)
    lease = tracker.register("sink")
    tracker.flushed(lease, 3)


async def main_async() -> None:
    async with logstore.aio.open(Path("shop")) as store:
        topic = await store.create_topic("t")
        receipt: logstore.Receipt = await topic.append(b"v", headers=[("a", None)])
        print(receipt)
"""


def test_a_strictly_typed_script_of_a_user_is_accepted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    cache = Path(logstore.__file__).parents[1] / ".mypy_cache"  # of the last `make lint`, if there was one
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(script)]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_modules_of_the_surface_are_there_after_importing_logstore_alone() -> None:
    names = ("aio", "errors", "ingest", "objects", "testing", "upsert")
    code = f"import logstore; print(*(getattr(logstore, name).__name__ for name in {names}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [f"logstore.{name}" for name in names]
    with pytest.raises(AttributeError, match="no attribute 'aoi'"):
        getattr(logstore, "aoi")  # noqa: B009


def test_L08_a_small_buffer_needs_no_second_setting() -> None:
    """Who sets `max_buffered_bytes` alone gets batches that fit; two settings that contradict each other are refused."""
    assert StoreConfig(max_buffered_bytes=10_000).max_batch_bytes == 10_000
    assert StoreConfig().max_batch_bytes == 1 << 20
    with pytest.raises(ValueError, match="max_batch_bytes"):
        StoreConfig(max_buffered_bytes=10_000, max_batch_bytes=10_001)
    with logstore.open(MemoryStore(), max_buffered_bytes=10_000) as store:
        log = store.create_topic("t").partition(0)
        with pytest.raises(RecordTooLarge):
            log.append(b"x" * 10_000)
        assert log.append(b"x" * 9_000).offset == 0


@pytest.mark.parametrize(
    "setting",
    ["flush_bytes", "max_buffered_bytes", "max_batch_bytes", "cache_bytes", "uploads_max", "delete_grace"],
)
def test_a_size_or_a_grace_period_without_an_end_is_refused_by_name(setting: str) -> None:
    """Nothing could be reserved, cached or deleted by it. A wait may go without."""
    with pytest.raises(ValueError, match=setting):
        StoreConfig(**{setting: math.inf})  # type: ignore[arg-type]
    assert StoreConfig(append_timeout=math.inf, flush_interval=math.inf).append_timeout == math.inf


@pytest.mark.parametrize(
    "setting", ["flush_bytes", "max_buffered_bytes", "max_batch_bytes", "cache_bytes", "uploads_max"]
)
def test_what_is_counted_is_a_whole_number(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting}=2.5: it is a whole number"):
        StoreConfig(**{setting: 2.5})  # type: ignore[arg-type]
    given = getattr(StoreConfig(**{setting: 1e6}), setting)  # type: ignore[arg-type]
    assert (given, type(given)) == (1_000_000, int)


@pytest.mark.parametrize("config", [{}, {"ack": "buffered"}, 3, StoreConfig])
def test_a_config_that_is_none_is_refused_by_its_type(config: object) -> None:
    with pytest.raises(TypeError, match="config is a StoreConfig"):
        logstore.open(MemoryStore(), config=config)  # type: ignore[arg-type]


def test_a_store_of_somebody_elses_may_list_with_a_list() -> None:
    class Listing(MemoryStore):
        def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
            return list(super().list(prefix, start_after))  # type: ignore[return-value]

    with logstore.open(Listing()) as store:
        store.create_topic("t").append(b"x")
        assert store.topics() == ["t"]


@pytest.mark.parametrize("ack", ["buffered", "durable"])
def test_a_read_may_be_sent_to_another_process_and_printed(ack: Ack) -> None:
    with logstore.open(MemoryStore(), flush_interval=3600) as store:
        log = store.create_topic("t").partition(0)
        log.append([b"a", b"b"], ack=ack)
        log.append(b"c", ack=ack)
        result = log.read(1)
        sent = pickle.loads(pickle.dumps(result))
        assert sent == result
        assert list(sent.records()) == list(result.records())
        assert sent.raw == result.raw
    assert "memory at" not in repr(result)
    assert f"source='{'buffer' if ack == 'buffered' else 'segment'}'" in repr(result)


@pytest.mark.parametrize("ack", ["buffered", "durable"])
def test_L10_a_receipt_may_be_sent_to_another_process(ack: Ack) -> None:
    """As a pool of processes does with what its workers return. Waiting is for the one that appended."""
    with logstore.open(MemoryStore(), flush_interval=3600) as store:
        topic = store.create_topic("t", partitions=2)
        receipt = topic.append_many([b"a", b"b"], partition=1, ack=ack)[1]
        sent = pickle.loads(pickle.dumps(receipt))
        assert repr(sent) == repr(receipt)
        assert (sent.topic, sent.partition, sent.offset, sent.durability) == ("t", 1, 1, ack)
        if ack == "durable":
            sent.wait_durable()
        else:
            with pytest.raises(logstore.Closed, match="t/1: offset 1 was appended in another process"):
                sent.wait_durable(timeout=5)
        for same in (copy.copy(receipt), copy.deepcopy(receipt)):
            store.flush()
            same.wait_durable(timeout=5)
            assert repr(same) == repr(receipt).replace("buffered", "durable")
