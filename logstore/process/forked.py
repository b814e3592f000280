"""Stores that were writing when the process forked: in the child they are over.

Threads stay behind in the parent. An append to the child's copy would wait for an upload that nobody makes, a buffered ack
there would be for a record that nobody will ever store, and both processes would give out the same offsets. So the child is
told to open the store again. One that has not begun to write has no threads yet, and works in both.

No lock is taken here: the thread that holds it may be one of those that stayed behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_open: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
"""Each with what tells it, in the child."""


def remember(store: T, after_fork_in_child: Callable[[T], None]) -> None:
    """Calls `after_fork_in_child(store)` in a forked child, as long as somebody else holds the store."""
    _open[store] = after_fork_in_child


def _leave_all() -> None:
    for store, after_fork_in_child in list(_open.items()):
        after_fork_in_child(store)


os.register_at_fork(after_in_child=_leave_all)
