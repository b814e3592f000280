"""B04 in sessions (KIP-227): an answer holds what is new, a request names what has changed, and nothing is missed.

`SessionClient` does what the Java client does; over raw requests, so that a test can also do what none would.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import kafka
import pytest

from broker_shim.handlers.records.fetch import Fetch
from broker_shim.handlers.records.fetch_sessions import LAST_EPOCH, KeptFetches, Session
from broker_shim.partitions.hosted_partition import HostedPartition
from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.steps import batch, make_topic, values
from tests.support.patience import PATIENCE_S

Start = Callable[..., LocalBroker]
Named = Iterable[tuple[int, int]]
"""Partitions and the offsets to read from."""


def ask(
    client: Wire,
    session: tuple[int, int],
    named: Named = (),
    forgotten: Iterable[int] = (),
    *,
    topic: str = "t",
    version: int = 12,
    wait_ms: int = 0,
    max_bytes: int = 1 << 20,
) -> int:
    partitions = [
        {
            "partition": index,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
        }
        for index, offset in named
    ]
    gone = list(forgotten)
    request = {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic": topic, "partitions": partitions}] if partitions else [],
        "forgotten_topics_data": [{"topic": topic, "partitions": gone}] if gone else [],
        "rack_id": "",
    }
    return client.send(Api.FETCH, version, messages.encode_request(Api.FETCH, version, request))


def fetch(client: Wire, session: tuple[int, int], *named: Any, version: int = 12, **options: Any) -> Any:
    correlation = ask(client, session, *named, version=version, **options)
    return client.answer(Api.FETCH, version, correlation)


def rows(answer: Any) -> dict[int, Any]:
    assert answer.error_code == Code.NONE
    return {each.partition_index: each for topic in answer.responses for each in topic.partitions}


def begin(client: Wire, named: Named, **options: Any) -> int:
    """A session about these partitions; the first answer names all of them."""
    named = list(named)
    answer = fetch(client, (0, 0), named, **options)
    assert answer.session_id > 0
    assert sorted(rows(answer)) == sorted(index for index, _ in named)
    return int(answer.session_id)


def produced(client: Wire, partitions: int) -> None:
    make_topic(client, partitions=partitions)
    for index in range(partitions):
        assert client.produce("t", batch(b"first"), partition=index).error_code == Code.NONE


@pytest.mark.parametrize("version", [7, 11, 12])
def test_B04_a_session_is_told_of_what_is_new_and_of_nothing_else(broker: LocalBroker, version: int) -> None:
    with Wire(broker.port) as client:
        produced(client, 5)
        session = begin(client, [(index, 1) for index in range(5)], version=version)
        assert rows(fetch(client, (session, 1), version=version)) == {}
        client.produce("t", batch(b"second"), partition=3)
        found = rows(fetch(client, (session, 2), version=version))
        assert {index: values(each) for index, each in found.items()} == {3: [(1, b"second")]}
        again = rows(fetch(client, (session, 3), version=version))
        assert values(again[3]) == [(1, b"second")], "its client has not moved on: it wants them again"
        moved = rows(fetch(client, (session, 4), [(3, 2)], version=version))
        assert [values(each) for each in moved.values()] == []
        assert rows(fetch(client, (session, 5), version=version)) == {}


def test_B04_a_session_forgets_and_takes_up_partitions(broker: LocalBroker) -> None:
    with Wire(broker.port) as client:
        produced(client, 3)
        session = begin(client, [(0, 1), (1, 1)])
        assert sorted(rows(fetch(client, (session, 1), [(2, 0)]))) == [2], "new here, and it has a record"
        assert rows(fetch(client, (session, 2), [(2, 1)], [0])) == {}
        for index in range(3):
            client.produce("t", batch(b"second"), partition=index)
        assert sorted(rows(fetch(client, (session, 3)))) == [1, 2]
        assert sorted(rows(fetch(client, (session, 4), [(0, 1)], [1, 2]))) == [0]


def assert_soon_idle(looks: list[str], ask_again: Callable[[], object]) -> None:
    """A few rounds may hear late of a flush; then comes one that looks at no partition."""
    for _ in range(100):
        looks.clear()
        ask_again()
        if not looks:
            return
    raise AssertionError(f"every round looks at partitions, the last one at {looks}")


def test_B04_a_session_that_waits_is_woken_and_looks_at_nothing_else(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand partitions, those that moved are looked at: none in a round without news."""
    looks: list[str] = []
    real = Fetch._read_hot
    monkeypatch.setattr(
        Fetch, "_read_hot", lambda self, entry: (looks.append(str(entry.hosted)), real(self, entry))[1]
    )
    watched: list[str] = []
    watch = HostedPartition.watch
    monkeypatch.setattr(
        HostedPartition, "watch", lambda self, who: (watched.append(str(self)), watch(self, who))[1]
    )
    with Wire(broker.port) as client, Wire(broker.port) as writer:
        produced(writer, 20)
        session = begin(client, [(index, 1) for index in range(20)])
        assert rows(fetch(client, (session, 1), wait_ms=1)) == {}
        assert sorted(watched) == sorted(f"t/{index}" for index in range(20))
        watched.clear()
        epochs = itertools.count(2)
        assert_soon_idle(looks, lambda: rows(fetch(client, (session, next(epochs)), wait_ms=1)))
        assert watched == []
        looks.clear()
        waiting = ask(client, (session, next(epochs)), wait_ms=600_000)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        writer.produce("t", batch(b"second"), partition=7)
        answer = client.answer(Api.FETCH, 12, waiting)
        assert {index: values(each) for index, each in rows(answer).items()} == {7: [(1, b"second")]}
        assert "t/7" in looks
        assert len(set(looks)) < 20


