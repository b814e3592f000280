"""The exclusive writer: admission of records, reservation of offsets, group commit, taking over by a fence, the
WAL for local acks (`wal`), committing through the process's lane (`lanes`). Here is also what all writers have in common:
`lifecycle`, `writer_protocol`, `admission`, `commit_loop`.

May import: `memory` and below. Called by `shared`, `replicated` and `partition`.
"""
