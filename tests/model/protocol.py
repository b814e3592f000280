"""How a partition is written, read, merged, collected and deleted: each actor as a sequence of single requests.

Each rule is a method of `Rules`, so that `variants` can break one and leave the rest. The names are the engine's.

Objects: the places of the chain, each a `Segment` under its number; the manifest; merged objects, whose names hold the
version that they are based on.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from tests.model.actors import Actor, Said
from tests.model.store import OK, Begin, Create, Delete, Get, ListKeys, Objects, Put, Snapshot, Swap

EXCLUSIVE, SHARED, REPLICATED = "exclusive", "shared", "replicated"
MANIFEST = "manifest"
Step = Generator[Any, Any, Any]


class Segment(NamedTuple):
    """A place of the chain. `source`: up to where replicated writers have stored their source. Of a collected one only this
    header is left: `records` are gone, their offsets are known."""

    id: tuple[Any, ...]
    mode: str
    epoch: int
    base: int
    end: int
    records: tuple[Any, ...] = ()
    source: int = 0
    fence: bool = False
    deleted: bool = False
    collected: bool = False


class MergedName(NamedTuple):
    by: str
    version: int


class Merged(NamedTuple):
    base: int
    end: int
    records: tuple[Any, ...]
    collected: bool = False


class Row(NamedTuple):
    """Which object holds these offsets."""

    key: Any
    base: int
    end: int


class Tail(NamedTuple):
    """Where somebody stands: at place `next`, behind a segment of that epoch and mode."""

    next: int = 0
    end: int = 0
    epoch: int = 0
    mode: str = ""
    source: int = 0
    deleted: bool = False

    def behind(self, segment: Segment) -> Tail:
        source = max(self.source, segment.source)
        return Tail(self.next + 1, segment.end, segment.epoch, segment.mode, source, segment.deleted)


class Manifest(NamedTuple):
    """The chain below `tail.next`. `until`: places below it may have been emptied. `gone`: of a deleted topic."""

    version: int = 0
    nonce: str = ""
    tail: Tail = Tail()
    low: int = 0
    rows: tuple[Row, ...] = ()
    retired: frozenset[Any] = frozenset()
    until: int = 0
    gone: bool = False


NONE = Manifest()
START = Tail()


def header(segment: Segment, deleted: bool = False) -> Segment:
    return segment._replace(records=(), collected=True, deleted=deleted or segment.deleted)


def data(who: str, tail: Tail, mode: str, epoch: int, record: Any) -> Segment:
    """One record at the next place. A segment's id is new each time: here its writer, its record and its place."""
    source = record + 1 if mode == REPLICATED else tail.source
    return Segment((who, record, tail.next), mode, epoch, tail.end, tail.end + 1, (record,), source)


