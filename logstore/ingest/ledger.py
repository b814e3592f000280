"""The ledger: which boundaries are still owed by whom, and how far everything is settled.

A doubly linked list of `Debt`s in boundary order behind one sentinel. Each debt stands for one committed
boundary that at least one sink still owes; `reach` is the newest boundary that becomes reportable once this
debt and all before it are paid. The sentinel's `reach` is therefore the answer to the only question there is:
*up to which boundary is everything settled?*

Invariants, at every moment:

* debts are strictly ordered, and `debt.boundary <= debt.reach < debt.next.boundary`;
* every debt but the sentinel has at least one debtor;
* a boundary that nobody owes takes no memory: it only moves the `reach` of the debt before it.

So a boundary is added at the end in O(1), and a paid debt is unlinked in O(1) wherever it is, handing
its `reach` to its predecessor. No heap, no search: one stuck debtor at the front costs the others nothing,
and what is kept is what is owed, not what has happened since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from logstore.ingest.offsets import O


class Debt(Generic[O]):
    """One boundary, and who still owes it (the debtors, in the order in which routing named them)."""

    __slots__ = ("boundary", "debtors", "next", "previous", "reach", "since_s")

    def __init__(self, boundary: O, since_s: float) -> None:
        self.boundary = boundary
        self.reach = boundary
        self.since_s = since_s
        self.debtors: dict[object, None] = {}
        self.previous: Debt[O] = self
        self.next: Debt[O] = self


class Ledger(Generic[O]):
    """Debts in order, and `settled`, the newest boundary before the first of them."""

    __slots__ = ("_head", "owed")

    def __init__(self, start: O) -> None:
        self._head: Debt[O] = Debt(start, 0.0)
        self.owed = 0
        """How many (sink, boundary) pairs are unpaid."""

    @property
    def settled(self) -> O:
        return self._head.reach

    @property
    def newest(self) -> O:
        """The newest boundary there is, owed or not."""
        return self._head.previous.reach

    def pass_over(self, boundary: O) -> None:
        """A boundary that nobody owes."""
        self._head.previous.reach = boundary

    def add(self, boundary: O, debtors: list[object], now_s: float) -> Debt[O]:
        """A boundary that `debtors` (not empty) owe."""
        debt = Debt(boundary, now_s)
        debt.debtors = dict.fromkeys(debtors)
        head, last = self._head, self._head.previous
        debt.previous, debt.next = last, head
        last.next = head.previous = debt
        self.owed += len(debtors)
        return debt

    def pay(self, debt: Debt[O], debtor: object) -> None:
        """`debtor` owes `debt` no longer; the last one to pay settles it."""
        del debt.debtors[debtor]
        self.owed -= 1
        if not debt.debtors:
            debt.previous.reach = debt.reach
            debt.previous.next = debt.next
            debt.next.previous = debt.previous

    def __iter__(self) -> Iterator[Debt[O]]:
        debt = self._head.next
        while debt is not self._head:
            yield debt
            debt = debt.next
