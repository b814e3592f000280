"""Stores that were writing when the process forked: in the child they are over.

Threads stay behind in the parent. An append to the child's copy would wait for an upload that nobody makes, a buffered ack
there would be for a record that nobody will ever store, and both processes would give out the same offsets. So the child is
told to open the store again. One that has not begun to write has no threads yet, and works in both.

No lock is taken here: the thread that holds it may be one of those that stayed behind.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def leave_to_parent(self) -> None: ...


_open: WeakSet[Forkable] = WeakSet()


def remember(store: Forkable) -> None:
    _open.add(store)


def _leave_all() -> None:
    for store in list(_open):
        store.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all)