class Rules:
    """The rules that hold."""

    # The chain

    def create(self, place: int, segment: Segment) -> Step:
        """One PUT. In doubt: look. Returns what is there, ours or another's; absent means the same bytes again."""
        while True:
            answer = yield Create(place, segment)
            if answer == OK:
                return segment
            found = yield Get(place)
            if found is not None:
                return found

    def doubt(self, tail: Tail) -> int | None:
        """The next place, if it may have been emptied: an exclusive writer's stands before it. Behind shared and replicated
        writers, and at the start, no place ever is."""
        return tail.next if tail.mode == EXCLUSIVE else None

    def follow(self, tail: Tail, doubt: int | None) -> Step:
        """To the first absent place, one GET each. Nothing from `doubt` on is believed yet. Returns where that is, the first
        place in doubt (None: there is none), and what is there: nothing, or a header; then we are in the past."""
        while not tail.deleted:
            found = yield Get(tail.next)
            if found is None or found.collected:
                return tail, doubt, found
            tail = tail.behind(found)
            doubt = self.doubt(tail) if doubt is None else doubt
        return tail, doubt, None

    def manifest(self) -> Step:
        found = yield Get(MANIFEST)
        return NONE if found is None else found

    def is_past(self, manifest: Manifest, doubt: int, what: str) -> bool:
        """Whether places from `doubt` on, looked at before the manifest was read, may have been emptied by then. `what` it
        is for: a fence, an epoch opener, an end, or "" to know what is there."""
        return manifest.until > doubt

    def settle(self, who: str, tail: Tail, what: str = "", mode: str = "", wal: Any = None) -> Step:
        """Follow, put a fence or an epoch opener at the end (or nothing: `what` is ""), then ask the manifest. If any of the
        places in doubt may have been emptied, go to the real end and begin again; what was put stays where it is.

        Returns where we stand then, which is believed.
        """
        while True:
            tail, doubt, met, placed = yield from self.put_at_end(who, tail, what, mode, wal)
            if doubt is None and met is None:
                return tail
            manifest = yield from self.manifest()
            if met is None and not self.is_past(manifest, doubt, what):
                return tail
            yield Said("seen", ("began again behind what it had put" if placed else "began again",))
            tail = manifest.tail
            del manifest, met, doubt, placed

    def put_at_end(self, who: str, tail: Tail, what: str, mode: str, wal: Any) -> Step:
        doubt = self.doubt(tail)
        while True:
            tail, doubt, met = yield from self.follow(tail, doubt)
            segment = self.end_segment(who, tail, what, mode, wal)
            if segment is None or met is not None:
                return tail, doubt, met, False
            found = yield from self.create(tail.next, segment)
            if found.id == segment.id:
                return tail.behind(found), doubt, None, True
            del segment, found

    def end_segment(self, who: str, tail: Tail, what: str, mode: str, wal: Any) -> Segment | None:
        if not what or tail.deleted or (what == "opener" and tail.mode != EXCLUSIVE):
            return None
        records: tuple[Any, ...] = ()
        end, source = tail.end, tail.source
        if wal is not None and self.is_replayed(wal, tail):
            records, end = (wal[2],), tail.end + 1
        fence = what != "opener"
        return Segment(
            (who, what, tail.next), mode, tail.epoch + 1, tail.end, end, records, source, fence, what == "end"
        )

    def is_replayed(self, wal: tuple[int, int, Any], tail: Tail) -> bool:
        """Of the WAL only what its own epoch lacks: if another writer has been there since, those offsets are lost."""
        epoch, base, _ = wal
        return epoch == tail.epoch and base == tail.end

    # Writers

    def exclusive(
        self, who: str, records: tuple[Any, ...], restart: bool = False, checkpoint: bool = False
    ) -> Actor:
        """Open, append. `restart`: it dies after the first append was sent, whatever came of it, and opens again with its
        WAL. `checkpoint`: in the end it writes a manifest of what it remembers."""
        tail = yield from self.settle(who, START, "fence", EXCLUSIVE)
        rows: tuple[Row, ...] | None = () if checkpoint and tail.next == 1 else None
        if restart and not tail.deleted:
            wal = (tail.epoch, tail.end, records[0])
            yield Create(tail.next, data(who, tail, EXCLUSIVE, tail.epoch, records[0]))
            records = records[1:]
            tail = yield from self.settle(who + "'", START, "fence", EXCLUSIVE, wal)
        while records:
            if tail.deleted:
                yield Said("denied", (records[0],))
                return
            segment = data(who, tail, EXCLUSIVE, tail.epoch, records[0])
            found = yield from self.create(tail.next, segment)
            if found.id != segment.id:
                yield from self.fenced(records[0], tail)
                return
            yield Said("acked", (records[0], found.base))
            rows = None if rows is None else (*rows, Row(tail.next, found.base, found.end))
            tail, records = tail.behind(found), records[1:]
            del segment, found
        if rows:
            yield from self.checkpoint(who, tail, rows)

    def checkpoint(self, who: str, tail: Tail, rows: tuple[Row, ...]) -> Step:
        """What the manifest says wins over what we remember. One that has seen more is left alone, and so is a tombstone."""
        base = yield from self.manifest()
        if not self.has_seen_more(base, tail):
            rows = self.known_rows(base, rows)
            yield from self.swap(
                base, base._replace(version=base.version + 1, nonce=who, tail=tail, rows=rows)
            )

    def has_seen_more(self, manifest: Manifest, tail: Tail) -> bool:
        return manifest.tail.next >= tail.next

    def known_rows(self, manifest: Manifest, ours: tuple[Row, ...]) -> tuple[Row, ...]:
        return manifest.rows + tuple(row for row in ours if row.key >= manifest.tail.next)

    def fenced(self, record: Any, tail: Tail) -> Step:
        """Another is in the place of an exclusive commit. A place in doubt is never emptied: so it was another's."""
        yield Said("denied", (record,))

    def shared(self, who: str, mode: str, records: tuple[Any, ...], standby: bool = False) -> Actor:
        """Shared and replicated writers do not fence; they join an epoch, or begin one behind an exclusive writer. A standby
        follows until it is promoted, which is a fence. Records of a replicated writer are positions of its source."""
        epoch = 0
        tail = yield from self.settle(who, START)
        if standby:
            tail = yield from self.settle(who, tail, "fence", mode)
            epoch = tail.epoch
        while records:
            if tail.mode == EXCLUSIVE and not epoch:
                tail = yield from self.begin_era(who, tail, mode)
            if tail.deleted or (tail.next and tail.mode != mode) or (epoch and tail.epoch != epoch):
                if mode == SHARED:  # a replicated one's peers may store the same
                    yield Said("denied", (records[0],))
                return
            if mode == REPLICATED and tail.source != records[0]:
                yield Said("dropped" if tail.source > records[0] else "gap", (records[0],))
                records = records[1:]
                continue
            segment = data(who, tail, mode, epoch or max(tail.epoch, 1), records[0])
            found = yield from self.create(tail.next, segment)
            if found.id == segment.id:
                if found.collected:
                    yield Said("seen", ("its own commit, collected",))
                yield Said("acked", (records[0], found.base))
                tail, epoch, records = tail.behind(found), found.epoch, records[1:]
            elif found.collected:
                yield Said("seen", ("a collected header in its place",))
                tail = yield from self.settle(who, tail)
            else:
                tail = tail.behind(found)
                if found.fence and not epoch:
                    epoch = -1  # somebody took over since we opened
            del segment, found

    def begin_era(self, who: str, tail: Tail, mode: str) -> Step:
        """Behind an exclusive writer an EMPTY segment comes first, checked like a fence: the place may have been emptied."""
        tail = yield from self.settle(who, tail, "opener", mode)
        return tail

    # Readers

    def reader(self, who: str, rounds: int) -> Actor:
        """Follows the headers, believes them after a look at the manifest, then GETs the records."""
        tail, at, rows = START, 0, ()
        while rounds and not tail.deleted:
            need = yield Begin()
            tail, rows = yield from self.catch_up(tail, rows)
            while not tail.deleted and at < tail.end:
                at, rows, missed = yield from self.read_row(at, rows, tail.end)
                if missed is not None:
                    tail, rows = yield from self.catch_up(tail, rows, missed)
                del missed
            if not tail.deleted:
                yield Said("end", (at, need))
            del need
            rounds -= 1

    def read_row(self, at: int, rows: tuple[Row, ...], end: int) -> Step:
        """One GET. Returns where we are then, the rows that are left, and the row that was missed, if it was."""
        while rows and rows[0].end <= at:
            rows = rows[1:]
        begin = rows[0].base if rows else end
        if begin > at:
            yield Said("expired", (at, begin))
            at = begin
        if not rows:
            return at, rows, None
        row = rows[0]
        found = yield Get(row.key)
        if not self.is_of_row(found, row):
            yield Said(
                "seen", ("another object under a row's name" if found else "nothing under a row's name",)
            )
            return at, rows, row
        yield Said("given", (at, row.end, found.records[at - row.base :]))
        return row.end, rows[1:], None

    def is_of_row(self, found: Any, row: Row) -> bool:
        """An object that is not what the row says is no damage: the manifest knows where the records are now."""
        return found is not None and not found.collected and (found.base, found.end) == (row.base, row.end)

    def catch_up(self, tail: Tail, rows: tuple[Row, ...], missed: Row | None = None) -> Step:
        """Like `settle`, and keeps which objects hold the records. `missed`: a row that no object stands for any more."""
        if missed is not None:
            manifest = yield from self.manifest()
            if missed in manifest.rows:
                yield Said("damage", (missed,))
            tail, rows = manifest.tail, manifest.rows
            del manifest
        missed = None
        while True:
            tail, doubt, met, more = yield from self.follow_rows(tail)
            if doubt is None and met is None:
                return tail, rows + more
            manifest = yield from self.manifest()
            if met is None and not self.reader_is_past(manifest, doubt, tail):
                return tail, rows + more
            yield Said("seen", ("a reader reloads",))
            tail, rows = manifest.tail, manifest.rows
            del manifest, more, met, doubt
            at_end = yield from self.is_listed_end(tail)
            if at_end:
                return tail, rows
            del at_end

    def is_listed_end(self, tail: Tail) -> Step:
        """Whether a listing, asked for after the manifest, shows no place behind it. The newest segment always stays, so
        then there is none, and no place needs a second look."""
        listed = yield ListKeys()
        if any(isinstance(key, int) and key >= tail.next for key in listed):
            return False
        yield Said("seen", ("the end by a listing",))
        return True

    def reader_is_past(self, manifest: Manifest, doubt: int, tail: Tail) -> bool:
        return manifest.until > doubt

    def follow_rows(self, tail: Tail) -> Step:
        rows: tuple[Row, ...] = ()
        doubt = self.doubt(tail)
        while not tail.deleted:
            found = yield Get(tail.next)
            if found is None or found.collected:
                return tail, doubt, found, rows
            if found.end > found.base:
                rows = (*rows, Row(tail.next, found.base, found.end))
            tail = tail.behind(found)
            doubt = self.doubt(tail) if doubt is None else doubt
        return tail, doubt, None, rows

    # The manifest

    def swap(self, base: Manifest, new: Manifest) -> Step:
        """One conditional PUT. In doubt: look. Returns what is there afterwards: ours, or a later one, which tells what
        came of ours: a version is replaced once."""
        while True:
            answer = yield Swap(MANIFEST, base.version, new)
            if answer == OK:
                return new
            found = yield from self.manifest()
            if found.version > base.version:
                return found

    # Maintenance

    def view(self) -> Step:
        """The manifest and the whole chain. At once, although it is many requests: whatever changes meanwhile makes the swap
        fail that follows, or is newer than what was read."""
        objects = yield Snapshot()
        objects = dict(objects)
        manifest = objects.get(MANIFEST, NONE)
        tail, rows = manifest.tail, manifest.rows
        while not tail.deleted and tail.next in objects:
            found = objects[tail.next]
            if found.end > found.base:
                rows = (*rows, Row(tail.next, found.base, found.end))
            tail = tail.behind(found)
        records = tuple(objects[row.key].records if row.key in objects else () for row in rows)
        return manifest, tail, rows, records

    def merger(self, who: str, rounds: int) -> Actor:
        while rounds:
            yield from self.compact(who)
            rounds -= 1

    def compact(self, who: str) -> Step:
        """Put one object in place of all rows but the newest segment, then name it."""
        base, tail, rows, records = yield from self.view()
        run = tuple(row for row in rows if row.key != tail.next - 1)
        if not any(isinstance(row.key, int) for row in run) or not self.may_cover(tail):
            return
        name = MergedName(who, base.version)
        merged = Merged(
            run[0].base, run[-1].end, tuple(record for some in records[: len(run)] for record in some)
        )
        yield from self.store_merged(name, merged)
        new = base._replace(
            version=base.version + 1,
            nonce=who,
            tail=tail._replace(deleted=False),  # which only the chain says
            rows=(Row(name, merged.base, merged.end), *rows[len(run) :]),
            retired=base.retired | self.retired_by(run, tail),
        )
        del records, rows, run, merged, tail
        yield from self.name_merged(name, base, new)

    def retired_by(self, rows: tuple[Row, ...], tail: Tail) -> frozenset[Any]:
        return frozenset(row.key for row in rows)

    def may_cover(self, tail: Tail) -> bool:
        """No manifest but the tombstone covers the end of a deleted topic."""
        return not tail.deleted

    def store_merged(self, name: MergedName, merged: Merged) -> Step:
        answer = None
        while answer != OK:
            answer = yield Put(name, merged)

    def name_merged(self, name: MergedName, base: Manifest, new: Manifest) -> Step:
        found = yield from self.swap(base, new)
        if found != new and name not in found.retired and all(row.key != name for row in found.rows):
            yield Said("seen", ("a merge that can never be named",))
            yield from self.remove(name)  # can never be named: its version was replaced

    def expirer(self, who: str) -> Actor:
        """Retention drops every row there is; the newest place may be among them."""
        base, tail, rows, _ = yield from self.view()
        if rows and self.may_cover(tail):
            keys = base.retired | {row.key for row in rows}
            new = base._replace(
                version=base.version + 1, nonce=who, tail=tail, low=tail.end, rows=(), retired=keys
            )
            yield from self.swap(base, new)

    def collector(self, who: str, rounds: int) -> Actor:
        while rounds:
            base = yield from self.manifest()
            yield from self.collect(who, base)
            rounds -= 1

    def collect(self, who: str, base: Manifest) -> Step:
        """Publish how far places may be empty, and only when that stands, empty them; then forget them. No grace."""
        chosen = tuple(sorted((key for key in base.retired if self.may_go(base, key)), key=str))
        if not chosen or base.gone:
            return
        until = self.horizon(base, [key for key in chosen if isinstance(key, int)])
        if until > base.until:
            stands = yield from self.publish(who, until)
            if not stands:
                return
        del base, until
        yield from self.empty(chosen)
        yield from self.forget(who, chosen)

    def forget(self, who: str, chosen: tuple[Any, ...]) -> Step:
        base = yield from self.manifest()
        rest = base.retired - frozenset(chosen)
        if not base.gone and rest != base.retired:
            yield from self.swap(base, base._replace(version=base.version + 1, nonce=who, retired=rest))

    def may_go(self, manifest: Manifest, key: Any) -> bool:
        """The newest place stays: the chain itself says where it ends."""
        return bool(key != manifest.tail.next - 1)

    def horizon(self, base: Manifest, places: list[int]) -> int:
        """It never falls."""
        return max([base.until, *(place + 1 for place in places)])

    def publish(self, who: str, until: int) -> Step:
        """What was retired stays so in every later manifest: any of them may say it."""
        base = yield from self.manifest()
        if base.until < until:
            base = yield from self.swap(base, base._replace(version=base.version + 1, nonce=who, until=until))
        return base.until >= until

    def empty(self, keys: tuple[Any, ...]) -> Step:
        while keys:
            if isinstance(keys[0], int):
                yield from self.empty_place(keys[0], False)
            else:
                yield from self.remove(keys[0])
            keys = keys[1:]

    def empty_place(self, place: int, deleted: bool) -> Step:
        """Only a data segment that its own exclusive writer followed up is really deleted; else its header stays."""
        found = yield Get(place)
        if found is None:
            return
        goes = not self.is_kept(found)
        if goes and found.mode == EXCLUSIVE:
            behind = yield Get(place + 1)
            goes = self.is_inner(found, behind)
            del behind
        if goes:
            yield Said("seen", ("emptied",))
            yield from self.remove(place)
        else:
            answer = None
            while answer != OK:
                answer = yield Put(place, self.left_behind(found, deleted))

    def is_kept(self, segment: Segment) -> bool:
        """A place where others than its own writer may stand and wait: whoever sleeps there must find it taken."""
        return segment.fence or segment.mode != EXCLUSIVE

    def is_inner(self, segment: Segment, behind: Segment | None) -> bool:
        """Whether its writer went on behind it. A place that is absent was such a one itself."""
        return behind is None or behind.epoch == segment.epoch

    def left_behind(self, segment: Segment, deleted: bool) -> Segment:
        return header(segment, deleted)

    def remove(self, key: Any) -> Step:
        answer = None
        while answer != OK:
            answer = yield Delete(key)

    def sweeper(self, who: str) -> Actor:
        """Takes away what nothing names and nothing can name any more: merged objects of earlier versions, and whatever came
        to emptied places since. A merge for the present version may be under way: a new version, with nothing else new,
        ends it."""
        listed, manifest = yield from self.list_and_manifest()
        if self.strays(listed, manifest) != self.strays(
            listed, manifest._replace(version=manifest.version + 1)
        ):
            manifest = yield from self.end_merges(who, manifest)
        strays = self.strays(listed, manifest)
        del listed, manifest
        if strays:
            yield Said("seen", ("a stray",))
        yield from self.empty(strays)

    def list_and_manifest(self) -> Step:
        listed = yield ListKeys()
        manifest = yield from self.manifest()
        return listed, manifest

    def end_merges(self, who: str, manifest: Manifest) -> Step:
        if manifest.version:
            manifest = yield from self.swap(
                manifest, manifest._replace(version=manifest.version + 1, nonce=who)
            )
        return manifest

    def strays(self, listed: frozenset[Any], manifest: Manifest) -> tuple[Any, ...]:
        unnamed = listed - manifest.retired - {row.key for row in manifest.rows} - {MANIFEST}
        return tuple(sorted((key for key in unnamed if self.is_stray(key, manifest)), key=str))

    def is_stray(self, key: Any, manifest: Manifest) -> bool:
        return bool(key.version < manifest.version if isinstance(key, MergedName) else key < manifest.until)

    # Deleting a topic, whose descriptor says already that it is gone

    def deleter(self, who: str) -> Actor:
        tail = yield from self.end_chain(who)
        yield from self.bury(who, tail.next - 1)
        yield from self.clear(tail.next - 1)

    def end_chain(self, who: str) -> Step:
        tail = yield from self.settle(who, START, "end", EXCLUSIVE)
        yield Said("ended")
        return tail

    def bury(self, who: str, end: int) -> Step:
        """The tombstone stands for ever, before anything goes."""
        base = yield from self.manifest()
        while not base.gone:
            tail = base.tail._replace(next=end)
            base = yield from self.swap(base, Manifest(base.version + 1, who, tail, until=end, gone=True))

    def clear(self, end: int) -> Step:
        place = 0
        while place < end:
            yield from self.empty_place(place, True)
            place += 1
        listed = yield ListKeys()
        merged = tuple(sorted(key for key in listed if isinstance(key, MergedName)))
        del listed
        while merged:
            yield from self.remove(merged[0])
            merged = merged[1:]


def chain_of(objects: Objects) -> tuple[Manifest, list[tuple[Any, int, tuple[Any, ...] | None]]]:
    """What one look at everything shows: the manifest, and what holds the log in order: key, base offset and records."""
    manifest: Manifest = objects.get(MANIFEST, NONE)
    found: list[tuple[Any, int, tuple[Any, ...] | None]] = []
    for row in manifest.rows:
        held = objects.get(row.key)
        is_there = held is not None and not held.collected and (held.base, held.end) == (row.base, row.end)
        found.append((row.key, row.base, held.records if held is not None and is_there else None))
    place = manifest.tail.next
    while place in objects and not objects[place].deleted:
        segment: Segment = objects[place]
        if segment.end > segment.base:
            found.append((place, segment.base, None if segment.collected else segment.records))
        place += 1
    return manifest, found
