"""The object store as a pure function, and what a network may do to a request.

The store is a mapping from key to object. A request is a value; `execute` gives the store after it and the answer.
Nothing here knows what the objects mean, except that a swap compares versions, as `If-Match` compares etags: a version is
used once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

Key = Hashable
Objects = Mapping[Key, Any]

OK, EXISTS, UNKNOWN = "ok", "412", "no answer"


class Get(NamedTuple):
    key: Key


class Create(NamedTuple):
    """PUT with `If-None-Match: *`."""

    key: Key
    what: Any


class Swap(NamedTuple):
    """PUT with `If-Match`, or with `If-None-Match: *` where version 0, nothing, was seen."""

    key: Key
    version: int
    what: Any


class SwapAll(NamedTuple):
    """Several swaps, of different keys, that are done together or not at all: one entry of a lane with parts of several
    partitions, which is refused if one of them has another owner."""

    swaps: tuple[Swap, ...]


class Put(NamedTuple):
    key: Key
    what: Any


class Delete(NamedTuple):
    key: Key


class ListKeys(NamedTuple):
    """All keys, as one snapshot."""


class Snapshot(NamedTuple):
    """All objects at once: for actors whose swap proves afterwards that nothing had changed meanwhile."""


class Begin(NamedTuple):
    """No request to the store. A reader begins a round; the answer is how far the log was acked by then."""


class Inside(NamedTuple):
    """No request to the store. What a thread does with the lock of its process held: `act` is given the memory that all its
    threads share, which is kept under `key`, and returns it as it is then, and an answer."""

    key: Key
    act: Callable[..., tuple[Any, Any]]
    args: tuple[Any, ...] = ()


class Look(NamedTuple):
    """Several reads at once: for actors that are about what happens between reading and writing. `act` is given all
    objects, and returns what is seen."""

    act: Callable[..., Any]
    args: tuple[Any, ...] = ()


class OneOf(NamedTuple):
    """Several requests under way at once. Any of them is done next; the answer is which, and its answer. Those that are not
    asked for again are given up: they were never done (one that is done later is a lost answer)."""

    requests: tuple[Request, ...]


Request = Get | Create | Swap | SwapAll | Put | Delete | ListKeys | Snapshot | Begin | Inside | Look | OneOf
WRITES = (Create, Swap, SwapAll, Put, Delete)


def execute(objects: Objects, request: Request) -> tuple[Objects, Any]:
    """What stands afterwards, and the answer."""
    match request:
        case Get(key):
            return objects, objects.get(key)
        case Create(key, what):
            if key in objects:
                return objects, EXISTS
            return {**objects, key: what}, OK
        case Swap(key, version, what):
            if (objects[key].version if key in objects else 0) != version:
                return objects, EXISTS
            return {**objects, key: what}, OK
        case SwapAll(swaps):
            if any(execute(objects, swap)[1] != OK for swap in swaps):
                return objects, EXISTS
            return {**objects, **{swap.key: swap.what for swap in swaps}}, OK
        case Put(key, what):
            return {**objects, key: what}, OK
        case Delete(key):
            return {k: v for k, v in objects.items() if k != key}, OK
        case ListKeys():
            return objects, frozenset(objects)
        case Snapshot():
            return objects, frozenset(objects.items())
        case Inside(key, act, args):
            memory, answer = act(objects[key], *args)
            return {**objects, key: memory}, answer
        case Look(act, args):
            return objects, act(objects, *args)
    raise AssertionError(f"{request} is no request to the store")


def is_void(objects: Objects, request: Request) -> bool:
    """Whether the request can never change anything any more: a swap of a version that was replaced."""
    if isinstance(request, SwapAll):
        return any(is_void(objects, swap) for swap in request.swaps)
    if not isinstance(request, Swap):
        return False
    return bool((objects[request.key].version if request.key in objects else 0) > request.version)
