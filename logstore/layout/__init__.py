"""Which objects a store consists of, and all their names: the log's, Spark's and the broker's.

Lives here: `paths` (the keys of topics, partitions, segments, staged objects), `groups` and `broker` (what these keep beside
the log), `catalog` (which topics there are), `holds` (for whom retention waits), `marker` (whose store this is, and in which
format), and `documents`, which reads such small objects.

May import: `errors`, `config`, `format`, `objects`. May be called by everything above: the engine, the API,
Spark, the broker, the commands. A test pins every name, because people and other releases rely on them.
"""
