"""Which actors meet on lanes: the rules that hold, and every variant with what the search must find in it.

A cast is written as words. `a:o2` is a process a with a lane of its own, A, that owns p and q from the start (`o`)
and flushes twice, both uploads under way at once. `b:p1` takes p over and flushes; `b:b1` takes both; `c/A:n1` is the
next life of lane A. `x` closes, `g` gives p up with its next flush. `w~2` is a shared writer of p. `split/A*1` splits
lane A once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.harness import Contrast as Contrast
from tests.model.harness import Holds as Holds
from tests.model.lanes import (
    DATA,
    FENCE,
    SEAL,
    VOID,
    Batch,
    Checkpoint,
    Claim,
    Claims,
    Entry,
    Known,
    Lanes,
    Own,
    Place,
    Stand,
    Step,
    Table,
    Upload,
    Writer,
)
from tests.model.lanes_judge import LaneJudge
from tests.model.search import World
from tests.model.store import EXISTS, OK, Create, Get, Objects, Put, Request, Swap

_PROCESS = re.compile(r"(\w)(?:/(\w))?:(o?)(\w+)")


class Run(NamedTuple):
    words: str
    faults: int = 0
    kinds: tuple[str, ...] = ("lost", "twice", "412")
    prelude: str = ""
    rules: tuple[tuple[str, Any], ...] = ()
    judge: type[LaneJudge] = LaneJudge

    def world(self, variant: type[Lanes] = Lanes) -> World:
        rules = variant(**dict(self.rules))
        before: dict[Any, Any] = {}
        made: list[tuple[str, Callable[[], Actor]]] = []
        for word in self.words.split():
            name, _, count = word.partition("*")
            if found := _PROCESS.fullmatch(word):
                who, lane, owns, script = found.groups()
                lane = lane or who.upper()
                own, stands = rules.owned(who, lane) if owns else ((), {})
                before.update(stands)
                made.append((who, partial(rules.process, who, lane, script, own)))
            elif "~" in word:
                who, _, count = word.partition("~")
                made.append((who, partial(rules.shared, who, int(count))))
            elif "/" in name:
                kind, lane = name.split("/")
                role = rules.splitter if kind.startswith("split") else getattr(rules, kind)
                made.append((name, partial(role, name, lane, int(count))))
            else:
                role = getattr(rules, name)
                made.append((name, partial(role, name, int(count)) if count else partial(role, name)))
        return World(self.judge(rules), made, self.faults, self.kinds, late_arrival, before)


def late_arrival(request: Request, before: Objects, after: Objects) -> str | None:
    match request:
        case Create(Place(), what) if not isinstance(what, Entry):
            return "a late claim"
        case Create(Place(lane, seq), entry):
            past = seq < before.get(("checkpoint", lane), Checkpoint()).until
            return f"a late {entry.kind} {'in an emptied place' if past else 'at the end'}"
    return f"a late {type(request).__name__.lower()}"


# Each rule, broken: a variant overrides one method


class ClaimWithoutSeal(Lanes):
    """A taker reads the lane to its end and claims, without a seal."""

    def put_at_end(self, lane: str, at: Stand, entry: Entry, wanted: tuple[Claim, ...]) -> Step:
        while True:
            found = yield Get(Place(lane, at.next))
            if found is None:
                return at
            at = self.behind(at, found)


class ClaimFirst(Lanes):
    """A taker claims first and seals afterwards."""

    def end_lane(self, lane: str, entry: Entry, wanted: tuple[Claim, ...] = ()) -> Step:
        at = yield from self.load(lane)
        at = yield from ClaimWithoutSeal.put_at_end(self, lane, at, entry, wanted)  # type: ignore[arg-type]
        return at

    def put_claims(self, who: str, topic: str, known: tuple[Claims, ...], new: tuple[Claim, ...]) -> Step:
        old = tuple(self.newest(known, one.part) for one in new)
        known, won = yield from super().put_claims(who, topic, known, new)
        seals = frozenset((one.part, one.claim) for one in old if one)
        yield from super().end_lane(old[0].lane, Entry(SEAL, (who, "seal"), seals=seals), old)  # type: ignore
        return known, won


class NoLink(Lanes):
    """Every data entry counts, whatever stands before it; and what landed is not made again."""

    def is_valid(self, entry: Entry, edge: Any) -> bool:
        return entry.kind == DATA

    def again(self, who: str, at: Writer, ups: tuple[Upload, ...], gone: set[str]) -> tuple[Writer, Any]:
        at, first = super().again(who, at, ups[:1], gone)
        return at, first + ups[1:]


class VoidsAreLinks(Lanes):
    """The link names the entry right before, whatever that is: so what was sent behind a void entry is valid."""

    def moves_edge(self, entry: Entry, valid: bool) -> bool:
        return True


class SentAtOnce(Lanes):
    """All uploads that are made again are sent at once."""

    def held(self, ups: tuple[Upload, ...]) -> tuple[Upload, ...]:
        return ups


class Believes412(Lanes):
    """412 means that another's entry is there: all uploads are made again behind it."""

    def flush(self, who: str, at: Writer, count: int, give: bool) -> Step:
        at, ups, _ = self.prepare(who, at, count, give)
        while ups:
            answer = yield Create(Place(at.lane, ups[0].seq), ups[0].entry)
            if answer == OK:
                yield Said("acked", ups[0].entry.batches)
                at, ups = self.acked(at, ups[0]), ups[1:]
            elif answer == EXISTS:
                at, ups = self.again(who, at._replace(seq=at.seq + 1), ups, set())
        return at


