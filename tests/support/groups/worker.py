"""One member process of the tests beside it: prints `partition offset value` for each record that it handles, and
`committed` after each batch. SIGTERM ends it cleanly, between two batches. `refused` says that its save came too late.
`hold`: before it commits that batch, it says `holding`, and waits for a line."""

from __future__ import annotations

import signal
import sys
import threading

import logstore


def main(url: str, group: str, topic: str, session_timeout: float, batch: int, hold: int) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        logstore.open(url, follow_interval=0.02) as store,
        store.group(group, topic, session_timeout=session_timeout) as member,
    ):
        print("ready", flush=True)
        while not stop.is_set():
            records = member.poll(timeout=0.05, max_records=batch)
            for record in records:
                print(record.partition, record.offset, (record.value or b"").decode(), flush=True)
            if records and (hold := hold - 1) == 0:
                print("holding", flush=True)
                sys.stdin.readline()
            try:
                member.commit()
            except logstore.Fenced:
                print("refused", flush=True)
            else:
                if records:
                    print("committed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
