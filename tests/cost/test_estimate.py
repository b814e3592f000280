"""What a set-up will cost: the model at its ends, against counted requests, and as the command prints it."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from logstore.cli import main
from logstore.cost.estimate import MONTH_S, Plan, estimate
from logstore.cost.prices import CLASSES, EXPRESS, STANDARD


def puts(**plan: object) -> float:
    return estimate(Plan(**{"rate": 50.0, "size": 200.0, **plan}), STANDARD).puts_a_second  # type: ignore[arg-type]


def test_O04_few_records_have_a_put_each_and_many_share_one_for_each_upload() -> None:
    assert puts(rate=0.01) == pytest.approx(0.01, rel=0.03)
    assert puts(rate=1e5) == pytest.approx(1 / STANDARD.put_seconds, rel=0.1)
    assert puts(rate=0) == 0
    assert puts(partitions=4, lanes=0) > 1.5 * puts(partitions=1)


def test_O04_linger_bounds_the_bill_whatever_the_rate() -> None:
    for rate in (10.0, 1e3, 1e4):
        assert puts(rate=rate, linger=0.1) <= 10 * 1.1
        assert puts(rate=rate, linger=1.0, partitions=3) <= 3 * 1.1
    assert puts(buffered=True) == pytest.approx(1 / 1.02, rel=0.05)
    slow, fast = (estimate(Plan(50, 200, linger=linger), STANDARD).ack_seconds for linger in (1.0, 0.0))
    assert slow > 5 * fast


def test_O04_the_model_counts_what_a_simulated_writer_counts() -> None:
    """One upload at a time, what comes meanwhile goes with the next: played through with random arrivals."""
    for rate, linger in ((2.0, 0.0), (50.0, 0.0), (50.0, 0.1), (12.5, 0.25), (500.0, 0.0)):
        rng, now, until, flushes, last = random.Random(7), 0.0, 4000 / rate, 0, float("-inf")
        arrivals = []
        while now < until:
            now += rng.expovariate(rate)
            arrivals.append(now)
        free, place = 0.0, 0
        while place < len(arrivals):
            begin = max(arrivals[place], free, last + linger)
            while place < len(arrivals) and arrivals[place] <= begin:
                place += 1
            flushes, last, free = flushes + 1, begin, begin + STANDARD.put_seconds
        model = estimate(Plan(rate, 200, linger=linger), STANDARD).puts_a_second / (1 + 1 / 64)
        assert model == pytest.approx(flushes / until, rel=0.1), (rate, linger)


def test_O04_a_lane_makes_the_bill_that_of_one_partition() -> None:
    assert puts(partitions=1000, lanes=1) == pytest.approx(puts(partitions=1))
    assert puts(partitions=2, lanes=8) == puts(partitions=2, lanes=0)


def test_O04_money_is_requests_times_price_plus_what_is_stored() -> None:
    found = estimate(Plan(rate=50, size=1000, partitions=4, retention=86400.0), STANDARD)
    month = found.puts_a_second * MONTH_S * 5e-6 + found.gets_a_second * MONTH_S * 0.4e-6
    assert found.request_dollars == pytest.approx(month)
    assert found.storage_dollars == pytest.approx(50 * 1000 * 2 * 86400 / 1e9 * 0.023)
    assert found.dollars == found.request_dollars + found.storage_dollars
    assert estimate(Plan(50, 1000, tails=2), EXPRESS).gets_a_second > 8


@pytest.mark.parametrize(("name", "value"), [("rate", -1), ("linger", float("inf")), ("partitions", 0)])
def test_a_plan_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Plan(**{"rate": 1.0, "size": 1.0, name: value})  # type: ignore[arg-type]


def test_O04_the_command_says_it_for_both_classes(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["cost", "--rate", "50/s", "--size", "1kB", "--partitions", "4", "--linger", "0.1"]
    assert main([*words, "--json"]) == 0
    standard, express = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    plan = Plan(rate=50, size=1000, partitions=4, linger=0.1)
    assert standard["dollars"] == pytest.approx(estimate(plan, STANDARD).dollars, abs=0.01)
    assert (standard["class"], express["class"]) == tuple(CLASSES)
    assert main(words) == 0
    shown = capfd.readouterr().out
    assert "S3 Express One Zone" in shown
    assert "dollars a month" in shown
    assert max(map(len, shown.splitlines())) < 80  # a table on the narrowest terminal, too
    assert main(["cost", "--rate", "-5"]) == 2
    assert main(["cost", "--tails", "-5"]) == 2


class Counting(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        puts, gets = 100 * self.asked, 10 * self.asked
        body = (
            f'logstore_requests_total{{operation="put",outcome="ok"}} {puts}\n'
            f'logstore_requests_total{{operation="put",outcome="PreconditionFailed"}} {puts}\n'
            f'logstore_request_bytes_total{{operation="put",store="a"}} {puts * 1_000_000}\n'
            f'logstore_request_bytes_total{{operation="put",store="b"}} {puts * 2_000_000}\n'
            f'logstore_requests_total{{operation="get",outcome="ok"}} {gets}\n'
        ).encode()
        if self.path == "/not-http":
            self.wfile.write(b"\x00\x01\r\n")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body if self.path == "/metrics" else b"nothing 1\n")

    def log_message(self, *_: object) -> None:
        pass


def test_O04_a_running_service_is_billed_by_its_own_counters(capfd: pytest.CaptureFixture[str]) -> None:
    server = HTTPServer(("127.0.0.1", 0), Counting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["cost", "--metrics", f"{url}/metrics", "--for", "1ms", "--json"]) == 0
        assert main(["cost", "--metrics", f"{url}/other", "--for", "1ms"]) == 2
        assert main(["cost", "--metrics", f"{url}/not-http", "--for", "1ms"]) == 2
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    printed = capfd.readouterr()
    assert "speaks no HTTP" in printed.err
    standard, express = [json.loads(line) for line in printed.out.splitlines()]
    assert standard["puts_a_second"] == pytest.approx(200 / 0.001)
    assert standard["dollars_a_month"] == pytest.approx(
        (200 * 5e-6 + 10 * 0.4e-6) * MONTH_S / 0.001, rel=1e-3
    )
    carried = (100 * 1e6 + 100 * 2e6) / 1e9 * EXPRESS.put_gb  # of both stores
    assert express["dollars_a_month"] == pytest.approx(
        (200 * 1.13e-6 + 10 * 0.03e-6 + carried) * MONTH_S / 0.001, rel=1e-3
    )
    assert main(["cost", "--metrics", "http://127.0.0.1:1/", "--for", "0"]) == 2
    assert main(["cost", "--metrics", "ftp://x"]) == 2
