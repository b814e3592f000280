"""Consumer groups as seen from one connection: what is answered while others are being waited for."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from broker_shim.wire import messages
from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.errors import Indeterminate
from logstore.objects import ObjectInfo
from logstore.objects.homes.memory import MemoryStore
from logstore.testing import GatedStore
from tests.support.broker.group_steps import GROUP, join_body, stable_member
from tests.support.broker.harness import LocalBroker, Wire
from tests.support.broker.load import commit, committed
from tests.support.broker.steps import make_topic
from tests.support.patience import PATIENCE_S


def test_B01_who_leaves_while_its_join_waits_is_let_go_at_once(broker: LocalBroker) -> None:
    """librdkafka does this when a consumer is closed during a rebalance. The others may take minutes to join."""
    with Wire(broker.port) as first, Wire(broker.port) as second:
        member_id, generation = stable_member(first)
        newcomer = second.ask(Api.JOIN_GROUP, 5, **join_body()).member_id
        joining = second.send(
            Api.JOIN_GROUP, 5, messages.encode_request(Api.JOIN_GROUP, 5, join_body(newcomer))
        )
        members = [{"member_id": newcomer, "group_instance_id": None}]
        leaving = second.send(
            Api.LEAVE_GROUP,
            3,
            messages.encode_request(Api.LEAVE_GROUP, 3, {"group_id": GROUP, "members": members}),
        )
        assert second.answer(Api.JOIN_GROUP, 5, joining).error_code == Code.UNKNOWN_MEMBER_ID
        left = second.answer(Api.LEAVE_GROUP, 3, leaving)
        assert [(each.member_id, each.error_code) for each in left.members] == [(newcomer, Code.NONE)]
        again = first.ask(Api.JOIN_GROUP, 5, **join_body(member_id))
        assert (again.error_code, again.generation_id) == (Code.NONE, generation + 1)
        assert [each.member_id for each in again.members] == [member_id]


class SpoilingStore(MemoryStore):
    """Told so, it keeps rubbish in place of the next segment of the internal topic: the writer there stops for good."""

    spoils = False
    spoiled = ""

    def put(self, key: str, data: Any, **conditions: Any) -> ObjectInfo:
        if self.spoils and key.startswith("lanes/") and key.endswith(".seg"):
            self.spoils, self.spoiled = False, key
            super().put(key, b"no segment at all", **conditions)
            raise Indeterminate(f"{key}: the connection broke")
        return super().put(key, data, **conditions)


def test_B08_a_coordinator_whose_log_has_stopped_takes_it_again(
    start_broker: Callable[..., LocalBroker],
) -> None:
    """No fence stopped it, so no other broker coordinates: clients that look for one are sent back here."""
    store = SpoilingStore()
    broker = start_broker(store)
    with Wire(broker.port) as client:
        make_topic(client)
        assert commit(client, GROUP, 1) == Code.NONE
        store.spoils = True
        assert commit(client, GROUP, 2) == Code.NOT_COORDINATOR
        store.delete(store.spoiled)  # as somebody does who has read the log
        found = client.ask(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[GROUP])
        assert found.coordinators[0].port == broker.port
        assert committed(client, GROUP) == 1
        assert commit(client, GROUP, 3) == Code.NONE
        assert committed(client, GROUP) == 3


def test_B08_a_static_member_is_back_only_when_another_coordinator_would_know_it() -> None:
    """It was answered first and saved then: a crash in between, and its own coordinator fenced it for good."""
    store = GatedStore(MemoryStore())
    with LocalBroker(store) as broker, Wire(broker.port) as first, Wire(broker.port) as second:
        static = {**join_body(), "group_instance_id": "i1"}
        joined = first.ask(Api.JOIN_GROUP, 5, **static)
        assert joined.error_code == Code.NONE
        share = [{"member_id": joined.member_id, "assignment": b"all"}]
        asked = {"group_id": GROUP, "generation_id": joined.generation_id, "group_instance_id": "i1"}
        first.ask(Api.SYNC_GROUP, 3, **asked, member_id=joined.member_id, assignments=share)
        with store.hold("put", prefix="lanes/") as gate:
            correlation = second.send(Api.JOIN_GROUP, 5, messages.encode_request(Api.JOIN_GROUP, 5, static))
            gate.wait_held()
            first.ask(Api.API_VERSIONS, 0)
            second.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.socket.recv(1)
            second.socket.settimeout(PATIENCE_S)
            gate.open()
            back = second.answer(Api.JOIN_GROUP, 5, correlation)
        assert (back.error_code, back.generation_id) == (Code.NONE, joined.generation_id)
        beat = second.ask(Api.HEARTBEAT, 3, **asked, member_id=back.member_id)
        assert beat.error_code == Code.NONE


def test_B08_a_group_that_is_too_large_to_be_stored_harms_no_other(
    start_broker: Callable[..., LocalBroker],
) -> None:
    broker = start_broker(offsets_partitions=1, max_message_bytes=100_000)
    with Wire(broker.port) as large, Wire(broker.port) as other:
        make_topic(other)
        member_id, generation = stable_member(other)
        protocols = [{"name": "range", "metadata": random.Random(1).randbytes(150_000)}]
        body = {**join_body(), "group_id": "large", "protocols": protocols}
        body["member_id"] = large.ask(Api.JOIN_GROUP, 5, **body).member_id
        joined = large.ask(Api.JOIN_GROUP, 5, **body)
        asked = {"group_id": "large", "generation_id": joined.generation_id, "assignments": []}
        synced = large.ask(Api.SYNC_GROUP, 3, **asked, member_id=joined.member_id, group_instance_id=None)
        assert synced.error_code == Code.UNKNOWN_SERVER_ERROR
        hosted = broker.server.broker.partitions.hosted("__consumer_offsets", 0)
        assert hosted is not None
        assert hosted.is_owned, "its log is as good as before"
        beat = other.ask(Api.HEARTBEAT, 3, group_id=GROUP, generation_id=generation, member_id=member_id)
        assert beat.error_code == Code.NONE
        assert commit(other, "third", 7) == Code.NONE


def test_B08_a_broker_that_stops_answers_the_joins_that_wait() -> None:
    """The others may take minutes to join, or never do: a restart must not wait for them, nor members for a restart."""
    with ExitStack() as clients:
        with LocalBroker(MemoryStore(), drain_timeout=10 * PATIENCE_S) as broker:
            first, second = (clients.enter_context(Wire(broker.port)) for _ in range(2))
            stable_member(first)
            newcomer = second.ask(Api.JOIN_GROUP, 5, **join_body()).member_id
            body = messages.encode_request(Api.JOIN_GROUP, 5, join_body(newcomer))
            joining = second.send(Api.JOIN_GROUP, 5, body)
            while first.ask(Api.DESCRIBE_GROUPS, 5, groups=[GROUP]).groups[0].group_state == "Stable":
                pass
        assert second.answer(Api.JOIN_GROUP, 5, joining).error_code == Code.NOT_COORDINATOR
