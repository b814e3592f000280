"""Turns: fairness among writers that do not know each other, simulated upload by upload."""

from __future__ import annotations

import random

from logstore.engine.turns import Turns

PUT_S = 0.040


def turns(name: bytes) -> Turns:
    made = Turns(name, random.Random(name[0]))
    made.took(PUT_S)
    return made


def test_W11_the_one_whose_segment_is_oldest_goes_first_and_the_others_look() -> None:
    writers = {name: turns(name) for name in (b"a", b"b", b"c")}
    for seq, name in enumerate((b"b", b"c", b"a")):
        for writer in writers.values():
            writer.saw(name, seq, now=seq * PUT_S)
    assert {name: writer.ahead for name, writer in writers.items()} == {b"b": 0, b"c": 1, b"a": 2}
    assert writers[b"b"].wait(3 * PUT_S) == 0.0
    assert 0 < writers[b"c"].wait(3 * PUT_S) < PUT_S / 8
    assert 0 < writers[b"a"].wait(3 * PUT_S) < PUT_S / 4


def test_W13_a_dead_writer_is_waited_for_once() -> None:
    """b is next and dead: c waits two and a half uploads, then goes, and from then on b is left out."""
    c = turns(b"c")
    c.saw(b"b", 0, now=0.0)
    c.saw(b"c", 1, now=0.0)
    assert c.wait(2.4 * PUT_S) > 0
    assert c.wait(2.6 * PUT_S) == 0.0
    c.saw(b"d", 2, now=3 * PUT_S)
    c.saw(b"c", 3, now=4 * PUT_S)
    assert c.ahead == 1  # d, and not b
    c.saw(b"b", 4, now=5 * PUT_S)  # it was only slow: it is back, behind us
    assert c.ahead == 1


def test_W13_several_dead_writers_are_passed_one_after_the_other() -> None:
    last = turns(b"z")
    for seq, name in enumerate((b"a", b"b", b"c", b"z")):
        last.saw(name, seq, now=0.0)
    now, waited = 0.0, 0
    while (wait := last.wait(now)) > 0:
        now += wait
        waited += 1
        assert waited < 1000
    assert 3 * 2.5 * PUT_S <= now <= 3 * 3.0 * PUT_S


def test_W13_a_newcomer_and_a_cheap_store_do_not_wait() -> None:
    newcomer = turns(b"n")
    for seq in range(10):
        newcomer.saw(b"a", seq, now=0.0)
    assert newcomer.wait(0.0) == 0.0
    cheap = Turns(b"c", random.Random(0))
    cheap.took(0.0001)
    cheap.saw(b"c", 0, now=0.0)
    cheap.saw(b"d", 1, now=0.0)
    cheap.saw(b"c", 2, now=0.0)
    assert cheap.wait(0.0) == 0.0


def test_W13_one_that_seems_alone_pauses_now_and_then() -> None:
    alone = turns(b"a")
    pauses = []
    for seq in range(12):
        now = seq * PUT_S
        alone.saw(b"a", seq, now)
        pauses.append(alone.wait(now) > 0)
    assert pauses == [True, False, False, False] * 3


def test_the_names_of_those_who_left_are_forgotten() -> None:
    watcher = turns(b"w")
    for seq in range(1000):
        watcher.saw(b"%d" % seq, seq, now=0.0)
    watcher.saw(b"w", 1000, now=0.0)
    assert watcher.ahead <= 65
