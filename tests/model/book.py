"""What a process has in memory of its lane, shared by its threads: what the lane holds, as far as it was met, the writers,
and what waits, is made, or is under way.

Each method of `Books` is what one thread does with the lane's lock held, as `logstore/engine/lanes/lane_state.py` and
`logstore/engine/write/lanes` do: it is given the book, and returns it as it is then, and an answer.

* **A claim** is *begun* in the book before it is asked for, so that every checkpoint names it. If the lane tells more of it,
  that counts: it is the second try, and the first one stands, and was ended since; or an earlier life of the lane made it.
* **A writer** belongs to one life of the lane. What it has counts while the book names it for its claim. Nobody need have
  told it.
* **What met another's entry** is sent again, in its order: a load keeps its turn until its entry is under way, because what
  meets another one meanwhile goes in front of it.
* **An ask** is answered by the life that has met it, or not at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.asks import Asks, is_ask
from tests.model.lanes import DATA, Batch, Entry, Own
from tests.model.places import ADOPT, Checkpoint, Known, Stand, Tail

WAIT, GO, DONE, LOOK, GONE, FOREIGN = "wait", "go", "done", "look", "gone", "foreign"
Key = tuple[str, int]


class Hand(NamedTuple):
    """A writer of a partition: its next offset, and the place in the partition's chain of the next part that it stores."""

    part: str
    claim: int
    next: int
    seq: int

    @property
    def key(self) -> Key:
        return self.part, self.claim


class Window(NamedTuple):
    """What a writer was given, with its offset. `hand`: the number of the writer."""

    hand: int
    base: int
    records: tuple[str, ...]


Load = tuple[Window, ...]


class Sent(NamedTuple):
    seq: int
    entry: Entry
    load: Load


class Book(NamedTuple):
    """`ours`: our life of the lane is the last one, as far as was met. `entering`: a thread is about to adopt it. `hands`:
    all writers there ever were; `writers`: those that count, by claim. `due`, `again`: what waits, and what met another's
    entry. `making`: the load of which an entry is made, and whether it is the first of `again`. `held`: nothing is sent
    behind the first upload before that stands."""

    lane: str
    at: Stand
    ours: bool = True
    entering: bool = False
    hands: tuple[Hand, ...] = ()
    writers: tuple[tuple[Key, int], ...] = ()
    due: Load = ()
    again: tuple[Load, ...] = ()
    making: tuple[Load, bool] | None = None
    uploads: tuple[Sent, ...] = ()
    held: bool = False
    asked: frozenset[Key] = frozenset()
    ids: int = 0

    def known(self, key: Key) -> Known | None:
        return next((c for c in self.at.claims if (c.part, c.claim) == key), None)

    def with_claim(self, new: Known) -> Book:
        others = (c for c in self.at.claims if c[:2] != new[:2])
        return self._replace(at=self.at._replace(claims=tuple(sorted((*others, new)))))


def end_seq(known: Known) -> int:
    """The place in the partition's chain behind the last part."""
    return known.parts[-1][1].seq + 1 if known.parts else known.seq


