"""What measuring costs: appends one by one with a collector that is scraped and with a meter, against the same without."""

from __future__ import annotations

import statistics

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import logstore
from benchmarks.material import rows
from benchmarks.measure import Figures, in_turns, median_between
from logstore.metrics import collector
from logstore.objects import MemoryStore

SUITE = "metrics"
RECORDS = [logstore.Record(value, key) for key, value in rows(1000)]
ROUNDS = 100
SCRAPES = 1
"""For 100,000 appends: some 0.3 s of work, where a Prometheus server asks every 15 s."""


def test_scraping_an_embedded_log(figures: Figures, quick: bool) -> None:
    """The same store in both turns; in one of them it is scraped. CPU of all threads. Turns are short and many, and the
    figure is the median of their ratios: what else the machine does meets both of a pair, and a broken turn counts once."""
    turns = 9 if quick else 75
    with logstore.open(MemoryStore(), max_buffered_bytes=1 << 30, flush_bytes=8 << 20) as store:
        topic = store.create_topic("t")
        registry = CollectorRegistry()
        collector(store, registry=registry)

        def append() -> None:
            for _ in range(ROUNDS):
                for record in RECORDS:
                    topic.append(record.value, key=record.key, ack="buffered")
            store.flush()

        def append_and_scrape() -> None:
            append()
            for _ in range(SCRAPES):
                assert b"logstore_appended_records_total" in generate_latest(registry)

        found = in_turns({"plain": append, "scraped": append_and_scrape}, turns)
        ratios = [
            scraped / plain
            for scraped, plain in zip(found["scraped"].cpu_seconds, found["plain"].cpu_seconds, strict=True)
        ]
        low, high = median_between(ratios)
        taken = store.topic("t").partition(0).durable_high_watermark
        assert taken == ROUNDS * len(RECORDS) * 2 * (turns + 1)
    figures.add(
        SUITE,
        "CPU of 100,000 buffered appends with a scrape, to the same without",
        statistics.median(ratios),
        "x",
        target=1.02,
        lower_is_better=True,
        median_from=low,
        median_to=high,
        best_to_best=found["scraped"].best_cpu / found["plain"].best_cpu,
    )


def test_one_scrape_of_many_partitions(figures: Figures, quick: bool) -> None:
    """1,000 open partitions in 10 topics; the answer is one sample a topic."""
    with logstore.open(MemoryStore()) as store:
        for number in range(10):
            topic = store.create_topic(f"t{number}", partitions=100)
            for place in range(100):
                assert topic.partition(place).low_watermark == 0
        registry = CollectorRegistry()
        collector(store, registry=registry)
        found = in_turns({"scrape": lambda: generate_latest(registry)}, 3 if quick else 10)["scrape"]
    figures.add(SUITE, "one scrape of 1,000 open partitions", found.best_cpu * 1e3, "ms of CPU")


if __name__ == "__main__":
    pytest.main([__file__, "-q"])
