"""The page in a real browser: what it shows moves with the store, a store that hangs is seen, and it asks nobody else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.commands.tools.ui import groups_of
from logstore.ingest import FlushTracker
from logstore.objects import MemoryStore
from logstore.testing import GatedStore, ManualClock
from logstore.ui import Served, serve
from logstore.ui.port import Page
from logstore.ui.view import View
from tests.support.patience import PATIENCE_S

MS = PATIENCE_S * 1000


@pytest.fixture
def gated() -> GatedStore:
    return GatedStore(MemoryStore())


@pytest.fixture
def store(gated: GatedStore) -> Iterator[logstore.Store]:
    with logstore.open(gated, flush_interval=3600) as opened:
        yield opened


@pytest.fixture
def served(store: logstore.Store) -> Iterator[Served]:
    tracker: FlushTracker[int] = FlushTracker(0, lambda boundary: None)
    tracker.register("warehouse")
    tracker.commit(7, ["warehouse"])
    orders = store.create_topic("orders", 3)
    for number in range(40):
        value = json.dumps({"order": number, "total": number * 1.5}).encode()
        orders.append(value, key=b"customer-%d" % (number % 7), headers=[("source", b"web")])
    store.create_topic("payments").append(b"\x00\xffbinary")
    lag = lambda: {("orders", 0): 12}  # noqa: E731
    with serve(store, readers={"mailer": lag}, trackers={"shop": tracker}) as page:
        yield page


def shown(browser: Any, served: Served, there: str, **options: Any) -> Any:
    """The page, once `there` is in it."""
    opened = browser.new_page(**options)
    opened.set_default_timeout(MS)
    opened.goto(served.url)
    opened.wait_for_selector(there)
    return opened


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    opened = shown(
        browser, served, "#partitions tr[data-partition]", viewport={"width": 1200, "height": 1100}
    )
    yield opened
    opened.close()


def mark(page: Any, partition: int, column: int) -> int:
    cell = page.locator(f'tr[data-partition="{partition}"] td').nth(column)
    return int(cell.inner_text().replace(",", ""))


def wait_for_mark(page: Any, partition: int, column: int, value: int) -> None:
    page.wait_for_function(
        "([row, column, value]) => { const r = document.querySelector(`tr[data-partition='${row}']`);"
        " return r && r.cells[column].textContent.replaceAll(',', '') === String(value); }",
        arg=[partition, column, value],
    )


def test_O02_the_marks_move_while_a_producer_runs(page: Any, store: logstore.Store) -> None:
    log = store.topic("orders").partition(0)
    before = mark(page, 0, 4)
    assert before == log.marks().buffered
    log.append([b"buffered"] * 5, ack="buffered")
    wait_for_mark(page, 0, 4, before + 5)
    assert mark(page, 0, 3) == before, "not durable yet"
    assert page.evaluate("document.querySelector('tr[data-partition=\"0\"] .bar .buf').offsetWidth") > 0
    log.flush()
    wait_for_mark(page, 0, 3, before + 5)
    page.wait_for_function("() => document.querySelector('#rate polyline').getAttribute('points') !== ''")


def test_O02_what_was_stored_long_ago_and_is_read_now_is_no_throughput(
    browser: Any, gated: GatedStore
) -> None:
    with logstore.open(gated) as before:
        before.create_topic("orders").append_many([b"x"] * 5000)
    with logstore.open(gated, writer="read_only") as store, serve(store) as served:
        with gated.hold("get", prefix="lanes/"):
            page = shown(browser, served, "#partitions tr[data-partition]")
            wait_for_events(page, 3)
        wait_for_mark(page, 0, 3, 5000)
        wait_for_events(page, 2)
        assert page.evaluate("Math.max(...S.rates)") == 0
        page.close()


def wait_for_events(page: Any, more: int) -> None:
    """Until the page has been told so many times more how things are."""
    seen = page.evaluate("Number(document.body.dataset.ticks)")
    page.wait_for_function("n => Number(document.body.dataset.ticks) >= n", arg=seen + more)


def test_O02_a_store_that_hangs_is_degraded_with_its_reason_after_five_seconds(
    browser: Any, gated: GatedStore
) -> None:
    """Five seconds of the store's clock, which stands still meanwhile; the page is told every second of the browser's."""
    clock = ManualClock()
    with logstore.open(gated, clock=clock) as store:
        log = store.create_topic("orders").partition(0)
        log.append(b"before")
        with serve(store) as served:
            page = shown(browser, served, "#partitions tr[data-partition]")
            with gated.hold("put") as gate:
                waiting = log.submit(b"nobody answers")
                gate.wait_held()
                clock.advance(4.9)
                wait_for_events(page, 2)
                assert page.inner_text("#health") == "well"
                clock.advance(0.2)
                wait_for_events(page, 2)
                assert page.inner_text("#health") == "degraded"
                assert "put lanes/" in page.inner_text("#reasons")
                assert "has had no answer for 5.1 s" in page.inner_text("#reasons")
                assert "no answer for" in page.inner_text("#partitions")
            waiting.result(PATIENCE_S)
            page.wait_for_selector("#health.well")
            page.close()


def test_O02_a_page_that_only_reads_shows_a_hanging_store_after_five_seconds(
    browser: Any, gated: GatedStore
) -> None:
    """`logstore ui` has no upload that could wait: the request that it makes itself does."""
    with logstore.open(gated) as before:
        before.create_topic("orders").append(b"before")
    clock = ManualClock()
    with logstore.open(gated, clock=clock, writer="read_only") as store, serve(store) as served:
        page = shown(browser, served, "#partitions tr[data-partition]")
        with gated.hold("get") as gate:
            gate.wait_held()
            clock.advance(4.9)
            wait_for_events(page, 2)
            assert page.inner_text("#health") == "well"
            clock.advance(0.2)
            wait_for_events(page, 2)
            assert page.inner_text("#health") == "degraded"
            assert "has had no answer for 5.1 s" in page.inner_text("#reasons")
        page.wait_for_selector("#health.well")
        page.close()


def test_O02_no_request_leaves_the_machine(browser: Any, served: Served) -> None:
    opened = browser.new_page()
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(served.url)
    opened.wait_for_selector("#partitions tr[data-partition]")
    opened.wait_for_function("() => Number(document.body.dataset.ticks) > 1")
    assert asked
    assert [url for url in asked if not url.startswith((served.url, "data:"))] == []
    refused = opened.evaluate(
        "fetch('http://localhost:9/').then(() => 'sent', error => 'refused: ' + error.name)"
    )
    assert refused.startswith("refused")
    opened.close()


def test_O02_a_keyboard_reaches_everything(page: Any) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("pay")
    page.wait_for_function("() => document.querySelectorAll('#list button').length === 1")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#topic').textContent === 'payments'")
    page.wait_for_selector('tr[data-partition="0"]')
    page.focus("#find")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("k")
    page.wait_for_function("() => document.querySelector('#topic').textContent === 'orders'")
    page.wait_for_selector('tr[data-partition="2"]')
    page.focus('tr[data-partition="2"]')
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#chosen').textContent === 'orders/2'")
    assert page.evaluate("document.activeElement.id") == "offset", "on to the records"
    page.keyboard.press("Enter")
    page.wait_for_selector("#records table tbody tr")
    reached = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"find", "BUTTON", "TR", "offset", "howmany", "as", "show"} <= reached


def test_O02_a_topic_that_is_deleted_is_no_trouble_of_the_store(page: Any, store: logstore.Store) -> None:
    """Somebody looks at it: the page goes on to another, and when there is none it says so."""
    page.evaluate(
        "window.seen = new Set(); new MutationObserver(() => seen.add(document.querySelector('#health').textContent))"
        ".observe(document.querySelector('#health'), {childList: true, characterData: true, subtree: true})"
    )
    store.delete_topic("orders")
    page.wait_for_function("() => document.querySelector('#topic').textContent === 'payments'")
    page.wait_for_selector('tr[data-partition="0"]')
    store.delete_topic("payments")
    page.wait_for_function("() => document.querySelector('#partitions').textContent === 'no topics yet'")
    assert page.locator("#chosen").inner_text() == "–"
    page.click("#show")
    assert page.locator("#records").inner_text() == ""
    assert page.evaluate("[...seen].join()") == "well"
    store.create_topic("later")
    page.wait_for_function("() => document.querySelector('#topic').textContent === 'later'")


def test_O02_records_are_shown_as_text_json_and_hex_and_segments_on_a_map(page: Any) -> None:
    page.fill("#howmany", "3")
    page.click("#show")
    page.wait_for_selector("#records tbody tr")
    assert page.locator("#records tbody tr").count() == 3
    assert '"order"' in page.inner_text("#records")
    assert "source=web" in page.inner_text("#records")
    page.select_option("#as", "hex")
    assert "7b 22" in page.inner_text("#records")
    page.select_option("#as", "JSON")
    assert '"total"' in page.inner_text("#records")
    assert page.locator("#map i").count() > 3
    assert "objects" in page.inner_text("#mapped")
    assert "mailer" in page.inner_text("#readers")
    assert "warehouse owes 7" in page.inner_text("#trackers")


def test_O02_the_map_of_segments_follows_what_is_stored(page: Any, store: logstore.Store) -> None:
    drawn = page.locator("#map i").count
    page.wait_for_function("() => document.querySelectorAll('#map i').length > 0")
    before = drawn()
    store.topic("orders").partition(0).append(b"one more object")
    page.wait_for_function("n => document.querySelectorAll('#map i').length > n", arg=before)


def test_O02_groups_of_the_store_are_shown_with_their_lag_by_a_process_that_only_reads(
    browser: Any, served: Served, store: logstore.Store, gated: GatedStore
) -> None:
    """What is of a writer alone, such as a buffer, is left out there."""
    with store.group("mailer", ["orders"]) as group:
        read = group.poll(PATIENCE_S)
        group.commit()
        behind = 40 - len(read)
        store.topic("orders").partition(1).append([b"new"] * 7)
        with logstore.open(gated, writer="read_only") as reader:
            listed = groups_of(reader)
            assert sum(each["lag"] for each in listed) == behind + 7
            with serve(reader, groups=lambda: groups_of(reader)) as seen:
                opened = shown(browser, seen, "#readers tbody tr")
                rows = [row.split("\t") for row in opened.inner_text("#readers tbody").splitlines()]
                assert {row[0] for row in rows} == {"mailer"}
                assert sum(int(row[3]) for row in rows) == behind + 7
                tiles = opened.inner_text("#tiles")
                assert "by this page" in tiles
                assert "buffer" not in tiles
                assert "buffer" in _tiles_of(browser, served)
                opened.close()


def test_O02_a_page_begins_with_a_topic_of_the_user_and_not_with_one_of_the_broker(browser: Any) -> None:
    with logstore.open(MemoryStore()) as store:
        for name in ("__consumer_offsets", "orders"):
            store.create_topic(name)
        with serve(store) as served:
            page = shown(browser, served, "#partitions tr[data-partition]")
            assert page.inner_text("#topic") == "orders"
            assert page.locator("#list button").count() == 2
            page.close()


def test_O02_groups_and_open_transactions_of_a_broker_are_drawn(browser: Any, store: logstore.Store) -> None:
    """What a broker hands in; that it does is shown by the broker's tests."""
    store.create_topic("orders").append(b"paid")
    group = {"reader": "mailer", "topic": "orders", "partition": 0, "lag": None}
    held = {
        "id": "billing",
        "state": "Ongoing",
        "producer": "7, epoch 2",
        "partitions": [f"orders/{number}" for number in range(30)],
        "seconds": 90.0,
        "timeout_seconds": 60.0,
    }
    view = View(store, groups=lambda: [group], transactions=lambda: [held])
    with Served(Page(view, None), view, "127.0.0.1", 0, None) as served:
        page = shown(browser, served, "#transactions tbody tr")
        cells = page.locator("#transactions tbody td").all_inner_texts()
        assert cells[:5] == ["billing", "Ongoing", "7, epoch 2", "90 s", "60 s"]
        assert cells[5].endswith("orders/19, … 30 in all")
        assert page.locator("#readers tbody td").all_inner_texts() == ["mailer", "orders", "0", "–", "–", "–"]
        page.close()


