"""Collection: objects that no row has named for the grace period are taken away, once the horizon says so."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.manifests.manifest_changes import stored_manifest
from logstore.engine.chain.manifests.manifest_store import StoredManifest
from logstore.engine.garbage.garbage import Garbage
from logstore.engine.garbage.lane_lows import note_low
from logstore.engine.garbage.remains import Headers, goes, headers_at, take_away
from logstore.errors import Indeterminate, PreconditionFailed
from logstore.format.stored.manifest import Manifest
from logstore.format.stored.segment import EMPTY_SIZE
from logstore.objects.protocol import ObjectInfo


@dataclass(slots=True)
class _Due:
    """What may be taken away now, and the keys that nobody has to look at again: of what is gone already, taken by one who
    could not note it, and of what stays. `headers`: the headers in the places of the garbage, and behind them."""

    garbage: list[Garbage] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    headers: Headers = field(default_factory=dict)


class Collection:
    def __init__(self, chain: Chain, grace_ms: int) -> None:
        self._chain = chain
        self._grace_ms = grace_ms

    def garbage(self, now_ms: int) -> list[Garbage]:
        """What `collect` would take away now."""
        return self._due(stored_manifest(self._chain), now_ms, None).garbage

    def _due(self, manifest: Manifest | None, now_ms: int, at_most: int | None) -> _Due:
        due = _Due()
        if manifest is None:
            return due
        paths, newest = self._chain.paths, manifest.next_seq - 1
        keys = dict.fromkeys(
            islice(
                (
                    paths.segment(which) if isinstance(which, int) else paths.prefix + which
                    for which, _ in manifest.retired.until(now_ms - self._grace_ms)
                    if which != newest  # stays, though expired: the chain itself must say where it ends
                ),
                at_most,
            )
        )
        sizes = self._sizes(keys)
        seqs, _ = paths.names_of(key for key in keys if sizes.get(key, 0) > EMPTY_SIZE)
        due.headers = headers_at(self._chain, seqs)
        for key in keys:
            if goes(paths, key, sizes.get(key, 0), due.headers):
                due.garbage.append(Garbage(key, sizes[key]))
            else:
                due.settled.append(key)
        return due

    def _sizes(self, keys: Iterable[str]) -> dict[str, int]:
        """Of those that exist: a listing tells as much as a thousand requests for one each."""
        paths, store = self._chain.paths, self._chain.store
        seqs, names = paths.names_of(keys)
        listed: list[Iterable[ObjectInfo]] = []
        if seqs:
            after = paths.segment(min(seqs) - 1) if min(seqs) else paths.prefix
            last = paths.segment(max(seqs))
            listed.append(takewhile(lambda info: info.key <= last, store.list(paths.prefix, after)))
        if names:
            listed.append(store.list(paths.merged_prefix))
        return {info.key: info.size for infos in listed for info in infos}

    def collect(self, now_ms: int, at_most: int | None = None) -> list[Garbage]:
        """Take away what has been retired for the grace period. Returns what went."""
        manifest = stored_manifest(self._chain)
        due = self._due(manifest, now_ms, at_most)
        seqs, _ = self._chain.paths.names_of(item.key for item in due.garbage)
        if seqs and not self._publish_horizon(manifest, max(seqs) + 1):
            return []
        if due.garbage and manifest is not None and not note_low(self._chain, manifest.low_watermark):
            return []
        take_away(self._chain, due.garbage, due.headers)
        self._forget([*due.settled, *(item.key for item in due.garbage)])
        return due.garbage

    def _publish_horizon(self, manifest: Manifest | None, until: int) -> bool:
        """Note that places below `until` may be empty from now on. False unless the note is certainly stored.

        What `manifest` has retired stays so in every later one, until it is taken away."""
        if manifest is None or manifest.collected_until >= until:
            return manifest is not None
        stored = StoredManifest.look(self._chain)
        if stored.manifest is None:
            return False
        if stored.manifest.collected_until >= until:
            return True
        try:
            stored.replace(stored.changed(collected_until=until))
        except (PreconditionFailed, Indeterminate):
            return self._chain.horizon().covers(until)
        return True

    def _forget(self, keys: list[str]) -> None:
        """They need no look any more. If that cannot be noted, the next round looks again."""
        stored = StoredManifest.look(self._chain) if keys else None
        if stored is None or stored.manifest is None:
            return
        retired = stored.manifest.retired.minus(*self._chain.paths.names_of(keys))
        with suppress(PreconditionFailed):
            stored.replace(stored.changed(retired=retired))
