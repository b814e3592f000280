"""The chain of a partition in the object store: commit, judge, follow, load.

The one commit is `put(‹seq›.seg, if_absent=True)`. Whoever creates the object at `seq` has committed; nobody can create it
twice. What the store answers may be lost, so the answer alone is never believed when there is doubt: the object that is
there at `seq` is read, and its writer id, random and new for each segment, says whose it is.

**Places that are emptied.** A place that garbage collection has emptied looks like one that was never used, and no clock
tells them apart. So most places are never emptied: fences stay, the newest segment stays, and every segment of a shared or
replicated writer, and the last one of each exclusive epoch, leaves its header (see `maintenance`). Only the data in the
middle of an exclusive epoch goes. Whoever looks behind an exclusive writer's segment, to read or to create a fence there,
therefore reads the manifest's horizon afterwards (`Horizon`), which is stored before anything is emptied: if it has passed
the place where the look began, nothing that was seen counts, and the chain is loaded again.

Nothing here holds state or a lock: every call says what it knows and gets back what it learned. An exception from the store
that is not one of ours counts as Indeterminate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from logstore.engine.chain.horizon import Horizon, read_horizon
from logstore.engine.chain.link import Link, is_whole, link_of, parse_front
from logstore.engine.chain.loading import Loader, StaleManifest
from logstore.engine.chain.parts import parts_behind
from logstore.engine.chain.segment_table import SegmentRef
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.errors import OutcomeUnknown, fresh
from logstore.format.stored.entry import ClaimKey
from logstore.format.stored.segment import HEADER_SIZE, TAIL_SIZE, SegmentFlags, SegmentHeader, WriterMode
from logstore.layout.paths import PartitionPaths
from logstore.objects.protocol import ObjectStore, get_if_there
from logstore.objects.settled import create_settled
from logstore.objects.wrappers.slices import is_slice

_RANDOM = random.SystemRandom()  # has no state, so one serves every chain; making one seeds it


class StalePlace(Exception):
    """The chain has gone on from this place long ago, and what was there was collected. Internal: whoever is there loads
    the chain again. `found`: the header that garbage collection has left there.

    Without one the place was emptied, and what was created there is in the past and is no part of the chain. It stays
    where it is: nobody who goes by the rules believes it.
    """

    def __init__(self, seq: int, found: SegmentHeader | None = None) -> None:
        super().__init__(f"the chain has gone on from {seq} long ago")
        self.found = found


class LostRace(Exception):
    """Another writer's segment is committed where ours was to be. Internal: each kind of writer decides what it means."""

    def __init__(self, winner: SegmentHeader) -> None:
        super().__init__(f"segment {winner.seq} was written by another writer, of epoch {winner.epoch}")
        self.winner = winner