def _tiles_of(browser: Any, served: Served) -> str:
    opened = shown(browser, served, "#partitions tr[data-partition]")
    found = str(opened.inner_text("#tiles"))
    opened.close()
    return found


def test_O02_light_dark_and_small_screens(page: Any, store: logstore.Store, screenshots: Path) -> None:
    page.click("#show")
    page.wait_for_selector("#records tbody tr")
    orders = store.topic("orders")
    for number in range(3, 15 if screenshots.name == "docs" else 4):  # something to plot
        page.wait_for_function("least => Number(document.body.dataset.ticks) >= least", arg=number)
        orders.append_many([b"%d" % n for n in range(5 + number * 7 % 11)])
    orders.append_many([b"%d" % n for n in range(9)], ack="buffered")
    page.wait_for_function("() => document.querySelector('tr[data-partition] .bar .buf').offsetWidth > 0")
    page.evaluate("window.scrollTo(0, 0)")
    page.emulate_media(color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.screenshot(path=screenshots / "page-light.png")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.screenshot(path=screenshots / "page-dark.png")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=screenshots / "page-small.png")
    for name in ("page-light.png", "page-dark.png", "page-small.png"):
        assert (screenshots / name).stat().st_size > 10_000


@pytest.fixture
def lanes(gated: GatedStore) -> Iterator[logstore.Store]:
    """A process with a named lane: 120 partitions of one topic write through it, and one topic is not in it."""
    with logstore.open(gated, lanes=0) as before:
        before.create_topic("zebra").append(b"in its own chain")
    with logstore.open(gated, flush_interval=3600, lane="orders-service") as opened:
        orders = opened.create_topic("orders", 120)
        acks = [orders.partition(number).submit(b"%d" % number) for number in range(orders.partitions)]
        opened.flush(PATIENCE_S)
        assert all(ack.done() for ack in acks)
        yield opened


