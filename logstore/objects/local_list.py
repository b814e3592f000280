"""Files below a folder as keys in key order, lazily.

Key order is the order of whole keys, which is not the order of a walk by name: `a.b` sorts before `a/b`
although the folder `a` sorts before the file `a.b`. Sorting each folder's entries with a "/" behind the names
of folders puts that right. Only folders that can hold a wanted key are opened, and only files that are handed
out are stat'ed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator


def walk(root: str, prefix: str, start_after: str, *, hidden: str) -> Iterator[tuple[str, os.stat_result]]:
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
    yield from _walk(os.path.join(root, base), base, name_prefix, after, hidden if not base else "")


def _walk(
    folder: str, base: str, name_prefix: str, after: str, hidden: str
) -> Iterator[tuple[str, os.stat_result]]:
    wanted = _entries(folder, name_prefix, after, hidden)
    wanted.sort(key=lambda pair: pair[0])
    for name, entry in wanted:
        if name.endswith("/"):
            rest = after[len(name) :] if after.startswith(name) else ""
            yield from _walk(entry.path, base + name, "", rest, "")
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        yield base + name, status


def _entries(folder: str, name_prefix: str, after: str, hidden: str) -> list[tuple[str, os.DirEntry[str]]]:
    """The entries of one folder that are or may hold wanted keys; the names of folders end in "/"."""
    found = []
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    with entries:
        for entry in entries:
            name = entry.name
            as_folder = name + "/"
            # Cheap and first, because most entries fall here: `name` and all below it sort before `after`.
            if as_folder <= after and not after.startswith(as_folder):
                continue
            if not name.startswith(name_prefix) or name == hidden or not _is_text(name):
                continue
            if entry.is_dir():
                found.append((as_folder, entry))
            elif name > after and entry.is_file():
                found.append((name, entry))
    return found


def _is_text(name: str) -> bool:
    """False for a name that is not UTF-8 and so was put there by someone else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
