"""What the interpreter does to open stores: a program that ends without `close()`, and a process that forks.

May import: `errors`. Called by `logstore.store` alone.
"""
