"""Where objects live: the protocol, its homes (memory, a local folder, S3), and wrappers that add one thing
each.
"""

from logstore.objects.local import LocalStore
from logstore.objects.memory import MemoryStore
from logstore.objects.protocol import Buffer, ObjectInfo, ObjectStore

__all__ = ["Buffer", "LocalStore", "MemoryStore", "ObjectInfo", "ObjectStore"]