def test_O02_lanes_are_drawn_with_their_owner_and_what_is_in_flight(
    browser: Any, lanes: logstore.Store, gated: GatedStore, screenshots: Path
) -> None:
    with serve(lanes) as served:
        page = shown(
            browser, served, 'tr[data-lane="orders-service.0"]', viewport={"width": 1200, "height": 1100}
        )
        row = page.locator('tr[data-lane="orders-service.0"]')
        assert row.locator("td").nth(1).inner_text() == "this process"
        assert row.locator("td").nth(3).inner_text() == "120"
        page.wait_for_selector('tr[data-partition="7"]')
        heads = page.locator("#partitions th").all_inner_texts()
        cell = page.locator('tr[data-partition="7"] td').nth(heads.index("lane"))
        assert cell.inner_text() == "orders-service.0"
        page.wait_for_selector("#map i.slice")
        assert "1 slice of lanes' entries" in page.inner_text("#mapped")
        assert "a slice of an entry of lane orders-service.0" in str(
            page.locator("#map i.slice").first.get_attribute("title")
        )
        with gated.hold("put") as gate:
            waiting = lanes.topic("orders").partition(7).submit(b"nobody answers")
            gate.wait_held()
            page.wait_for_selector('tr[data-lane="orders-service.0"] .bar .win', state="attached")
            page.screenshot(path=screenshots / "page-lanes.png")
        waiting.result(PATIENCE_S)
        page.wait_for_selector('tr[data-lane="orders-service.0"] .bar .win', state="detached")
        page.close()


