"""Where objects live: the protocol, its homes (memory, local folder, S3), and wrappers that add one thing
each.
"""

from logstore.objects.closing import close_store
from logstore.objects.foreign import ForeignErrors
from logstore.objects.local import LocalStore
from logstore.objects.memory import MemoryStore
from logstore.objects.metered import MeteredStore, OperationStats
from logstore.objects.probe import check_conditions
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore
from logstore.objects.retrying import RetryingStore, RetryPolicy
from logstore.objects.url import open_url

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
