"""T01: splits that other processes read, and life without pyarrow."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import Record, Topic
from logstore.arrow import table
from logstore.objects import MemoryStore
from tests.support.arrow import MIB, START_MS, large, numbered, together
from tests.support.patience import PATIENCE_S

# In other processes

_READ = """
import pickle, sys
import pyarrow as pa
groups = pickle.load(sys.stdin.buffer)
found = [pa.concat_tables([split.read().read_all() for split in splits]) for splits in groups]
assert "pyspark" not in sys.modules
pickle.dump(found, sys.stdout.buffer)
"""


def read_elsewhere(*groups: list[table.TopicSplit]) -> list[pa.Table]:
    done = subprocess.run(
        [sys.executable, "-c", _READ], input=pickle.dumps(groups), capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[pa.Table] = pickle.loads(done.stdout)
    return found


def fill(url: str, **settings: Any) -> logstore.Store:
    store = logstore.open(url, **settings)
    topic = store.create_topic("orders", partitions=2)
    for number in range(4):
        topic.partition(0).append(numbered(number * 50, number * 50 + 50))
    topic.partition(1).append([Record(None, b"k", (("h", b"1"),), START_MS)])
    return store


def check_elsewhere(store: logstore.Store) -> None:
    topic = store.topic("orders")
    splits = topic.splits(min_splits=4)
    assert len(splits) >= 4
    assert all(len(pickle.dumps(split)) < 2000 for split in splits)
    assert [(split.topic, split.partition) for split in splits][-1] == ("orders", 1)
    assert "start=" in repr(splits[0])
    late: dict[str, Any] = {"columns": ["value"], "since": START_MS + 150}
    whole, part = read_elsewhere(splits, topic.splits(**late))
    assert whole.equals(topic.to_arrow())
    assert part.equals(topic.to_arrow(**late))
    assert part.num_rows == 50
    assert splits[0].schema == topic.to_arrow().schema


def test_T01_splits_pickle_and_another_process_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fill("a relative folder") as store:
        check_elsewhere(store)


@pytest.mark.s3
def test_T01_splits_carry_a_url_and_no_credentials(moto_url: Callable[[], str]) -> None:
    with fill(moto_url()) as store:
        check_elsewhere(store)
        split = store.topic("orders").splits()[0]
        assert split.url.startswith("s3://")
        assert "testing" not in split.url


def test_T01_what_no_other_process_could_open_is_not_handed_out() -> None:
    with fill("memory://arrow-splits") as store:
        splits = store.topic("orders").splits()
        assert together(splits).equals(store.topic("orders").to_arrow())
        with pytest.raises(logstore.UnsupportedStore, match="cannot leave this process"):
            pickle.dumps(splits)
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("orders")
        topic.append(b"x")
        with pytest.raises(logstore.UnsupportedStore, match="has no URL"):
            topic.splits()
        assert topic.to_arrow().num_rows == 1
        for wrong in ({"max_bytes": 0}, {"min_splits": 0}, {"min_splits": True}):
            with pytest.raises(ValueError, match="at least 1"):
                topic.splits(**wrong)


def test_T01_splits_are_of_the_size_asked_for(reader: Callable[..., Topic]) -> None:
    topic = reader(large(0, 8), compression="none")
    assert len(topic.splits()) == 1
    splits = topic.splits(max_bytes=2 * MIB)
    assert [split.stop - split.start for split in splits] in ([2, 2, 2, 2], [2, 2, 2, 1, 1], [1, 2, 2, 2, 1])
    assert together(splits).equals(topic.to_arrow())


# Without pyarrow, and with those who take its streams


def test_T01_without_pyarrow_everything_else_works_and_the_error_names_the_extra(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["pyarrow"] = None
import logstore
with logstore.open({str(tmp_path / "log")!r}) as store:
    topic = store.create_topic("orders")
    topic.append(b"x")
    for call in (topic.to_arrow, topic.arrow_batches, topic.splits):
        try:
            call()
        except ImportError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    said = 'pyarrow is not installed: pip install "embedded-logstore[arrow]"'
    assert done.stdout.splitlines() == [said] * 3, done
