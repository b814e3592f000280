"""The end of a round: what the store holds is held against what everybody was told."""

from __future__ import annotations

import argparse
import io
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import logstore
from logstore.cli.commands.maintenance import compact, gc, verify
from logstore.cli.terminal.output import Output
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import LogStoreError
from logstore.objects import ObjectStore
from logstore.testing import HistoryViolation, check_history
from tests.soak.journal import Histories, Journal, Line, lines_of


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Judge:
    """Has no state: one name for what is done before, at the end of and after a round."""

    def prepare(self, where: ObjectStore, topics: Iterable[str], retention_bytes: int | None) -> None:
        with logstore.open(where) as store:
            for topic in topics:
                limits: dict[str, Any] = (
                    {"retention_bytes": retention_bytes} if topic == "shared" and retention_bytes else {}
                )
                store.create_topic(topic, segment_bytes=20_000, **limits)

    def ends(self, where: ObjectStore, topics: Iterable[str]) -> dict[str, int]:
        """Where the topics end that can be asked; one that cannot is found by what comes next."""
        found = {}
        with logstore.open(where, writer="read_only") as store:
            for topic in topics:
                try:
                    found[topic] = store.topic(topic).partition(0).durable_high_watermark
                except LogStoreError:
                    continue
        return found

    def judge(
        self,
        path: Path,
        where: ObjectStore,
        topics: Iterable[str],
        disk: str,
        retention_bytes: int | None,
    ) -> Verdict:
        verdict = Verdict()
        journal = Journal(path)
        low: dict[str, int] = {}
        for topic in topics:
            steps: list[tuple[str, Callable[[str], object]]] = [
                ("a fresh reader", lambda topic: self._read(journal, where, topic, "judge-a")),
                (
                    "a fresh writer",
                    lambda topic: low.update({topic: self._write(journal, verdict, where, topic, disk)}),
                ),
                ("maintenance", lambda topic: self._maintain(where, topic)),
                ("a fresh reader after it", lambda topic: self._read(journal, where, topic, "judge-b")),
            ]
            for what, step in steps:
                self._try(verdict, f"{topic}: {what}", partial(step, topic))
        self._try(verdict, "verify", lambda: self._verify(verdict, where))
        journal.close()
        histories = Histories()
        for line in lines_of(path):
            histories.take(line)
        for topic, begins in low.items():
            retains = topic == "shared" and retention_bytes is not None
            if begins > histories.trimmed[topic] and not retains:
                verdict.violations.append(
                    f"{topic}: it begins at {begins}, and nobody asked for more than {histories.trimmed[topic]}"
                )
        for topic, events in histories.events.items():
            try:
                check_history(events)
            except HistoryViolation as broken:
                verdict.violations.append(f"{topic}: {broken}")
        verdict.violations += _summed_up(histories.errors)
        verdict.counts.update(
            {"appends": histories.appends, "reads": histories.reads, **histories.maintained}
        )
        verdict.counts.update({f"acked {level}": count for level, count in histories.acks.items()})
        verdict.counts.update({f"failed: {why}": count for why, count in histories.failures.items()})
        return verdict

    @staticmethod
    def _try(verdict: Verdict, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except LogStoreError as error:
            verdict.violations.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")

    def _read(self, journal: Journal, where: ObjectStore, topic: str, process: str) -> None:
        journal.note("opened", topic=topic, process=process)
        with logstore.open(where, writer="read_only") as store:
            self._read_all(journal, store.topic(topic).partition(0), process)

    @staticmethod
    def _read_all(journal: Journal, log: PartitionLog, process: str) -> set[int]:
        position, found = log.low_watermark, set[int]()
        while True:
            op = journal.read(log.topic, process, position, "durable")
            result = log.read(position, visibility="durable")
            journal.got(op, log.topic, result)
            found.update(record.offset for record in result.records() if record.offset is not None)
            if result.next_offset <= position:
                return found
            position = result.next_offset

    def _write(self, journal: Journal, verdict: Verdict, where: ObjectStore, topic: str, disk: str) -> int:
        """As the next exclusive writer, with the disk of the last one: nothing may be missing that nobody says is lost."""
        lone = topic == "lone"
        journal.note("opened", topic=topic, process="judge-w")
        with logstore.open(where, wal_dir=disk if lone else None) as store:
            log = store.topic(topic).partition(0)
            log.open_writer()
            journal.note("recovered", topic=topic, process="judge-w", same_disk=lone)
            value = f"judge/{topic}".encode()
            op = journal.began(topic, "judge-w", [value], "durable")
            journal.note("acked", op=op, topic=topic, offset=log.append(value).offset)
            found = self._read_all(journal, log, "judge-w")
            low, high = log.low_watermark, log.durable_high_watermark
            for start, end in _silent(
                low, high, found, [(lost.start, lost.end) for lost in log.lost_ranges()]
            ):
                verdict.violations.append(
                    f"{topic}: offsets {start} to {end} hold nothing, and nobody says that they are lost"
                )
            return low

    @staticmethod
    def _maintain(where: ObjectStore, topic: str) -> None:
        out = Output(io.StringIO(), as_json=True)
        compact.run(argparse.Namespace(store=where, topic=topic), out)
        gc.run(argparse.Namespace(store=where, topic=topic, grace=0.0, dry_run=False), out)

    @staticmethod
    def _verify(verdict: Verdict, where: ObjectStore) -> None:
        text = io.StringIO()
        if verify.run(argparse.Namespace(store=where, topic=None), Output(text, as_json=False)):
            damage = [line for line in text.getvalue().splitlines() if line.startswith("DAMAGED")]
            verdict.violations.append(f"verify: {len(damage)} damaged, {damage[0][:300]}")


def _silent(low: int, high: int, found: set[int], lost: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges between `low` and `high` that hold no record and are not said to be lost."""
    position, silent = low, []
    for start, end in sorted([*((offset, offset + 1) for offset in found), *lost, (high, high)]):
        if start > position:
            silent.append((position, start))
        position = max(position, end)
    return silent


def _summed_up(errors: list[Line]) -> list[str]:
    """One for each topic, call and type of error: a damaged object is met again and again."""
    kinds = Counter((e["topic"], e["what"], e["why"].partition(":")[0]) for e in errors)
    first = {(e["topic"], e["what"], e["why"].partition(":")[0]): e for e in reversed(errors)}
    return [
        f"{topic}: {what}: {count} times, first in {first[topic, what, kind]['process']}: "
        f"{first[topic, what, kind]['why'][:300]}"
        for (topic, what, kind), count in kinds.items()
    ]


judge = Judge()
