"""The upsert view: updates into a million live keys, and what a wake-up costs when nothing is due.

Updates are counted for each second of CPU time: the view works in one thread, and the machine has others to serve.
"""

from __future__ import annotations

import random
import time

import pytest

import logstore
from benchmarks.measure import Figures, in_turns, own_garbage_alone
from logstore.objects import MemoryStore
from logstore.upsert import UpsertView

SUITE = "upsert"
BATCH = 10_000


@pytest.fixture(scope="module")
def live_keys(quick: bool) -> int:
    return 200_000 if quick else 1_000_000


def test_updates_into_live_keys(live_keys: int, figures: Figures, quick: bool) -> None:
    """Applied, compared, committed, read back from the log and folded: all of it is in the figure."""
    rounds = 10 if quick else 40
    rng = random.Random(1)
    keys = [b"account-%09d" % number for number in range(live_keys)]
    with logstore.open(MemoryStore(), max_buffered_bytes=1 << 30) as store:
        view = UpsertView(store.create_topic("t").partition(0), "bench")
        began = time.process_time()
        for start in range(0, live_keys, BATCH):
            view.apply_many((key, b"balance-0", 0, start) for key in keys[start : start + BATCH])
            view.advance(start + 1)
        inserted = live_keys / (time.process_time() - began)
        seconds, wanted, at = [], dict.fromkeys(keys, b"balance-0"), live_keys
        with own_garbage_alone():
            for number in range(rounds):
                updates = [
                    (rng.choice(keys), b"balance-%d" % (number * BATCH + order), order, at + number)
                    for order in range(BATCH)
                ]
                began = time.process_time()
                view.apply_many(updates)
                view.advance(at + number + 1)
                seconds.append(time.process_time() - began)
                wanted.update((key, value) for key, value, _, _ in updates)
        assert view.snapshot() == wanted
        assert view.dropped == 0
    figures.add(
        SUITE,
        f"updates into {live_keys:,} live keys, a CPU second",
        BATCH / min(seconds) / 1e3,
        "k updates/s",
        target=200.0,
        median=round(BATCH / sorted(seconds)[rounds // 2] / 1e3, 1),
        inserts=round(inserted / 1e3, 1),
    )


def test_a_wake_up_with_nothing_eligible(figures: Figures, quick: bool) -> None:
    """10 updates wait, or 1,000,000: the same call, the same cost."""
    many = 100_000 if quick else 1_000_000
    calls = 20_000
    with logstore.open(MemoryStore()) as store:
        topic = store.create_topic("t", partitions=2)
        views = [UpsertView(topic.partition(number), "bench") for number in range(2)]
        for view, backlog in zip(views, (10, many), strict=True):
            view.apply_many((b"%d" % number, b"x", 0, 1000 + number) for number in range(backlog))
            view.advance(5)

        def wake(view: UpsertView) -> None:
            for _ in range(calls):
                view.drain()

        found = in_turns({"few": lambda: wake(views[0]), "many": lambda: wake(views[1])}, 5)
        assert [view.stashed for view in views] == [10, many]
    figures.add(
        SUITE,
        f"a wake-up with nothing eligible: {many:,} stashed to 10",
        found["many"].best / found["few"].best,
        "×",
        target=1.5,
        lower_is_better=True,
        microseconds=round(found["many"].best / calls * 1e6, 2),
    )
