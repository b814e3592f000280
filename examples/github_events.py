"""A topic that is also a table: events like GitHub's come in as JSON, become typed columns in Delta Lake, and one query
counts them all, to the last durable one.

    pip install 'embedded-logstore[lake]' duckdb
    python examples/github_events.py [FOLDER]

1. A service appends events, 20,000 of them.
2. A materializer copies them into a Delta table, each exactly once, its columns inferred from the JSON.
3. The service goes on: 1,000 events are in the log alone.
4. A union read gives both, each event once. DuckDB counts them by type and hour, and the counts become a plot,
   `events.svg`.
5. The same question to the log alone, where every value is parsed again: the answer is the same, the CPU time is not.

Run it again on the same folder: it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

import logstore
from logstore.lake import Materializer, table

KINDS = ("PushEvent", "PullRequestEvent", "IssuesEvent", "WatchEvent")
COLOURS = ("#1d6fb8", "#2e7d4f", "#e0a030", "#b3261e")
START_MS = 1_767_225_600_000  # 2026-01-01
Counts = Counter[tuple[int, str]]
"""How many events of a kind there were in an hour of the day."""


def event(number: int, rng: random.Random) -> logstore.Record:
    """One event every four seconds; around noon more of them are pushes."""
    hour = number // 900 % 24
    kind = rng.choices(KINDS, (8 - abs(hour - 12) / 2, 2, 2, 3))[0]
    value = {
        "id": str(30_000_000_000 + number),
        "type": kind,
        "actor": {"id": rng.randrange(100_000), "login": f"user{rng.randrange(100_000)}"},
        "repo": {"id": number % 50_021, "name": f"org{number % 997}/repo{number % 50_021}"},
        "payload": {"size": rng.randrange(20), "message": f"{rng.getrandbits(600):0150x}"},
    }
    return logstore.Record(
        json.dumps(value).encode(), b"org%d" % (number % 997), (), START_MS + 4000 * number
    )


def serve(topic: logstore.Topic, events: int) -> None:
    """What the service does. It goes on behind what is there."""
    first = sum(topic.partition(n).durable_high_watermark for n in range(topic.partitions))
    rng = random.Random(first)
    for begin in range(first, first + events, 1000):
        topic.append_many([event(n, rng) for n in range(begin, min(begin + 1000, first + events))])


def counted(stream: pa.RecordBatchReader, kind: str = "type") -> Counts:
    """DuckDB takes the stream of Arrow batches as it is."""
    rows = duckdb.sql(
        f"select hour(timestamp at time zone 'UTC') as hour, {kind} as kind, count(*) from stream group by all"
    ).fetchall()
    return Counter({(hour, kind): count for hour, kind, count in rows})


def from_table_and_log(topic: logstore.Topic, lake: str) -> Counts:
    return counted(table(topic, lake, ["timestamp", "type"]))


def from_log_alone(topic: logstore.Topic) -> Counts:
    return counted(
        topic.arrow_batches(["timestamp", "value"]), "json_extract_string(decode(value), '$.type')"
    )


def cpu_seconds(run: Callable[[], Counts]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def plot(counts: Counts) -> str:
    """Bars, an hour each, stacked by kind, as SVG."""
    width, height, left, bottom = 720, 320, 56, 40
    highest = max(sum(counts[hour, kind] for kind in KINDS) for hour in range(24))
    step, scale = (width - left - 160) / 24, (height - bottom - 20) / highest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in range(0, highest + 1, max(1, highest // 4)):
        y = height - bottom - tick * scale
        parts.append(f'<line x1="{left}" x2="{width - 150}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:,}</text>')
    for hour in range(24):
        x, y = left + hour * step, float(height - bottom)
        for kind, colour in zip(KINDS, COLOURS, strict=True):
            tall = counts[hour, kind] * scale
            y -= tall
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{tall:.1f}" fill="{colour}"/>'
            )
        if hour % 3 == 0:
            parts.append(f'<text x="{x:.1f}" y="{height - bottom + 16}">{hour:02d}:00</text>')
    for line, (kind, colour) in enumerate(zip(reversed(KINDS), reversed(COLOURS), strict=True)):
        y = 30 + 20 * line
        parts.append(f'<rect x="{width - 140}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{width - 122}" y="{y}">{kind}</text>')
    parts.append(
        f'<text x="{left}" y="{height - 6}">events by hour of the day, UTC, from table and log</text></svg>'
    )
    return "\n".join(parts)


def main(folder: Path, events: int = 20_000) -> Counts:
    lake = f"delta:{folder / 'table'}"
    with logstore.open(folder / "log") as store:
        topic = store.create_topic("events", partitions=2, exist_ok=True)
        serve(topic, events)
        progress = Materializer(topic, lake, schema="infer").run_once()
        print(f"{progress.rows:,} rows copied in {progress.commits} commits, {progress.unparsed} unparsed")
        serve(topic, events // 20)
        counts = from_table_and_log(topic, lake)
        behind = Materializer(topic, lake, schema="infer").progress().behind
        print(f"{counts.total():,} events, of which the table does not have {behind:,} yet")
        assert counts == from_log_alone(topic), "each event is counted once, either way"
        quick = min(cpu_seconds(lambda: from_table_and_log(topic, lake)) for _ in range(3))
        slow = min(cpu_seconds(lambda: from_log_alone(topic)) for _ in range(3))
        print(f"CPU: {quick:.3f} s from table and log, {slow:.3f} s parsing the log")
    (folder / "events.svg").write_text(plot(counts))
    print(f"plot: {folder / 'events.svg'}")
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="JSON events, a typed table, and one query of table and log")
    parser.add_argument("folder", nargs="?", help="where the log and the table go (a new one by default)")
    parser.add_argument("--events", type=int, default=20_000, help="how many are appended and copied")
    given = parser.parse_args()
    main(Path(given.folder or tempfile.mkdtemp(prefix="events-")), given.events)
