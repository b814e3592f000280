"""What a lane holds, as far as it was read: the parts of each claim, which claims have ended, where the next entry goes.

`take` is the one judge of an entry: the owner, takers, readers and maintenance all go by it.

**A place that is lost** (`LostEntry`) may have held data that counted, or did not. The next entry tells: one that names the
last entry before that place goes around it, so nothing counted there; one whose maker knew what was there tells by its links
which of those in between count. Until then these are not judged. Which partitions had records in a lost place, their next
parts tell: places in a partition's chain have no gap. A claim that has none since is *in doubt*: it may have lost its end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from logstore.engine.lanes.lane_log import LostEntry
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.format.errors import FormatError
from logstore.format.stored.claim_base import Bases, ClaimBase
from logstore.format.stored.entry import ClaimKey, Entry, EntryKind, Part
from logstore.format.stored.lane_checkpoint import (
    CheckpointedClaim,
    LaneCheckpoint,
    Moved,
    Split,
)
from logstore.format.stored.owner import shown
from logstore.format.stored.part_rows import CheckpointedPart, PartRows

logger = logging.getLogger(__name__)

_SPLITS_MAX = 64


@dataclass(slots=True)
class ClaimState:
    """`next_seq`, `end_offset` and `reserved_until`: of the partition's chain before the first of `parts`, all of which no
    manifest holds, as far as the lane's checkpoint knows. `is_sealed`: no part will follow. `is_begun`: nothing of it is in
    the lane yet, so it may not be committed. `is_left`: a seal names the claim, and only then may somebody have gone on
    behind it: a fence stops the owner and lets nobody in. `lost_at`: the first lost place since its last part, if there is
    one. `moved`: the claim went on in another lane, and nobody goes on in the partition's own chain."""

    next_seq: int
    end_offset: int
    reserved_until: int
    parts: PartRows = field(default_factory=PartRows)
    is_sealed: bool = False
    is_begun: bool = False
    is_left: bool = False
    lost_at: int | None = None
    moved: Moved | None = None

    @property
    def end_seq(self) -> int:
        """The place in the partition's chain behind the last part."""
        return self.parts[-1].part.seq + 1 if self.parts else self.next_seq

    def seen(self) -> ClaimState:
        """As it is now, for who looks at it later; its parts only grow, or are replaced as a whole."""
        return ClaimState(
            self.next_seq, self.end_offset, self.reserved_until, self.parts, is_left=self.is_left
        )

    @property
    def first(self) -> Part | None:
        """The first part here, or the fence with which it went on: either shows that the claim was committed."""
        return self.parts[0].part if self.parts else self.moved and self.moved.fence


@dataclass(slots=True)
class _Doubt:
    """Places from `first` on are lost, and nothing tells yet which of those behind them count. `is_split`: none is lost from
    there on; it is not known what was before it."""

    first: int
    waiting: list[Entry] = field(default_factory=list)
    is_split: bool = False