class TakerTrusts(Lanes):
    """Who has created its seal believes in it."""

    def end_lane(self, lane: str, entry: Entry, wanted: tuple[Claim, ...] = ()) -> Step:
        if entry.kind != SEAL:
            at = yield from super().end_lane(lane, entry, wanted)
            return at
        at = yield from self.load(lane)
        at = yield from self.put_at_end(lane, at, entry, wanted)
        return at


class AdopterTrusts(Lanes):
    """Who has created its fence believes in it."""

    def end_lane(self, lane: str, entry: Entry, wanted: tuple[Claim, ...] = ()) -> Step:
        if entry.kind != FENCE:
            at = yield from super().end_lane(lane, entry, wanted)
            return at
        at = yield from self.load(lane)
        at = yield from self.put_at_end(lane, at, entry, wanted)
        return at


class ChecksTheSealOnly(Lanes):
    """The place of the seal is compared with the checkpoint, not the place where the reading began."""

    def is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        return checkpoint.until >= at.next

    def reader_is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        return checkpoint.until > at.start


class CheckedBefore(Lanes):
    """The checkpoint is read before the seal is put, instead of afterwards."""

    def put_at_end(self, lane: str, at: Stand, entry: Entry, wanted: tuple[Claim, ...]) -> Step:
        while True:
            if wanted and all(at.claim(one.part, one.claim).sealed for one in wanted):
                return at
            found = yield Get(Place(lane, at.next))
            if found is None:
                checkpoint = yield from self.checkpoint(lane)
                if checkpoint.until > at.start:
                    at = Stand(checkpoint.until, checkpoint.until, checkpoint.edge, checkpoint.claims)
                    continue
                mine = entry._replace(id=(*entry.id, at.next))
                found = yield from self.create(Place(lane, at.next), mine)
                if found.id == mine.id:
                    return self.behind(at, found)
            at = self.behind(at, found)

    def is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        return False


class TableBeforeFence(Lanes):
    """The next life reads which claims there are, and puts its fence then, wherever the end is."""

    def adopt(self, who: str, at: Writer) -> Step:
        stand = yield from self.load(at.lane)
        stand = yield from ClaimWithoutSeal.put_at_end(self, at.lane, stand, None, ())  # type: ignore[arg-type]
        own = tuple(Own(c.part, c.claim, c.end, c.end) for c in stand.claims if c.end >= 0 and not c.sealed)
        own = own or tuple(Own(part, 0, 0, 0) for part in self.parts)
        end = yield from self.end_lane(at.lane, Entry(FENCE, (who, "fence")))
        return at._replace(seq=end.next, prev=end.edge, own=own)


class AdoptsWhatWasSealed(Lanes):
    """The next life goes on with every claim that has a batch in the lane."""

    def adopt(self, who: str, at: Writer) -> Step:
        end = yield from self.end_lane(at.lane, Entry(FENCE, (who, "fence")))
        own = tuple(Own(c.part, c.claim, c.end, c.end) for c in end.claims if c.end >= 0)
        return at._replace(seq=end.next, prev=end.edge, own=own)


