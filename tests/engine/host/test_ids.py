"""The ids of what is written: no two are the same, in whatever process, and few draws make many."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.engine.host.ids import ID_SIZE, Ids


class Counted(random.SystemRandom):
    draws = 0

    def randbytes(self, n: int) -> bytes:
        self.draws += 1
        return super().randbytes(n)


def test_one_draw_makes_the_ids_of_a_whole_entry() -> None:
    rng = Counted()
    ids = Ids(rng)
    drawn = {ids.new() for _ in range(64)}
    assert len(drawn) == 64
    assert {len(one) for one in drawn} == {ID_SIZE}
    assert rng.draws == 1


def test_threads_get_different_ids() -> None:
    ids = Ids(random.SystemRandom())
    with ThreadPoolExecutor(4) as pool:
        drawn = [
            one for some in pool.map(lambda _: [ids.new() for _ in range(500)], range(8)) for one in some
        ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork there is no such child")
def test_a_forked_child_has_none_of_its_parents_ids() -> None:
    """What was drawn before the fork is in both processes: the same id would make two writers one."""
    ids = Ids(random.SystemRandom())
    ids.new()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"".join(ids.new() for _ in range(100)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        theirs = told.read()
    os.waitpid(child, 0)
    assert len(theirs) == 100 * ID_SIZE
    ours = {ids.new() for _ in range(100)}
    assert not ours & {theirs[at : at + ID_SIZE] for at in range(0, len(theirs), ID_SIZE)}
