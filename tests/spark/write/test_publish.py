"""S07: what tasks staged becomes part of the log once, wherever a driver dies and however many of them try."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore.errors import CorruptData, Fenced, Indeterminate
from logstore.format.murmur2 import partition_for_key
from logstore.layout.catalog import Catalog
from logstore.layout.paths import SPARK_PREFIX, PartitionPaths
from logstore.objects import MemoryStore, ObjectStore
from logstore.spark.options.transaction import Transaction
from logstore.spark.write import publish as publishing
from logstore.spark.write.publish import give_up, make_plan, publish, store_job, store_once
from logstore.spark.write.rows import RowSorter
from logstore.spark.write.staging import sweep
from logstore.spark.write.stream_writer import transaction_of
from logstore.spark.write.task_writer import PENDING_BYTES, TaskWriter
from logstore.spark.write.txn_ledger import Ledger
from logstore.testing import Delivery, Fault, FaultyStore
from tests.support.spark.hooked import Died, HookedStore
from tests.support.spark.material import START_MS
from tests.support.spark.staging import PARTITIONS, QUERY, keys, new_store, stage, staged, stored
from tests.support.spark.upkeep import merge_everything

pytestmark = pytest.mark.spark


@pytest.fixture
def store() -> ObjectStore:
    return new_store()


def test_S07_nothing_is_visible_before_the_commit_and_everything_after_it(store: ObjectStore) -> None:
    parts = stage(store, QUERY, 5)
    assert stored(store) == []
    assert staged(store)
    store_once(store, QUERY, parts)
    assert sorted(stored(store)) == sorted(keys(5))
    assert staged(store) == []


def test_S07_a_retried_or_speculative_attempt_leaves_nothing_of_itself(store: ObjectStore) -> None:
    stage(store, QUERY, 5)  # the attempt that lost: Spark hands its message to nobody
    store_once(store, QUERY, stage(store, QUERY, 5))
    assert sorted(stored(store)) == sorted(keys(5))
    assert staged(store) == []


def test_S07_an_aborted_job_leaves_nothing(store: ObjectStore) -> None:
    give_up(store, QUERY, stage(store, QUERY, 5))
    assert staged(store) == []
    assert Ledger(store, QUERY).pending() is None
    assert stored(store) == []


def test_S07_the_same_version_again_is_stored_no_second_time(store: ObjectStore) -> None:
    for _ in range(3):
        store_once(store, QUERY, stage(store, QUERY, 5))
    assert sorted(stored(store)) == sorted(keys(5))
    store_once(store, Transaction("query 1", 4), stage(store, Transaction("query 1", 4), 4))
    assert sorted(stored(store)) == sorted(keys(5)), (
        "an older version comes from a driver that was thought dead"
    )
    store_once(store, Transaction("query 1", 6), stage(store, Transaction("query 1", 6), 6))
    store_once(store, Transaction("another", 5), stage(store, Transaction("another", 5), 7))
    assert sorted(stored(store)) == sorted(keys(5) + keys(6) + keys(7))


def moments(store: ObjectStore, transaction: Transaction = QUERY) -> int:
    hooked = HookedStore(store, lambda number: None)
    store_once(hooked, transaction, stage(store, transaction, 5))
    return hooked.moments


@pytest.mark.parametrize("runs", [("", ""), ("first", "second")])
def test_S07_a_driver_that_dies_at_any_moment_of_a_commit_is_followed_by_one_that_completes_it(
    runs: tuple[str, str],
) -> None:
    mine, next_one = (replace(QUERY, run=run) for run in runs)
    total = moments(new_store(), mine)
    deaths: set[int] = set()
    for fatal in range(total):
        store = new_store()

        def die(number: int, fatal: int = fatal) -> None:
            if number == fatal:
                deaths.add(fatal)
                raise Died

        with suppress(Died):  # partitions share a seal or not, so the last moment may not come
            store_once(HookedStore(store, die), mine, stage(store, mine, 5))
        # Spark runs the micro-batch again from its checkpoint: the same rows, staged again.
        store_once(store, next_one, stage(store, next_one, 5))
        assert sorted(stored(store)) == sorted(keys(5)), f"died at moment {fatal} of {total}"
        assert staged(store) == []
    assert len(deaths) > 10


@pytest.mark.parametrize("others_append", [False, True])
def test_S07_a_second_driver_at_any_moment_of_a_commit_changes_nothing(others_append: bool) -> None:
    total = moments(new_store())
    came: set[int] = set()
    for moment in range(total):
        store = new_store()

        def other(number: int, moment: int = moment, store: MemoryStore = store) -> None:
            if number == moment:
                came.add(moment)
                if others_append:
                    append_everywhere(store)  # so that the twin's segments stand one place further on
                store_once(store, QUERY, stage(store, QUERY, 5))
                store_once(store, Transaction("query 1", 6), stage(store, Transaction("query 1", 6), 6))

        first = stage(store, QUERY, 5)
        # What it staged may be swept by the one that took over: then it has lost, and says so.
        with suppress(logstore.ObjectNotFound):
            store_once(HookedStore(store, other), QUERY, first)
        values = [value for value in all_values(store) if value != b"later"]
        # Partitions share a seal or not, so the last moment may not come, and then the other one does not, either.
        expected = keys(5) + keys(6) if moment in came else keys(5)
        assert sorted(values) == sorted(expected), f"the other ran at moment {moment} of {total}"  # type: ignore[type-var]
    assert len(came) > 10


def test_S07_a_run_that_another_one_follows_at_any_moment_of_its_commit_changes_nothing() -> None:
    """As above, and the two are known to be two: the older one may be told so, and its batch stands all the same."""
    old, new = replace(QUERY, run="old"), replace(QUERY, run="new")
    total = moments(new_store(), old)
    came: set[int] = set()
    for moment in range(total):
        store = new_store()

        def other(number: int, moment: int = moment, store: MemoryStore = store) -> None:
            if number == moment:
                came.add(moment)
                store_once(store, new, stage(store, new, 5))

        with suppress(logstore.ObjectNotFound, Fenced):
            store_once(HookedStore(store, other), old, stage(store, old, 5))
        assert sorted(stored(store)) == sorted(keys(5)), f"the other ran at moment {moment} of {total}"
        refused = []
        for run in (replace(old, version=6), replace(new, version=6)):
            try:
                store_once(store, run, stage(store, run, 6))
            except Fenced:
                refused.append(run.run)
        # Before its first moment the older one has not said yet that it is there. The last one may not come (see above):
        # then the new one follows now, and finds its batch stored.
        assert refused == (["old"] if moment else ["new"]) if moment in came else refused == []


def test_S07_a_stream_with_a_copy_of_its_checkpoint_is_refused_and_not_skipped(store: ObjectStore) -> None:
    """Both queries come with batch 6, each with rows of its own: the number no longer says which ones are stored."""
    first, copy = Transaction("query 1", 5, "first"), Transaction("query 1", 6, "copy")
    store_once(store, first, stage(store, first, 5))
    store_once(store, copy, stage(store, copy, 6))
    parts = stage(store, replace(first, version=6), 7)
    with pytest.raises(Fenced, match=r"query 1: run copy of it has followed this one \(first\)"):
        store_once(store, replace(first, version=6), parts)
    give_up(store, replace(first, version=6), parts)
    assert staged(store) == []
    store_once(store, replace(copy, version=7), stage(store, replace(copy, version=7), 8))
    assert sorted(stored(store)) == sorted(keys(5) + keys(6) + keys(8))


def test_S07_a_stream_whose_checkpoint_was_put_back_is_refused_and_not_skipped(store: ObjectStore) -> None:
    for version in (5, 6):
        batch = Transaction("query 1", version, "first")
        store_once(store, batch, stage(store, batch, version))
    back = Transaction("query 1", 5, "second")
    with pytest.raises(Fenced, match="its batch 6 is stored, and this is batch 5"):
        store_once(store, back, stage(store, back, 7))
    again = Transaction("query 1", 6, "third")
    store_once(store, again, stage(store, again, 6))
    assert sorted(stored(store)) == sorted(keys(5) + keys(6)), "the last batch may be run again, by a new run"


def test_S07_a_ledger_remembers_the_last_runs_of_a_stream_and_not_all_there_ever_were(
    store: ObjectStore,
) -> None:
    sizes = []
    for number in range(200):
        batch = Transaction("query 1", number, f"run {number:03}")
        store_once(store, batch, [])
        sizes.append(len(store.get(batch.ledger)))
    assert sizes[-1] <= sizes[20] + 2, "and its batch number is longer"


def append_everywhere(store: ObjectStore, records: int = 1) -> None:
    with logstore.open(store, writer="shared") as opened:
        for number in range(PARTITIONS):
            opened.topic("out").partition(number).append([logstore.Record(b"later", b"x")] * records)


def test_S07_an_abort_after_a_commit_that_failed_half_way_keeps_what_the_plan_needs(
    store: ObjectStore,
) -> None:
    faulty = FaultyStore(store, seed=1)
    parts = stage(store, QUERY, 5)
    plan = make_plan(store, parts)
    assert Ledger(store, QUERY).begin(plan) == plan
    faulty.fail("put", prefix="topics/", with_=Fault.UNAVAILABLE)
    give_up(store, QUERY, parts)
    assert staged(store), "the plan stands: the next run publishes it"
    store_once(store, QUERY, [])
    assert sorted(stored(store)) == sorted(keys(5))
    assert staged(store) == []


def test_S07_an_abort_of_a_driver_that_was_thought_dead_takes_nothing_from_the_one_after_it(
    store: ObjectStore,
) -> None:
    """Both have run the micro-batch; the old one's job fails while the new one is just going to commit."""
    old, new = stage(store, QUERY, 5), stage(store, QUERY, 5)
    give_up(store, QUERY, old)
    store_once(store, QUERY, new)
    assert sorted(stored(store)) == sorted(keys(5))
    assert staged(store) == []