class BeginsAtTheEnd(Lanes):
    """The next owner begins at the end of what is stored, not at the reservation."""

    def begins(self, known: Known) -> int:
        return known.end


class ShownEarly(Lanes):
    """A record is shown below a reservation that is under way."""

    def may_show(self, at: Writer, ups: tuple[Upload, ...]) -> tuple[Any, ...]:
        batches = [batch for up in ups for batch in up.entry.batches]
        limits = {
            part: max(b.reserved for b in batches if b.part == part) for part in {b.part for b in batches}
        }
        found = ((b.part, b.base + n, record) for b in batches for n, record in enumerate(b.records))
        return tuple(one for one in found if one[1] < limits[one[0]])


class ShownPastSmaller(Lanes):
    """A record is shown below the stored reservation, though a smaller one is under way before it."""

    def may_show(self, at: Writer, ups: tuple[Upload, ...]) -> tuple[Any, ...]:
        ups = tuple(
            up._replace(
                entry=up.entry._replace(batches=tuple(b._replace(reserved=99) for b in up.entry.batches))
            )
            for up in ups
        )
        return super().may_show(at, ups)


class ShownBehindAtomic(Lanes):
    """A record is shown at its offset behind an atomic append that is under way, and may fail."""

    def hides(self, record: str) -> bool:
        return False


class HalfAtomic(Lanes):
    """An atomic append goes on without the partition that was sealed."""

    def fails_whole(self, record: str) -> bool:
        return False


class HoleBehindAtomic(Lanes):
    """What came behind an atomic append that has failed keeps its offsets."""

    def again(self, who: str, at: Writer, ups: tuple[Upload, ...], gone: set[str]) -> tuple[Writer, Any]:
        bases = {
            record: batch.base + n
            for up in ups
            for batch in up.entry.batches
            for n, record in enumerate(batch.records)
        }
        at, made = super().again(who, at, ups, gone)
        kept = []
        for up in made:
            batches = tuple(
                Batch(b.part, b.claim, bases[record], (record,), b.reserved)
                for b in up.entry.batches
                for record in b.records
            )
            kept.append(up._replace(entry=up.entry._replace(batches=batches)))
        return at, tuple(kept)


class OwnerTrusts(Lanes):
    """An owner believes another's entry in its place."""

    def was_split(self, checkpoint: Checkpoint, seq: int) -> bool:
        return False


class AllBelowWasSplit(Lanes):
    """An owner takes every place below the checkpoint for its own entry that was split, also one with a seal that
    stays."""

    def was_split(self, checkpoint: Checkpoint, seq: int) -> bool:
        return seq < checkpoint.until


class CheckpointFirst(Lanes):
    """The checkpoint is published, and places are emptied, before the tables have what was there."""

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        yield from self.swap(("checkpoint", lane), base, new._replace(nonce=who))
        yield from self.remove(goes)
        yield from self.fill_tables(who, self.topics(), batches)


class Unconfirmed(Lanes):
    """Places are emptied whatever came of the checkpoint."""

    def split(self, who: str, lane: str, base: Any, new: Any, batches: Any, voids: Any, goes: Any) -> Step:
        yield from self.fill_tables(who, self.topics(), batches)
        yield Swap(("checkpoint", lane), base.version, new._replace(nonce=who))
        yield from self.remove(goes)


class OneTableOfTwo(Lanes):
    """The checkpoint is published when the first of the topics has what was split."""

    def fill_tables(self, who: str, topics: tuple[str, ...], batches: tuple[Batch, ...]) -> Step:
        yield from super().fill_tables(who, topics[:1], batches)


class SealsGo(Lanes):
    """Seals below the checkpoint are deleted."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind == SEAL


class FencesGo(Lanes):
    """Fences below the checkpoint are deleted."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind == FENCE


class VoidsGo(Lanes):
    """Void entries are deleted like any other."""

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return valid or entry.kind in (DATA, VOID)


