"""What is stored in a store or on a disk: segments, entries of lanes, manifests, checkpoints, WAL frames. Imports `format`
and `format.batches`; every byte that is read back was under a checksum."""
