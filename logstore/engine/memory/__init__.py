"""What an open partition knows: the write buffer, the flush window, who waits for which offset, the marks, and
what it has taken in of the chain. An acked record lives here between its ack and its commit.

May import: `host`, `chain`, `runtime`. Does no requests but following the chain. Called by `read`, by the
writers and by `partition`.
"""
