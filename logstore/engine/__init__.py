"""The log itself, in rooms. Arrows point down this list only, and `tests/test_rooms.py` says so:

partition     the face of one partition: which writer, which reader, health
maintenance   what runs beside the writer: checkpoints, compaction, retention; when garbage is collected
garbage       what may be deleted, and what stays in its place
replicated    many replicas of one input
shared        many independent producers
write         one owner: admission, group commit, fence, WAL, the process's lanes; and what all writers have in common
read          reading and following
memory        what an open partition knows: buffer, window, waiters, watermarks
runtime.py    what all partitions of an open store share
chain         what is in the object store: segments in a chain, the manifest
lanes         one chain of entries for all partitions of a process, and what each has in it
host          time, memory and threads; knows no log
"""
