"""The manifest in the store, and its replacement.

Checkpoints and maintenance both write manifests, in several processes at once. Each looks first, builds the next one from
what it saw, and replaces only what it saw: by `If-Match`, or by `If-None-Match` where there was none. Whoever comes second
changes nothing. Whether ours is stored is settled by looking (`put_settled`): its version grows and its nonce is random, so
nobody else's is the same, and a swap that is carried out late meets another version.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from logstore.engine.chain.chain import Chain
from logstore.engine.chain.tail import ChainTail
from logstore.engine.chain.view import ChainView
from logstore.errors import PreconditionFailed, UnsupportedStore
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.extras import NOTHING_CLEANED
from logstore.format.stored.manifest import FRONT_SIZE, Manifest, SegmentTable, unknown_horizon
from logstore.format.stored.retired import Retired
from logstore.objects.protocol import get_if_there
from logstore.objects.settled import put_settled

logger = logging.getLogger(__name__)


def read_manifest(chain: Chain) -> Manifest | None:
    """The stored one; None if there is none, or if it is damaged: then the next one is made without it.

    Raises `UnsupportedStore` if a newer release has written it.
    """
    return _parsed(chain, get_if_there(chain.store, chain.paths.manifest) or b"")


def _parsed(chain: Chain, packed: bytes) -> Manifest | None:
    key = chain.paths.manifest
    try:
        return Manifest.parse(packed) if packed else None
    except UnsupportedVersion as error:
        raise UnsupportedStore(f"{key}: {error.why}; it is left alone") from error
    except FormatError as damage:
        logger.warning("%s: %s; the next manifest is made without it", key, damage)
        return None


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """One look at it. `etag`: None if there was nothing. A damaged one has an etag, and is replaced like any other.
    `front`: what tells it from every other, as in a `Horizon`; the version does not, once one was lost."""

    chain: Chain
    etag: str | None
    front: bytes
    manifest: Manifest | None

    @classmethod
    def look(cls, chain: Chain) -> StoredManifest:
        # The etag first: what comes between the two requests is not replaced.
        known = chain.store.head(chain.paths.manifest)
        packed = get_if_there(chain.store, chain.paths.manifest) or b""
        return cls(chain, None if known is None else known.etag, packed[:FRONT_SIZE], _parsed(chain, packed))

    @property
    def version(self) -> int:
        return self.manifest.version if self.manifest is not None else 0

    def next(self, tail: ChainTail, low_watermark: int, table: SegmentTable) -> Manifest:
        """The one after it, for a chain that ends at `tail`."""
        return Manifest(
            version=self.version + 1,
            next_seq=tail.next_seq,
            epoch=tail.epoch,
            mode=tail.mode,
            low_watermark=low_watermark,
            end_offset=tail.end_offset,
            reserved_until=tail.reserved_until,
            source_upper=tail.source_upper,
            table=table,
            retired=self.manifest.retired if self.manifest is not None else Retired(),
            collected_until=self._horizon_of(tail),
            nonce=self.chain.new_nonce(),
            owner=tail.owner,
            closed=tail.closed,
            claim=tail.claim,
            cleaned=self.manifest.cleaned if self.manifest is not None else NOTHING_CLEANED,
        )

    def _horizon_of(self, tail: ChainTail) -> int:
        """The same as before. Without a manifest that says it nobody knows what was emptied: all but the newest place."""
        return self.manifest.collected_until if self.manifest is not None else unknown_horizon(tail.next_seq)

    def changed(self, **fields: Any) -> Manifest:
        """The one after it, with other `fields`, for a chain of which nothing more is known."""
        assert self.manifest is not None, "only what is stored is changed"
        return replace(self.manifest, version=self.version + 1, nonce=self.chain.new_nonce(), **fields)

    def next_of(self, view: ChainView, now_ms: int) -> Manifest:
        """The one after it, for a view of the whole chain. Without one that can be read, the objects tell what was
        retired, and their grace period starts over: nobody knows when that was."""
        manifest = self.next(view.tail, view.low_watermark, view.segments.table)
        seqs, names = self.chain.paths.names_of(view.superseded)
        return replace(manifest, retired=manifest.retired.plus(seqs, names, now_ms))

    def replace(self, manifest: Manifest) -> ChainView:
        """Returns what is known now. Raises `PreconditionFailed` if another one was faster, and `Indeterminate` if ours may
        stand, or may come to."""
        packed = manifest.pack()
        if put_settled(self.chain.store, self.chain.paths.manifest, packed, self.etag) is None:
            raise PreconditionFailed(f"{self.chain.paths.manifest}: another process has changed it meanwhile")
        return ChainView.of(self.chain.paths, manifest, packed)
