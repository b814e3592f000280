"""The bytes: batches, segments, manifests, WAL frames, codecs, and the kernels that read and write records. No
I/O, no clock.

May import: nothing but itself (NumPy; `pyarrow` in the files that make columns, when they are called). May be
called by everything.
"""