class NoEdge(Lanes):
    """The checkpoint does not say the id of the last entry below it: the first behind it is believed."""

    def plan(self, objects: Objects, lane: str) -> Any:
        work = super().plan(objects, lane)
        return work and (work[0], work[1]._replace(edge=ANY), *work[2:])

    def is_valid(self, entry: Entry, edge: Any) -> bool:
        return entry.kind == DATA and edge in (ANY, entry.prev)


class SealsForgotten(Lanes):
    """The checkpoint says the ends of the claims, and not which are sealed."""

    def plan(self, objects: Objects, lane: str) -> Any:
        work = super().plan(objects, lane)
        if work is None:
            return None
        unsealed = tuple(claim._replace(sealed=False) for claim in work[1].claims)
        return work[0], work[1]._replace(claims=unsealed), *work[2:]


class ReservationsForgotten(Lanes):
    """The checkpoint says the ends of the claims, and not what they have reserved."""

    def plan(self, objects: Objects, lane: str) -> Any:
        work = super().plan(objects, lane)
        if work is None:
            return None
        bare = tuple(claim._replace(reserved=claim.end) for claim in work[1].claims)
        return work[0], work[1]._replace(claims=bare), *work[2:]


class ReaderTrusts(Lanes):
    """An empty place is the end."""

    def reader_is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        return False


class ReaderTrustsEntries(Lanes):
    """A reader compares the empty place with the checkpoint, not the one where it began."""

    def reader_is_past(self, checkpoint: Checkpoint, at: Stand) -> bool:
        return checkpoint.until > at.next


class TableFirst(Lanes):
    """A reader loads the table first, and the checkpoint afterwards."""

    def reload(self, claim: int, lane: str, offset: int) -> Step:
        table = yield from self.table(self.topic("p"))
        got = tuple(b for b in table.batches if (b.part, b.claim) == ("p", claim))
        del table
        at = yield from self.load(lane)
        offset = yield from self.give(offset, got)
        return at, offset


class BlindTable(Lanes):
    """A table is replaced without a condition."""

    def fill_tables(self, who: str, topics: tuple[str, ...], batches: tuple[Batch, ...]) -> Step:
        while topics:
            base = yield from self.table(topics[0])
            more = tuple(b for b in batches if b.base >= base.end(b.part, b.claim))
            yield Put(
                ("table", topics[0]), base._replace(version=base.version + 1, batches=base.batches + more)
            )
            topics = topics[1:]
            del base, more


class FilledTwice(Lanes):
    """A splitter adds what it read to the table, whatever that has of the claim already."""

    def fill_tables(self, who: str, topics: tuple[str, ...], batches: tuple[Batch, ...]) -> Step:
        while topics:
            base = yield from self.table(topics[0])
            new = base._replace(version=base.version + 1, nonce=who, batches=base.batches + batches)
            stands = yield from self.swap(("table", topics[0]), base, new)
            topics = topics[1:] if stands == new else topics
            del base, new, stands


class NotClosed(Lanes):
    """A deletion seals what is claimed, and leaves the chain of claims open."""

    def close_claims(self, who: str, topic: str) -> Step:
        known = yield from self.read_claims(topic)
        return known


class SealedBeforeClosed(Lanes):
    """A deletion seals first, and closes the chain of claims afterwards."""

    def close_claims(self, who: str, topic: str) -> Step:
        known = yield from self.read_claims(topic)
        yield from super().seal_all(who, known)
        yield from super().close_claims(who, topic)
        return ()


class NotSealed(Lanes):
    """A deletion closes the chain of claims, and seals nothing."""

    def seal_all(self, who: str, known: tuple[Claims, ...]) -> Step:
        return
        yield


class TombstoneIsEmpty(Lanes):
    """A reader takes the tombstone of a topic for a table without rows."""

    def is_gone(self, table: Table) -> bool:
        return False


class MissingTableMeansGone(Lanes):
    """A splitter drops what is of a topic without a table."""

    def fill_tables(self, who: str, topics: tuple[str, ...], batches: tuple[Batch, ...]) -> Step:
        return
        yield


class SharedGoesOn(Lanes):
    """A shared writer, or an old release, goes on behind the seal that ended the partition's own chain."""

    def meets_end(self, at: Stand, claim: Claim) -> bool:
        return False


# What is not needed: nothing is found without it


