"""The history checker must bite: each promise has a history that keeps it and one that breaks it by a single event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from logstore.format.batches.record import Record
from logstore.testing import History, HistoryViolation, check_history
from logstore.testing.history_events import Recovered


@dataclass
class Seen:
    """What a read gave."""

    found: list[tuple[int, bytes]]
    next_offset: int
    low_watermark: int
    durable_high_watermark: int
    buffered_high_watermark: int

    def records(self) -> Iterator[Record]:
        return iter(Record(value, None, (), None, offset) for offset, value in self.found)


def appended(history: History, process: str, ack: str, offset: int | None, *values: bytes) -> None:
    with history.append(process, values, ack) as op:  # type: ignore[arg-type]
        if offset is not None:
            op.acked(offset)


def refused(history: History, process: str, *values: bytes) -> None:
    with history.append(process, values, "durable") as op:
        op.failed(certain=True)


def read(
    history: History,
    process: str,
    offset: int,
    found: list[tuple[int, bytes]],
    marks: tuple[int, int, int],
    *,
    visibility: str = "buffered",
    next_offset: int | None = None,
) -> None:
    end = next_offset if next_offset is not None else (found[-1][0] + 1 if found else offset)
    with history.read(process, offset, visibility) as op:  # type: ignore[arg-type]
        op.returned(Seen(found, end, *marks))


def a_good_life(h: History) -> None:
    h.opened("p")
    appended(h, "p", "durable", 0, b"a", b"b")
    appended(h, "p", "buffered", 2, b"c")
    appended(h, "p", "local", 3, b"d")
    appended(h, "p", "durable", None, b"maybe")
    read(h, "p", 0, [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")], (0, 2, 4))
    read(h, "p", 0, [(0, b"a"), (1, b"b")], (0, 2, 4), visibility="durable")
    h.crashed("p")
    h.opened("q")
    read(h, "q", 0, [(0, b"a"), (1, b"b")], (0, 2, 2))
    h.recovered("q", after="p")
    appended(h, "q", "durable", 100, b"e")
    read(h, "q", 0, [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (100, b"e")], (0, 101, 101))


def test_a_history_that_keeps_every_promise_passes() -> None:
    history = History()
    a_good_life(history)
    check_history(history.events)


def _lost_durable(h: History) -> None:
    appended(h, "p", "durable", 0, b"a", b"b", b"c")
    read(h, "q", 0, [(0, b"a"), (2, b"c")], (0, 3, 3))


def _lost_with_the_mark(h: History) -> None:
    appended(h, "p", "durable", 0, b"a", b"b")
    h.opened("q")
    read(h, "q", 0, [(0, b"a")], (0, 1, 1))


def _lost_below_the_durable_mark(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a")
    read(h, "p", 1, [], (0, 1, 1))
    h.crashed("p")
    h.opened("q")
    read(h, "q", 0, [], (0, 0, 0))


def _lost_after_a_durable_read(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a", b"b")
    read(h, "q", 0, [(0, b"a"), (1, b"b")], (0, 2, 2), visibility="durable")
    h.crashed("p")
    h.opened("r")
    read(h, "r", 0, [], (0, 5, 5), next_offset=5)


def _local_not_recovered(h: History) -> None:
    appended(h, "p", "local", 0, b"a")
    h.crashed("p")
    h.recovered("q", after="p")
    read(h, "q", 0, [], (0, 9, 9), next_offset=9)


def _not_readable_after_ack(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a", b"b")
    read(h, "p", 0, [(1, b"b")], (0, 0, 2))


def _mark_below_the_ack(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a", b"b")
    read(h, "p", 0, [(0, b"a")], (0, 0, 1))


def _stuck_reader(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a")
    read(h, "p", 0, [], (0, 0, 1))


def _offset_used_twice(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a")
    h.crashed("p")
    h.recovered("q", after=None)
    appended(h, "q", "durable", 0, b"b")


def _offset_shown_twice_without_an_ack(h: History) -> None:
    appended(h, "p", "durable", None, b"a")
    appended(h, "p", "durable", None, b"b")
    read(h, "p", 0, [(0, b"a")], (0, 1, 1))
    h.crashed("p")
    read(h, "q", 0, [(0, b"b")], (0, 1, 1))


def _stored_twice(h: History) -> None:
    appended(h, "p", "durable", 0, b"a")
    read(h, "p", 0, [(0, b"a"), (1, b"a")], (0, 2, 2))


def _ack_out_of_order(h: History) -> None:
    appended(h, "p", "durable", 5, b"a")
    appended(h, "q", "durable", 3, b"b")


def _read_out_of_order(h: History) -> None:
    appended(h, "p", "durable", 0, b"a", b"b")
    read(h, "p", 0, [(1, b"b"), (0, b"a")], (0, 2, 2), next_offset=2)


def _read_starts_too_early(h: History) -> None:
    appended(h, "p", "durable", 0, b"a", b"b")
    read(h, "p", 1, [(0, b"a"), (1, b"b")], (0, 2, 2))


def _read_skips_to_a_later_one(h: History) -> None:
    appended(h, "p", "buffered", 0, b"a", b"b", b"c", b"d")
    appended(h, "p", "buffered", 4, b"e")
    read(h, "p", 0, [(4, b"e")], (0, 0, 5))


def _made_up(h: History) -> None:
    read(h, "p", 0, [(0, b"ghost")], (0, 1, 1))


def _refused_and_read(h: History) -> None:
    refused(h, "p", b"a")
    read(h, "p", 0, [(0, b"a")], (0, 1, 1))


def _marks_crossed(h: History) -> None:
    read(h, "p", 0, [], (0, 2, 1))


def _mark_moved_back(h: History) -> None:
    read(h, "p", 0, [], (0, 2, 4))
    read(h, "p", 0, [], (0, 2, 3))


@pytest.mark.parametrize(
    ("promise", "bad"),
    [
        ("never lost", _lost_durable),
        ("never lost", _lost_with_the_mark),
        ("never lost", _lost_below_the_durable_mark),
        ("never lost", _lost_after_a_durable_read),
        ("never lost", _local_not_recovered),
        ("read after ack", _not_readable_after_ack),
        ("read after ack", _mark_below_the_ack),
        ("read after ack", _stuck_reader),
        ("read after ack", _read_skips_to_a_later_one),
        ("never twice", _offset_used_twice),
        ("never twice", _offset_shown_twice_without_an_ack),
        ("never twice", _stored_twice),
        ("in order", _ack_out_of_order),
        ("in order", _read_out_of_order),
        ("in order", _read_starts_too_early),
        ("nothing made up", _made_up),
        ("nothing made up", _refused_and_read),
        ("marks", _marks_crossed),
        ("marks", _mark_moved_back),
    ],
)
def test_a_history_that_breaks_one_promise_is_refused_by_its_name(
    promise: str, bad: Callable[[History], None]
) -> None:
    history = History()
    bad(history)
    with pytest.raises(HistoryViolation, match=f"^{promise}: event {len(history.events) - 1}: "):
        check_history(history.events)


def test_overlapping_calls_owe_each_other_nothing() -> None:
    """A read that began before the ack may miss the record; one that begins after it may not."""
    history = History()
    with history.append("p", [b"a"], "durable") as append:
        with history.read("p", 0) as early:
            append.acked(0)
            early.returned(Seen([], 0, 0, 0, 0))
    check_history(history.events)
    read(history, "p", 0, [], (0, 0, 0))
    with pytest.raises(HistoryViolation):
        check_history(history.events)


def test_an_acked_buffered_record_may_go_down_with_its_process_and_only_then() -> None:
    history = History()
    appended(history, "p", "buffered", 0, b"a")
    history.crashed("p")
    history.recovered("q", after=None)
    read(history, "q", 0, [], (0, 50, 50), next_offset=50)
    check_history(history.events)


@pytest.mark.parametrize("ack", ["buffered", "local"])
def test_W05_what_a_fenced_writer_acks_before_it_knows_is_not_made_durable_by_its_successors_mark(
    ack: str,
) -> None:
    history = History()
    history.opened("old")
    history.recovered("old", after=None)
    history.opened("new")
    history.recovered("new", after=None)  # its fence stands: offsets 0 to 49 are lost
    appended(history, "old", ack, 3, b"a")
    read(history, "old", 0, [], (0, 50, 50), visibility="durable", next_offset=50)
    read(history, "new", 0, [], (0, 50, 50), next_offset=50)
    check_history(history.events)
    history.recovered("old", after=None)  # and back: from here on its mark counts again
    appended(history, "old", ack, 60, b"b")
    read(history, "old", 50, [(60, b"b")], (0, 61, 61))
    read(history, "new", 50, [], (0, 61, 61), next_offset=61)
    with pytest.raises(HistoryViolation, match="never lost"):
        check_history(history.events)


def test_W05_a_take_over_that_is_written_down_late_has_seen_what_was_durable_when_it_began() -> None:
    history = History()
    history.opened("old")
    history.opened("new")
    appended(history, "new", "durable", 0, b"a")  # it has taken over since, and was quicker to say so
    history.add(Recovered("old", None, late=True))
    read(history, "old", 0, [], (0, 0, 0))
    check_history(history.events)
    history.add(Recovered("old", None))
    read(history, "old", 0, [], (0, 0, 0))
    with pytest.raises(HistoryViolation, match="never lost"):
        check_history(history.events)


def test_a_value_that_is_appended_twice_cannot_be_judged() -> None:
    history = History()
    appended(history, "p", "durable", 0, b"a")
    appended(history, "p", "durable", 1, b"a")
    with pytest.raises(ValueError, match="unique"):
        check_history(history.events)


def sent_again(history: History, process: str, offset: int | None, *values: bytes) -> None:
    with history.append(process, values, "durable", idempotent=True) as op:
        if offset is not None:
            op.acked(offset)


def test_W04_an_idempotent_append_may_be_sent_again_and_has_one_place() -> None:
    history = History()
    sent_again(history, "p", None, b"a")  # its ack was lost
    appended(history, "q", "durable", 7, b"b")
    sent_again(history, "p", 3, b"a")  # below what was acked since: it was stored before that
    with history.append("r", [b"a"], "durable", idempotent=True) as op:
        op.failed(certain=True)  # this one did not store it
    sent_again(history, "r", 3, b"a")
    read(history, "q", 3, [(3, b"a"), (7, b"b")], (0, 8, 8))
    check_history(history.events)
    sent_again(history, "p", 9, b"a")
    with pytest.raises(HistoryViolation, match="never twice"):
        check_history(history.events)


def test_W04_an_idempotent_append_that_was_acked_by_another_is_owed_since_then() -> None:
    history = History()
    sent_again(history, "p", 0, b"a")
    with history.append("q", [b"a"], "durable", idempotent=True) as op:
        with history.read("r", 0) as early:
            op.acked(0)
            early.returned(Seen([], 1, 0, 1, 1))
    with pytest.raises(HistoryViolation, match="never lost"):
        check_history(history.events)


def test_others_may_know_first_that_a_record_is_durable() -> None:
    """The upload is carried out and its answer hangs: readers elsewhere see the record, its writer does not know yet."""
    history = History()
    appended(history, "p", "buffered", 0, b"a")
    read(history, "reader", 0, [(0, b"a")], (0, 1, 1), visibility="durable")
    read(history, "p", 0, [], (0, 0, 1), visibility="durable")
    check_history(history.events)
    read(history, "p", 0, [(0, b"a")], (0, 1, 1))
    read(history, "p", 0, [(0, b"a")], (0, 1, 1), visibility="durable")
    check_history(history.events)
