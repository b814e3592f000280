"""`broker-shim`, or `python -m broker_shim`: flags and environment in, a running broker out.

Exit codes: 0 after a clean stop, 1 if it could not start, or could not store everything before it stopped, 2 for a flag
that makes no sense.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import get_type_hints

from broker_shim import logs
from broker_shim.config import PREFIX, BrokerConfig, from_environment, parse_value
from broker_shim.wire import messages
from logstore.errors import LogStoreError, needs

log = logging.getLogger("broker_shim")
SWITCH_INTERVAL_S = 0.001
"""How long a worker or flush thread may go on while the event loop wants to run. The interpreter's own choice, 5 ms, is
more than a record takes from its producer to its consumer.
"""


def parse(arguments: Sequence[str] | None = None) -> BrokerConfig:
    """Flags beat environment variables, those beat defaults. Exits with 2 and a reason if they make no sense."""
    parser = argparse.ArgumentParser(
        prog="broker-shim",
        usage="%(prog)s --store URL [--listen HOST:PORT] [options]",  # all forty would bury the error above them
        description="Kafka clients in front, a logstore behind.",
        epilog=f"Each flag is also an environment variable: --flush-on-ack is {PREFIX}FLUSH_ON_ACK.",
        allow_abbrev=False,
    )
    hints = get_type_hints(BrokerConfig)
    for each in fields(BrokerConfig):
        default = f" (default: {str(each.default).lower()})" if each.default != "" else ""
        flag = "--" + each.name.replace("_", "-")
        if hints[each.name] is bool:
            parser.add_argument(
                flag,
                nargs="?",
                const=True,
                default=argparse.SUPPRESS,
                type=_true_or_false,
                metavar="true|false",
                help=each.metadata["help"] + default,
            )
        else:
            parser.add_argument(
                flag,
                default=argparse.SUPPRESS,
                type=hints[each.name],
                metavar=each.name.upper(),
                help=each.metadata["help"] + default,
            )
    given = vars(parser.parse_args(arguments))
    try:
        return BrokerConfig(**{**from_environment(), **given})
    except ValueError as error:
        parser.error(str(error))


def _true_or_false(text: str) -> bool:
    """In argparse's own kind of error: of any other it shows the function's name and not the reason."""
    try:
        return bool(parse_value(bool, text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def own_the_process() -> None:
    """Once a broker has started in a process that does nothing else."""
    messages.load()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What is loaded now stays for good. Walking over it takes the garbage collector as long as an upload, and would be the
    # 99th percentile of an ack.
    gc.collect()
    gc.freeze()


async def serve(config: BrokerConfig) -> int:
    try:
        with needs("broker"):
            from broker_shim.server import Server
        server = Server(config)
    except ModuleNotFoundError as error:
        log.error("could not start: %s", error)
        return 1
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await server.start()
    except (LogStoreError, OSError, ValueError) as error:
        log.error("could not start: %s", error)
        return 1
    own_the_process()
    # For scripts that start with port 0: the one line on standard output.
    print(f"ready on port {server.port} metrics {server.metrics_port}", flush=True)
    await stopping.wait()
    log.info("stopping: finishing requests and uploads")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    return 0 if await server.stop() else 1


def main(arguments: Sequence[str] | None = None) -> int:
    config = parse(arguments)
    logs.set_up(config.log_format, config.log_level)
    try:
        import uvloop
    except ImportError:
        code = asyncio.run(serve(config))
    else:
        code = uvloop.run(serve(config))
    if code:
        # The interpreter would wait for threads, and some may be waiting for a store that never answers.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