@pytest.mark.parametrize("version", [0, 1])
def test_C05_a_plan_that_comes_late_after_its_driver_gave_up_blocks_nobody(version: int) -> None:
    """What it names was removed with the abort: were it to stand, no later run could carry it out or get past it."""
    inner = new_store()
    faulty = FaultyStore(inner)
    if version:
        store_once(inner, replace(QUERY, version=0), stage(inner, replace(QUERY, version=0), 0))
    mine = replace(QUERY, version=version)
    parts = stage(inner, mine, version)
    hanging = faulty.fail("put", suffix="/ledger", times=None, with_=Delivery.LATE)
    with pytest.raises(Indeterminate):
        store_once(faulty, mine, parts)
    faulty.remove(hanging)
    give_up(faulty, mine, parts)
    assert faulty.deliver(suffix="/ledger")
    store_once(inner, mine, stage(inner, mine, version))
    assert sorted(stored(inner)) == sorted(key for batch in range(version + 1) for key in keys(batch))
    assert staged(inner) == []


def test_S07_lost_answers_and_refusals_of_every_put_end_in_one_copy() -> None:
    for seed in range(12):
        inner = new_store()
        faulty = FaultyStore(inner, seed=seed)
        faulty.random(put=0.4)
        parts = stage(inner, QUERY, 5)
        for _ in range(30):
            try:
                store_once(faulty, QUERY, parts)
                break
            except logstore.LogStoreError:
                continue
        faulty.heal()
        assert sorted(stored(inner)) == sorted(keys(5)), f"seed {seed}"


