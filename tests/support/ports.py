"""Ports for servers that a test starts, and perhaps kills and starts again."""

from __future__ import annotations

import random
import socket

LOWEST, LIMIT = 10_000, 30_000
"""Below what the kernel hands out by itself: from there any outgoing connection of the machine, one of the clients' attempts
to reconnect even, may take the port of a server that is down for a moment."""

_dice = random.SystemRandom()  # Hypothesis seeds the usual one, in each worker alike
_handed_out: set[int] = set()


def free_port() -> int:
    """A port of loopback that nobody has, and that this process has not been given before."""
    for _ in range(1000):
        port = _dice.randrange(LOWEST, LIMIT)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise OSError(f"no free port between {LOWEST} and {LIMIT} in 1000 attempts")
