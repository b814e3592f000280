"""Threads of one process, and lives of one lane: what a process does with answers that come late.

What differs from `asks`, whose rules hold otherwise: a process is several threads that share a book (`book`), and writes its
checkpoints from that. Between any two requests of a thread

* another process may take the partition over that it is about to open, or has opened, and another thread may meet that;
* the next life of the lane may begin elsewhere, go on with its partitions, and the process may adopt the lane back.

A thread whose claim nobody has answered tries again, with what it knew when it loaded the partition. Others (`b`, `c`) are
the processes of `asks`. They read many objects with one look: what comes between their reads is searched there.
"""

from __future__ import annotations

from typing import Any

from tests.model.actors import Actor, Said
from tests.model.asks import ASK, is_ask
from tests.model.book import DONE, FOREIGN, GO, GONE, LOOK, WAIT, Book, Books
from tests.model.lanes import DATA, Entry, Own, Place, Step, Writer
from tests.model.places import ADOPT, Checkpoint, Known, PlaceJudge, Segment, Stand, Tail, standing
from tests.model.search import Violation
from tests.model.store import OK, UNKNOWN, Create, Get, Inside, Look, Objects, Swap, execute
from tests.model.transfers import TRANSFER


def at_once(objects: Objects, step: Step) -> Any:
    """What a step returns that only reads, if nothing comes between."""
    answer = None
    try:
        while True:
            request = step.send(answer)
            answer = None if isinstance(request, Said) else execute(objects, request)[1]
    except StopIteration as end:
        return end.value