def test_O02_a_lane_of_another_process_is_drawn_with_the_owner_that_it_names(
    browser: Any, lanes: logstore.Store, gated: GatedStore
) -> None:
    with logstore.open(gated, writer="read_only") as reader, serve(reader) as served:
        page = shown(browser, served, 'tr[data-lane="orders-service.0"]')
        cells = page.locator('tr[data-lane="orders-service.0"] td').all_inner_texts()
        assert f"process {os.getpid()}" in cells[1]
        assert (cells[2], cells[3]) == ("open", "120")
        assert cells[-1] == "–", "what another process has in flight cannot be known"
        heads = page.locator("#partitions th").all_inner_texts()
        owner = page.locator('tr[data-partition="7"] td').nth(heads.index("owner"))
        assert f"process {os.getpid()}" in owner.inner_text()
        page.keyboard.press("j")
        page.wait_for_function("() => document.querySelector('#topic').textContent === 'zebra'")
        page.wait_for_selector("#laned", state="hidden")
        page.close()


def test_O02_many_partitions_are_shown_fifty_at_a_time_with_few_requests(
    browser: Any, lanes: logstore.Store, gated: GatedStore
) -> None:
    with logstore.open(gated, writer="read_only") as reader, serve(reader) as served:
        page = shown(browser, served, 'tr[data-partition="49"]')
        assert page.locator("tr[data-partition]").count() == 50
        page.click("#next")
        page.wait_for_selector('tr[data-partition="99"]')
        assert "50–99 of 120" in page.inner_text("#page")
        page.fill("#goto", "117")
        page.keyboard.press("Enter")
        page.wait_for_selector('tr[data-partition="119"]')
        assert "100–119 of 120" in page.inner_text("#page")
        assert page.inner_text("#chosen") == "orders/117"
        assert page.locator("*").count() < 1500
        page.close()


