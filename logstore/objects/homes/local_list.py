"""Files below a folder as keys in key order, lazily.

Key order is the order of whole keys, which is not the order of a walk by name: `a.b` sorts before `a/b`
although the folder `a` sorts before the file `a.b`. So a folder that is met waits until every name that sorts
before it with its "/" is out. Only folders that can hold a wanted key are opened, and each name that may be
wanted is stat'ed when its turn comes, not before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from heapq import heappop, heappush

from logstore.objects.homes.disk import Disk


def walk(
    disk: Disk, root: str, prefix: str, start_after: str, *, hidden: str
) -> Iterator[tuple[str, os.stat_result]]:
    """`(key, stat)` of each file whose key starts with `prefix` and sorts after `start_after`.

    `hidden` is a name directly below the root that is left out. A file or folder that vanishes under way is
    left out too.
    """
    above, _, name_prefix = prefix.rpartition("/")
    base = above + "/" if above else ""
    if base.startswith(hidden + "/"):
        return
    if start_after.startswith(base):
        after = start_after[len(base) :]
    elif start_after > base:
        return  # past every key below the base
    else:
        after = ""
    yield from _walk(disk, os.path.join(root, base), base, name_prefix, after, hidden if not base else "")


def _walk(
    disk: Disk, folder: str, base: str, name_prefix: str, after: str, hidden: str
) -> Iterator[tuple[str, os.stat_result]]:
    """`folder` ends in "/"; `after` is the start relative to it."""
    waiting: list[str] = []  # a heap of folders that were met and whose turn has not come, each with its "/"
    for name in _names(disk, folder, name_prefix, after, hidden):
        while waiting and waiting[0] < name:
            yield from _below(disk, folder, base, heappop(waiting), after)
        try:
            status = disk.stat(folder + name)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            heappush(waiting, name + "/")
        elif stat.S_ISREG(status.st_mode) and name > after:
            yield base + name, status
    while waiting:
        yield from _below(disk, folder, base, heappop(waiting), after)


def _below(disk: Disk, folder: str, base: str, name: str, after: str) -> Iterator[tuple[str, os.stat_result]]:
    """The keys of one folder inside; `name` ends in "/"."""
    if after.startswith(name):
        return _walk(disk, folder + name, base + name, "", after[len(name) :], "")
    if name > after:
        return _walk(disk, folder + name, base + name, "", "", "")
    return iter(())


def _names(disk: Disk, folder: str, name_prefix: str, after: str, hidden: str) -> list[str]:
    """The sorted names in a folder that are or may hold wanted keys: one pass, no system call for each."""
    try:
        names = disk.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A name that sorts before `after` matters only as a folder, and only if `after` begins with it.
    wanted = [
        name for name in names if (name > after or after.startswith(name)) and name.startswith(name_prefix)
    ]
    return sorted(name for name in wanted if name != hidden and _is_text(name))


def _is_text(name: str) -> bool:
    """False for a name that is not UTF-8 and so was put there by someone else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