def test_S07_a_plan_is_found_again_behind_a_merge_that_took_its_segments_away(store: ObjectStore) -> None:
    parts = stage(store, QUERY, 5)
    plan = Ledger(store, QUERY).begin(make_plan(store, parts))
    assert plan is not None
    publish(store, QUERY, plan)  # and dies before it can say so
    with logstore.open(store, writer="shared") as opened:
        for number in range(PARTITIONS):
            for n in range(6):
                opened.topic("out").partition(number).append(logstore.Record(b"later", b"%d" % n))
    for number in range(PARTITIONS):
        incarnation = Catalog(store).find("out").incarnation
        merge_partition(store, incarnation, number)
    before = all_values(store)
    store_once(store, QUERY, stage(store, QUERY, 5))
    assert all_values(store) == before
    assert sorted(value for value in before if value != b"later") == sorted(keys(5))  # type: ignore[type-var]


def all_values(store: ObjectStore) -> list[bytes | None]:
    with logstore.open(store, writer="read_only") as opened:
        topic = opened.topic("out")
        return [record.value for n in range(PARTITIONS) for record in topic.partition(n).records()]


def merge_partition(store: ObjectStore, incarnation: str, number: int) -> None:
    assert merge_everything(store, PartitionPaths("out", incarnation, number)) > 1