def test_O02_while_partitions_are_still_being_read_the_page_says_how_many_it_shows(
    browser: Any, lanes: logstore.Store, gated: GatedStore
) -> None:
    with logstore.open(gated, writer="read_only") as reader, serve(reader) as served:
        page = shown(browser, served, 'tr[data-partition="49"]')
        with gated.hold("*"):
            page.click("#next")
            page.wait_for_function(
                "() => document.querySelector('#page').textContent.endsWith('0 read so far')"
            )
        page.wait_for_function("() => document.querySelector('#page').textContent === '50–99 of 120'")
        page.close()


def test_O02_the_partitions_of_another_process_fit_a_laptop(
    browser: Any, lanes: logstore.Store, gated: GatedStore
) -> None:
    """With the owner, whose name is the longest cell."""
    with logstore.open(gated, writer="read_only") as reader, serve(reader) as served:
        page = shown(browser, served, 'tr[data-partition="7"]', viewport={"width": 1200, "height": 900})
        width = (
            "(s => s.scrollWidth - s.clientWidth)(document.querySelector('section[aria-label=Partitions]'))"
        )
        assert page.evaluate(width) == 0
        page.close()


def test_O02_a_row_is_at_most_three_lines_high_on_a_telephone(
    browser: Any, lanes: logstore.Store, gated: GatedStore
) -> None:
    """Its longest cell names the process that owns the lane."""
    with logstore.open(gated, writer="read_only") as reader, serve(reader) as served:
        page = shown(browser, served, 'tr[data-partition="7"]')
        page.set_viewport_size({"width": 400, "height": 1500})
        # In one step: a row that was found before may have been drawn anew.
        row = """(r => r.offsetHeight / parseFloat(getComputedStyle(r).lineHeight))(
            document.querySelector('tr[data-partition="7"]'))"""
        assert page.evaluate(row) <= 3
        page.close()


def test_O02_ten_thousand_partitions_are_listed_by_their_topics(browser: Any) -> None:
    objects = MemoryStore()
    with logstore.open(objects) as store:
        for number in range(10):
            store.create_topic(f"t{number}", 1000)
        with serve(store) as served:
            opened = shown(browser, served, 'tr[data-partition="49"]')
            assert opened.locator("tr[data-partition]").count() == 50
            opened.close()
        assert store.metrics()["get"].requests < 1500
