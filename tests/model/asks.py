"""A taker that loses the race for a lane's end asks its owner to end the claim.

What differs from `lost_transfers`, whose rules hold otherwise:

* An *ask* is a void entry, which no owner has made: data that names as the one before it what never stands. So it counts for
  nothing, links nothing, says nothing of the places before it, and stays for ever, as every void entry does.
* A taker that was outrun at the lane's end puts one further ahead, and goes on as before: whatever comes first counts.
* The owner meets it in the ordinary course, as it meets any entry in its place. The first upload that it sends again behind
  it seals the claims that are asked for, with what their partitions have in it; later uploads have nothing of these.
"""

from __future__ import annotations

from typing import Any

from tests.model.actors import Said
from tests.model.lanes import DATA, HELD, SENT, Entry, Place, Step, Upload, Writer, records_of
from tests.model.lost_transfers import LostTransfers
from tests.model.store import Create

ASK = ("asked",)
"""What an ask names as the entry before it."""
AHEAD = 1


def is_ask(entry: Any) -> bool:
    return isinstance(entry, Entry) and entry.kind == DATA and entry.prev == ASK


class Asks(LostTransfers):
    """The rules that hold."""

    def outrun(self, lane: str, at: Any, entry: Entry) -> Step:
        place = Place(lane, at.next + AHEAD)
        yield Create(place, self.ask(at, (*entry.id[:2], "ask", place.seq), entry.seals))
        yield Said("seen", ("a taker asks",))

    def ask(self, at: Any, name: Any, seals: frozenset[Any]) -> Entry:
        return Entry(DATA, name, ASK, (), seals)

    def blocked(self, who: str, at: Writer, ups: tuple[Upload, ...], found: Entry) -> Step:
        at, ups = yield from super().blocked(who, at, ups, found)
        asked = frozenset((own.part, own.claim) for own in at.own) & self.asked_by(found)
        if not asked or not ups or ups[0].state != SENT:
            return at, ups
        yield Said("seen", ("an owner answers",))
        first = ups[0]._replace(entry=ups[0].entry._replace(seals=ups[0].entry.seals | asked))
        at, later = self.behind_answer(who, at, first, ups[1:], {part for part, _ in asked})
        left = set(records_of(later))
        failed = tuple(record for record in records_of(ups[1:]) if record not in left)
        if failed:
            yield Said("denied", failed)
        return at, (first, *later)

    def asked_by(self, found: Entry) -> frozenset[Any]:
        return found.seals if is_ask(found) else frozenset()

    def behind_answer(
        self, who: str, at: Writer, first: Upload, ups: tuple[Upload, ...], gone: set[str]
    ) -> tuple[Writer, tuple[Upload, ...]]:
        """Later uploads, without what the partitions that are given up have in them."""
        made, later = self.again(who, self.acked(at, first), ups, gone)
        return at._replace(ids=made.ids), tuple(up._replace(state=HELD) for up in later)