class Books(Asks):
    """`wide`: what is due is sent beside what is under way."""

    def __init__(self, wide: bool = False, **rules: Any) -> None:
        super().__init__(**rules)
        self.wide = wide

    # What a lane holds

    def behind(self, at: Any, entry: Entry) -> Any:
        new = super().behind(at, entry)
        return new._replace(claims=tuple(c._replace(begun=c.begun and not c.parts) for c in new.claims))

    def carried_on(self, end: Stand) -> tuple[Own, ...]:
        """A claim that was only begun may not stand."""
        return super().carried_on(end._replace(claims=tuple(c for c in end.claims if not c.begun)))

    # Claims

    def may_enter(self, book: Book) -> tuple[Book, Any]:
        if book.ours:
            return book, DONE
        return (book, WAIT) if book.entering else (book._replace(entering=True), GO)

    def adopted(self, book: Book, end: Stand) -> tuple[Book, Any]:
        """Our next life: it knows what the lane says, and no writer of a life before."""
        end = end._replace(start=0)
        return book._replace(
            at=end, ours=True, entering=False, writers=(), asked=self.asked_before(book)
        ), None

    def asked_before(self, book: Book) -> frozenset[Key]:
        return frozenset()

    def begin(self, book: Book, key: Key, seq: int, end: int) -> tuple[Book, Any]:
        """A claim is about to be made. Returns from which place of the lane on it will be."""
        if self.begins_again(book.known(key)):
            book = book.with_claim(Known(*key, seq, end, end, begun=True))
        return book, book.at.next

    def begins_again(self, known: Known | None) -> bool:
        return known is None or (known.begun and not known.left)

    def begun_at(self, book: Book, own: Own) -> tuple[Book, Any]:
        """It stands, perhaps behind parts that were not known before. In another life it is not known any more, or the lane
        tells more of it."""
        known = book.known((own.part, own.claim))
        if known is not None and self.is_begun_only(known):
            book = book.with_claim(known._replace(seq=own.seq, end=own.next, reserved=own.next))
        return book, None

    def is_begun_only(self, known: Known) -> bool:
        """Not if there is, or was, a part of it in the lane: by now a manifest may hold that."""
        return known.begun

    def goes_on_here(self, book: Book, tail: Tail, adopted_at: int) -> tuple[Book, Any]:
        """If the claim at the tail is one of an earlier life: nothing need be claimed. What is ours then, or None.
        `adopted_at`: where the lane was adopted last, as it was read with the tail."""
        key = tail.part, tail.epoch
        known = book.known(key)
        if not book.ours or tail.lane != book.lane or key in dict(book.writers):
            return book, None
        if tail.since < book.at.ended or (known is not None and known.sealed):
            return book, None
        if not self.is_the_last_life(book, adopted_at):
            return book, None
        if known is None or known.begun:
            book, _ = self.begin(book, key, tail.seq, self.base(tail))
        elif end_seq(known) > tail.seq:
            return book, None  # there is more of it than was read
        return book, self.resumed(tail)

    def is_the_last_life(self, book: Book, adopted_at: int) -> bool:
        """A later one may have put parts of the claim into the lane, which a checkpoint of ours would not know."""
        return adopted_at < book.at.next

    def add(self, book: Book, own: Own) -> tuple[Book, Any]:
        """The claim stands, and this is its writer: its number, or None if nothing of it would count."""
        hand = Hand(own.part, own.claim, own.next, own.seq)
        known = book.known(hand.key)
        if not self.is_here(book, known, hand):
            return book, None
        number = len(book.hands)
        writers = tuple(sorted({**dict(book.writers), hand.key: number}.items()))
        book = book._replace(hands=(*book.hands, hand), writers=writers)
        return book, None if known is not None and known.sealed else number

    def is_here(self, book: Book, known: Known | None, hand: Hand) -> bool:
        """Not if another life of the lane has begun, and may have put more of the claim into it."""
        return book.ours and known is not None and end_seq(known) <= hand.seq

    # What waits

    def append(self, book: Book, number: int, records: tuple[str, ...]) -> tuple[Book, Any]:
        hand = book.hands[number]
        window = Window(number, hand.next, records)
        book = self.with_hand(book, number, hand._replace(next=hand.next + len(records)))
        return book._replace(due=(*book.due, window)), window

    def with_hand(self, book: Book, number: int, hand: Hand) -> Book:
        return book._replace(hands=(*book.hands[:number], hand, *book.hands[number + 1 :]))

    def is_over(self, book: Book, window: Window) -> bool:
        """Whether nothing of its writer counts any more."""
        key = book.hands[window.hand].key
        if not book.ours or not self.is_of_this_life(book, key, window.hand):
            return True
        known = book.known(key)
        return (known is not None and known.sealed) or self.is_given_up(book, key)

    def is_of_this_life(self, book: Book, key: Key, number: int) -> bool:
        return dict(book.writers).get(key) == number

    def is_given_up(self, book: Book, key: Key) -> bool:
        """Whether an upload under way ends the claim, because somebody has asked for it."""
        return key in book.asked and any(key in up.entry.seals for up in book.uploads)

    def unanswered(self, book: Book) -> frozenset[Key]:
        if self.is_silent(book):
            return frozenset()
        return frozenset(key for key in book.asked if not self.is_given_up(book, key))

    def is_silent(self, book: Book) -> bool:
        """Nothing of a life that is over will follow."""
        return not book.ours

    # Entries

    def pick(self, book: Book, mine: Window) -> tuple[Book, Any]:
        """What the thread that waits for a window does next: it makes an entry of a load, waits, or is done."""
        waiting = [*book.due, *(window for load in book.again for window in load)]
        waiting += [window for up in book.uploads for window in up.load]
        waiting += book.making[0] if book.making is not None else ()
        answers = not book.uploads and bool(self.unanswered(book))
        if mine not in waiting and not answers:
            return book, DONE
        if book.making is not None or (book.again and book.uploads and book.held):
            return book, WAIT
        if book.again:
            return self.taken_out(book)._replace(making=(book.again[0], True)), GO
        if book.due and (self.wide or not book.uploads):
            return book._replace(due=(), making=(book.due, False)), GO
        return (book._replace(making=((), False)), GO) if answers else (book, WAIT)

    def taken_out(self, book: Book) -> Book:
        """Not yet: what meets another's entry meanwhile goes in front of it."""
        return book

    def launch(self, book: Book, who: str) -> tuple[Book, Any]:
        """The entry is made, for the next place, and is under way. Returns it, and the records that are never stored."""
        assert book.making is not None, "one thread makes an entry at a time"
        (load, is_again), book = book.making, book._replace(making=None)
        if not is_again and book.again:
            return book._replace(again=(*book.again, load)), (None, ())  # what met another's entry goes first
        if is_again and not self.has_turn(book, load):
            return book, (None, ())
        if is_again:
            book = self.left_out(book)
        ends = tuple(window for window in load if self.is_over(book, window))
        load, seals = tuple(window for window in load if window not in ends), self.unanswered(book)
        denied = tuple(record for window in ends for record in window.records)
        if not load and not seals:
            return book, (None, denied)
        up = self.upload(book, who, load, seals)
        return book._replace(uploads=(*book.uploads, up), ids=book.ids + 1), (up, denied)

    def has_turn(self, book: Book, load: Load) -> bool:
        return book.again[:1] == (load,)

    def left_out(self, book: Book) -> Book:
        return book._replace(again=book.again[1:])

    def upload(self, book: Book, who: str, load: Load, seals: frozenset[Key]) -> Sent:
        """Behind what is under way. Offsets were given before; places in the partitions' chains are those behind it."""
        last = book.uploads[-1] if book.uploads else None
        seq, prev = (book.at.next, book.at.edge) if last is None else (last.seq + 1, last.entry.id)
        before = [window.hand for up in book.uploads for window in up.load]
        batches = []
        for window in load:
            hand, end = book.hands[window.hand], window.base + len(window.records)
            place = hand.seq + before.count(window.hand)
            batches.append(Batch(hand.part, hand.claim, window.base, window.records, end, place))
            before.append(window.hand)
        entry = Entry(DATA, (who[0], book.ids), prev, tuple(batches), seals, known=book.at.next)
        return Sent(seq, entry, load)

    def settle(self, book: Book, up: Sent, has_landed: bool) -> tuple[Book, Any]:
        """In the order of their places. Returns its batches, which are acked, once it is known to stand."""
        if up not in book.uploads:
            return book, GONE
        if book.uploads[0] != up:
            return book, WAIT
        if not has_landed:
            return book, LOOK
        at = self.behind(book.at, up.entry)
        book = book._replace(at=at, uploads=book.uploads[1:], held=False, asked=book.asked - up.entry.seals)
        for window in up.load:
            hand = book.hands[window.hand]
            book = self.with_hand(book, window.hand, hand._replace(seq=hand.seq + 1))
        return book, up.entry.batches

    def meet(self, book: Book, up: Sent, found: Entry) -> tuple[Book, Any]:
        """Another's entry is in the place of the oldest upload: all that is under way is sent again behind it."""
        if book.uploads[:1] != (up,):
            return book, GONE
        if found.kind == DATA and found.prev == book.at.edge and not is_ask(found):
            return book, FOREIGN
        at = self.behind(book.at, found)
        ours = book.ours and found.kind != ADOPT
        asked = book.asked | (found.seals if is_ask(found) and ours else frozenset())
        left = frozenset((c.part, c.claim) for c in at.claims if c.left)
        begun = frozenset((c.part, c.claim) for c in at.claims if c.begun) - dict(book.writers).keys()
        again = (*(one.load for one in book.uploads), *book.again)
        return book._replace(
            at=at, ours=ours, asked=asked - left - begun, again=again, uploads=(), held=True
        ), DONE

    # Checkpoints

    def written(self, book: Book, who: str, base: Checkpoint) -> tuple[Book, Any]:
        """The next checkpoint, from memory. One that knows more is not replaced."""
        if not book.ours or base.next > book.at.next:
            return book, None
        at = book.at
        return book, Checkpoint(
            base.version + 1, who, base.until, at.next, at.edge, at.claims, base.kept, at.ended
        )
