"""The page's port without a browser: who may ask, what is answered, and that nothing can be changed."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import logstore
from logstore.cli import main
from logstore.objects import MemoryStore
from logstore.testing import FaultyStore, GatedStore
from logstore.ui import Served, serve
from logstore.ui.port import ASKED_MAX, is_loopback
from logstore.ui.refresher import Refresher
from logstore.ui.view import View
from tests.support.engine.harness import until
from tests.support.patience import PATIENCE_S


def ask(
    url: str, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


@pytest.fixture
def store() -> Iterator[logstore.Store]:
    with logstore.open(MemoryStore()) as opened:
        opened.create_topic("t", 2).partition(1).append(
            [logstore.Record(b"\xff", key=b"k", headers=(("h", None),)), logstore.Record(None)]
        )
        yield opened


@pytest.fixture
def served(store: logstore.Store) -> Iterator[Served]:
    with serve(store) as page:
        yield page


def test_O02_the_page_is_one_file_and_forbids_everything_from_elsewhere(served: Served) -> None:
    status, body, headers = ask(served.url, "/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'self'" in policy
    text = body.decode()
    assert "://" not in text.replace("http://www.w3.org", "")
    assert "<script src" not in text
    assert '<link rel="stylesheet"' not in text


def test_O02_records_segments_and_marks_are_told_as_json(served: Served, store: logstore.Store) -> None:
    found = json.loads(ask(served.url, "/api/records?topic=t&partition=1&offset=0&count=1")[1])
    (record,) = found["records"]
    assert base64.b64decode(record["value"]) == b"\xff"
    assert (record["offset"], record["headers"], found["high"]) == (0, [["h", None]], 2)
    mapped = json.loads(ask(served.url, "/api/segments?topic=t&partition=1")[1])
    assert (mapped["count"], mapped["segments"][0]["end"]) == (1, 2)
    for path in ("/api/records?topic=nope", "/api/segments?topic=t&partition=9"):
        status, body, _ = ask(served.url, path)
        assert status == 400
        assert json.loads(body)["error"]
    assert ask(served.url, "/api/nope")[0] == 404
    assert ask(served.url, "/favicon.ico")[0] == 404


def events(url: str, topic: str, count: int) -> list[dict[str, object]]:
    """The first events of a stream."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/events?topic={topic}")
        answer = connection.getresponse()
        found: list[dict[str, object]] = []
        while len(found) < count:
            line = answer.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        return found
    finally:
        connection.close()


def test_O02_the_list_of_topics_is_sent_again_only_when_it_has_changed(
    served: Served, store: logstore.Store
) -> None:
    until(lambda: bool(json.loads(ask(served.url, "/api/now")[1])["topics"]))
    first, *others = events(served.url, "t", 3)
    assert first["topics"]
    assert not any("topics" in each for each in others)