def test_S07_other_producers_that_append_meanwhile_are_not_disturbed(store: ObjectStore) -> None:
    with logstore.open(store, writer="shared") as opened:
        topic = opened.topic("out")

        def append(number: int) -> None:
            topic.partition(number % PARTITIONS).append(logstore.Record(b"%d" % number, b"x"))

        store_once(HookedStore(store, append), QUERY, stage(store, QUERY, 5))
    values = all_values(store)
    assert sorted(value for value in values if b"-" in (value or b"")) == sorted(keys(5))  # type: ignore[type-var]
    assert len({value for value in values if b"-" not in (value or b"")}) == len(values) - 60


def test_S07_an_exclusive_writer_that_takes_over_during_the_commit_stops_it(store: ObjectStore) -> None:
    with logstore.open(store, take_over=True) as owner:

        def take_over(number: int) -> None:
            if number == 2:
                for partition in range(PARTITIONS):
                    owner.topic("out").partition(partition).append(b"mine")

        store_once(HookedStore(store, lambda number: None), Transaction("query 1", 0), stage(store, QUERY, 1))
        with pytest.raises(Fenced, match="took the partition over"):
            store_job(
                HookedStore(store, take_over),
                Transaction("job", 0),
                stage(store, Transaction("job", 0), 2, tasks=9),
            )


def test_S07_a_topic_recreated_with_fewer_partitions_before_the_commit_is_an_error_and_takes_no_row(
    store: ObjectStore,
) -> None:
    """Tasks have sorted their rows to three partitions: what went to a third one nobody would ever read."""
    parts = stage(store, QUERY, 5)
    with logstore.open(store) as opened:
        opened.delete_topic("out")
        opened.create_topic("out", partitions=2)
    with pytest.raises(
        logstore.UnknownTopic, match=r"'out' has partitions 0 to 1, and rows are staged for 2"
    ):
        store_once(store, QUERY, parts)
    with logstore.open(store, writer="read_only") as opened:
        assert [list(opened.topic("out").partition(number).records()) for number in range(2)] == [[], []]
    store_once(store, QUERY, stage(store, QUERY, 5, partitions=2))
    with logstore.open(store, writer="read_only") as opened:
        found = [record.value for n in range(2) for record in opened.topic("out").partition(n).records()]
    assert sorted(found) == sorted(keys(5))  # type: ignore[type-var]


def test_S07_a_topic_recreated_while_a_plan_stands_gets_its_rows_once(store: ObjectStore) -> None:
    """The plan says from which offset of the old topic on its rows can be found: the new one has them further down."""
    append_everywhere(store, 100)
    plan = make_plan(store, stage(store, QUERY, 5))
    assert Ledger(store, QUERY).begin(plan) == plan
    with logstore.open(store) as opened:
        opened.delete_topic("out")
        opened.create_topic("out", partitions=PARTITIONS)
    publish(store, QUERY, plan)  # and its driver dies before it can say so
    store_once(store, QUERY, stage(store, QUERY, 5))
    assert sorted(stored(store)) == sorted(keys(5))


