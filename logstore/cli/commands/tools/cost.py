"""What a set-up costs on S3, before you build it; or what a running one costs, by its own counters.

Example: logstore cost --rate 50/s --size 1kB --partitions 4 --linger 0.1

List prices of us-east-1, a month of 30 days, no traffic out of the region. --metrics URL asks a running service (the
broker's --metrics port, or wherever you serve Prometheus) twice and says what a month like that costs.
"""

from __future__ import annotations

import argparse
import re
import threading
import urllib.request
from collections import defaultdict
from http.client import HTTPException

from logstore.cli.terminal.output import Output
from logstore.cli.terminal.units import (
    duration,
    period,
    rate,
    shown_dollars,
    shown_duration,
    shown_size,
    size,
)
from logstore.cli.terminal.usage import UsageError, positive
from logstore.cost.estimate import MONTH_S, Estimate, Plan, estimate
from logstore.cost.prices import AS_OF, CLASSES

_SAMPLE = re.compile(r'^logstore_request(s|_bytes)_total\{.*operation="(\w+)".*\} (\S+)$', re.MULTILINE)
_ASK_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=rate, default="50/s", help="records: 50/s (default), 3000/min")
    parser.add_argument("--size", type=size, default="1kB", help="of a record: 1kB (default)")
    parser.add_argument(
        "-p", "--partitions", type=positive, default=1, help="that are written to (default: 1)"
    )
    parser.add_argument(
        "--linger",
        type=duration,
        default=0.0,
        metavar="TIME",
        help="the least time between two flushes (default: 0)",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        default=1,
        metavar="N",
        help="partitions share so many chains, one PUT for all; 0: each has its own (default: 1)",
    )
    parser.add_argument(
        "--ack", choices=("durable", "buffered"), default="durable", help="what appends wait for"
    )
    parser.add_argument(
        "--flush-interval",
        type=duration,
        default=1.0,
        metavar="TIME",
        help="with buffered acks (default: 1s)",
    )
    parser.add_argument(
        "--retention", type=duration, default="7d", metavar="TIME", help="records are kept: 7d (default)"
    )
    parser.add_argument(
        "--tails", type=int, default=0, metavar="N", help="processes that follow it from elsewhere"
    )
    parser.add_argument(
        "--metrics", metavar="URL", help="of a running service: http://127.0.0.1:9093/metrics"
    )
    parser.add_argument(
        "--for", dest="seconds", type=period, default=10.0, metavar="TIME", help="watch it so long: 10s"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    if args.metrics:
        return _counted(args, out)
    try:
        plan = Plan(
            rate=args.rate,
            size=args.size,
            partitions=args.partitions,
            lanes=args.lanes,
            linger=args.linger,
            buffered=args.ack == "buffered",
            flush_interval=args.flush_interval,
            retention=args.retention,
            tails=args.tails,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    found = {name: estimate(plan, prices) for name, prices in CLASSES.items()}
    if out.as_json:
        out.table([_fields(name, each) for name, each in found.items()])
        return 0
    out.table([_shown(each) for each in found.values()])
    stored = shown_size(found["standard"].stored_bytes)
    out.row({}, f"dollars a month, at list prices of {AS_OF} in us-east-1; {stored} are stored")
    return 0


def _fields(name: str, found: Estimate) -> dict[str, object]:
    return {
        "class": name,
        "puts_a_month": round(found.puts_a_month),
        "gets_a_month": round(found.gets_a_month),
        "stored_bytes": round(found.stored_bytes),
        "request_dollars": round(found.request_dollars, 2),
        "storage_dollars": round(found.storage_dollars, 2),
        "dollars": round(found.dollars, 2),
        "ack_seconds": round(found.ack_seconds, 4),
    }


def _shown(found: Estimate) -> dict[str, object]:
    return {
        "store": found.prices.name,
        "PUT/s": f"{found.puts_a_second:.1f}",
        "GET/s": f"{found.gets_a_second:.1f}",
        "requests": shown_dollars(found.request_dollars),
        "storage": shown_dollars(found.storage_dollars),
        "together": shown_dollars(found.dollars),
        "durable after": shown_duration(found.ack_seconds),
    }


def _counted(args: argparse.Namespace, out: Output) -> int:
    before = _ask(args.metrics)
    threading.Event().wait(args.seconds)
    after = _ask(args.metrics)
    a_month = MONTH_S / args.seconds
    rows = []
    for name, prices in CLASSES.items():
        made = {
            key: tuple(now - then for now, then in zip(after[key], before.get(key, (0.0, 0.0)), strict=True))
            for key in after
        }
        dollars = sum(prices.of(key, count, carried) for key, (count, carried) in made.items()) * a_month
        rows.append(
            {
                "class": name if out.as_json else prices.name,
                "requests_a_second": round(sum(count for count, _ in made.values()) / args.seconds, 2),
                "puts_a_second": round(made.get("put", (0.0, 0.0))[0] / args.seconds, 2),
                "dollars_a_month": round(dollars, 2) if out.as_json else shown_dollars(dollars),
            }
        )
    out.table(rows)
    return 0


def _ask(url: str) -> dict[str, tuple[float, float]]:
    """Requests and bytes so far, by operation."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--metrics {url}: it is a URL, http://…/metrics")
    try:
        with urllib.request.urlopen(url, timeout=_ASK_TIMEOUT_S) as answer:
            text = answer.read().decode(errors="replace")
    except HTTPException as error:
        raise UsageError(f"--metrics {url}: what answers there speaks no HTTP ({error!r})") from error
    # A port may show several stores, and of each several outcomes.
    counts: defaultdict[str, float] = defaultdict(float)
    sizes: defaultdict[str, float] = defaultdict(float)
    for what, operation, value in _SAMPLE.findall(text):
        (counts if what == "s" else sizes)[operation] += float(value)
    if not counts:
        raise UsageError(f"--metrics {url}: there are no metrics of logstore")
    return {operation: (count, sizes[operation]) for operation, count in counts.items()}