class LaneState:
    """Not guarded: each has one user at a time."""

    def __init__(self, checkpoint: LaneCheckpoint | None = None, *, is_rebuilt: bool = False) -> None:
        known = checkpoint or LaneCheckpoint()
        self.version = known.version
        self.split_until = known.split_until
        self.next_seq = known.next_seq
        self.edge = known.edge
        self.kept = list(known.kept)
        self.ended_before = known.ended_before
        self.splits = list(known.splits)
        self.owner = known.owner  # who adopted it last
        self._packed_bases: bytes | None = known.bases
        self._bases: Bases | None = None
        self.claims = {
            key: ClaimState(next_seq, end, reserved, PartRows(key), sealed, begun, left, moved=moved)
            for key, next_seq, end, reserved, sealed, begun, left, moved in known.claims
        }
        for rows in known.parts:
            self.claims[rows.claim].parts = rows.copy()
        self.lost = dict.fromkeys(known.lost, "the lane's entry could not be read")  # by place: why
        for key in known.in_doubt:
            one = self.claims[key]
            last = one.parts[-1].entry if one.parts else -1
            if not one.is_left:
                one.lost_at = next((seq for seq in known.lost if seq > last), None)
        self._doubt: _Doubt | None = None
        self.is_rebuilt = is_rebuilt  # without a checkpoint
        self._starts_are_known = True
        self.front = 0  # what was before it is not known

    def take(self, entry: Entry | LostEntry) -> bool:
        """The entry at the next place. Whether it counts: a data entry that does not name the last one that counts is void,
        because its owner did not know of that."""
        if isinstance(entry, LostEntry):
            self._lose(entry.seq, entry.damage.why)
            return False
        header = entry.header
        assert header.seq == self.next_seq, "entries are taken in order"
        if header.is_ask:  # it tells nothing of the places before it, either
            self.kept.append(header.seq)
            self.next_seq += 1
            return False
        if self._doubt is not None and not self._settle(self._doubt, entry):
            self._doubt.waiting.append(entry)
            self.next_seq += 1
            return False
        self.next_seq += 1
        if header.kind is EntryKind.DATA and header.prev != self.edge:
            self.kept.append(header.seq)
            return False
        self.edge = header.id
        if header.kind is EntryKind.DATA:
            self._take_data(entry)
            return True
        self.kept.append(header.seq)
        if header.kind is EntryKind.ADOPTION:
            self.owner = entry.owner
            return True
        if header.kind is EntryKind.TRANSFER:
            self._move(entry)
            return True
        if header.kind is EntryKind.FENCE:
            self.ended_before = self.next_seq
            for one in self.claims.values():
                one.is_sealed = True
        self._leave(entry.seals)
        return True

    def _take_data(self, entry: Entry) -> None:
        for part in entry.parts:
            self._add(entry.header.seq, part)
        if entry.bases:
            self._add_bases(entry.bases)
        self._leave(entry.seals)  # by its owner, who gives the partitions up

    def skip_to(self, seq: int) -> None:
        """Nothing is known of the places before, but that all data there was split: no checkpoint can be read."""
        if self._doubt is not None:
            self.kept += (one.header.seq for one in self._doubt.waiting)
        self.next_seq, self._doubt = seq, _Doubt(seq, is_split=True)
        self.front, self._starts_are_known = seq, False

    def _lose(self, seq: int, why: str) -> None:
        assert seq == self.next_seq, "entries are taken in order"
        self.next_seq += 1
        self.kept.append(seq)
        self.lost[seq] = why
        self._starts_are_known = False
        if self._doubt is None or self._doubt.is_split:
            self._doubt = _Doubt(seq, [] if self._doubt is None else self._doubt.waiting)
        for one in self.claims.values():
            if one.lost_at is None and not one.is_left:
                one.lost_at = seq

    def _settle(self, doubt: _Doubt, entry: Entry) -> bool:
        """Whether this one tells what counts of the lost places, and of those behind them."""
        header, waiting = entry.header, {one.header.id: one for one in doubt.waiting}
        counting: list[Entry] = []
        prev = header.prev
        while (before := waiting.pop(prev, None)) is not None:
            counting.append(before)
            prev = before.header.prev
        is_data = header.kind is EntryKind.DATA
        tells = header.known_until >= (doubt.first if doubt.is_split else max(self.lost) + 1)
        if is_data and prev == self.edge:
            self._find(doubt.first)
        elif not tells and is_data:
            return False
        elif (
            not tells or prev == self.edge
        ):  # it counts whatever is before it, and its maker may not have known either
            counting = []
            for one in doubt.waiting:
                self._doubt_parts(doubt.first, one)
        for one in reversed(counting):
            self._take_data(one)
        self.edge = header.prev
        self.kept += (one.header.seq for one in doubt.waiting if one not in counting)
        self._doubt = None
        return True

    def _find(self, first: int) -> None:
        """Nothing has counted in the places that were lost from `first` on."""
        self.lost = {seq: why for seq, why in self.lost.items() if seq < first}
        for one in self.claims.values():
            if one.lost_at is not None and one.lost_at >= first:
                one.lost_at = None

    def _doubt_parts(self, first: int, entry: Entry) -> None:
        """Nobody can tell any more whether it counts."""
        self.lost[entry.header.seq] = self.lost.get(first, "whether it counts cannot be told")
        for part in entry.parts:
            one = self.claims.setdefault(part.claim, ClaimState(0, 0, 0))
            if one.lost_at is None and not one.is_left:
                one.lost_at = first

    def first_lost(self, since: int) -> int | None:
        """The first place from there on that is lost."""
        return min((seq for seq in self.lost if seq >= since), default=None)

    def doubt_of(self, key: ClaimKey, since: int) -> int | None:
        """The lost place that may have held what ends a claim which began at `since`."""
        one = self.claims.get(key)
        return self.first_lost(since) if one is None else one.lost_at

    def _leave(self, keys: Iterable[ClaimKey]) -> None:
        for key in keys:
            one = self.claims.setdefault(key, ClaimState(0, 0, 0))
            one.is_sealed = one.is_left = True
            one.lost_at = None  # nobody ends a claim of which he does not know where it goes on

    def _move(self, entry: Entry) -> None:
        """The first entry that names a claim decides where it goes on."""
        successor, owner = entry.successor, entry.owner
        for key, fence in zip(entry.seals, entry.parts, strict=True):
            one = self.claims.setdefault(key, ClaimState(0, 0, 0))
            if not one.is_left:
                one.is_sealed, one.is_left, one.lost_at = True, True, None
                one.moved = Moved(fence, successor, owner)

    def has_ended(self, key: ClaimKey, since: int) -> bool:
        """Whether a claim that began at `since` has: by a seal that names it, or with the whole lane."""
        state = self.claims.get(key)
        return since < self.ended_before or (state is not None and state.is_sealed)

    def is_left(self, key: ClaimKey) -> bool:
        """Whether a seal names the claim."""
        state = self.claims.get(key)
        return state is not None and state.is_left

    def moved_of(self, key: ClaimKey) -> Moved | None:
        """With which fence the claim went on in another lane, if it did."""
        one = self.claims.get(key)
        return None if one is None else one.moved

    def parts_from(self, key: ClaimKey, seq: int) -> tuple[CheckpointedPart, ...]:
        """Those of the claim that have this place in the partition's chain, or a later one."""
        one = self.claims.get(key)
        return () if one is None else tuple(one.parts.copy(one.parts.first_from_seq(seq)))

    @property
    def bases(self) -> Bases:
        """What the checkpoint says of the partitions before their parts; read when somebody asks."""
        if self._bases is None:
            self._bases = _parsed(self._packed_bases or b"")
        return self._bases

    def said_bases(self) -> tuple[Bases, bytes | None]:
        """A copy of them, and what they are in bytes, if that is known."""
        return Bases(dict(self.bases.of), dict(self.bases.lows)), self._packed_bases

    def raise_lows(self, lows: Mapping[ClaimKey, int]) -> None:
        """Others have said that so much was deleted."""
        self.bases.raise_lows(lows)
        self._packed_bases = None

    def _add_bases(self, packed: bytes) -> None:
        """Of claims that begin."""
        new = _parsed(packed)
        self.bases.of.update(new.of)
        self.bases.raise_lows(new.lows)
        self._packed_bases = None

    def put_bases(self, bases: Bases, packed: bytes | None = None, instead_of: Bases | None = None) -> None:
        """What the next checkpoint says. `packed`: in bytes, for who does not want to wait for that with a lock. What was
        added since they were `instead_of` is kept."""
        since = self.bases.of.keys() - instead_of.of.keys() if instead_of is not None else set()
        bases.of.update({key: self.bases.of[key] for key in since})
        self._bases, self._packed_bases = bases, None if since else packed

    def usable_bases(self) -> dict[str, tuple[ClaimKey, ClaimBase]]:
        """By partition: the base of its claim, if that is in this lane still and the base reaches as far as what was split
        out of the lane."""
        found: dict[str, tuple[ClaimKey, ClaimBase]] = {}
        for key, base in self.bases.of.items():
            one = self.claims.get(key)
            if one is None or one.is_left or one.lost_at is not None:
                continue
            if one.next_seq <= base.next_seq:
                found[key.prefix] = key, base
        return found

    def _add(self, entry: int, part: Part) -> None:
        claim = self.claims.get(part.claim)
        if claim is None:
            first = part.seq if self._starts_are_known else 0
            claim = self.claims[part.claim] = ClaimState(first, part.base_offset, part.base_offset)
        if not claim.is_sealed:
            claim.is_begun, claim.lost_at = False, None
            claim.parts.add(entry, part)

    def begin(self, key: ClaimKey, next_seq: int, end_offset: int, reserved_until: int) -> None:
        """The owner makes a claim, and its checkpoints name it from now on. Not if the lane tells more of it: it is the
        second try, the first one stands, and somebody has ended it since; or an earlier life of the lane has made it."""
        one = self.claims.get(key)
        if one is None or (one.is_begun and not one.is_left):
            self.claims[key] = ClaimState(next_seq, end_offset, reserved_until, is_begun=True)

    def begun_at(self, key: ClaimKey, next_seq: int, end_offset: int, reserved_until: int) -> None:
        """It is committed there. Somebody may have ended it since, which counts; and if another life of the lane has begun,
        it is not known any more, or the lane tells more of it, which counts, too, also once that was split."""
        one = self.claims.get(key)
        if one is not None and one.is_begun:
            one.next_seq, one.end_offset, one.reserved_until = next_seq, end_offset, reserved_until

    def carried_on(self) -> dict[str, ClaimKey]:
        """By partition: the claims that go on with the next life of the lane. Each has something in it, so it is committed;
        and nobody goes on behind a claim before it has ended."""
        return {
            key.prefix: key
            for key, one in self.claims.items()
            if not (one.is_sealed or one.is_begun or one.lost_at is not None)
        }

    def copy(self) -> LaneState:
        """For an owner, who goes on with it by himself."""
        made = LaneState(self.checkpoint(b""))
        made.version = self.version
        return made

    def checkpoint(self, nonce: bytes) -> LaneCheckpoint:
        """The next one."""
        return LaneCheckpoint(
            self.version + 1,
            nonce,
            self.split_until,
            self.next_seq,
            self.edge,
            tuple(self.kept),
            tuple(
                CheckpointedClaim(
                    key,
                    one.next_seq,
                    one.end_offset,
                    one.reserved_until,
                    one.is_sealed,
                    one.is_begun,
                    one.is_left,
                    one.moved,
                )
                for key, one in self.claims.items()
            ),
            tuple(one.parts.copy() for one in self.claims.values() if one.parts),
            self.ended_before,
            tuple(self.splits),
            self.owner,
            self.bases.pack() if self._packed_bases is None else self._packed_bases,
            tuple(sorted(self.lost)),
            frozenset(key for key, one in self.claims.items() if one.lost_at is not None),
        )

    @property
    def open_claims(self) -> int:
        """How many parts the next entry may have."""
        return sum(not one.is_sealed for one in self.claims.values())

    @property
    def part_count(self) -> int:
        return sum(len(one.parts) for one in self.claims.values())

    @property
    def has_ended_whole(self) -> bool:
        """Whether nobody can commit anything more for a claim of this lane: each has ended."""
        return all(one.is_sealed for one in self.claims.values())

    def overview(self, name: str) -> LaneOverview:
        """As far as it was read, under that name."""
        return LaneOverview(
            name,
            self.next_seq,
            self.open_claims,
            self.part_count,
            shown(self.owner),
            bool(self.claims) and self.has_ended_whole,
        )

    def parts_below(self, until: int) -> dict[ClaimKey, int]:
        """For each claim that has parts in entries below `until`: the place in its partition's chain behind the last one."""
        found: dict[ClaimKey, int] = {}
        for key, one in self.claims.items():
            count = one.parts.first_from_entry(until)
            if count:
                found[key] = one.parts[count - 1].part.seq + 1
        return found

    def has_left_below(self, until: int) -> bool:
        """Whether entries below `until` hold parts of claims that somebody has ended: of a topic that was deleted, say."""
        return any(one.is_left and one.parts and one.parts[0].entry < until for one in self.claims.values())

    def first_entry_of(self, keys: set[ClaimKey]) -> int:
        """The first entry that holds a part of one of these; the next place if none does."""
        firsts = (self.claims[key].parts[0].entry for key in keys if self.claims[key].parts)
        return min(firsts, default=self.next_seq)

    def note_split(self, until: int, now_ms: int) -> None:
        """`split`, and when that was. Old times give way to later ones, so that there are few."""
        self.split(until)
        self.splits.append(Split(until, now_ms))
        if len(self.splits) > _SPLITS_MAX:
            self.splits = self.splits[1::2]

    def deletable(self, before_ms: int) -> int:
        """Entries below this place were split by then, and those that hold data may be deleted."""
        return max((until for until, at_ms in self.splits if at_ms <= before_ms), default=0)

    def split(self, until: int) -> None:
        """The parts in entries below `until` are in their partitions' manifests."""
        for one in self.claims.values():
            done = one.parts.first_from_entry(until)
            if done:
                last = one.parts[done - 1].part
                one.next_seq, one.end_offset = last.seq + 1, last.end_offset
                one.reserved_until = last.reserved_until
                one.parts = one.parts.copy(done)
        self.split_until = max(self.split_until, until)


def _parsed(packed: bytes) -> Bases:
    """None at all if they cannot be read: they can be done without."""
    try:
        return Bases.parse(packed)
    except FormatError as error:
        logger.error("the bases in a lane: %s", error)
        return Bases()