class SameIdAgain(Lanes):
    """Uploads that are made again keep their ids."""

    def again(self, who: str, at: Writer, ups: tuple[Upload, ...], gone: set[str]) -> tuple[Writer, Any]:
        new, made = super().again(who, at, ups, gone)
        ids, prev, out = [up.entry.id for up in ups], at.prev, []
        for up, one in zip(made, ids, strict=False):
            out.append(up._replace(entry=up.entry._replace(id=one, prev=prev)))
            prev = one
        return new, tuple(out)


class NewestGoes(Lanes):
    """The newest entry is split and deleted, too."""

    def split_end(self, end: int) -> int:
        return end


class VoidWithoutId(Lanes):
    """What is left of a void entry does not say whose it was."""

    def left_of(self, void: Entry) -> Entry:
        return Entry(VOID, ("?",))


ANY = ("any",)


BUFFERED, ATOMIC, APART = (("ahead", 3),), (("atomic", True),), (("apart", True),)
MIXED = (("mixed", True),)


def _broken(variant: type[Lanes], kind: str, words: str, faults: int = 0, rules: Any = ()) -> Contrast:
    return Contrast(variant, kind, Run(words, faults, rules=rules))


CONTRASTS = [
    _broken(ClaimWithoutSeal, "lost", "a:o1 b:p1"),
    _broken(ClaimFirst, "lost", "a:o1 b:p1"),
    _broken(NoLink, "lost", "a:o2 b:p1"),
    _broken(VoidsAreLinks, "lost", "a:o3 b:p1", 1),
    _broken(SentAtOnce, "endless", "a:o2 b:p1"),
    _broken(Believes412, "lost", "a:o11", 1),
    _broken(TakerTrusts, "lost", "a:o11 b:p1 split/A*1"),
    _broken(AdopterTrusts, "lost", "a:o111 c/A:n1 split/A*1"),
    _broken(ChecksTheSealOnly, "lost", "a:o11 b:q1 d:p1 split/A*1"),
    _broken(CheckedBefore, "lost", "a:o11 b:p1 split/A*1"),
    _broken(TableBeforeFence, "lost", "a:o1 c/A:n1"),
    _broken(AdoptsWhatWasSealed, "lost", "a:o1 b:p1 c/A:n1"),
    _broken(BeginsAtTheEnd, "reused", "a:o11 b:p1", rules=BUFFERED),
    _broken(ShownEarly, "reused", "a:o12 b:p1", rules=BUFFERED),
    _broken(ShownPastSmaller, "reused", "a:o12 b:p1", rules=BUFFERED),
    _broken(ShownBehindAtomic, "reused", "a:o12 b:p1", rules=BUFFERED + ATOMIC),
    _broken(HalfAtomic, "half", "a:o11 b:p1", rules=ATOMIC),
    _broken(ShownBehindAtomic, "reused", "a:o11 b:p1", rules=BUFFERED + MIXED),
    _broken(HalfAtomic, "half", "a:o1 b:p1", rules=MIXED),
    _broken(HoleBehindAtomic, "hole", "a:o1 b:p1", rules=MIXED),
    _broken(OwnerTrusts, "denied", "a:o2 b:p1 split/A*1", 1),
    _broken(AllBelowWasSplit, "lost", "a:o2 b:p1 split/A*1", 1),
    _broken(CheckpointFirst, "lost", "a:o11 split/A*1"),
    _broken(Unconfirmed, "lost", "a:o11 b:p1 split/A*1", 1),
    _broken(OneTableOfTwo, "lost", "a:o11 split/A*1", rules=APART),
    _broken(SealsGo, "lost", "a:o1 b:p1 d:q1 split/A*1"),
    _broken(FencesGo, "lost", "a:o1 c/A:n1 d/A:n1 split/A*1"),
    _broken(VoidsGo, "lost", "a:o2 b:p1 d:q1 split/A*1"),
    _broken(NoEdge, "lost", "a:o2 b:p1 split/A*1"),
    _broken(SealsForgotten, "short", "a:o11 b:p1 reader*1 split/A*1"),
    _broken(ReservationsForgotten, "reused", "a:o11 b:p1 split/A*1", rules=BUFFERED),
    _broken(ReaderTrusts, "short", "a:o11 reader*1 split/A*1"),
    _broken(ReaderTrustsEntries, "short", "a:o11 b:q1 reader*1 split/A*1"),
    _broken(TableFirst, "misread", "a:o11 reader*1 split/A*1"),
    _broken(BlindTable, "lost", "a:o11 b:p11 split/A*1 split/B*1"),
    _broken(FilledTwice, "lost", "a:o11 split/A*1 split/A*1"),
    _broken(NotClosed, "undead", "a:o1 b:p1 deleter"),
    _broken(SealedBeforeClosed, "undead", "a:o1 b:p1 deleter"),
    _broken(NotSealed, "undead", "a:o1 deleter"),
    _broken(TombstoneIsEmpty, "misread", "a:o11 reader*1 split/A*1 deleter"),
    _broken(MissingTableMeansGone, "lost", "a:o11 split/A*1"),
    _broken(SharedGoesOn, "lost", "a:o1 w~2 b:p1"),
]

