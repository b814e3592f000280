"""FlushTracker: up to which transaction boundary may the source forget?

One source (a replication slot, a queue) feeds many sinks (partitions) in transactions. The source may
forget a transaction when *every* sink that was owed a part of it has that part in the object store. The
tracker is told what was routed (`commit`) and what was stored (`flushed`), in any order, and reports the
newest boundary below which nothing is owed.

The algorithm
-------------
* Each sink has a **watermark**: the highest `flushed` of its present incarnation. It only rises.
* `commit(boundary, sinks)`: a sink whose watermark covers the boundary (`>=`) owes nothing; the flush came
  first. The others owe it: one debt in the `Ledger`, and a reference at the end of each debtor's own queue.
* `flushed(lease, up_to)`: raise the watermark; pay from the front of the sink's queue while it covers.
* The report is the ledger's `settled`: a debt that nobody owes any more hands its reach to the one before it.

Every step is O(1) for each debt made or paid. Nothing waits for another event: a debt is looked at when it is
made and whenever its sink's watermark rises, and at no other time could its answer change.

What holds after every call
---------------------------
* Every value given to `on_flushed` is a committed boundary, or a heartbeat that arrived while nothing was
  owed.
* Everything owed at or below it is stored, or was discarded by a decision that is durable itself.
* It is the *largest* such boundary, not the one before it.
* Values strictly rise; the callback is never entered twice at a time. If it raises, the tracker's state is
  complete, the exception reaches the caller, and the next call of any kind tries again. Repeating the call
  that raised is harmless; a `discard` that is repeated so says `Fenced`, since the lease is gone.
* A dead, stuck or unregistered sink keeps its debt. The tracker never moves the report to get out of
  trouble: partitions hold the data, so an abandoned debt is lost data. Hand the sink over, and replay it
  from the report.
* Reports of an earlier incarnation change nothing, also when the sink's name is used again.

The clock is only ever used to say how long a debtor has been idle. The tracker is not locked: one caller at
a time.

>>> tracker = FlushTracker(0, print)
>>> a, b = tracker.register("a"), tracker.register("b")
>>> tracker.flushed(a, 17)              # a large fragment was stored before its commit arrived
>>> tracker.commit(17, ["a", "b"])      # b still owes
>>> tracker.flushed(b, 20)
17
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Generic, Literal, Protocol

from logstore.errors import BufferFull, Fenced, StraddlingTransaction
from logstore.ingest.findings import Challenge, Explanation, Holder, Lease, Stalled
from logstore.ingest.ledger import Debt, Ledger
from logstore.ingest.offsets import O

MAX_OUTSTANDING = 1_000_000
"""Unpaid (sink, boundary) pairs that a tracker takes on by default: some 200 MB at worst."""


class Clock(Protocol):
    """Where the time comes from: `time` itself, or `logstore.testing.ManualClock`."""

    def monotonic(self) -> float: ...


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class _Sink(Generic[O]):
    """What is known of one sink: who owns it, what it has stored, what it owes, when it last moved."""

    __slots__ = ("alive", "challenged", "debts", "lease", "moved_s", "verdict_s", "waiting_for", "watermark")

    def __init__(self, lease: Lease, alive: Callable[[], bool]) -> None:
        self.debts: deque[Debt[O]] | None = None  # only while it owes: most of many sinks owe nothing
        self.own(lease, alive, 0.0)

    def own(self, lease: Lease, alive: Callable[[], bool], now_s: float) -> None:
        """A new incarnation: it keeps the debts and has to prove for itself what is stored."""
        self.lease = lease
        self.alive = alive
        self.watermark: O | None = None
        self.rearm(now_s)

    def rearm(self, now_s: float, waiting_for: str | None = None) -> None:
        self.moved_s = now_s
        self.challenged = False
        self.verdict_s: float | None = None
        self.waiting_for = waiting_for


class FlushTracker(Generic[O]):
    """Exact, order-free flush tracking for one source and many sinks; see the module's docstring.

    `start` is what the source has been told already; it is never reported again. `grace` is how many
    seconds a debtor may go without progress before `check` challenges it.
    """

    def __init__(
        self,
        start: O,
        on_flushed: Callable[[O], object],
        *,
        grace: float = 60.0,
        clock: Clock | None = None,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> None:
        self._on_flushed = on_flushed
        self._grace_s = grace
        self._clock = (time if clock is None else clock).monotonic
        self._max_outstanding = max_outstanding
        self._ledger = Ledger(start)
        self._reported = start
        self._reporting = False
        self._sinks: dict[Hashable, _Sink[O]] = {}
        self._debtors: dict[Hashable, _Sink[O]] = {}
        self._generation = 0

    @property
    def flushed_boundary(self) -> O:
        """The newest boundary below which nothing is owed: what `on_flushed` was, or will be, called with."""
        return self._ledger.settled

    @property
    def outstanding(self) -> int:
        """How many (sink, boundary) pairs are unpaid; above `max_outstanding` only by one lone commit."""
        return self._ledger.owed

    def register(self, sink: Hashable, *, alive: Callable[[], bool] = _always) -> Lease:
        """Take ownership of a sink that has no owner, together with any debt that routing made for it
        already.

        `alive` says whether the owner is still there (`thread.is_alive`, say); `check` asks it.
        """
        self._report()  # first: if it raises, nobody would have the new lease
        state = self._sinks.get(sink)
        if state is not None and state.alive is not _never:
            raise ValueError(
                f"sink {sink!r} has an owner (generation {state.lease.generation}): use hand_over"
            )
        if state is None:
            state = self._sinks[sink] = _Sink(self._next_lease(sink), alive)
        else:
            state.own(self._next_lease(sink), alive, self._clock())
        return state.lease

    def commit(self, boundary: O, sinks: Iterable[Hashable] = ()) -> None:
        """A transaction that ends at `boundary` was routed to `sinks` (delivered or not).

        A boundary that was committed before is a replay and changes nothing. Past `max_outstanding` raises
        `BufferFull` and records nothing: stop reading from the source, and commit again once debts are paid.
        """
        named = dict.fromkeys(sinks)
        if boundary <= self._ledger.newest:
            self._check_replay(boundary, named)
        else:
            debtors = [sink for sink in named if not self._covered(sink, boundary)]
            if debtors:
                self._owe(boundary, debtors)
            else:
                self._ledger.pass_over(boundary)
        self._report()

    def flushed(self, lease: Lease, up_to: O) -> None:
        """Everything routed to this sink at or below `up_to` is stored. Early, late, repeated or lower: all
        fine.
        """
        sink = self._sinks.get(lease.sink)
        current = sink is not None and sink.lease.generation == lease.generation
        if sink is not None and current and (sink.watermark is None or up_to > sink.watermark):
            sink.watermark = up_to
            if sink.debts is not None:
                self._pay(sink, sink.debts, up_to)
        self._report()

    def waiting(self, lease: Lease, why: str) -> None:
        """The answer to a challenge: alive, and waiting for `why`. Leaves the sink alone for another grace
        period.
        """
        sink = self._sinks.get(lease.sink)
        if sink is not None and sink.lease.generation == lease.generation:
            sink.rearm(self._clock(), why)
        self._report()

    def hand_over(self, lease: Lease, *, alive: Callable[[], bool] = _always) -> Lease:
        """Give the sink to a new incarnation, which keeps every debt and proves again what is stored.

        Raises `Fenced` if `lease` is not the present one: somebody else has handed it over, or discarded it.
        """
        self._report()  # first: if it raises, nobody would have the new lease
        sink = self._owned(lease)
        sink.own(self._next_lease(lease.sink), alive, self._clock())
        return sink.lease

    def discard(self, lease: Lease, proof: object) -> None:
        """Forget the sink and what it owes. This gives data up, so the decision must be durable already.

        `proof` says where it is written: a `Receipt` that is durable, or the name of the record or object.
        """
        if not proof:
            raise ValueError(f"discarding {lease.sink!r} needs the place where that decision is stored")
        if getattr(proof, "durability", "durable") != "durable":
            raise ValueError(
                f"the decision to discard {lease.sink!r} is not durable yet: wait_durable() first"
            )
        sink = self._owned(lease)
        for debt in sink.debts or ():
            self._ledger.pay(debt, lease.sink)
        self._debtors.pop(lease.sink, None)
        del self._sinks[lease.sink]
        self._report()

    def heartbeat(self, boundary: O) -> bool:
        """The source has nothing before `boundary` that it has not sent. Only moves the report if nothing
        is owed.

        Not to be called inside a transaction. Returns whether it counted; nothing of it is kept if it did
        not.
        """
        counts = not self._ledger.owed and boundary > self._ledger.newest
        if counts:
            self._ledger.pass_over(boundary)
        self._report()
        return counts

    def check(self) -> list[Challenge[O] | Stalled[O]]:
        """Who owes and does not move? A dead owner is a verdict at once; a live one is challenged first.

        Progress means that the watermark rose. A debtor without any for longer than the grace period gets a
        `Challenge`, at the next check a `Stalled`, and another one each period until somebody acts.
        """
        self._report()  # first: if it raises, nobody would learn of what was found
        now_s = self._clock()
        findings: list[Challenge[O] | Stalled[O]] = []
        for sink in self._debtors.values():
            sink.moved_s = min(sink.moved_s, now_s)  # a clock that was set back must not grant time
            idle_s = now_s - sink.moved_s
            assert sink.debts, "that is what makes it a debtor"
            owes = sink.debts[0].boundary
            gone = not sink.alive()
            if not gone and idle_s <= self._grace_s:
                continue
            if not gone and not sink.challenged:
                sink.challenged = True
                findings.append(Challenge(sink.lease, owes, idle_s))
            elif sink.verdict_s is None or not 0 <= now_s - sink.verdict_s <= self._grace_s:
                sink.verdict_s = now_s
                reason: Literal["owner gone", "no progress"] = "owner gone" if gone else "no progress"
                findings.append(Stalled(sink.lease, owes, idle_s, reason))
        return findings

    def explain(self, limit: int = 10) -> Explanation[O]:
        """What holds the report back: the debtors of the oldest debts, at most `limit` of them, each once."""
        now_s = self._clock()
        limit = min(limit, len(self._debtors))  # else one that owes much would have all of it looked through
        oldest: dict[Hashable, Debt[O]] = {}
        for debt in self._ledger:
            for sink in islice(debt.debtors, limit):
                oldest.setdefault(sink, debt)
            if len(oldest) >= limit:
                break
        holders = tuple(self._holder(sink, debt, now_s) for sink, debt in islice(oldest.items(), limit))
        return Explanation(self._ledger.settled, self._ledger.newest, self._ledger.owed, holders)

    def _covered(self, name: Hashable, boundary: O) -> bool:
        sink = self._sinks.get(name)
        return sink is not None and sink.watermark is not None and sink.watermark >= boundary

    def _owe(self, boundary: O, debtors: list[Hashable]) -> None:
        owed = self._ledger.owed
        # A commit wider than the limit is let through alone: refusing it for ever would be a standstill.
        if owed and owed + len(debtors) > self._max_outstanding:
            raise BufferFull(
                f"{owed} flushes are outstanding and boundary {boundary} adds {len(debtors)}, over the limit "
                f"of {self._max_outstanding}: stop reading from the source until some are paid. "
                f"{self.explain(1)}"
            )
        now_s = self._clock()
        debt = self._ledger.add(boundary, debtors, now_s)
        for name in debtors:
            sink = self._sinks.get(name)
            if sink is None:
                # Routed to before anybody registered it: the debt counts, and `check` says who is missing.
                sink = self._sinks[name] = _Sink(self._next_lease(name), _never)
            if sink.debts is None:
                sink.debts = deque()
                sink.rearm(now_s)  # idle time before there was anything to do is not held against it
                self._debtors[name] = sink
            sink.debts.append(debt)

    def _pay(self, sink: _Sink[O], debts: deque[Debt[O]], up_to: O) -> None:
        name, pay = sink.lease.sink, self._ledger.pay
        while debts and debts[0].boundary <= up_to:
            pay(debts.popleft(), name)
        if debts:
            sink.rearm(self._clock())
        else:
            sink.debts = None
            del self._debtors[name]

    def _check_replay(self, boundary: O, named: dict[Hashable, None]) -> None:
        for name in named:
            sink = self._sinks.get(name)
            owes = sink is not None and any(debt.boundary == boundary for debt in sink.debts or ())
            if not owes and not self._covered(name, boundary):
                raise StraddlingTransaction(
                    f"boundary {boundary} is not above {self._ledger.newest}, yet sink {name!r} does not owe "
                    f"it, nor has it reported it stored: boundaries must rise, and after a hand-over "
                    f"the new incarnation reports what it finds stored before the source replays"
                )

    def _owned(self, lease: Lease) -> _Sink[O]:
        sink = self._sinks.get(lease.sink)
        if sink is None or sink.lease.generation != lease.generation:
            now = "is not registered" if sink is None else f"is owned by generation {sink.lease.generation}"
            raise Fenced(
                f"sink {lease.sink!r} {now}; generation {lease.generation} has no say in it any more"
            )
        return sink

    def _next_lease(self, sink: Hashable) -> Lease:
        self._generation += 1  # one count for all sinks: a name that comes back never gets an old generation
        return Lease(sink, self._generation)

    def _holder(self, name: Hashable, debt: Debt[O], now_s: float) -> Holder[O]:
        sink = self._sinks[name]
        return Holder(
            lease=sink.lease,
            owes=debt.boundary,
            debts=len(sink.debts or ()),
            stored=sink.watermark,
            owed_for_s=now_s - debt.since_s,
            idle_s=now_s - sink.moved_s,
            owner_alive=sink.alive(),
            waiting_for=sink.waiting_for,
        )

    def _report(self) -> None:
        if self._reporting or not self._reported < self._ledger.settled:
            return
        self._reporting = True
        try:
            while self._reported < (settled := self._ledger.settled):
                self._on_flushed(settled)
                self._reported = settled
        finally:
            self._reporting = False
