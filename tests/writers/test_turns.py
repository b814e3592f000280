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
    assert [name for name, writer in writers.items() if writer.is_ours(3 * PUT_S)] == [b"b"]
    for name, soon in ((b"c", PUT_S / 8), (b"a", PUT_S / 4)):
        assert writers[name].wait(3 * PUT_S) == 0.0  # an upload's time has passed: look
        writers[name].found_nothing(3 * PUT_S)
        assert 0 < writers[name].wait(3 * PUT_S) < soon


def test_W11_nobody_looks_before_an_uploads_time_has_passed_and_the_next_in_line_looks_often_then() -> None:
    b, c = turns(b"b"), turns(b"c")
    for writer in (b, c):
        for _ in range(50):
            writer.took(PUT_S)  # it always takes the same time
        for seq, name in enumerate((b"a", b"b", b"c")):
            writer.saw(name, seq, now=0.0)
            writer.found_nothing(0.0)
        writer.saw(b"z", 3, now=0.0)
    assert (b.ahead, c.ahead) == (1, 2)
    for writer, looks in ((b, range(2, 6)), (c, range(1, 3))):
        now, looked = 0.0, []
        while now < 1.05 * PUT_S:  # then the segment in front stands
            now += writer.wait(now)
            looked.append(now)
            writer.found_nothing(now)
        assert looked[0] > 0.95 * PUT_S
        assert len(looked) in looks


def test_W11_where_uploads_differ_the_looks_begin_earlier() -> None:
    b = turns(b"b")
    for number in range(50):
        b.took(PUT_S * (0.6 if number % 2 else 1.4))
    b.saw(b"a", 0, now=0.0)
    b.saw(b"b", 1, now=0.0)
    assert b.wait(0.0) < 0.1 * PUT_S


def test_W13_a_dead_writer_is_waited_for_once() -> None:
    """b is next and dead: c waits two and a half uploads, then goes, and from then on b is left out."""
    c = turns(b"c")
    c.saw(b"b", 0, now=0.0)
    c.saw(b"c", 1, now=0.0)
    assert not c.is_ours(2.4 * PUT_S)
    assert c.is_ours(2.6 * PUT_S)
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
    while not last.is_ours(now):
        now += last.wait(now)
        last.found_nothing(now)
        waited += 1
        assert waited < 1000
    assert 3 * 2.5 * PUT_S <= now <= 3 * 3.0 * PUT_S


def test_W13_a_newcomer_and_a_cheap_store_do_not_wait() -> None:
    newcomer = turns(b"n")
    for seq in range(10):
        newcomer.saw(b"a", seq, now=0.0)
    assert newcomer.is_ours(0.0)
    cheap = Turns(b"c", random.Random(0))
    cheap.took(0.0001)
    cheap.saw(b"c", 0, now=0.0)
    cheap.saw(b"d", 1, now=0.0)
    cheap.saw(b"c", 2, now=0.0)
    assert cheap.is_ours(0.0)


def test_W13_one_that_seems_alone_pauses_now_and_then() -> None:
    alone = turns(b"a")
    pauses = []
    for seq in range(12):
        now = seq * PUT_S
        alone.saw(b"a", seq, now)
        pauses.append(not alone.is_ours(now))
        assert alone.is_ours(now + alone.wait(now))
    assert pauses == [True, False, False, False] * 3


def test_the_names_of_those_who_left_are_forgotten() -> None:
    watcher = turns(b"w")
    for seq in range(1000):
        watcher.saw(b"%d" % seq, seq, now=0.0)
    watcher.saw(b"w", 1000, now=0.0)
    assert watcher.ahead <= 65
