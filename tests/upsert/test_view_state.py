"""The upsert view: retractions, drops, hydration, standby, memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.errors import (
    AppendTimeout,
    CorruptData,
    Fenced,
    OffsetOutOfRange,
)
from logstore.objects import MemoryStore
from logstore.store import Store
from logstore.testing import GatedStore
from logstore.upsert import UpsertView, encode_change
from tests.support.patience import PATIENCE_S
from tests.support.upsert import TOPIC, Views, changes


def test_U04_retractions_carry_the_old_value(view: Views, objects: MemoryStore) -> None:
    mine = view()
    for time, value in enumerate([b"1", b"2", b"2", None, None, b"3"]):
        mine.apply(b"k", value, order=1, time=time)
        mine.apply(b"absent", None, order=1, time=time)
    mine.advance(6)
    assert changes(objects) == [
        (b"k", None, b"1", 0),
        (b"k", b"1", b"2", 1),
        (b"k", b"2", None, 3),  # nothing for the equal value at 2, nor for the second deletion at 4
        (b"k", None, b"3", 5),
    ]
    assert (mine.get(b"k"), mine.get(b"absent"), len(mine)) == (b"3", None, 1)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            encode_change(b"other", b"2", 1),
            r"b'k' at time 1: the log takes back b'other', but the value is b'1'",
        ),
        (encode_change(None, b"2", 1), r"b'k' at time 1: the log takes back None"),
        (encode_change(b"1", None, 7), r"b'k' changes at time 7, outside of [01] to 2"),
        (b"no change at all", "holds something else"),
        (b"", "too short"),
    ],
)
def test_U04_a_log_that_does_not_add_up_raises_with_key_and_time(
    view: Views, objects: MemoryStore, stores: list[Store], value: bytes, why: str
) -> None:
    mine = view()
    mine.apply(b"k", b"1", order=1, time=0)
    mine.advance(1)
    stores.append(store := logstore.open(objects))
    vandal = store.topic(TOPIC).partition(0).replicated("vandal")
    vandal.submit_exactly([b"k"], [value], 1, 2).result(PATIENCE_S)
    with pytest.raises(CorruptData, match=why):
        mine.refresh()
    with pytest.raises(CorruptData, match=why):
        mine.get(b"k")
    with pytest.raises(CorruptData, match=why):
        view("fresh")


@pytest.mark.usefixtures("begin_in_own_chains")
def test_U05_one_drain_emits_at_most_once_for_a_key_and_time(view: Views, objects: MemoryStore) -> None:
    """The commit's outcome is not known, so the drain is repeated: the change stands once."""
    gated = GatedStore(objects)
    mine = view("mine", gated)
    mine.apply(b"k", b"1", order=1, time=0)
    with gated.hold("put", suffix=".seg") as gate:
        for _ in range(3):
            with pytest.raises(AppendTimeout):
                mine.advance(1, timeout=0.01)
        gate.wait_held()
    mine.apply(b"k", b"2", order=1, time=1)
    assert mine.advance(2) == 2
    assert changes(objects) == [(b"k", None, b"1", 0), (b"k", b"1", b"2", 1)]
    assert mine.dropped == 0


def test_U06_drop_below_is_continuous(view: Views, objects: MemoryStore) -> None:
    """A peer overtakes again and again, after we were hydrated: each time what it stored is dropped here."""
    mine, peer = view("mine"), view("peer")
    for time in range(10):
        update = (b"k%d" % (time % 3), b"%d" % time, 1, time)
        mine.apply_many([update])
        peer.apply_many([update])
        (peer if time % 2 else mine).advance(time + 1)
        mine.refresh()
    assert mine.advance(10) == 10
    assert mine.dropped == 5
    assert [change[3] for change in changes(objects)] == list(range(10))
    mine.apply(b"late", b"x", order=1, time=3)
    assert (mine.dropped, mine.stashed) == (6, 0)