def test_O02_what_is_first_asked_of_the_store_is_shown_before_the_next_regular_event(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens the page waits for the store and not for a clock: here regular events are an hour apart."""
    monkeypatch.setattr("logstore.ui.port.EVERY_S", 3600.0)
    for event in events(served.url, "t", 8):
        if event["partitions"]:
            return
    pytest.fail("eight events, and no partition")


def test_O02_an_update_costs_a_lane_s_requests_and_not_each_partition_s() -> None:
    """Fifty partitions of another process's lane on the page, and thirty more topics in the list."""
    objects = MemoryStore()
    with logstore.open(objects, lanes=1, flush_interval=3600) as writer:
        topic = writer.create_topic("t", 50)
        for number in range(50):
            topic.partition(number).submit(b"x")
        writer.flush()
        for number in range(30):
            writer.create_topic(f"other-{number}")
        with logstore.open(objects, writer="read_only") as reader:
            refresher = Refresher(reader)
            refresher.stop()  # its rounds are made here, by hand
            refresher.known()
            refresher.want("t", range(50))

            def requests() -> int:
                return sum(stats.requests for stats in reader.metrics().values())

            assert refresher._round() is None
            assert refresher.known().lanes[0].partitions == 50
            before = requests()
            assert refresher._round() is None
            assert requests() - before <= 10, (
                "three if nothing is new: the topic, the lane's next place, its checkpoint"
            )
            refresher._topics_at = float("-inf")
            before = requests()
            assert refresher._round() is None
            assert requests() - before <= 11, "and one listing: no descriptor has changed"


def test_O02_what_is_counted_over_all_partitions_takes_a_share_of_the_time(
    store: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting ten thousand partitions takes a while: then it is done less often, however many look."""
    now = [100.0]
    monkeypatch.setattr("logstore.ui.view.time.monotonic", lambda: now[0])
    counted: list[float] = []

    def slowly(sources: object) -> list[tuple[object, object]]:
        counted.append(now[0])
        now[0] += 0.5
        return []

    monkeypatch.setattr("logstore.ui.view.families", slowly)
    view = View(store)
    try:
        for _ in range(100):
            view.now()
            now[0] += 0.2
    finally:
        view.stop()
    assert 2 <= len(counted) <= 3


def test_nothing_but_get_is_answered_and_nothing_changes(served: Served, store: logstore.Store) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(served.url, "/api/now", method=method)[0] == 405
    assert store.topics() == ["t"]


def test_without_a_token_only_this_machine_may_ask_and_only_by_its_own_name(
    served: Served, store: logstore.Store
) -> None:
    assert ask(served.url, "/", host="localhost:1234")[0] == 200
    assert ask(served.url, "/", host="[::1]:80")[0] == 200
    assert ask(served.url, "/api/now", host="evil.example")[0] == 403
    with pytest.raises(ValueError, match="pass a token"):
        serve(store, "0.0.0.0")
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_with_a_token_every_request_must_carry_it(store: logstore.Store) -> None:
    with serve(store, token="s3cret") as served:
        assert served.url.endswith("/?token=s3cret")
        for path in ("/", "/api/now", "/events", "/?token=wrong"):
            assert ask(served.url, path)[0] == 403
        assert ask(served.url, "/?token=s3cret", host="anything.example")[0] == 200
        assert ask(served.url, "/api/now?token=s3cret")[0] == 200


def test_a_port_that_is_taken_is_an_error_and_closing_twice_is_none(
    served: Served, store: logstore.Store
) -> None:
    with pytest.raises(OSError):
        serve(store, port=served.port)
    served.close()
    served.close()
    with pytest.raises(OSError):
        ask(served.url, "/")


def test_what_cannot_be_asked_is_said_and_the_page_goes_on(store: logstore.Store) -> None:
    objects = FaultyStore(MemoryStore(), seed=1)
    with logstore.open(objects) as broken, serve(broken) as served:
        broken.create_topic("t")
        objects.down()

        def now() -> dict[str, object]:
            told: dict[str, object] = json.loads(ask(served.url, "/api/now")[1])
            return told

        until(lambda: bool(now()["reasons"]))
        assert now()["health"] == "degraded"
        assert "StoreUnavailable" in str(now()["reasons"])


def test_O02_questions_that_wait_for_a_store_that_hangs_do_not_stop_the_page() -> None:
    """Who clicks on while nothing answers still sees that it hangs, and why; more questions than that are refused."""
    gated = GatedStore(MemoryStore())
    with logstore.open(gated) as store:
        store.create_topic("t", ASKED_MAX, segment_bytes=1)
        for number in range(ASKED_MAX):
            store.topic("t").partition(number).append(b"x")
    with (
        logstore.open(gated, writer="read_only", cache_bytes=0) as reader,
        serve(reader) as served,
        ThreadPoolExecutor(ASKED_MAX + 1) as pool,
    ):
        with gated.hold("get"):
            path = "/api/segments?topic=t&partition="
            asked = [pool.submit(ask, served.url, f"{path}{n}") for n in (*range(ASKED_MAX), 0)]
            assert next(as_completed(asked, PATIENCE_S)).result()[0] == 503
            assert json.loads(ask(served.url, "/api/now")[1])["writer"] == "read_only"
        assert sorted(each.result(PATIENCE_S)[0] for each in asked) == [*[200] * ASKED_MAX, 503]
        assert ask(served.url, f"{path}0")[0] == 200


@pytest.mark.parametrize("where", ["127.0.0.1:65536", "127.0.0.1:http", "8080"])
def test_what_is_no_port_is_said_before_anything_is_opened(
    where: str, store: logstore.Store, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--store", "memory://", "--listen", where]) == 2
    assert f"--listen {where}: it is HOST:PORT" in capfd.readouterr().err
    with pytest.raises(OverflowError):
        serve(store, port=65536)


def test_the_command_serves_the_page_of_a_store(tmp_path: Path) -> None:
    with logstore.open(str(tmp_path)) as store:
        store.create_topic("shop")
    command = [
        sys.executable,
        "-m",
        "logstore.cli",
        "ui",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--store",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            until(lambda: bool(json.loads(ask(url, "/api/now")[1])["topics"]))
            assert json.loads(ask(url, "/api/now")[1])["topics"][0]["name"] == "shop"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0, "Ctrl-C is the way to end it"
        finally:
            process.kill()
