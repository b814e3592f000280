"""Records that go somewhere else, exactly once: into another store, out of PostgreSQL, into a table."""
