"""The face of one partition: `PartitionLog`, which writer serves it, opening one within a deadline, its health in
numbers.

May import: every other room of the engine. Called by the API (`store`, `topic`, `aio`, `producer`, `standby`),
by `ingest`, `upsert` and `broker_shim`.
"""