def test_B04_the_same_full_fetch_again_looks_only_where_something_moved(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What librdkafka does while there is nothing to read. The answer still names every partition."""
    looks: list[str] = []
    real = Fetch._read_hot
    monkeypatch.setattr(
        Fetch, "_read_hot", lambda self, entry: (looks.append(str(entry.hosted)), real(self, entry))[1]
    )
    with Wire(broker.port) as client, Wire(broker.port) as writer:
        produced(writer, 20)
        everything = [(index, 1) for index in range(20)]
        assert_soon_idle(looks, lambda: rows(fetch(client, (0, -1), everything, wait_ms=1)))
        answer = fetch(client, (0, -1), everything, wait_ms=1)
        assert {index: each.high_watermark for index, each in rows(answer).items()} == dict.fromkeys(
            range(20), 1
        )
        looks.clear()
        writer.produce("t", batch(b"second"), partition=4)
        found = rows(fetch(client, (0, -1), everything, wait_ms=1))
        assert [index for index, each in found.items() if values(each)] == [4]
        assert len(found) == 20
        assert "t/4" in looks
        assert len(set(looks)) < 20


def test_B04_a_session_is_known_by_its_id_its_next_epoch_and_its_connection(broker: LocalBroker) -> None:
    with Wire(broker.port) as client, Wire(broker.port) as other:
        produced(client, 1)
        session = begin(client, [(0, 1)])
        assert fetch(other, (session, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        assert fetch(client, (session + 1, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        assert fetch(client, (session, 2)).error_code == Code.INVALID_FETCH_SESSION_EPOCH
        assert fetch(client, (session, 1)).error_code == Code.NONE
        assert fetch(client, (session, 1)).error_code == Code.INVALID_FETCH_SESSION_EPOCH
        assert sorted(rows(fetch(client, (session, -1), [(0, 0)]))) == [0], "the last one is a full fetch"
        assert fetch(client, (session, 2)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        answer = fetch(client, (0, 0), [(0, 1)])
        second = fetch(client, (answer.session_id, 0), [(0, 1)])
        assert second.session_id not in (0, answer.session_id)
        assert fetch(client, (answer.session_id, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_B04_a_session_has_one_fetch_at_a_time(broker: LocalBroker) -> None:
    """The second one that a client sends ahead begins when the first is answered."""
    with Wire(broker.port) as client, Wire(broker.port) as writer:
        produced(client, 1)
        session = begin(client, [(0, 1)])
        waiting = ask(client, (session, 1), wait_ms=600_000)
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        second = ask(client, (session, 2), [(0, 2)], wait_ms=600_000)
        writer.produce("t", batch(b"second"))
        assert values(rows(client.answer(Api.FETCH, 12, waiting))[0]) == [(1, b"second")]
        broker.until(lambda: len(broker.server.broker._fetch.waiting) == 1)
        writer.produce("t", batch(b"third"))
        assert values(rows(client.answer(Api.FETCH, 12, second))[0]) == [(2, b"third")]


def test_B10_what_is_kept_of_fetches_is_bounded_and_ends_with_its_client(broker: LocalBroker) -> None:
    kept: KeptFetches[Fetch] = broker.server.broker._fetch.kept
    broker.call(lambda: setattr(kept, "_limit", 12))
    with Wire(broker.port) as first, Wire(broker.port) as second, Wire(broker.port) as third:
        produced(first, 5)
        everything = [(index, 1) for index in range(5)]
        one, two = begin(first, everything), begin(second, everything)
        assert rows(fetch(first, (one, 1))) == {}
        begin(third, everything)  # the second's has not been used for the longest time
        assert fetch(second, (two, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        assert rows(fetch(first, (one, 2))) == {}
        assert (len(kept), kept.partitions) == (2, 12)
        large = fetch(third, (0, 0), [(index % 5, 1) for index in range(5)] + [(i, 1) for i in range(5, 20)])
        assert large.session_id == 0, "more than may be kept at all: no session"
    broker.until(lambda: len(kept) == 0)
    assert kept.partitions == 0
    assert not any(hosted._watchers for hosted in broker.server.broker.partitions.all_hosted())


def test_B04_after_the_largest_epoch_comes_the_first() -> None:
    session = Session(1, object(), next_epoch=LAST_EPOCH)  # type: ignore[type-var]
    session.step()
    assert session.next_epoch == 1


def test_B04_errors_are_told_until_they_are_over(broker: LocalBroker) -> None:
    """A topic that is not there yet: each answer of the session says so, until somebody makes it."""
    with Wire(broker.port) as client, Wire(broker.port) as other:
        answer = fetch(client, (0, 0), [(0, 0)], wait_ms=600_000)
        session = answer.session_id
        assert rows(answer)[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        again = fetch(client, (session, 1), wait_ms=600_000)
        assert rows(again)[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        make_topic(other)
        other.produce("t", batch(b"first"))
        assert values(rows(fetch(client, (session, 2), wait_ms=20_000))[0]) == [(0, b"first")]
        other.ask(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=10_000)
        gone = rows(fetch(client, (session, 3), [(0, 1)], wait_ms=600_000))
        assert gone[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_B04_in_a_full_answer_those_that_had_nothing_come_first_next_time(broker: LocalBroker) -> None:
    one = batch(b"x" * 1000)
    with Wire(broker.port) as client:
        make_topic(client, partitions=3)
        for index in range(3):
            for _ in range(2):
                client.produce("t", one, partition=index)
        positions = {0: 0, 1: 0, 2: 0}
        answer = fetch(client, (0, 0), positions.items(), max_bytes=len(one) + 10, wait_ms=20_000)
        order = []
        for epoch in range(1, 6):
            served = [index for index, each in rows(answer).items() if each.records]
            assert len(served) == 1
            order += served
            positions[served[0]] += 1
            moved = [(served[0], positions[served[0]])]
            answer = fetch(client, (answer.session_id, epoch), moved, max_bytes=len(one) + 10, wait_ms=20_000)
        assert sorted(order[:3]) == [0, 1, 2]
        assert sorted(order[3:5]) != [order[0]] * 2


@dataclass
class SessionClient:
    """A consumer in a session: it names what it has moved, begins again when it is told that its session is gone."""

    wire: Wire
    wanted: dict[int, int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    """What the broker knows of `wanted`."""
    session: tuple[int, int] = (0, 0)
    found: dict[int, list[tuple[int, bytes | None]]] = field(default_factory=dict)

    def poll(self, **options: Any) -> int:
        """Returns how many partitions the answer named."""
        if self.session[1] == 0:
            answer = fetch(self.wire, self.session, self.wanted.items(), **options)
        else:
            named = [place for place in self.wanted.items() if self.known.get(place[0]) != place[1]]
            gone = [index for index in self.known if index not in self.wanted]
            answer = fetch(self.wire, self.session, named, gone, **options)
        if answer.error_code:
            self.session = (0, 0)
            return 0
        self.known = dict(self.wanted)
        self.session = (answer.session_id, self.session[1] + 1)
        for index, each in rows(answer).items():
            assert index in self.wanted
            assert each.error_code == Code.NONE
            news = [record for record in values(each) if record[0] >= self.wanted[index]]
            self.found.setdefault(index, []).extend(news)
            if news:
                self.wanted[index] = news[-1][0] + 1
        return len(rows(answer))


@pytest.mark.parametrize("seed", range(4))
def test_B04_whatever_comes_between_a_session_reads_every_record_once_and_in_order(
    start_broker: Start, seed: int
) -> None:
    """Appends, partitions paused and resumed, small answers, lost sessions; buffered acks, and flushes in between."""
    chance = random.Random(seed)
    broker = start_broker(flush_on_ack=False, flush_interval=0.02)
    written: dict[int, list[bytes]] = {index: [] for index in range(6)}
    with Wire(broker.port) as writer, Wire(broker.port) as wire:
        make_topic(writer, partitions=6)
        client = SessionClient(wire, dict.fromkeys(range(6), 0))
        paused: dict[int, int] = {}
        for step in range(150):
            move = chance.random()
            if move < 0.45:
                index = chance.randrange(6)
                value = b"%d" % step
                assert writer.produce("t", batch(value), partition=index).error_code == Code.NONE
                written[index].append(value)
            elif move < 0.55 and client.wanted:
                index = chance.choice(list(client.wanted))
                paused[index] = client.wanted.pop(index)
            elif move < 0.65 and paused:
                index = chance.choice(list(paused))
                client.wanted[index] = paused.pop(index)
            elif move < 0.68:
                client.session = (0, 0)
            else:
                client.poll(wait_ms=chance.choice((0, 1)), max_bytes=chance.choice((100, 1 << 20)))
        client.wanted |= paused
        while any(client.wanted[index] < len(each) for index, each in written.items()):
            client.poll(wait_ms=20_000)
        found = {index: [value for _, value in records] for index, records in client.found.items() if records}
        assert found == {index: each for index, each in written.items() if each}


def test_B01_kafka_python_fetches_in_sessions(broker: LocalBroker) -> None:
    """A real client's session: records that come before and after it began."""
    kept = broker.server.broker._fetch.kept
    with Wire(broker.port) as writer:
        produced(writer, 3)
        consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=broker.address,
            auto_offset_reset="earliest",
            group_id=None,
            consumer_timeout_ms=1000 * PATIENCE_S,
        )
        try:
            found = [next(consumer).value for _ in range(3)]
            for index in range(3):
                assert writer.produce("t", batch(b"second"), partition=index).error_code == Code.NONE
            found += [next(consumer).value for _ in range(3)]
            assert found == [b"first"] * 3 + [b"second"] * 3
            sessions = broker.call(lambda: [each.session_id for each in kept._kept])
            assert [each for each in sessions if each], "it asked for a session, and has one"
        finally:
            consumer.close()
