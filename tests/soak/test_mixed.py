"""Random histories of processes that fight for the partitions of a few topics, and for two lanes by name.

They are killed, suspended and woken. The judge knows nothing but the journal and what a fresh reader finds: each durable ack
is there, at its offset and once, also after one more merge and collection; so is each local one, once every WAL was opened
again, or it is in a file of its own beside that, and not in the log; what was seen as durable stays; no offset that anybody
was told has two records; of an atomic append there is all or nothing; everybody can append; `verify` finds nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

import logstore
from logstore.cli.commands.maintenance import compact, verify
from logstore.cli.terminal.output import Output
from logstore.engine.write.wal.recovery import sections_of
from logstore.engine.write.wal.wal import ORPHAN_SUFFIX
from logstore.format.batches.batch import validate
from logstore.format.batches.records import decode_records
from tests.soak import mixed_worker
from tests.soak.mixed_worker import TOPICS, Place, place_of
from tests.support.servers import moto_server_process, seaweedfs_server

PROCESSES = 3
ROUNDS = 12
ROUND_S = 25.0
END_S = 120.0
SERVERS = {"moto": moto_server_process, "seaweedfs": seaweedfs_server}
Contents = dict[Place, dict[int, str]]
Aside = set[tuple[int, str]]


def start(folder: Path, where: str, name: str, seed: int, seconds: float) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        command = [sys.executable, mixed_worker.__file__, str(folder), where, name, str(seed), str(seconds)]
        path = os.pathsep.join(sys.path)
        return subprocess.Popen(command, stderr=log, stdout=log, env=os.environ | {"PYTHONPATH": path})


def fight(folder: Path, where: str, seed: int, seconds: float) -> list[str]:
    """Let them, and disturb them. Returns what is wrong with how they ended."""
    rng, end_at = Random(seed), time.monotonic() + seconds
    lives = [0] * PROCESSES

    def born(number: int) -> subprocess.Popen[bytes]:
        lives[number] += 1
        left = max(0.0, end_at - time.monotonic())
        return start(folder, where, f"{number}.{lives[number]}", rng.randrange(1 << 30), left)

    living = [born(number) for number in range(PROCESSES)]
    while time.monotonic() < end_at - 1:
        time.sleep(rng.uniform(0.2, 3.0))
        number = rng.randrange(PROCESSES)
        child = living[number]
        if rng.random() < 0.5:
            child.send_signal(signal.SIGSTOP)
            time.sleep(rng.choice((0.1, 0.5, 2.0)))
            child.send_signal(signal.SIGCONT)
        else:
            child.kill()
            child.wait()
            living[number] = born(number)
    wrong = []
    for child in living:
        try:
            if child.wait(END_S):
                wrong.append(f"a process ended with {child.returncode}")
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            wrong.append("a process does not end")
    return wrong


def contents(where: str) -> Contents:
    found: Contents = {}
    with logstore.open(where, writer="read_only") as store:
        for name in TOPICS:
            topic = store.topic(name)
            for number in range(TOPICS[name]):
                log = topic.partition(number)
                records = log.records(visibility="durable")
                found[place_of(log)] = {
                    record.offset or 0: (record.value or b"").decode() for record in records
                }
    return found


def append_everywhere(where: str, **settings: Any) -> None:
    with logstore.open(where, take_over=True, **settings) as store:
        for name, partitions in TOPICS.items():
            for number in range(partitions):
                store.topic(name).partition(number).append(b"judge")


def kept_aside(folder: Path) -> Aside:
    """What the WALs there had acked when another had taken over already."""
    found: Aside = set()
    for path in folder.rglob(f"*{ORPHAN_SUFFIX}"):
        data = path.read_bytes()
        for section in sections_of(path, data)[0]:
            payload = memoryview(data)[section.position : section.position + section.size]
            for info in validate(payload, max_batch_bytes=len(payload)):
                raw = payload[info.position : info.position + info.size]
                found |= {(one.offset or 0, (one.value or b"").decode()) for one in decode_records(raw, info)}
    return found


def after_maintenance(where: str) -> Contents:
    """Everybody appends, and everything is merged and collected."""
    append_everywhere(where)
    for name in TOPICS:
        compact.run(argparse.Namespace(store=where, topic=name), Output(io.StringIO(), as_json=True))
    with logstore.open(where, writer="read_only", delete_grace=0.0) as store:
        store.collect_garbage()
    return contents(where)


def violations(lines: list[dict[str, Any]], stored: Contents, aside: Aside) -> list[str]:
    """What was told, held against what is there."""
    found: list[str] = []
    places: dict[str, list[tuple[Place, int]]] = defaultdict(list)
    for place, records in stored.items():
        for offset, value in records.items():
            if value != "judge":
                places[value].append((place, offset))
    found += [
        f"{value[:30]} is stored {len(where)} times" for value, where in places.items() if len(where) > 1
    ]
    told: dict[tuple[Place, int], str] = {}
    for line in lines:
        who = f"{line['process']} at {line['at']:.3f}"
        if line["kind"] == "odd":
            found.append(f"{who}: {line['what']}: {line['why'][:300]}")
        elif line["kind"] == "atomic":
            living = [
                v for v, place in zip(line["values"], line["places"], strict=True) if tuple(place) in stored
            ]
            if len({value in places for value in living}) > 1:
                found.append(f"{who}: an atomic append is stored in part: {[value[:30] for value in living]}")
        elif line["kind"] == "acked":
            for value, place, offset in zip(
                line["values"], map(tuple, line["places"]), line["offsets"], strict=True
            ):
                if told.setdefault((place, offset), value) != value:
                    found.append(
                        f"{who}: {place} {offset} is {value[:30]}, and was {told[place, offset][:30]}"
                    )
                is_stored = place not in stored or stored[place].get(offset) == value
                is_aside = line["ack"] == "local" and (offset, value) in aside
                if line["ack"] != "buffered" and is_stored == is_aside and place in stored:
                    what = "kept aside, and stored" if is_stored else "lost"
                    found.append(f"{who}: {place} {offset} was acked and is {what}: {value[:30]}")
        elif line["kind"] == "saw" and (place := tuple(line["place"])) in stored:
            gone = [offset for offset, value in line["found"] if stored[place].get(offset) != value]
            if gone:
                found.append(f"{who}: {place}: offsets {gone[:5]} were seen as durable and are gone")
    return found


def judged(folder: Path, where: str) -> list[str]:
    with (folder / "journal").open() as journal:
        lines = [json.loads(line) for line in journal if line.endswith("}\n")]
    with logstore.open(where) as store:
        store.create_topic("gone", TOPICS["gone"], exist_ok=True)
    for wal_dir in sorted(folder.glob("wal-*")):
        append_everywhere(where, wal_dir=wal_dir)
    aside = kept_aside(folder)
    found = violations(lines, contents(where), aside) + violations(lines, after_maintenance(where), aside)
    text = io.StringIO()
    if verify.run(argparse.Namespace(store=where, topic=None), Output(text, as_json=False)):
        found.append(text.getvalue()[:1000])
    return found


@pytest.mark.soak
@pytest.mark.s3
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("home", ["folder", "moto", "seaweedfs"])
def test_L01_L17_N02_N03_N04_N09_C01_C07_processes_fight_for_partitions_and_lanes(
    home: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SOAK_SEED", "1"))
    with SERVERS[home]() if home in SERVERS else nullcontext() as server:
        for number in range(ROUNDS):
            folder = tmp_path / str(number)
            folder.mkdir()
            where = str(folder / "store") if server is None else server.url(f"mixed-{number}")
            with logstore.open(where) as store:
                for name, partitions in TOPICS.items():
                    store.create_topic(name, partitions, segment_bytes=5000)
            wrong = fight(folder, where, seed * 1000 + number, ROUND_S)
            assert [*wrong, *judged(folder, where)] == [], folder


def test_N09_the_judge_of_mixed_histories_sees_what_is_lost_doubled_torn_and_taken_back() -> None:
    one, two = ("t", "i", 0), ("t", "i", 1)
    none: Aside = set()
    head = {"process": "p", "at": 0.0}
    lines: list[dict[str, Any]] = [
        {**head, "kind": "acked", "places": [one], "values": ["a"], "offsets": [0], "ack": "durable"},
        {**head, "kind": "saw", "place": one, "found": [[0, "a"]]},
        {**head, "kind": "atomic", "places": [one, two], "values": ["b", "c"]},
    ]
    assert violations(lines, {one: {0: "a", 1: "b"}, two: {0: "c"}}, none) == []
    assert len(violations(lines, {one: {1: "b"}, two: {0: "c"}}, none)) == 2, "lost, and taken back"
    assert len(violations(lines, {one: {0: "a", 1: "b"}, two: {}}, none)) == 1, "torn"
    assert len(violations(lines, {one: {0: "a", 1: "a"}, two: {}}, none)) == 1, "doubled"
    again = {**lines[0], "values": ["x"], "ack": "buffered"}
    assert len(violations([*lines, again], {one: {0: "a"}, two: {}}, none)) == 1, "an offset for two records"
    local = [{**lines[0], "ack": "local"}]
    assert violations(local, {one: {0: "a"}}, none) == violations(local, {one: {}}, {(0, "a")}) == []
    assert len(violations(local, {one: {}}, none)) == 1, "neither stored nor kept aside"
    assert len(violations(local, {one: {0: "a"}}, {(0, "a")})) == 1, "both"
    assert len(violations(lines[:1], {one: {}}, {(0, "a")})) == 1, "durable, and kept aside"
