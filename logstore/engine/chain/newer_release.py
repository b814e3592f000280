"""Objects that a newer release has written."""

from __future__ import annotations

from logstore.errors import UnsupportedStore
from logstore.format.errors import UnsupportedVersion


def too_new(key: str, error: UnsupportedVersion) -> UnsupportedStore:
    """Not damage: nobody should restore or rewrite the object."""
    return UnsupportedStore(f"{key}: {error.why}. A newer release has written it: use that, or a later one")
