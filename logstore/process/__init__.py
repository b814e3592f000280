"""What the system does to open stores: a program that ends without `close()`, a process that forks, and which one lives.

May import: `errors`, `config`, `format`. Called by `logstore.store`, and by the engine where it opens writers.
"""
