"""The latest value for each key, as a changelog with retractions that any number of writers may feed.

May import: `engine.partition`, `engine.replicated`, `format`, `errors`. Called by users; `arrow.scan` reads its changes.
"""

from logstore.upsert.changes import decode_change, encode_change
from logstore.upsert.view import UpsertView

__all__ = ["UpsertView", "decode_change", "encode_change"]


def __dir__() -> list[str]:
    return sorted(__all__)
