"""logstore: an embedded, partitioned, append-only log whose home is an object store."""
