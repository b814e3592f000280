"""Each rule broken, one at a time: what the search must find. A variant overrides one method of `Rules`."""

from __future__ import annotations

from typing import Any

from tests.model.actors import Actor, Said
from tests.model.protocol import (
    EXCLUSIVE,
    MANIFEST,
    Manifest,
    MergedName,
    Row,
    Rules,
    Segment,
    Step,
    Tail,
    data,
    header,
)
from tests.model.store import EXISTS, OK, Create, Get, ListKeys, Put, Swap

# What stays in a place


class SharedPlacesGo(Rules):
    """Segments of shared and replicated writers are deleted like any other."""

    def is_kept(self, segment: Segment) -> bool:
        return segment.fence


class FencesGo(Rules):
    """A fence is deleted once its epoch is over."""

    def is_kept(self, segment: Segment) -> bool:
        return segment.mode != EXCLUSIVE

    def retired_by(self, rows: tuple[Row, ...], tail: Tail) -> frozenset[Any]:
        return frozenset(range(tail.next - 1)) | {row.key for row in rows}


class LastOfEpochGoes(Rules):
    """The last segment of an exclusive epoch is deleted like those before it."""

    def is_inner(self, segment: Segment, behind: Segment | None) -> bool:
        return True


class NewestGoes(Rules):
    """The newest place is emptied, too, once it has expired."""

    def may_go(self, manifest: Manifest, key: Any) -> bool:
        return True


class OnlyTheLowestStays(Rules):
    """Of a run of shared places only the lowest keeps its header."""

    def empty(self, keys: tuple[Any, ...]) -> Step:
        yield from self.empty_place(keys[0], False)
        keys = keys[1:]
        while keys:
            yield from self.remove(keys[0])
            keys = keys[1:]


class OnlyTheHighestStays(Rules):
    """Of a run of shared places only the highest keeps its header."""

    def empty(self, keys: tuple[Any, ...]) -> Step:
        while keys[1:]:
            yield from self.remove(keys[0])
            keys = keys[1:]
        yield from self.empty_place(keys[0], False)


class HeaderWithoutId(Rules):
    """What stays in a place does not say whose it was."""

    def left_behind(self, segment: Segment, deleted: bool) -> Segment:
        return header(segment, deleted)._replace(id=("?",))


class HeaderWithoutOffsets(Rules):
    """What stays in a place does not say which offsets it had."""

    def left_behind(self, segment: Segment, deleted: bool) -> Segment:
        return header(segment, deleted)._replace(base=0, end=0)


class HeaderWithoutSource(Rules):
    """What stays in a place does not say how far the source was stored."""

    def left_behind(self, segment: Segment, deleted: bool) -> Segment:
        return header(segment, deleted)._replace(source=0)


# The horizon


class PublishedLate(Rules):
    """The horizon is published when the places are empty."""

    def collect(self, who: str, base: Manifest) -> Step:
        chosen = tuple(sorted(key for key in base.retired if self.may_go(base, key)))
        if chosen:
            yield from self.empty(chosen)
            yield from self.publish(who, self.horizon(base, list(chosen)))


class Unconfirmed(Rules):
    """Places are emptied whatever came of the swap that publishes the horizon."""

    def publish(self, who: str, until: int) -> Step:
        base = yield from self.manifest()
        yield Swap(MANIFEST, base.version, base._replace(version=base.version + 1, nonce=who, until=until))
        return True


class HorizonFalls(Rules):
    """The horizon says what the last round has emptied, whatever earlier ones did."""

    def forget(self, who: str, chosen: tuple[Any, ...]) -> Step:
        base = yield from self.manifest()
        until = max((key + 1 for key in chosen if isinstance(key, int)), default=0)
        new = base._replace(
            version=base.version + 1, nonce=who, until=until, retired=base.retired - frozenset(chosen)
        )
        yield from self.swap(base, new)


class BlindSwap(Rules):
    """The manifest is replaced without a condition."""

    def swap(self, base: Manifest, new: Manifest) -> Step:
        yield Put(MANIFEST, new)
        return new


# Fences and epoch openers


class FenceUnchecked(Rules):
    """Who has created its fence believes in it."""

    def is_past(self, manifest: Manifest, doubt: int, what: str) -> bool:
        return what != "fence" and super().is_past(manifest, doubt, what)


class OpenerUnchecked(Rules):
    """Who has created its epoch opener believes in it."""

    def is_past(self, manifest: Manifest, doubt: int, what: str) -> bool:
        return what != "opener" and super().is_past(manifest, doubt, what)


class CheckedBefore(Rules):
    """The manifest is read before the fence is put, instead of afterwards."""

    def settle(self, who: str, tail: Tail, what: str = "", mode: str = "", wal: Any = None) -> Step:
        while True:
            tail, doubt, met = yield from self.follow(tail, self.doubt(tail))
            manifest = yield from self.manifest()
            if met is not None or (doubt is not None and self.is_past(manifest, doubt, what)):
                tail = manifest.tail
                continue
            segment = self.end_segment(who, tail, what, mode, wal)
            if segment is None:
                return tail
            found = yield from self.create(tail.next, segment)
            if found.id == segment.id:
                return tail.behind(found)


