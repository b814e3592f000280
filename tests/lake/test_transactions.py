"""T02 and B14: a table holds what transactions have committed, each record once, and nothing that was aborted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logstore.lake import Materializer, table
from logstore.objects import LocalStore
from logstore.testing import ManualClock
from tests.support.engine.producers import Producers, record
from tests.support.engine.upkeep import open_store
from tests.support.lake.tables import FORMATS, rows_of, target


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("seed", range(2))
def test_T02_B14_a_table_of_transactions_holds_committed_records_alone(
    form: str, seed: int, tmp_path: Path
) -> None:
    """Copied again and again while producers go on, by one that stays and by others that have just come; and read together
    with the log behind its end."""
    rng, clock = random.Random(seed), ManualClock()
    objects, where = LocalStore(tmp_path / "log"), target(form, tmp_path / "lake")
    with open_store(objects, clock) as store:
        topic = store.create_topic("t", partitions=2)
        of = [Producers(topic.partition(number)) for number in range(2)]
        for producers in of:
            producers.store_snapshot(objects)
        stays = Materializer(topic, where)
        for turn in range(60):
            producers, pid = rng.choice(of), rng.randrange(3)
            if rng.random() < 0.65:
                producers.send(pid, *[record("k", b"%d-%d" % (turn, n)) for n in range(rng.randrange(1, 4))])
            elif rng.random() < 0.8:
                producers.end(pid, commit=rng.random() < 0.5)
            else:
                producers.plain(record("k", b"plain %d" % turn))
            if turn % 12 == 5:
                (stays if turn % 24 == 5 else Materializer(topic, where)).run_once()
            if turn % 20 == 19:
                both = table(topic, where, ["partition", "offset", "value"]).read_all()
                assert _sorted(both.to_pylist()) == _committed(of)
        progress = stays.run_once()
        assert _sorted(rows_of(where).select(["partition", "offset", "value"]).to_pylist()) == _committed(of)
        assert progress.offsets == {number: producers.stable for number, producers in enumerate(of)}
        assert progress.behind == 0
        for producers in of:  # what was open is decided: it is copied now, or never
            for pid in list(producers.open):
                producers.end(pid, commit=pid % 2 == 0)
        stays.run_once()
        assert _sorted(rows_of(where).select(["partition", "offset", "value"]).to_pylist()) == _committed(of)


def _sorted(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def _committed(of: list[Producers]) -> list[tuple[object, ...]]:
    return [
        (number, each.offset, each.value)
        for number, producers in enumerate(of)
        for each in producers.committed_below(producers.stable)
    ]
