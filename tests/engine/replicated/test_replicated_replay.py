"""A range that was stored before its writer looked: by a peer that came first, by the writer itself, or before a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

import logstore
from logstore.engine.replicated.divergence import LOOK_BACK
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.engine.replicated.source_ranges import Applied
from logstore.errors import DivergentWriters
from logstore.objects import MemoryStore
from logstore.testing import Fault, FaultyStore
from tests.support.patience import PATIENCE_S

Writers = Callable[[str], ReplicatedWriter]


@pytest.fixture
def objects() -> FaultyStore:
    """The way of the writer "mine" to the store: what a peer does, also in the background, is not counted."""
    return FaultyStore(MemoryStore())


@pytest.fixture
def writer(objects: FaultyStore) -> Iterator[Writers]:
    opened: list[logstore.Store] = []

    def open_one(name: str) -> ReplicatedWriter:
        where = objects if name == "mine" else objects.inner
        opened.append(store := logstore.open(where, probe_interval=0.001, follow_interval=0.001))
        return store.create_topic("t", exist_ok=True).partition(0).replicated(name)

    yield open_one
    for store in opened:
        store.close(timeout=1)


def source(lower: int, upper: int) -> list[bytes]:
    return [b"%d" % number for number in range(lower, upper)]


def feed(one: ReplicatedWriter, *bounds: int) -> list[Applied]:
    pairs = pairwise(bounds)
    return [one.compare_and_append(source(lower, upper), lower, upper) for lower, upper in pairs]


def gets_of_segments(objects: FaultyStore) -> int:
    return objects.count("get", suffix=".seg")


def test_W10_other_records_than_a_peer_stored_before_we_came_are_divergence(writer: Writers) -> None:
    feed(writer("peer"), 0, 2, 5)
    mine = writer("mine")
    assert mine.upper() == 5
    with pytest.raises(DivergentWriters, match="source offsets 2 to 5"):
        mine.compare_and_append([b"0", b"1", b"2", b"three", b"4"], 0, 5)


def test_W10_other_records_than_we_stored_ourselves_are_divergence(writer: Writers) -> None:
    mine = writer("mine")
    feed(mine, 0, 2, 5)
    with pytest.raises(DivergentWriters, match="source offsets 0 to 2"):
        mine.compare_and_append([b"0", b"one"], 0, 2)


def test_W10_a_range_that_was_compared_once_is_compared_again(writer: Writers) -> None:
    feed(writer("peer"), 0, 2, 5)
    mine = writer("mine")
    assert [applied.by for applied in feed(mine, 0, 2, 5)] == ["peer", "peer"]
    with pytest.raises(DivergentWriters, match="source offsets 0 to 2"):
        mine.compare_and_append([b"zero", b"1"], 0, 2)


def test_W10_an_honest_replay_is_dropped_however_it_is_cut_and_goes_on(writer: Writers) -> None:
    feed(writer("peer"), 0, 3, 4, 9)
    mine = writer("mine")
    assert [applied.by for applied in feed(mine, 0, 1, 7, 9, 12)] == ["peer", "peer", "peer", "us"]
    assert [applied.by for applied in feed(mine, 0, 4, 12)] == ["peer", "peer"]
    assert (mine.upper(), mine.dropped) == (12, 9 + 12)


def test_W10_a_writer_that_goes_on_at_the_upper_looks_nothing_up(
    writer: Writers, objects: FaultyStore
) -> None:
    feed(writer("peer"), 0, 2, 5)
    mine = writer("mine")
    mine.upper()
    objects.forget_calls()
    assert feed(mine, 5, 6, 7) == [Applied("us", 6), Applied("us", 7)]
    assert gets_of_segments(objects) == 0


def test_W10_a_long_replay_looks_up_the_last_segments_and_compares_those(
    writer: Writers, objects: FaultyStore
) -> None:
    count = 2 * LOOK_BACK
    feed(writer("peer"), *range(count + 1))
    mine = writer("mine")
    mine.upper()
    objects.forget_calls()
    assert {applied.by for applied in feed(mine, *range(count))} == {"peer"}
    assert gets_of_segments(objects) == LOOK_BACK
    with pytest.raises(DivergentWriters, match=f"source offsets {count - 1} to {count}"):
        mine.compare_and_append([b"another"], count - 1, count)


def test_W10_a_look_up_that_fails_is_tried_again(writer: Writers, objects: FaultyStore) -> None:
    feed(writer("peer"), 0, 2)
    mine = writer("mine")
    mine.upper()
    objects.forget_calls()
    objects.fail("get", suffix=".seg", times=8, with_=Fault.UNAVAILABLE)
    with pytest.raises(DivergentWriters):
        mine.compare_and_append([b"0", b"one"], 0, 2)
    assert gets_of_segments(objects) > 8


def test_W10_a_range_is_not_forgotten_when_a_store_fails_in_its_own_words(
    writer: Writers, objects: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(writer("peer"), 0, 2)
    mine = writer("mine")
    mine.upper()
    get, failures = objects.inner.get, iter([RuntimeError("not one of ours")])

    def fail_once(key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key.endswith(".seg") and (error := next(failures, None)) is not None:
            raise error
        return get(key, start, end)

    monkeypatch.setattr(objects.inner, "get", fail_once)
    assert mine.compare_and_append(source(0, 2), 0, 2, timeout=PATIENCE_S) == Applied("peer", 2)
    assert next(failures, None) is None


@pytest.mark.parametrize("manifest", [b"damaged", None], ids=["damaged", "missing"])
def test_W14_the_upper_outlives_a_merge_with_another_writers_segments_and_the_manifest(
    manifest: bytes | None,
) -> None:
    """Without the manifest the merged objects are all there is; the newest is of a writer that knows no source."""
    objects = MemoryStore()
    with logstore.open(objects) as store:
        feed(store.create_topic("t").partition(0).replicated("mine"), *range(6))
    with logstore.open(objects) as store:
        log = store.topic("t").partition(0)
        for number in range(10):
            log.append(b"exclusive %d" % number)
            log._internal.maintenance.compact(log._internal.now_ms, bytes([number]) * 16)
        objects.delete(log._internal.paths.manifest)
        if manifest is not None:
            objects.put(log._internal.paths.manifest, manifest)
    with logstore.open(objects) as store:
        again = store.topic("t").partition(0).replicated("mine")
        assert again.upper() == 5
        assert feed(again, 3, 5, 6) == [Applied("peer", 5), Applied("us", 6)]
        stored = [record.value for record in store.topic("t").partition(0).records()]
    assert stored == [*source(0, 5), *(b"exclusive %d" % number for number in range(10)), b"5"]
