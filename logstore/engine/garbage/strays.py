"""Strays: objects that nothing names and nothing will."""

from __future__ import annotations

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.manifests.manifest_changes import named_by, stored_manifest
from logstore.engine.chain.manifests.manifest_store import StoredManifest
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.garbage.remains import Headers, goes, headers_at, take_away
from logstore.errors import Indeterminate, ObjectNotFound, PreconditionFailed
from logstore.format.errors import FormatError
from logstore.format.stored.manifest import Manifest
from logstore.format.stored.segment import EMPTY_SIZE, HEADER_SIZE, SegmentHeader
from logstore.layout.paths import version_of
from logstore.objects.protocol import ObjectInfo


class Strays:
    def __init__(self, chain: Chain, grace_ms: int) -> None:
        self._chain = chain
        self._grace_ms = grace_ms

    def find(self, now_ms: int) -> list[Garbage]:
        """Objects that nothing names and nothing will: merged ones whose merge died, or lost an answer, before it could be
        named, and segments in emptied places, created by one who slept or by a request that came twice.

        Listed before the manifest is read: what is named was named by then. One that is made for the manifest as it is now
        may still be named, by a merge that is under way: `sweep` ends that first. Until the grace period is over it is left
        in peace, so that no work is wasted.
        """
        listed = list(self._chain.store.list(self._chain.paths.prefix))
        manifest = stored_manifest(self._chain) if listed else None
        if manifest is None:
            return []  # damaged, perhaps: then nobody can say what is named
        named = named_by(self._chain.paths, manifest)
        seqs, _ = self._chain.paths.names_of(
            info.key for info in listed if info.key not in named and info.size > EMPTY_SIZE
        )
        headers = headers_at(self._chain, [seq for seq in seqs if _was_emptied(seq, manifest)])
        return [
            Garbage(info.key, info.size)
            for info in listed
            if info.key not in named and self._is_stray(info, manifest, headers, now_ms)
        ]

    def sweep(self, now_ms: int) -> list[Garbage]:
        """Take the strays away. Returns what went."""
        strays, paths = self.find(now_ms), self._chain.paths
        merged = [item for item in strays if paths.merged_name(item.key)]
        if merged and not self._end_merges(merged):
            strays = [item for item in strays if item not in merged]
        seqs, _ = paths.names_of(item.key for item in strays)
        take_away(self._chain, strays, headers_at(self._chain, seqs))
        return strays

    def _end_merges(self, merged: list[Garbage]) -> bool:
        """Whether none of these can be named any more. A new version of the manifest, with nothing else new in it, sees to
        that where one was made for the present version, or by a release whose names did not say."""
        stored = StoredManifest.look(self._chain)
        if stored.manifest is None:
            return False
        names = [self._chain.paths.merged_name(item.key) for item in merged]
        if any(name and version_of(name[2]) >= stored.version for name in names):
            try:
                stored.replace(stored.changed())
            except (PreconditionFailed, Indeterminate):
                return False
        manifest = stored_manifest(self._chain)
        return manifest is not None and named_by(self._chain.paths, manifest).isdisjoint(
            item.key for item in merged
        )

    def _is_stray(self, info: ObjectInfo, manifest: Manifest, headers: Headers, now_ms: int) -> bool:
        paths = self._chain.paths
        if merged := paths.merged_name(info.key):
            return version_of(merged[2]) != manifest.version or not self._is_young(info.key, now_ms)
        seq = paths.seq_of(info.key)
        return seq is not None and _was_emptied(seq, manifest) and goes(paths, info.key, info.size, headers)

    def _is_young(self, key: str, now_ms: int) -> bool:
        """Whether it was made within the grace period. One that cannot be read may be."""
        try:
            header = SegmentHeader.parse(self._chain.store.get(key, 0, HEADER_SIZE))
        except (FormatError, ObjectNotFound):
            return True
        return now_ms - header.created_at_ms < self._grace_ms


def _was_emptied(seq: int, manifest: Manifest) -> bool:
    return seq < manifest.collected_until and not manifest.retired.has(seq)