class PutsAtCollected(Rules):
    """Who meets a collected header tries to put its fence there, instead of asking the manifest."""

    def follow(self, tail: Tail, doubt: int | None) -> Step:
        tail, doubt, _ = yield from super().follow(tail, doubt)
        return tail, doubt, None


class DoubtEndsAtSharedPlaces(Rules):
    """A run that ends behind a shared writer's segment is believed without a look at the manifest."""

    def follow(self, tail: Tail, doubt: int | None) -> Step:
        tail, doubt, met = yield from super().follow(tail, doubt)
        return tail, self.doubt(tail), met


class NoOpener(Rules):
    """A shared writer commits its record right behind an exclusive writer's place."""

    def begin_era(self, who: str, tail: Tail, mode: str) -> Step:
        return tail._replace(mode=mode, epoch=tail.epoch + 1)
        yield


class OpenerWithRecordsOnce(Rules):
    """The first segment of an epoch, checked like a fence, carries records."""

    def end_segment(self, who: str, tail: Tail, what: str, mode: str, wal: Any) -> Segment | None:
        segment = super().end_segment(who, tail, what, mode, wal)
        if segment is None or what != "opener":
            return segment
        return segment._replace(end=tail.end + 1, records=(f"{who}0",))


class OpenerWithRecords(OpenerWithRecordsOnce):
    """The first of an epoch carries records, and who finds itself in the past stores them again at the real end."""

    def begin_era(self, who: str, tail: Tail, mode: str) -> Step:
        while True:
            tail, doubt, _ = yield from self.follow(tail, self.doubt(tail))
            segment = self.end_segment(who, tail, "opener", mode, None)
            segment = segment or data(who, tail, mode, tail.epoch, f"{who}0")
            found = yield from self.create(tail.next, segment)
            manifest = yield from self.manifest()
            if found.id == segment.id and (doubt is None or not self.is_past(manifest, doubt, "opener")):
                return tail.behind(found)
            tail = manifest.tail if found.id == segment.id else tail


class WinnerBelieved(Rules):
    """Who loses the race for an epoch opener joins the winner's epoch without a look at the manifest."""

    def begin_era(self, who: str, tail: Tail, mode: str) -> Step:
        segment = self.end_segment(who, tail, "opener", mode, None)
        assert segment is not None
        found = yield from self.create(tail.next, segment)
        if found.mode == mode:
            if found.id == segment.id:
                tail = yield from self.settle(who, tail)
                return tail
            return tail.behind(found)
        tail = yield from self.settle(who, tail, "opener", mode)
        return tail


class ReloadedOnce(Rules):
    """Who found itself in the past goes to where the manifest says, and believes what it does there."""

    def settle(self, who: str, tail: Tail, what: str = "", mode: str = "", wal: Any = None) -> Step:
        tail, doubt, met, _ = yield from self.put_at_end(who, tail, what, mode, wal)
        if doubt is None and met is None:
            return tail
        manifest = yield from self.manifest()
        if met is None and not self.is_past(manifest, doubt, what):
            return tail
        tail, _, _, _ = yield from self.put_at_end(who, manifest.tail, what, mode, wal)
        return tail


class ReplayedOverOthers(Rules):
    """The WAL is replayed into the fence although another writer has been there since."""

    def is_replayed(self, wal: tuple[int, int, Any], tail: Tail) -> bool:
        return wal[1] == tail.end


# Readers and followers


class FollowerUnchecked(Rules):
    """A shared or replicated writer, or a standby, believes the places that it follows."""

    def is_past(self, manifest: Manifest, doubt: int, what: str) -> bool:
        return bool(what) and super().is_past(manifest, doubt, what)


class ReaderUnchecked(Rules):
    """An absent place is the end."""

    def reader_is_past(self, manifest: Manifest, doubt: int, tail: Tail) -> bool:
        return False


class HeaderIsTheEnd(Rules):
    """A reader takes the header that was left in a place for a segment without records, behind which nothing comes."""

    def follow_rows(self, tail: Tail) -> Step:
        tail, doubt, _, rows = yield from super().follow_rows(tail)
        return tail, doubt, None, rows


class ReaderChecksTheEnd(Rules):
    """A reader compares the absent place with the horizon, not the place where it began."""

    def reader_is_past(self, manifest: Manifest, doubt: int, tail: Tail) -> bool:
        return manifest.until > tail.next


class ReaderReloadsOnce(Rules):
    """What a reader finds behind a manifest that it has just loaded is believed."""

    def catch_up(self, tail: Tail, rows: tuple[Row, ...], missed: Row | None = None) -> Step:
        tail, doubt, met, more = yield from self.follow_rows(tail)
        manifest = yield from self.manifest()
        if missed is None and met is None and (doubt is None or manifest.until <= doubt):
            return tail, rows + more
        tail, _, _, more = yield from self.follow_rows(manifest.tail)
        return tail, manifest.rows + more


