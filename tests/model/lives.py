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
from tests.model.asks import ASK
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
    """The rules that hold."""

    def process_with(self, lane: str, parts: str) -> tuple[Book, Entry | None]:
        """A process that has writers of these partitions from the start, and the transfer that gave it the claims."""
        first = Stand(0, 0, None, (), 0)
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
        `k`: writes a checkpoint; `-`: loads p, and opens it with the next word."""
        book, number, made, tail = ("book", who[0]), None, 0, None
        while script:
            word, script = script[0], script[1:]
            if word == "k":
                yield from self.write_checkpoint(who, lane, book)
            elif word == "-":
                _, tail, _ = yield from self.load_chain("p")
                del _
            elif word.isupper():
                number = yield Inside(book, self.first_hand, (word.lower(),))
            elif word.isalpha():
                number = yield from self.open(who, lane, book, word, tail)
                tail = None
            elif number is not None:
                part = yield Inside(book, self.part_of, (number,))
                yield from self.store(who, lane, book, number, (f"{who}{made}{part}0",))
                made += 1
                del part
            del word

    def first_hand(self, book: Book, part: str) -> tuple[Book, Any]:
        return book, next(n for n, hand in enumerate(book.hands) if hand.part == part)

    def part_of(self, book: Book, number: int) -> tuple[Book, Any]:
        return book, book.hands[number].part

    def open(self, who: str, lane: str, book: Any, part: str, tail: Tail | None) -> Step:
        """Be the lane's next life if it is another's. Then go on with the claim, or make one, and add its writer: its
        number, or None if nothing of it would count."""
        tries = 3
        if tail is None:
            _, tail, _ = yield from self.load_chain(part)
            del _
        while tries:
            yield from self.enter(who, lane, book)
            own = yield Inside(book, self.goes_on_here, (tail,))
            if own is None and tail.lane and tail.open:
                own = yield from self.claim(f"{who}.{tries}", lane, book, tail)
            if own == UNKNOWN:
                yield Said("seen", ("a claim is tried again",))
                tries -= 1
                del own
                continue
            if own is not None:
                number = yield Inside(book, self.add, (own,))
                if number is None:
                    yield Said("seen", ("a claim is answered too late",))
                return number
            del own
            _, tail, _ = yield from self.load_chain(part)
            del _
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
                yield Said("seen", (f"another's {found.kind} is met",))
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

    def asker(self, who: str, lane: str, parts: str) -> Actor:
        """Asks for claims of a lane, at its end."""
        end = yield from self.load(lane)
        seals = frozenset((part, 1) for part in parts)
        yield Create(Place(lane, end.next), Entry(DATA, (who, end.next), ASK, (), seals))
        yield Said("seen", ("a taker asks",))


class LifeJudge(PlaceJudge):
    """`foreign`: a process finds an entry in its lane that counts, and that it has not put there: it stops."""

    def heard(self, told: Any, said: Said) -> tuple[Any, Violation | None]:
        if said.what == "foreign":
            return told, ("foreign", f"{said.args[0]} is in a lane of another")
        return super().heard(told, said)
