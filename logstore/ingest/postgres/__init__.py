"""PostgreSQL as a source: a logical replication slot in, topics out. Needs `psycopg`
(`pip install 'embedded-logstore[postgres]'`).
"""

from logstore.errors import needs

with needs("postgres"):
    from logstore.ingest.postgres.ingest import PostgresIngest, Status, slot_lag_bytes
    from logstore.ingest.postgres.settings import PostgresSettings

__all__ = ["PostgresIngest", "PostgresSettings", "Status", "slot_lag_bytes"]
