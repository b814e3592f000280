"""The manifest's horizon: up to where places of the chain may have been emptied."""

from __future__ import annotations

from typing import NamedTuple

from logstore.engine.chain.newer_release import too_new
from logstore.errors import ObjectNotFound
from logstore.format.errors import FormatError, UnsupportedVersion
from logstore.format.stored.manifest import FRONT_SIZE, Manifest, parse_front
from logstore.objects.protocol import ObjectStore

_UNREADABLE = 2**62  # the horizon of a manifest that is damaged: any place may have been emptied


class Horizon(NamedTuple):
    """The front of a partition's manifest, and what it says: places below `collected_until` may have been emptied, and the
    records below `low` were deleted, as far as it can be read.

    `front` is empty if there is no manifest. Manifests are never the same twice, so an equal front is the same manifest.
    """

    front: bytes = b""
    collected_until: int = 0
    low: int = 0

    def covers(self, until: int) -> bool:
        """Whether it certainly says that places below `until` may have been emptied."""
        return until <= self.collected_until < _UNREADABLE


NO_MANIFEST = Horizon()


def read_horizon(store: ObjectStore, key: str) -> Horizon:
    """Of the manifest at `key`, as it is now: one small request."""
    try:
        front = store.get(key, 0, FRONT_SIZE)
        try:
            known = parse_front(front)
            return Horizon(front, known.collected_until, known.low_watermark)
        except UnsupportedVersion:
            old = Manifest.parse(store.get(key))
            return Horizon(front, old.collected_until, old.low_watermark)
    except ObjectNotFound:
        return NO_MANIFEST
    except UnsupportedVersion as error:
        raise too_new(key, error) from error
    except FormatError:
        return Horizon(front, _UNREADABLE)
