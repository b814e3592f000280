"""Where objects live: the protocol, its homes (memory, local folder, S3), and wrappers that add one thing
each; `settled` says what the answer to a conditional put means, `fan_out` asks for many things at once.

May import: `errors`. May be called by everything above.
"""

from logstore.objects.closing import close_store
from logstore.objects.homes.local import LocalStore
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.probe import check_conditions
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.objects.url import open_url
from logstore.objects.wrappers.foreign import ForeignErrors
from logstore.objects.wrappers.metered import MeteredStore, OperationStats
from logstore.objects.wrappers.retrying import RetryingStore, RetryPolicy

__all__ = [
    "Buffer",
    "ForeignErrors",
    "LocalStore",
    "MemoryStore",
    "MeteredStore",
    "ObjectInfo",
    "ObjectStore",
    "OperationStats",
    "RetryPolicy",
    "RetryingStore",
    "check_conditions",
    "close_store",
    "open_url",
]


def __dir__() -> list[str]:
    return sorted(__all__)
