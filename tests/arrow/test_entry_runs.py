"""N08, S05: partitions that lie together in the entries of lanes are read entry by entry, each of them fetched once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from logstore.arrow.plan.entry_runs import Task, in_order, over_entries
from logstore.arrow.plan.log_partitions import load
from logstore.arrow.plan.planner import plan_batch, plan_tasks
from logstore.arrow.plan.splits import Range, cut
from logstore.arrow.scan.gathered import GatheredStore
from logstore.arrow.scan.split_scan import Scan
from logstore.errors import CorruptData, ObjectNotFound
from logstore.format.stored.segment import HEADER_SIZE
from logstore.layout.catalog import Catalog
from logstore.layout.paths import PartitionPaths
from logstore.objects import MemoryStore, MeteredStore, ObjectStore
from logstore.objects.wrappers.slices import SlicedStore, is_slice, parse_slice, whole
from tests.support.engine.harness import running
from tests.support.spark.material import options

PARTITIONS, ENTRIES = 16, 10
SCAN = Scan("", ("value", "partition", "offset"), fail_on_data_loss=True)
Row = tuple[int, int, bytes]


@pytest.fixture
def objects() -> MemoryStore:
    """A lane whose process is gone, with `ENTRIES` entries that hold two records of each partition."""
    made = MemoryStore()
    with running(made, lanes=1, ack="buffered", flush_interval=3600.0) as store:
        topic = store.create_topic("t", PARTITIONS)
        for turn in range(ENTRIES):
            for number in range(PARTITIONS):
                topic.partition(number).append([b"%d.%d" % (number, turn), b"and"])
            store.flush()
    return made


def planned(store: ObjectStore) -> list[Task]:
    topic = Catalog(store).find("t")
    paths = [PartitionPaths("t", topic.incarnation, number) for number in range(topic.partitions)]
    ranges = [Range(found, found.low, found.end) for found in load(store, paths)]
    return over_entries(cut(ranges, max_bytes=1 << 30))


def read(store: ObjectStore, tasks: list[Task]) -> list[Row]:
    found: list[Row] = []
    for task in tasks:
        for batch in SCAN.rows_of_from(store, in_order([task])):
            columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
            found += zip(*columns, strict=True)
    return found


def expected() -> list[Row]:
    return [
        (number, 2 * turn + at, value)
        for number in range(PARTITIONS)
        for turn in range(ENTRIES)
        for at, value in enumerate((b"%d.%d" % (number, turn), b"and"))
    ]


def test_N08_a_scan_asks_for_each_entry_once_and_keeps_the_order_of_each_partition(
    objects: MemoryStore,
) -> None:
    metered = MeteredStore(objects)
    store = SlicedStore(metered)
    tasks = planned(store)
    assert len(tasks) == 1
    assert pickle.loads(pickle.dumps(tasks)) == tasks, "it travels to executors"
    before = metered.requests
    found = read(store, tasks)
    assert metered.requests - before == ENTRIES, "and not one for each partition in it"
    assert sorted(found) == expected()
    for number in range(PARTITIONS):
        offsets = [offset for partition, offset, _ in found if partition == number]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("columns", [["value", "partition", "offset"], ["partition", "offset"]])
def test_N08_arrow_asks_for_each_entry_once_and_gives_partition_after_partition(
    objects: MemoryStore, columns: list[str]
) -> None:
    metered = MeteredStore(objects)
    with running(metered, writer="read_only") as store:
        topic = store.topic("t")
        before = metered.requests
        topic.arrow_batches(columns)
        to_plan = metered.requests - before
        found = topic.to_arrow(columns).to_pylist()
        assert metered.requests - before - 2 * to_plan == ENTRIES
        assert [tuple(row[name] for name in ("partition", "offset")) for row in found] == [
            one[:2] for one in expected()
        ]


def test_S05_small_groups_and_tasks_hold_the_same_records_once(objects: MemoryStore) -> None:
    store = SlicedStore(objects)
    splits = in_order(planned(store))
    entry = sum(ref.size for split in splits for ref in split.refs) // ENTRIES
    tasks = over_entries(splits, max_bytes=4 * entry, group_bytes=2 * entry)
    assert 3 <= len(tasks) <= ENTRIES
    assert sorted(read(store, tasks)) == expected()
    cut_off = [replace(split, start=3, stop=15) for split in splits]
    assert sorted(read(store, over_entries(cut_off))) == [one for one in expected() if 3 <= one[1] < 15]


def test_S05_who_asks_for_tasks_gets_them_and_few_slices_stay_as_they_were(objects: MemoryStore) -> None:
    store = SlicedStore(objects)
    cases: list[tuple[dict[str, int], int]] = [
        ({}, 1),
        ({"minPartitions": 20}, 2 * PARTITIONS),
        ({"maxRecordsPerPartition": 10}, 2 * PARTITIONS),
    ]
    for more, count in cases:
        asked = options("file:///nowhere", subscribe="t", **more)
        assert len(plan_tasks(asked, plan_batch(store, asked))) == count
    few = in_order(planned(store))[:3]
    assert over_entries(few) == few


def test_N06_entries_that_are_split_and_deleted_under_a_scan_are_read_where_they_went(
    objects: MemoryStore,
) -> None:
    """The plan is old: some entries were split and deleted before the task began, the rest while it runs."""
    store = SlicedStore(objects)
    tasks = planned(store)
    batches = SCAN.rows_of_from(store, in_order(tasks))
    with running(objects, writer="read_only", delete_grace=0.0) as keeper:
        assert keeper.collect_garbage()
    found: list[Row] = []
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
        found += zip(*columns, strict=True)
    assert sorted(found) == expected()


def test_N07_a_damaged_slice_is_named_and_the_others_of_its_entry_are_read(objects: MemoryStore) -> None:
    store = SlicedStore(objects)
    tasks = planned(store)
    splits = in_order(tasks)
    hurt = splits[5].refs[4].key
    entry, position, _ = parse_slice(hurt)
    data = bytearray(objects.get(entry))
    data[position + HEADER_SIZE + 70] ^= 0xFF  # in its first batch
    objects.put(entry, bytes(data))
    with pytest.raises(CorruptData) as caught:
        read(store, tasks)
    assert hurt in str(caught.value)
    others = tuple(split for split in splits if split.paths != splits[5].paths)
    assert len(read(store, [others])) == len(expected()) - 2 * ENTRIES


def test_N10_partitions_that_moved_between_lanes_and_their_own_chain_are_read_once(
    objects: MemoryStore,
) -> None:
    moves: list[dict[str, Any]] = [{"lanes": 0}, {"lanes": 1}, {"lane": "zz"}, {"lane": "aa"}]
    for turn, settings in enumerate(moves):
        with running(objects, take_over=True, ack="buffered", flush_interval=3600.0, **settings) as owner:
            topic = owner.topic("t")
            for again in range(3):
                for number in range(PARTITIONS):
                    topic.partition(number).append(b"%d.%d later" % (turn, again))
                owner.flush()
    store = SlicedStore(objects)
    tasks = planned(store)
    assert any(isinstance(task, tuple) for task in tasks)
    found = read(store, tasks)
    assert sorted(one[:2] for one in found) == [
        (number, offset) for number in range(PARTITIONS) for offset in range(2 * ENTRIES + 12)
    ]


class Failing(SlicedStore):
    """Whole entries cannot be had; slices can."""

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if not is_slice(key):
            raise ObjectNotFound(key)
        return super().get(key, start, end)


def slices(tasks: list[Task]) -> Iterator[str]:
    return (ref.key for split in in_order(tasks) for ref in split.refs)


def test_N08_what_is_gathered_is_bounded_and_asked_for_again_by_itself(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logstore.arrow.scan import gathered as module

    tasks = planned(SlicedStore(objects))
    splits = in_order(tasks)
    store = SlicedStore(objects)
    keys = sorted(slices(tasks))
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 1)
    gathered = GatheredStore(store, splits)
    for key in [*keys, *keys]:
        assert gathered.get(key) == store.get(key)
        assert len(gathered._held) <= 1
    failing = GatheredStore(Failing(objects), splits)
    first, second = (key for key in keys if whole(key) == whole(keys[0]) and key in keys[:2])
    with pytest.raises(ObjectNotFound):
        failing.get(first)
    assert failing.get(second) == store.get(second), "its range could not be had, it can"
