"""The manifest, as maintenance reads and changes it."""

from __future__ import annotations

from collections.abc import Callable

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.manifests.manifest_store import StoredManifest, read_manifest
from logstore.engine.chain.segment_table import Segments
from logstore.engine.chain.view import ChainView
from logstore.errors import PreconditionFailed, UnsupportedStore
from logstore.format.stored.manifest import Manifest
from logstore.format.stored.retired import Retired
from logstore.layout.paths import PartitionPaths


def stored_manifest(chain: Chain) -> Manifest | None:
    """The stored one; None if there is none, or if it cannot be read here: then nobody can say what it names."""
    try:
        return read_manifest(chain)
    except UnsupportedStore:
        return None


def named_by(paths: PartitionPaths, manifest: Manifest) -> set[str]:
    """The keys of a manifest's rows, and of the merged objects that it has retired."""
    rows = {ref.key for ref in Segments(paths, manifest.table).all()}
    return rows | {paths.prefix + name for name in manifest.retired.merged}


def retired_with(paths: PartitionPaths, manifest: Manifest, keys: list[str], now_ms: int) -> Retired:
    """What is retired once these objects are, too."""
    return manifest.retired.plus(*paths.names_of(keys), now_ms)


def change_manifest(
    chain: Chain, view: ChainView, now_ms: int, change: Callable[[Manifest], Manifest]
) -> ChainView | None:
    """Apply `change` to a manifest that covers the whole view. None if somebody else was faster, or if the topic was
    deleted: that must be seen in the chain itself, so no manifest covers its end."""
    stored = StoredManifest.look(chain)
    if not view.segments.is_complete or view.tail.deleted or not _is_current(chain, view, stored):
        return None
    try:
        return stored.replace(change(stored.next_of(view, now_ms)))
    except PreconditionFailed:
        return None


def _is_current(chain: Chain, view: ChainView, stored: StoredManifest) -> bool:
    """Whether the view was made from what is stored. The version does not tell: it begins again if a manifest gets
    lost. Where there is none there may have been one meanwhile, which only the objects show."""
    if stored.front or view.tail.horizon.front:
        return stored.front == view.tail.horizon.front
    return chain.holds(view.segments.all())
