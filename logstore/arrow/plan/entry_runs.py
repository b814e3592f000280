"""Tasks over whole entries of lanes, where many partitions lie together in them. Pure: splits in, tasks out.

An entry holds a slice of each partition that had something to store, so one task for each partition would ask for each
entry once for each partition. Here a task takes a run of entries with all the slices in them that are wanted, group by
group: of a group each entry is fetched once (`scan.gathered`), and of each partition its slices are decoded together. Within
a partition that is the order of its offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from logstore.arrow.plan.splits import Split
from logstore.engine.chain.segment_table import SegmentRef
from logstore.objects.wrappers.slices import is_slice, whole

Task = Split | tuple[Split, ...]
"""What a task reads: one split, or several whose slices lie in the same entries."""

TASK_BYTES = 16 << 20
"""As stored. A task of one partition may take more; this many bytes of many small slices take longer to decode."""
GROUP_BYTES = 8 << 20
"""As stored: what a task holds at once. Smaller groups would make smaller Arrow batches."""

_SLICES_MIN = 32
_SLICES_OF_AN_ENTRY_MIN = 4
"""Below these, what is saved is not worth another number of tasks than Spark's Kafka source would have."""


def over_entries(
    splits: Sequence[Split], max_bytes: int = TASK_BYTES, group_bytes: int = GROUP_BYTES
) -> list[Task]:
    """The same records; splits without slices, and all of them where few would share an entry, stay as they are."""
    slices = [ref.key for split in splits for ref in split.refs if is_slice(ref.key)]
    entries = len(set(map(whole, slices)))
    if len(slices) < _SLICES_MIN or len(slices) < entries * _SLICES_OF_AN_ENTRY_MIN:
        return list(splits)
    own: list[Task] = []
    shared: list[Split] = []
    for piece in itertools.chain.from_iterable(map(_pieces, splits)):
        if is_slice(piece.refs[0].key):
            shared.append(piece)
        else:
            own.append(piece)
    tasks: list[list[Split]] = []
    left = 0.0
    for group in _groups(shared, group_bytes):
        size = sum(piece.stored_bytes for piece in group)
        if not tasks or size > left:
            tasks.append([])
            left = max_bytes
        tasks[-1] += group
        left -= size
    return own + [tuple(task) for task in tasks]


def in_order(tasks: Iterable[Task]) -> list[Split]:
    """All their splits: those of one entry are neighbours."""
    return [split for task in tasks for split in (task if isinstance(task, tuple) else (task,))]


def _pieces(split: Split) -> Iterator[Split]:
    """Runs of slices, and of objects of the partition's own."""
    for _, run in itertools.groupby(split.refs, lambda ref: is_slice(ref.key)):
        yield _part(split, tuple(run))


def _groups(splits: Sequence[Split], group_bytes: int) -> Iterator[list[Split]]:
    """Entry after entry, in the order of their lane."""
    by_entry: dict[str, list[tuple[int, int]]] = {}
    for at, split in enumerate(splits):
        for number, ref in enumerate(split.refs):
            by_entry.setdefault(whole(ref.key), []).append((at, number))
    taken: list[tuple[int, int]] = []
    size = 0
    for _, found in sorted(by_entry.items()):
        more = sum(splits[at].refs[number].size for at, number in found)
        if taken and size + more > group_bytes:
            yield list(_split_again(splits, taken))
            taken, size = [], 0
        taken += found
        size += more
    if taken:
        yield list(_split_again(splits, taken))


def _split_again(splits: Sequence[Split], taken: Iterable[tuple[int, int]]) -> Iterator[Split]:
    """One split for each run of slices that follow each other in their partition: what lies between two runs, in another
    lane say, is not theirs, also if they are planned again."""
    numbered = enumerate(sorted(taken))
    for (at, _), run in itertools.groupby(numbered, lambda one: (one[1][0], one[1][1] - one[0])):
        yield _part(splits[at], tuple(splits[at].refs[number] for _, (_, number) in run))


def _part(split: Split, refs: tuple[SegmentRef, ...]) -> Split:
    return replace(
        split,
        start=max(split.start, refs[0].base_offset),
        stop=min(split.stop, refs[-1].end_offset),
        refs=refs,
    )