class Chain:
    """`rng`: where nonces come from; a test passes its own. `lanes`: what was read of lanes, for all chains of a process.
    `keep`: takes a small segment that a look at its end has brought whole, so that no reader asks for it again."""

    def __init__(
        self,
        store: ObjectStore,
        paths: PartitionPaths,
        rng: random.Random | None = None,
        lanes: LaneReader | None = None,
        keep: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self.store = store
        self.paths = paths
        self._lanes = lanes or LaneReader(store)
        self._loader = Loader(store, paths, self._lanes)
        self._rng = rng or _RANDOM
        self._keep = keep

    def new_nonce(self) -> bytes:
        """For a manifest: random, so that no two are the same."""
        return self._rng.randbytes(8)

    def new_id(self) -> bytes:
        """For a merged object."""
        return self._rng.randbytes(16)

    def commit(self, header: SegmentHeader, data: memoryview) -> bool:
        """Create the segment. Returns once it is certain that it exists and is ours: True, or False if garbage collection
        has taken its records along since, into a merged object.

        Raises `LostRace` if another's is there, `Determinate` if surely nothing happened, `Indeterminate` if it may
        have: then call again with the same header and bytes.
        """
        key = self.paths.segment(header.seq)
        found: SegmentHeader | None = None

        def parse(front: bytes) -> SegmentHeader:
            nonlocal found
            found = parse_front(key, front)
            return found

        def check_torn() -> None:
            if self._goes_on_behind(header.seq) and get_if_there(self.store, key, 0, HEADER_SIZE) == b"":
                raise OutcomeUnknown(
                    f"{key}: the chain has gone on from here, and garbage collection was cut off as it left a header: no "
                    "bytes are there, and whose segment it was cannot be told any more. Open the partition again"
                )

        winner = create_settled(
            self.store,
            key,
            data,
            HEADER_SIZE,
            parse,
            lambda winner: winner.writer_id == header.writer_id,
            check_torn,
        )
        if winner is not None:
            raise LostRace(winner)
        return found is None or SegmentFlags.COLLECTED not in found.flags

    def _goes_on_behind(self, seq: int) -> bool:
        """Whether a later segment is committed: the newest one is always there."""
        later = self.store.list(self.paths.prefix, self.paths.segment(seq))
        return any(info.size and self.paths.seq_of(info.key) is not None for info in later)

    def horizon(self) -> Horizon:
        """The manifest's, as it is now: one small request."""
        return read_horizon(self.store, self.paths.manifest)

    def is_past(self, seq: int, since: Horizon, found_at: int | None = None) -> bool:
        """Whether places from `seq` on may have been emptied before now. `since`: the horizon when `seq` was surely right.
        A manifest that is the same has emptied nothing since, also if it is damaged; one that is gone tells nothing.

        Where there is none, as there was none before, there may have been one in between. So who has created or found
        something, at `found_at` at last, looks there whether the chain goes on behind it: only one listing tells.
        """
        return self.was_passed(self.horizon(), seq, since, found_at)

    def was_passed(self, now: Horizon, seq: int, since: Horizon, found_at: int | None) -> bool:
        """`is_past`, by a horizon that was read just now."""
        if now.front or since.front:
            return now.front != since.front and (now.collected_until > seq or not now.front)
        return found_at is not None and self._goes_on_behind(found_at)

    def header_at(self, seq: int) -> SegmentHeader | None:
        """The header of the segment at `seq`; None if there is none."""
        key = self.paths.segment(seq)
        front = get_if_there(self.store, key, 0, HEADER_SIZE)
        return parse_front(key, front) if front else None

    def first_of(self, epoch: int, since: int) -> SegmentHeader | None:
        """The first segment from `since` on that is of `epoch` or a later one, among those that still exist. Epochs only
        rise, so few are asked for."""
        listed = [stored.first for stored in self._loader.listed(since, with_merged=False)[0]]
        found = None
        while listed:
            middle = len(listed) // 2
            header = self.header_at(listed[middle])
            if header is None:
                del listed[middle]  # it went meanwhile
            elif header.epoch < epoch:
                del listed[: middle + 1]
            else:
                found = header
                del listed[middle:]
        return found

    def link_at(self, seq: int) -> Link | None:
        """The segment at `seq`, with one request; None if there is none. `StalePlace` if garbage collection was cut off in
        the middle of leaving a header there."""
        key = self.paths.segment(seq)
        tail = get_if_there(self.store, key, -TAIL_SIZE)
        if tail == b"" and self._goes_on_behind(seq):
            raise StalePlace(seq)
        link = link_of(self.store, key, seq, tail)
        if self._keep is not None and link is not None and tail and is_whole(link, tail):
            self._keep(key, tail)
        return link

    def follow(
        self, tail: ChainTail, since: float | None = None, enough: int | None = None
    ) -> list[Link] | None:
        """What was committed after `tail`, in order; None if that cannot be told from here, because places behind it were
        emptied: `load` tells. If nothing was committed it takes one request, two behind an exclusive writer's segment; in a
        lane, two for all its partitions, and none if it was read `since` then.

        `enough`: with so many the caller goes on, where that can be told without looking further: behind an exclusive
        writer's segment it cannot."""
        links: list[Link] = []
        if tail.claim is not None:
            found = parts_behind(self._lanes, self.paths, tail, since)
            if found.is_stale or found.missing:
                return None
            if found.damage is not None and not (found.if_unsplit and tail.horizon.front):
                raise fresh(found.damage)
            links = found.links
            if found.is_moved:
                return self._follow_behind(tail, links, since)
            if not found.is_left:
                return links
        seq = links[-1].header.seq + 1 if links else tail.next_seq
        doubtful = seq if tail.may_be_emptied else None
        link: Link | None = None
        try:
            while doubtful is not None or len(links) != enough:
                link = self.link_at(seq)
                if link is None:
                    break
                if SegmentFlags.COLLECTED in link.header.flags:
                    return None
                links.append(link)
                seq += 1
                if doubtful is None and link.header.mode is WriterMode.EXCLUSIVE:
                    doubtful = seq
                if link.said.claim is not None:
                    break
                link = None
        except StalePlace:
            return None
        # Behind a claim come places that were never used in this chain, and perhaps later ones that were: no listing tells.
        found_at = seq if links and link is None else None
        if doubtful is not None and self.is_past(doubtful, tail.horizon, found_at):
            return None
        return links if link is None else self._follow_behind(tail, links, since)

    def _follow_behind(self, tail: ChainTail, links: list[Link], since: float | None) -> list[Link] | None:
        """The last of the links is a claim: what follows is in its lane."""
        for known in links:
            tail = tail.after(known.header, known.said)
        behind = self.follow(tail, since)
        return None if behind is None else links + behind

    def owner_of(self, tail: ChainTail) -> bytes:
        """Who writes the chain from its tail on: whom its last fence names, or who has adopted the lane since in which it
        goes on. As last read; asks nobody."""
        return self.adopter_of(tail) or tail.owner

    def adopter_of(self, tail: ChainTail) -> bytes:
        """Who has adopted the lane in which the chain goes on; nothing if nobody has, or it goes on in no lane."""
        return b"" if tail.claim is None else self._lanes.owner_of(tail.claim)

    def end_claim(
        self,
        tail: ChainTail,
        new_id: Callable[[], bytes],
        now_ms: int,
        owner: bytes = b"",
        judged: bytes | None = None,
    ) -> bool:
        """Whoever goes on behind a claim, in this chain or in another lane, must end it in its lane first: from then on its
        owner can commit nothing more, and `follow` tells where it ended. `judged`, and what is returned: as for
        `LaneReader.end_claim`."""
        assert tail.claim is not None, "there is nothing to end"
        return self._lanes.end_claim(
            tail.claim, ClaimKey(self.paths.prefix, tail.epoch), new_id, now_ms, owner, judged
        )

    def holds(self, refs: Iterable[SegmentRef]) -> bool:
        """Whether the store has all of these objects, as large as the rows say: one listing."""
        sizes = {info.key: info.size for info in self.store.list(self.paths.prefix)}
        return all(sizes.get(ref.key) == ref.size for ref in refs if not is_slice(ref.key))

    def load(self) -> ChainView:
        """GET the manifest, LIST what is newer, one tail GET for each newer segment, and a look at the horizon.

        A manifest that is missing or damaged can be done without: the chain is read from its start, and merged objects
        stand in for what they replaced. Only where the log begins may have to be decided by maintenance again.

        What is missing is looked for twice: it may have gone while the rest was read, with all of its topic.
        """
        passed, is_old = -1, False
        while True:
            try:
                view = self._loader.load(is_old=is_old)
                if not view.segments.is_complete and not view.tail.deleted:
                    view = self._loader.load(is_old=is_old)
            except StaleManifest as stale:
                # The newer one is written before a lane knows of it. If it is not there, somebody has put the old one back,
                # or the topic is being deleted, and nobody writes one any more.
                is_old, passed = stale.version == passed, stale.version
                continue
            if view.tail.next_seq == view.manifest_next_seq:
                return view  # the newest segment always stays, so a listing without one behind the manifest's is the end
            if not self.is_past(view.manifest_next_seq, view.tail.horizon):
                return view
