"""The options and the row of the source, as Spark spells them, checked on the driver before anything is read or
written.

May import: `arrow`, `layout`, `config`. Called by the rest of `logstore.spark`.
"""