class AnotherObjectIsDamage(Rules):
    """A reader whose row's object is not what the row says reports damage, without a look at the manifest."""

    def read_row(self, at: int, rows: tuple[Row, ...], end: int) -> Step:
        at, rows, missed = yield from super().read_row(at, rows, end)
        if missed is not None:
            yield Said("damage", (missed,))
        return at, rows, missed


class RowsBelieved(Rules):
    """A reader takes what stands under a row's name for what the row says."""

    def is_of_row(self, found: Any, row: Row) -> bool:
        return found is not None


# Doubt


class Believes412(Rules):
    """412 means that another's segment is there: no look."""

    def create(self, place: int, segment: Segment) -> Step:
        while True:
            answer = yield Create(place, segment)
            if answer == OK:
                return segment
            found = yield Get(place)
            if found is not None:
                return found._replace(id=("another",)) if answer == EXISTS else found


class SilenceIsRefusal(Rules):
    """No answer means that nothing was stored: an exclusive writer tells its caller so."""

    def create(self, place: int, segment: Segment) -> Step:
        answer = yield Create(place, segment)
        if answer == OK:
            return segment
        found = yield Get(place)
        return found if found is not None else segment._replace(id=("nobody",))


class Merge412(Rules):
    """A merge believes the 412 of its swap, and deletes its object."""

    def swap(self, base: Manifest, new: Manifest) -> Step:
        answer = yield Swap(MANIFEST, base.version, new)
        return new if answer == OK else base

    def collector(self, who: str, rounds: int) -> Actor:
        return Rules().collector(who, rounds)


class MergeUnchanged(Rules):
    """A merge takes an unchanged manifest for one that will stay so: it deletes its object though the swap is under way."""

    def swap(self, base: Manifest, new: Manifest) -> Step:
        answer = yield Swap(MANIFEST, base.version, new)
        if answer == OK:
            return new
        found = yield from self.manifest()
        return found


class CheckpointsWhatItRemembers(Rules):
    """A checkpoint names the places that its writer remembers, also those that were merged since."""

    def known_rows(self, manifest: Manifest, ours: tuple[Row, ...]) -> tuple[Row, ...]:
        return ours


class CheckpointsOverMore(Rules):
    """A checkpoint replaces a manifest that has seen more of the chain."""

    def has_seen_more(self, manifest: Manifest, tail: Tail) -> bool:
        return False


# Strays


class SweepsAllUnnamed(Rules):
    """The sweep deletes what no manifest names, also what a merge is about to name."""

    def is_stray(self, key: Any, manifest: Manifest) -> bool:
        return isinstance(key, MergedName) or key < manifest.until


class ManifestFirst(SweepsAllUnnamed):
    """The sweep deletes what no manifest names, and reads the manifest before the listing."""

    def list_and_manifest(self) -> Step:
        manifest = yield from self.manifest()
        listed = yield ListKeys()
        return listed, manifest


class SweepsSameVersion(Rules):
    """The sweep deletes an unnamed object that was made for the very version that stands, without ending its merge."""

    def is_stray(self, key: Any, manifest: Manifest) -> bool:
        return key.version <= manifest.version if isinstance(key, MergedName) else key < manifest.until

    def end_merges(self, who: str, manifest: Manifest) -> Step:
        return manifest
        yield


# Deleting a topic


class EndUnchecked(Rules):
    """The fence that ends the chain is believed once it is created."""

    def is_past(self, manifest: Manifest, doubt: int, what: str) -> bool:
        return what != "end" and super().is_past(manifest, doubt, what)


class NoTombstone(Rules):
    """The manifest is deleted with the rest."""

    def bury(self, who: str, end: int) -> Step:
        yield from self.remove(MANIFEST)


class TombstoneLate(Rules):
    """The tombstone is put when the places are empty."""

    def deleter(self, who: str) -> Actor:
        tail = yield from self.end_chain(who)
        yield from self.clear(tail.next - 1)
        yield from self.bury(who, tail.next - 1)


class TombstoneWithoutHorizon(Rules):
    """The tombstone does not say that places were emptied."""

    def bury(self, who: str, end: int) -> Step:
        base = yield from self.manifest()
        while not base.gone:
            tail = base.tail._replace(next=end)
            base = yield from self.swap(
                base, Manifest(base.version + 1, who, tail, until=base.until, gone=True)
            )


class TombstoneBehindTheEnd(Rules):
    """The tombstone says that the chain goes on behind the fence that ended it."""

    def bury(self, who: str, end: int) -> Step:
        yield from super().bury(who, end + 1)


class TombstoneUnconfirmed(Rules):
    """Places are emptied whatever came of the tombstone."""

    def bury(self, who: str, end: int) -> Step:
        base = yield from self.manifest()
        tail = base.tail._replace(next=end)
        yield Swap(MANIFEST, base.version, Manifest(base.version + 1, who, tail, until=end, gone=True))


class MergeCoversTheEnd(Rules):
    """A merge may cover the fence that ended the chain."""

    def may_cover(self, tail: Tail) -> bool:
        return True


class DeletionLeavesNothing(Rules):
    """Deleting a topic deletes all places but the last."""

    def clear(self, end: int) -> Step:
        place = 0
        while place < end:
            yield from self.remove(place)
            place += 1