def test_S07_a_task_with_thousands_of_partitions_stages_what_it_holds_before_it_holds_much(
    store: ObjectStore,
) -> None:
    """No partition has enough for a batch of its own, and all of them together would take all memory."""
    row_bytes, partitions = 40_000, 2_000
    staged_after: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for first in range(0, partitions, 100):
            staged_after.append(sum(info.size for info in store.list(SPARK_PREFIX)))
            numbers = range(first, first + 100)
            yield pa.RecordBatch.from_pydict(
                {
                    "value": pa.array(
                        [b"%d" % number * (row_bytes // len(str(number))) for number in numbers]
                    ),
                    "partition": pa.array(numbers, pa.int32()),
                }
            )

    writer = TaskWriter(
        store, QUERY, 0, RowSorter({"out": partitions}, "out", 0), codec_id=0, max_batch_bytes=1 << 20
    )
    parts = writer.write(rows())
    held = [100 * row_bytes * number - at_rest for number, at_rest in enumerate(staged_after)]
    assert max(held) < PENDING_BYTES + 200 * row_bytes
    assert sorted(part.partition for part in parts) == list(range(partitions))


def test_S07_large_parts_become_several_segments_and_the_pieces_are_the_same_each_time(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SEGMENT_BYTES", 3000)
    store_once(store, QUERY, stage(store, QUERY, 5))
    assert sorted(stored(store)) == sorted(keys(5))
    incarnation = Catalog(store).find("out").incarnation
    segments = [info for info in store.list(f"topics/out/{incarnation}/") if info.key.endswith(".seg")]
    assert all(info.size < 3000 + 1600 for info in segments)


def test_S07_staged_bytes_that_were_damaged_are_not_published(store: ObjectStore) -> None:
    parts = stage(store, QUERY, 5)
    data = bytearray(store.get(parts[0].key))
    data[80] ^= 1
    store.put(parts[0].key, bytes(data))
    with pytest.raises(CorruptData) as caught:
        store_once(store, QUERY, parts)
    assert caught.value.key == parts[0].key


def test_S07_what_was_staged_for_a_version_goes_with_it_and_with_later_ones(store: ObjectStore) -> None:
    (first, *_) = {part.key for part in stage(store, QUERY, 5, tasks=1)}
    sweep(store, Transaction("query 1", 4))
    assert staged(store) == [first], "of an older version nothing is left"
    sweep(store, QUERY)
    assert staged(store) == []


def test_S07_headers_timestamps_and_tombstones_are_kept(store: ObjectStore) -> None:
    pair = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"v", None], pa.binary()),
            "key": pa.array([b"k", b"k"], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None], pair),
            "timestamp": pa.array([START_MS * 1000 + 999, START_MS * 1000], pa.timestamp("us", tz="UTC")),
        }
    )
    writer = TaskWriter(
        store, QUERY, 0, RowSorter({"out": PARTITIONS}, "out", 0), codec_id=0, max_batch_bytes=1 << 20
    )
    store_once(store, QUERY, writer.write([rows]))
    with logstore.open(store, writer="read_only") as opened:
        found = list(opened.topic("out").partition(partition_for_key(b"k", PARTITIONS)).records())
    assert found == [
        logstore.Record(b"v", b"k", (("h", b"1"), ("n", None)), START_MS, 0),
        logstore.Record(None, b"k", (), START_MS, 1),
    ]


@pytest.mark.parametrize("missing", ["sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"])
def test_S07_a_stream_whose_run_is_not_known_is_refused_because_copies_of_its_checkpoint_could_not_be(
    missing: str,
) -> None:
    told = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7", "spark.jobGroup.id": "r"}
    context: Any = SimpleNamespace(getLocalProperty=told.get)
    assert transaction_of(context) == Transaction("query q", 7, "r")
    told[missing] = ""
    with pytest.raises(RuntimeError, match=f"{missing}=''"):
        transaction_of(context)
