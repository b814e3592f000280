"""Serve a page that shows the store in a browser: watermarks, segments, records, groups and lag, health, cost. Read-only.

On 127.0.0.1 unless --listen says otherwise; anywhere else it takes a token, which is made up and printed if none is given.
What another process has acked and not yet stored cannot be seen from here: a service shows that with `logstore.ui.serve`.
"""

from __future__ import annotations

import argparse
import secrets
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from logstore.cli.places import open_store
from logstore.cli.terminal.output import Output
from logstore.cli.terminal.usage import UsageError
from logstore.store import Store

PORT_MAX = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="where: 127.0.0.1:8080 (default); port 0 takes a free one",
    )
    parser.add_argument("--token", help="every request must carry it; needed anywhere but on loopback")


def run(args: argparse.Namespace, out: Output) -> int:
    from logstore.ui.port import is_loopback, serve

    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > PORT_MAX:
        raise UsageError(f"--listen {args.listen}: it is HOST:PORT, and a port is at most {PORT_MAX}")
    token = args.token or (None if is_loopback(host) else secrets.token_urlsafe(16))
    with (
        open_store(args, writer="read_only") as store,
        serve(store, host.strip("[]"), int(port), token=token, groups=partial(groups_of, store)) as served,
    ):
        out.row({"url": served.url}, f"{served.url}  (Ctrl-C ends it)")
        out.flush()
        with suppress(KeyboardInterrupt):  # the way to end it
            threading.Event().wait()
    return 0


def groups_of(store: Store) -> list[dict[str, Any]]:
    """Each partition of each group of readers, as the page shows them. Asks the store."""
    from logstore.groups import lag, names

    return [
        {
            "reader": name,
            "topic": each.topic,
            "partition": each.partition,
            "lag": each.records,
            "seconds": each.seconds,
            "member": each.member,
        }
        for name in names(store)
        for each in lag(store, name)
    ]
