"""The plain twin of the C kernels in `_speed.c`: the reference that the fuzzer compares them with, and what runs
without a compiler.

May import: `format` below `kernels`. Called by `format.kernels` alone.
"""
