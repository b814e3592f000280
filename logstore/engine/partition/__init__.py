"""The face of one partition: `PartitionLog` for users, `Partition` (`internal.py`) for our own packages, which writer serves
it, opening one within a deadline, its health in numbers.

May import: every other room of the engine. Called by the API (`store`, `topic`, `aio`, `producer`, `standby`),
by `ingest`, `upsert` and `broker_shim`.
"""
