"""The soak's own parts: a proxy that did nothing and a judge that saw nothing would let everything pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import logstore
from logstore.errors import Determinate, Indeterminate, PreconditionFailed
from logstore.objects import ObjectStore, open_url
from logstore.objects.homes.s3 import S3Store
from tests.soak.journal import Journal
from tests.soak.judge import Verdict, judge
from tests.soak.proxy import READ_FAULTS, WRITE_FAULTS, Proxy, Request
from tests.support.patience import PATIENCE_S
from tests.support.servers import BUCKET, Server


class Scripted(Proxy):
    """Does to the next write, or read, what it is told."""

    fault: str | None = None
    held: list[Request]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held = []

    def _later(self, request: Request, seconds: float) -> None:
        self.held.append(request)

    def deliver_late_ones(self) -> None:
        """Those of which the proxy knows by now."""
        while self.held:
            self._run(self._forward(self.held.pop()))

    def _draw(self, write: bool) -> str | None:
        fault, self.fault = self.fault, None
        return fault


@pytest.fixture
def proxy(moto: Server) -> Iterator[Scripted]:
    upstream = urlsplit(moto.endpoint_url)
    with Scripted(upstream.hostname or "", upstream.port or 0, 1) as proxy:
        yield proxy


class Through:
    """A patient client of the proxy, and one that gives up soon: for what is never answered, and for that alone."""

    def __init__(self, proxy: Scripted, prefix: str) -> None:
        endpoint = f"http://127.0.0.1:{proxy.port('test')}"
        self.patient, self.hasty = (
            S3Store(BUCKET, prefix, endpoint_url=endpoint, region="us-east-1", read_timeout_s=seconds)
            for seconds in (PATIENCE_S, 0.3)
        )

    def meets(self, fault: str) -> S3Store:
        return self.hasty if fault == "stall" else self.patient


@pytest.fixture
def through(proxy: Scripted, tmp_path: Path) -> Iterator[Through]:
    through = Through(proxy, tmp_path.name)
    yield through
    through.patient.close()
    through.hasty.close()


OUTCOMES = {
    # what the client hears, and whether the object is there at once, and when all was delivered
    "cut before": (Indeterminate, False, False),
    "cut after": (Indeterminate, True, True),
    "repeat": (PreconditionFailed, True, True),
    "repeat late": (None, True, True),
    "late": (Indeterminate, False, True),
    "stall": (Indeterminate, False, True),
    "slow": (None, True, True),
    "500 done": (Indeterminate, True, True),
    "500 not done": (Indeterminate, False, False),
    "503 done": (Indeterminate, True, True),
    "503 not done": (Determinate, False, False),
    "409 done": (Determinate, True, True),
    "409 not done": (Determinate, False, False),
}


@pytest.mark.s3
@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_C03_C05_the_proxy_does_to_a_conditional_put_what_it_says(
    proxy: Scripted, through: Through, fault: str
) -> None:
    heard, at_once, at_last = OUTCOMES[fault]
    proxy.fault = fault
    if heard is None:
        through.meets(fault).put("key", b"bytes", if_absent=True)
    else:
        with pytest.raises(heard):
            through.meets(fault).put("key", b"bytes", if_absent=True)
    if fault != "stall":  # the proxy learns of the client's end a moment later
        assert (through.patient.head("key") is not None) == at_once
    proxy.deliver_late_ones()
    if fault != "stall":
        assert (through.patient.head("key") is not None) == at_last
    assert proxy.counts[fault] == 1
    assert proxy.counts["done, but 412"] == (fault == "repeat")


@pytest.mark.s3
@pytest.mark.parametrize("fault", [fault for fault in READ_FAULTS if fault != "slow"])
def test_C05_the_proxy_does_to_a_read_what_it_says(proxy: Scripted, through: Through, fault: str) -> None:
    through.patient.put("key", b"bytes" * 1000)
    proxy.fault = fault
    with pytest.raises(Determinate):
        through.meets(fault).get("key")
    assert through.patient.get("key") == b"bytes" * 1000


def a_run(folder: Path, lanes: int = 1) -> tuple[Path, ObjectStore]:
    """The journal of one producer and its store."""
    where, path = open_url(folder / "objects"), folder / "journal"
    judge.prepare(where, ["t"], None)
    journal = Journal(path)
    with logstore.open(where, lanes=lanes) as store:
        log = store.topic("t").partition(0)
        journal.note("opened", topic="t", process="p")
        for number in range(4):
            op = journal.began("t", "p", [b"v%d" % number], "durable")
            journal.note("acked", op=op, topic="t", offset=log.append(b"v%d" % number).offset)
    journal.note("crashed", process="p")
    journal.close()
    return path, where


def verdict_on(path: Path, where: ObjectStore) -> Verdict:
    return judge.judge(path, where, ["t"], "", None)


def test_C01_the_judge_is_content_with_what_is_right(tmp_path: Path) -> None:
    verdict = verdict_on(*a_run(tmp_path))
    assert verdict.violations == []
    assert verdict.counts["acked durable"] == 5


def test_C01_the_judge_sees_an_ack_of_what_is_nowhere(tmp_path: Path) -> None:
    path, where = a_run(tmp_path)
    journal = Journal(path)
    journal.note("acked", op=journal.began("t", "p", [b"nowhere"], "durable"), topic="t", offset=2)
    journal.close()
    assert any("never twice" in violation for violation in verdict_on(path, where).violations)


def test_C01_the_judge_sees_an_ack_past_the_end(tmp_path: Path) -> None:
    path, where = a_run(tmp_path)
    journal = Journal(path)
    journal.note("acked", op=journal.began("t", "p", [b"nowhere"], "durable"), topic="t", offset=9)
    journal.close()
    assert any("never lost" in violation for violation in verdict_on(path, where).violations)


def test_W04_the_judge_sees_a_record_that_was_told_not_to_be_stored(tmp_path: Path) -> None:
    path, where = a_run(tmp_path)
    journal = Journal(path)
    op = journal.began("t", "q", [b"refused"], "durable")
    journal.note("failed", op=op, topic="t", certain=True, why="Fenced")
    journal.close()
    with logstore.open(where) as store:
        store.topic("t").append(b"refused")
    assert any("nothing made up" in violation for violation in verdict_on(path, where).violations)


def test_C04_the_judge_sees_an_entry_of_a_lane_that_is_gone(tmp_path: Path) -> None:
    """What lies behind it names one that does not stand, as it does where an upload never came: acked records lack."""
    path, where = a_run(tmp_path)
    (entry,) = (info.key for info in where.list("lanes/") if info.key.endswith("1.seg"))
    where.delete(entry)
    assert verdict_on(path, where).violations


def test_C04_the_judge_sees_an_object_that_is_gone(tmp_path: Path) -> None:
    path, where = a_run(tmp_path, lanes=0)
    (segment,) = (info.key for info in where.list("topics/") if info.key.endswith("2.seg"))
    where.delete(segment)
    violations = verdict_on(path, where).violations
    assert any("CorruptData" in violation for violation in violations)
    assert any("verify" in violation for violation in violations)
