"""The replicated writer: several processes feed the same, deterministic input, and it is stored once. Divergence
fails loudly.

May import: `shared`, `write` and below. Called by `partition`.
"""