class Lives(Books):
    """The rules that hold. `held`: the partitions that process a has from the start."""

    def __init__(self, held: str = "", **rules: Any) -> None:
        super().__init__(**rules)
        self.held_at_first = held

    def first_book(self, lane: str) -> tuple[Book, Entry | None]:
        """Of a process that has writers from the start, and the transfer that it has their claims by."""
        first, parts = Stand(0, 0, None, (), 0), self.held_at_first
        if not parts:
            return Book(lane, first, ours=False), None
        moves = tuple((part, 0, Segment((lane, 0), 1, 0, lane=lane)) for part in parts)
        claims = tuple(Known(part, 1, 1, begun=True) for part in parts)
        book = Book(lane, first._replace(claims=claims))
        for part in parts:
            book, _ = self.add(book, Own(part, 1, 0, 0, 1))
        entry = Entry(TRANSFER, (lane, "transfer"), None, (), frozenset((part, 0) for part in parts), moves)
        return book, entry

    # Reading, at once

    def load_chain(self, part: str) -> Step:
        found = yield Look(self.chain_now, (part,))
        return found

    def chain_now(self, objects: Objects, part: str) -> Any:
        return at_once(objects, super().load_chain(part))

    def seen_now(self, objects: Objects, part: str, lane: str) -> tuple[Tail, int]:
        """Where the partition's chain ends, and where that lane was adopted last."""
        adopted, seq = -1, 0
        while (entry := objects.get(Place(lane, seq))) is not None:
            adopted, seq = seq if entry.kind == ADOPT else adopted, seq + 1
        return self.chain_now(objects, part)[1], adopted

    def read_lane(self, lane: str) -> Step:
        found = yield Look(self.lane_now, (lane,))
        return found

    def load(self, lane: str) -> Step:
        found = yield Look(self.lane_now, (lane,))
        return found

    def lane_now(self, objects: Objects, lane: str) -> Stand:
        return standing(self, objects, lane, set())[0]

    # Threads

    def thread(self, who: str, lane: str, script: str) -> Actor:
        """`p`: opens p; `P`: takes the writer of p that there is from the start; `1`: appends with the writer that it has;
        `k`: writes a checkpoint."""
        book, number, made = ("book", who[0]), None, 0
        while script:
            word, script = script[0], script[1:]
            if word == "k":
                yield from self.write_checkpoint(who, lane, book)
            elif word.isupper():
                number = self.held_at_first.index(word.lower())
            elif word.isalpha():
                number = yield from self.open(who, lane, book, word)
            elif number is not None:
                yield from self.store(who, lane, book, number, (f"{who}.{made}",))
                made += 1
            del word

    def open(self, who: str, lane: str, book: Any, part: str) -> Step:
        """Be the lane's next life if it is another's. Then go on with the claim, or make one, and add its writer: its
        number, or None if nothing of it would count."""
        tries, seen = 3, None
        while tries:
            if seen is None:
                seen = yield Look(self.seen_now, (part, lane))
            tail, adopted_at = seen
            yield from self.enter(who, lane, book)
            own = yield Inside(book, self.goes_on_here, (tail, adopted_at))
            if own is None and tail.lane and tail.open:
                own = yield from self.claim(f"{who}.{tries}", lane, book, tail)
            if own == UNKNOWN:
                yield Said("seen", ("a claim is tried again",))
                tries -= 1
                del own, tail, adopted_at
                continue
            if own is not None:
                number = yield Inside(book, self.add, (own,))
                if number is None:
                    yield Said("seen", ("a claim is answered too late",))
                return number
            del own, tail, adopted_at
            seen = None
            tries -= 1
        return None

    def enter(self, who: str, lane: str, book: Any) -> Step:
        while True:
            answer = yield Inside(book, self.may_enter)
            if answer == DONE:
                return
            if answer == GO:
                break
            del answer
        end = yield from self.end_lane(lane, Entry(ADOPT, (who, "adopt")))
        yield Said("seen", ("adopted back",))
        yield Inside(book, self.adopted, (end,))

    def claim(self, name: str, lane: str, book: Any, tail: Tail) -> Step:
        """One try. None if there is more to look at; UNKNOWN if nobody has answered: it may stand all the same."""
        base = self.base(tail)
        since = yield Inside(book, self.begin, ((tail.part, tail.epoch + 1), tail.seq + 1, base))
        del base
        while True:
            end = yield from self.load(tail.lane)
            entry, own = self.moving(name, Writer(lane, since), (tail,), end)
            if not own:
                return None
            answer = yield Create(Place(tail.lane, end.next), entry)
            if answer == UNKNOWN:
                return UNKNOWN
            found = None
            if answer != OK:
                found = yield Get(Place(tail.lane, end.next))
            if answer == OK or (found is not None and found.id == entry.id):
                break
            del end, entry, own, answer, found
        del end, entry, answer, found
        yield Inside(book, self.begun_at, (own[0],))
        return own[0]

    def store(self, who: str, lane: str, book: Any, number: int, records: tuple[str, ...]) -> Step:
        """Give the writer a record, and see to it until it is known what became of that."""
        mine = yield Inside(book, self.append, (number, records))
        del records, number
        while True:
            answer = yield Inside(book, self.pick, (mine,))
            if answer == DONE:
                return
            if answer == WAIT:
                del answer
                continue
            del answer
            up, denied = yield Inside(book, self.launch, (who,))
            if denied:
                yield Said("denied", denied)
            del denied
            if up is not None:
                yield from self.send(who, lane, book, up)
            del up

    def send(self, who: str, lane: str, book: Any, up: Any) -> Step:
        answer = yield Create(Place(lane, up.seq), up.entry)
        has_landed = answer == OK
        while True:
            del answer
            answer = yield Inside(book, self.settle, (up, has_landed))
            if answer == GONE:
                return
            if answer == WAIT:
                continue
            if answer != LOOK:
                yield Said("acked", answer)
                return
            found = yield Get(Place(lane, up.seq))
            if found is None:
                answer = yield Create(Place(lane, up.seq), up.entry)
                has_landed = answer == OK
            elif found.id == up.entry.id:
                has_landed = True
            else:
                answer = yield Inside(book, self.meet, (up, found))
                if answer == FOREIGN:
                    yield Said("foreign", (found,))
                yield Said("seen", (f"another's {'ask' if is_ask(found) else found.kind} is met",))
                return
            del found

    def write_checkpoint(self, who: str, lane: str, book: Any) -> Step:
        base = yield Get(("checkpoint", lane))
        base = Checkpoint() if base is None else base
        new = yield Inside(book, self.written, (who, base))
        if new is not None:
            yield Swap(("checkpoint", lane), base.version, new)
            yield Said("seen", ("a checkpoint is written",))

    # Others

    def split_end(self, end: int) -> int:
        """All of a lane may be split: nothing of it is deleted here."""
        return end

    def may_go(self, entry: Entry, valid: bool) -> bool:
        return False

    def asker(self, who: str, lane: str, parts: str, ahead: str = "") -> Actor:
        """Asks for claims of a lane that it has found to stand, at its end or so many places ahead."""
        end, seals = yield Look(self.claims_now, (lane, parts))
        if seals:
            yield Create(Place(lane, end.next + int(ahead or 0)), Entry(DATA, (who, "ask"), ASK, (), seals))
            yield Said("seen", ("a taker asks",))

    def claims_now(self, objects: Objects, lane: str, parts: str) -> tuple[Stand, frozenset[Any]]:
        tails = [self.chain_now(objects, part)[1] for part in parts]
        claims = frozenset((one.part, one.epoch) for one in tails if one.lane == lane and one.open)
        return self.lane_now(objects, lane), claims


class LifeJudge(PlaceJudge):
    """`foreign`: a process finds an entry in its lane that counts, and that it has not put there: it stops."""

    def heard(self, told: Any, said: Said) -> tuple[Any, Violation | None]:
        if said.what == "foreign":
            return told, ("foreign", f"{said.args[0]} is in a lane of another")
        return super().heard(told, said)
