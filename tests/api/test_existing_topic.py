"""`create_topic(…, exist_ok=True)` on a topic that exists."""

from __future__ import annotations

import pytest

import logstore
from logstore import TopicExists
from logstore.objects import MemoryStore


def test_L25_a_topic_that_exists_is_taken_as_it_is_if_no_number_of_partitions_is_named() -> None:
    objects = MemoryStore()
    with logstore.open(objects) as store:
        store.create_topic("t", partitions=4).append(b"v0", partition=3)
    with logstore.open(objects) as store:
        topic = store.create_topic("t", exist_ok=True)
        assert topic.partitions == 4
        assert [record.value for record in topic.partition(3).records()] == [b"v0"]


def test_L25_another_number_of_partitions_than_the_topic_has_is_refused() -> None:
    with logstore.open(MemoryStore()) as store:
        store.create_topic("t", partitions=4)
        with pytest.raises(TopicExists, match="4 partitions, not 3"):
            store.create_topic("t", partitions=3, exist_ok=True)
        assert store.topic("t").partitions == 4
