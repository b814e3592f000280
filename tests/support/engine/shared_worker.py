"""One producer process of the test beside it: appends numbered records and prints each ack as `sequence offset`.

Started again after a kill it asks the log where to go on, so nothing is sent twice and nothing is left out; and it sends
the last record of its earlier life once more, as a process would that died between commit and ack.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future

import logstore
from logstore.engine.memory.results import Receipt
from logstore.producer import Producer

IN_FLIGHT = 200
PATIENCE_S = 600.0  # eight processes and the server share what there is; the test has a limit of its own


def main(url: str, topic: str, producer_id: int, appends: int) -> None:
    with logstore.open(url, writer="shared", append_timeout=PATIENCE_S) as store:
        producer = Producer(store.topic(topic).partition(0), producer_id)
        under_way: deque[tuple[int, Future[Receipt]]] = deque()

        def report_first() -> None:
            sequence, future = under_way.popleft()
            print(sequence, future.result(PATIENCE_S).offset, flush=True)

        for sequence in range(max(0, producer.next_sequence() - 1), appends):
            value = b"%d-%d" % (producer_id, sequence)
            under_way.append((sequence, producer.submit(value, sequence=sequence)))
            if len(under_way) >= IN_FLIGHT:
                report_first()
        while under_way:
            report_first()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