def test_U07_hydration_and_snapshots(view: Views) -> None:
    first = view("first")
    states: list[dict[bytes, bytes]] = [{}]
    for time in range(20):
        state = dict(states[-1])
        key = b"k%d" % (time % 4)
        if time % 5 == 4:
            state.pop(key, None)
            first.apply(key, None, order=1, time=time)
        else:
            state[key] = b"%d" % time
            first.apply(key, b"%d" % time, order=1, time=time)
        states.append(state)
    first.advance(20)
    second = view("second")
    assert (second.frontier, second.snapshot(), dict(second.items())) == (20, states[20], states[20])
    assert [second.snapshot(at) for at in range(21)] == states
    for at in (-1, 21):
        with pytest.raises(ValueError, match="holds the times 0 to 20"):
            second.snapshot(at)


def test_U06_U07_a_standby_holds_its_input_and_goes_on_when_promoted(
    view: Views, objects: MemoryStore
) -> None:
    active, standby = view("active"), view("standby", standby=True)
    for time in range(6):
        update = [(b"k", b"%d" % time, 1, time)]
        active.apply_many(update)
        standby.apply_many(update)
    active.advance(4)
    assert standby.advance(6) == 4  # it stores nothing, and drops what the active one has stored
    assert (standby.get(b"k"), standby.dropped, standby.stashed) == (b"3", 4, 2)
    assert standby.promote() == 6
    assert standby.get(b"k") == b"5"
    with pytest.raises(Fenced):
        active.advance(6)
    assert [new for _, _, new, _ in changes(objects)] == [b"%d" % time for time in range(6)]


def test_health_of_a_view(view: Views) -> None:
    mine, peer = view("mine"), view("peer")
    peer.advance(7)
    mine.apply(b"k", b"v", order=1, time=3)
    mine.apply(b"k", b"v", order=1, time=9)
    mine.refresh()
    seen = mine.health()
    assert (seen["frontier"], seen["lag"], seen["dropped_below_upper"], seen["held_at_time"]) == (7, 7, 1, 9)
    assert (seen["writer_id"], seen["mode"], seen["state"]) == ("mine", "replicated", "writing")
    mine.advance(10)
    seen = mine.health()
    assert (seen["lag"], seen["live_keys"], seen["held_at_time"]) == (0, 1, None)


def test_iterating_while_the_view_moves_is_an_error(view: Views) -> None:
    mine = view()
    mine.apply_many((b"%04d" % number, b"x", 1, 0) for number in range(2500))
    mine.advance(1)
    items = mine.items()
    next(items)
    mine.apply(b"new", b"x", order=1, time=1)
    mine.advance(2)
    with pytest.raises(RuntimeError, match="moved from 1 to 2"):
        list(items)


def test_values_spill_to_disk_beyond_the_limit(view: Views, tmp_path: Path) -> None:
    """4,000 keys of 100 bytes do not fit 100 kB: they live in a file, the answers stay the same, memory stays bounded."""
    mine = view("mine", max_memory_bytes=100_000, spill_dir=tmp_path)
    wanted: dict[bytes, bytes] = {}
    for time in range(8):
        updates: list[tuple[bytes, bytes | None]] = [
            (b"%05d" % (number * 7 % 4000), b"%d-%d" % (time, number) + b"x" * 90) for number in range(1000)
        ]
        updates += [
            (b"%05d" % (number * 3 % 4000), None) for number in range(time, 1000, 17)
        ]  # these win: order 2
        for order, (key, value) in enumerate(updates):
            mine.apply(key, value, order=order, time=time)
            if value is None:
                wanted.pop(key, None)
            else:
                wanted[key] = value
        mine.advance(time + 1)
        assert mine._values._hot_bytes <= 100_000
    assert mine._values._file is not None
    assert dict(mine.items()) == wanted == mine.snapshot()
    assert len(mine) == len(wanted)
    assert all(mine.get(key) == value for key, value in list(wanted.items())[:50])
    assert mine.get(b"no such key") is None
    assert list(tmp_path.iterdir())
    mine.close()
    assert not list(tmp_path.iterdir())


def test_a_log_cut_by_retention_is_refused(view: Views, objects: MemoryStore, stores: list[Store]) -> None:
    mine = view()
    for time in range(3):
        mine.apply(b"k", b"%d" % time, order=1, time=time)
        mine.advance(time + 1)
    stores.append(store := logstore.open(objects))
    log = store.topic(TOPIC).partition(0)
    log._internal.maintenance.delete_before(2, 0)
    stores.append(again := logstore.open(objects))
    with pytest.raises(OffsetOutOfRange, match="retention"):
        UpsertView(again.topic(TOPIC).partition(0), "late")