NOT_NEEDED = [
    _broken(SameIdAgain, "", "a:o3 b:p1", 1),
    _broken(NewestGoes, "", "a:o11 b:p1 split/A*1", 1),
    _broken(NewestGoes, "", "a:o2 c/A:n1 split/A*1", 1),
    _broken(VoidWithoutId, "", "a:o2 b:p1 d:q1 split/A*1"),
    _broken(VoidWithoutId, "", "a:o21 b:p1 split/A*1", 1),
]

LATE = ("a late claim", "a late data at the end", "a late seal at the end")
SPLIT = ("split", "a late data in an emptied place", "a late delete", "a late swap")
SEALED, VOIDED = "a seal in its place", "a void entry of its own in its place"
OVERWRITTEN = "its own was split, and another stands there"


def _holds(name: str, words: str, faults: int, *seen: str, rules: Any = (), progress: bool = False) -> Holds:
    return Holds(name, Run(words, faults, rules=rules), frozenset(seen), progress)


RULES = [
    _holds("p is taken over", "a:o2 b:p1", 2, *LATE, SEALED, VOIDED, progress=True),
    _holds("three uploads under way", "a:o3 b:p1", 1, *LATE, SEALED, VOIDED, progress=True),
    _holds("two takers, one of both partitions", "a:o1 b:b1 d:p1", 1, *LATE, SEALED, "another's claim"),
    _holds("the owner takes it back", "a:o2p1 b:p1", 1, *LATE, SEALED, VOIDED, "another's claim"),
    _holds("with the owner's consent", "a:og1 b:p1 d:p1", 1, *LATE, SEALED),
    _holds("a next life", "a:o2 c/A:n1", 2, "adopted", "a late fence at the end", progress=True),
    _holds("a next life of a next life", "a:o2 c/A:n1 d/A:n1", 1, "adopted", "a late fence at the end"),
    _holds("a next life, and a taker", "a:o2 b:p1 c/A:n1", 1, "adopted", SEALED, VOIDED, *LATE),
    _holds("closed, and opened again", "a:o1x b:b1 c/A:nb1", 0, "closed", "adopted", SEALED),
    _holds(
        "split under a taker",
        "a:o11 b:p1 split/A*2",
        1,
        *LATE,
        *SPLIT,
        SEALED,
        "a seal began again",
        OVERWRITTEN,
    ),
    _holds("split under two uploads", "a:o21 b:p1 split/A*1", 1, *LATE, *SPLIT, SEALED, VOIDED, OVERWRITTEN),
    _holds("split, two takers", "a:o11 b:p1 d:q1 split/A*1", 0, "split", SEALED, "a seal began again"),
    _holds("two splitters", "a:o2 b:p1 split/A*1 split/A*1", 0, "split", SEALED, progress=True),
    _holds("two topics in one lane", "a:o11 b:p1 split/A*1", 1, *SPLIT, SEALED, rules=APART),
    _holds("split under a next life", "a:o11 c/A:n1 split/A*1", 1, *SPLIT, "adopted", "a fence began again"),
    _holds("split, adopted twice", "a:o2 c/A:n1 d/A:n1 split/A*1", 0, "adopted", "a fence began again"),
    _holds("both lanes are split", "a:o11 b:p11 split/A*1 split/B*1", 0, "split", SEALED),
    _holds("a reader", "a:o11 reader*2 split/A*1", 1, *SPLIT, "a reader reloads"),
    _holds("a reader across claims", "a:o1 b:p1 reader*1 split/A*1", 0, "split", "a reader reloads"),
    _holds("buffered acks", "a:o12 b:p1", 1, *LATE, SEALED, VOIDED, rules=BUFFERED),
    _holds("buffered acks, split", "a:o12 b:p1 split/A*1", 0, "split", SEALED, rules=BUFFERED),
    _holds("buffered acks, a next life", "a:o12 c/A:n1 split/A*1", 0, "split", "adopted", rules=BUFFERED),
    _holds("atomic appends", "a:o12 b:p1", 1, *LATE, SEALED, VOIDED, rules=ATOMIC),
    _holds("atomic appends, split", "a:o3 b:p1 split/A*1", 0, "split", SEALED, rules=ATOMIC + APART),
    _holds("atomic, others in its entry", "a:o12 b:p1", 1, *LATE, SEALED, VOIDED, rules=MIXED),
    _holds("the same, buffered and split", "a:o12 b:p1 split/A*1", 0, "split", rules=MIXED + BUFFERED),
    _holds("the same, a next life", "a:o2 b:p1 c/A:n1", 0, "adopted", SEALED, rules=MIXED + BUFFERED),
    _holds("atomic and buffered, split", "a:o12 b:p1 split/A*1", 0, "split", rules=ATOMIC + BUFFERED),
    _holds(
        "deletion beside a taker", "a:o11 b:p1 split/A*1 deleter", 0, "a taker met a closed topic", "split"
    ),
    _holds("deletion of one topic of two", "a:o11 b:p1 split/A*1 deleter", 0, "split", rules=APART),
    _holds("deletion beside a reader", "a:o2 reader*1 split/A*1 deleter", 0, "a reader met a tombstone"),
    _holds("switched to its own chain", "a:o1 w~1 v~1", 0, "p was switched to its own chain", SEALED),
    _holds("and back", "a:o1 w~1 b:p1", 0, "a shared writer met the end of its chain", "another's claim"),
    _holds("and back, read", "a:o1 w~1 b:p1 reader*1", 0, "a shared writer met the end of its chain"),
]

