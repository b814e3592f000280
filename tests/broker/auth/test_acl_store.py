"""Access rules under answers that are wrong, and under requests that are carried out late."""

from __future__ import annotations

import json

import pytest

from broker_shim.auth.acl_store import AclStore
from broker_shim.auth.acls import Acl, Operation, Pattern, Permission, Resource
from logstore.errors import PreconditionFailed
from logstore.layout.broker import ACLS_KEY
from logstore.objects import MemoryStore, ObjectInfo
from logstore.objects.protocol import Buffer

RULE = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:alice", "*", Operation.ALL, Permission.ALLOW)


class Gateway(MemoryStore):
    """Sends every conditional put twice and gives the second answer; keeps them, to be carried out late."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[bytes, str | None]] = []

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        self.sent.append((bytes(data), if_match))
        super().put(key, data, if_absent=if_absent, if_match=if_match)
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


def test_C03_a_rule_whose_deletion_was_refused_and_done_counts_as_deleted_once() -> None:
    acls = AclStore(Gateway())
    acls.change(lambda known: known | {RULE})
    deleted: list[frozenset[Acl]] = []

    def without(known: frozenset[Acl]) -> frozenset[Acl]:
        deleted.append(known)
        return known - {RULE}

    assert acls.change(without) == frozenset()
    assert deleted == [frozenset({RULE})], "asked once: what it deleted is what is reported"


def test_C05_a_change_that_is_carried_out_late_meets_another_version() -> None:
    """The rules are the same again as when it was sent, and their version is not."""
    store = Gateway()
    acls = AclStore(store)
    acls.change(lambda known: known | {RULE})
    acls.change(lambda known: known - {RULE})
    acls.change(lambda known: known | {RULE})
    data, etag = store.sent[1]  # the deletion, once more
    with pytest.raises(PreconditionFailed):
        MemoryStore.put(store, ACLS_KEY, data, if_match=etag)
    assert AclStore(store).load() == {RULE}


def test_rules_that_an_earlier_release_wrote_are_read() -> None:
    store = MemoryStore()
    store.put(ACLS_KEY, json.dumps([RULE]).encode())
    assert AclStore(store).load() == {RULE}