WIDE = [
    _holds("two takers", "a:o3 b:b1 d:p1 split/A*1", 1, *LATE, SEALED, VOIDED),
    _holds("takers, both lanes split", "a:o11 b:p11 d:p1 split/A*1 split/B*1", 1, *LATE, SEALED, "split"),
    _holds("adopted twice", "a:o2 b:p1 c/A:n1 d/A:n1 split/A*1", 1, "adopted", "split", SEALED),
    _holds("a reader", "a:o21 b:p1 reader*2 split/A*2", 1, *LATE, "a reader reloads", "split"),
    _holds("buffered and atomic", "a:o13 b:p1 c/A:n1 split/A*1", 1, SEALED, rules=BUFFERED + ATOMIC),
    _holds("deletion", "a:o11 b:p1 c/A:n1 split/A*1 deleter", 1, *LATE, "split", rules=APART),
    _holds("the switch", "a:o1 w~2 v~1 b:p1 reader*1", 1, *LATE, "p was switched to its own chain"),
]
"""For long runs: the first million states of each."""

EVERYTHING = "a:o23p1 b:p2 d:b1 c/A:n2b1 e/A:n1 reader*3 split/A*3 split/B*1 split/D*1"
DEEP = [
    _holds("everything", EVERYTHING, 3, *LATE, *SPLIT, SEALED, VOIDED, "adopted"),
    _holds("everything buffered", EVERYTHING, 3, "adopted", "split", SEALED, rules=BUFFERED),
    _holds("everything atomic", EVERYTHING, 3, "adopted", "split", SEALED, rules=BUFFERED + ATOMIC + APART),
    _holds("everything, and shared", f"{EVERYTHING} w~2 v~1", 3, SEALED, "p was switched to its own chain"),
    _holds(
        "everything deleted", f"{EVERYTHING} deleter", 3, SEALED, "a taker met a closed topic", rules=APART
    ),
]
"""For random walks: far beyond what can be searched."""
