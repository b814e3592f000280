"""The object keys are API: other releases, the CLI, Spark and people with a bucket browser rely on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logstore.layout import broker, groups, paths
from logstore.layout.paths import PartitionPaths, PendingName
from logstore.objects import LocalStore, MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.harness import open_store, until

P = PartitionPaths("orders", "0123456789abcdef", 12)


def test_the_keys_are_pinned() -> None:
    assert paths.STORE_KEY == "store"
    assert paths.catalog_key("orders") == "catalog/orders"
    assert P.prefix == "topics/orders/0123456789abcdef/12/"
    assert P.segment(0) == "topics/orders/0123456789abcdef/12/00000000000000000000.seg"
    assert P.segment(12345) == "topics/orders/0123456789abcdef/12/00000000000000012345.seg"
    assert P.manifest == "topics/orders/0123456789abcdef/12/manifest"
    identity = "00112233445566778899aabbccddeeff"
    assert P.merged(1, 40, identity) == (
        "topics/orders/0123456789abcdef/12/merged/00000000000000000001-00000000000000000040-"
        "00112233445566778899aabbccddeeff.seg"
    )
    assert P.pending(PendingName(41, bytes.fromhex(identity))) == (
        "topics/orders/0123456789abcdef/12/pending/00000000000000000041-00112233445566778899aabbccddeeff"
    )
    assert paths.PENDING_WINDOW == 256  # writers of all releases must agree
    assert paths.spark_ledger(identity) == "spark/00112233445566778899aabbccddeeff/ledger"
    staged = f"spark/{identity}/staged/00000000000000000008/1763280000000-ffeeddccbbaa99887766554433221100"
    assert paths.StagedName.parse(staged) == (identity, 8, 1763280000000)


def test_names_are_read_back_and_nothing_else_is_taken_for_one() -> None:
    assert P.seq_of(P.segment(7)) == 7
    assert P.seq_of(P.segment(10**19)) == 10**19
    assert P.merged_name(P.merged(1, 40, "0" * 32)) == (1, 40, "0" * 32)
    pending = PendingName(41, bytes(range(16)))
    assert P.pending_name(P.pending(pending)) == pending
    assert P.merged_name(P.pending(pending)) is None
    assert P.seq_of(P.pending(pending)) is None
    assert (pending.is_dead(41 + 255), pending.is_dead(41 + 256)) == (False, True)
    for key in (P.manifest, P.merged(1, 2, "0" * 32), P.prefix + "7.seg", P.segment(7) + "x", P.prefix):
        assert P.seq_of(key) is None, key
        assert P.pending_name(key) is None, key
        assert paths.StagedName.parse(key) is None, key
    assert P.seq_of(P.prefix + "٠" * 20 + ".seg") is None, "digits of other scripts"


def test_segments_sort_in_the_order_of_the_chain_and_before_everything_else() -> None:
    keys = [P.segment(seq) for seq in (0, 1, 9, 10, 99, 10**6, 10**18)]
    assert sorted([*keys, P.manifest, P.merged(0, 9, "0" * 32)]) == [
        *keys,
        P.manifest,
        P.merged(0, 9, "0" * 32),
    ]


SHAPES = [
    r"store",
    r"catalog/[A-Za-z0-9._-]+",
    r"topics/[A-Za-z0-9._-]+/[0-9a-f]{16}/\d+/\d{20}\.seg",
    r"topics/[A-Za-z0-9._-]+/[0-9a-f]{16}l/\d+/manifest",
    r"topics/[A-Za-z0-9._-]+/[0-9a-f]{16}l/\d+/merged/\d{20}-\d{20}-[0-9a-f]{32}\.seg",
    r"lanes/born-[0-9a-f]{16}l/\d{20}\.seg",
    r"lanes/born-[0-9a-f]{16}l/checkpoint",
    r"lanes/[0-9a-f]{16}/\d{20}\.seg",
    r"lanes/[0-9a-f]{16}/checkpoint",
    r"groups/[A-Za-z0-9._-]+/group",
    r"groups/[A-Za-z0-9._-]+/slots/\d{5}",
]


def checkpoints_of(objects: MemoryStore) -> set[str]:
    """The lanes that have one: `born` for those in which topics begin."""
    keys = [info.key for info in objects.list("lanes/") if info.key.endswith("/checkpoint")]
    return {key.split("/")[1].split("-")[0] for key in keys}


def test_a_store_in_use_holds_these_objects_and_no_others() -> None:
    objects, clock = MemoryStore(), ManualClock()
    with open_store(objects, clock) as store:
        topic = store.create_topic("orders", partitions=2)
        for number in range(80):
            topic.append(b"%d" % number, partition=number % 2)
        log = topic.partition(0)
        log._internal._checkpointer.write()  # type: ignore[union-attr]
        log._internal.maintenance.compact(clock.now_ms(), bytes(16))
        log.append(b"tail", ack="buffered")
        until(lambda: bool(checkpoints_of(objects) - {"born"}))
        with store.group("workers", "orders") as group:
            group.poll(0)
            group.commit()
    with open_store(objects, clock, writer="shared") as store:
        store.create_topic("shared").append(b"x")  # in a chain of its own
    keys = [info.key for info in objects.list("")]
    used = {shape for shape in SHAPES for key in keys if re.fullmatch(shape, key)}
    assert [key for key in keys if not any(re.fullmatch(shape, key) for shape in SHAPES)] == []
    assert used == set(SHAPES), "the test does not reach every kind of object"


def test_a_folder_shows_the_same_keys_as_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with open_store(LocalStore(root)) as store:
        log = store.create_topic("orders").partition(0)
        log.append(b"x")
        entry = log.segments()[0].key.split("@")[0]
    assert (root / entry).is_file()
    assert (root / "catalog" / "orders").is_file()
    assert list(tmp_path.iterdir()) == [root], "nothing leaves the folder"


def test_the_wal_has_its_place_too(tmp_path: Path) -> None:
    with open_store(MemoryStore(), wal_dir=str(tmp_path)) as store:
        log = store.create_topic("orders").partition(0)
        log.append(b"x", ack="local")
        (file,) = tmp_path.rglob("*.wal")
        place = file.relative_to(tmp_path).parts
        assert place == (
            store._runtime.store_id,
            "@wal",
            f"{1:020d}.wal",
        )


@pytest.mark.parametrize(
    "line",
    [
        "store",
        "catalog/‹topic›",
        "‹seq, 20 digits›.seg",
        "manifest",
        "merged/",
        "pending/",
        "ledger",
        "staged/",
    ],
)
def test_the_layout_is_drawn_where_the_keys_are_made(line: str) -> None:
    assert paths.__doc__ is not None
    assert line in paths.__doc__


def test_the_objects_of_groups_have_the_names_that_the_format_page_says() -> None:
    assert groups.group_document("workers") == "groups/workers/group"
    assert groups.group_slot("workers", 12) == "groups/workers/slots/00012"
    assert groups.slot_of("groups/workers/slots/00012") == 12
    assert groups.slot_of("groups/workers/group") is None
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    for name in ("groups/‹group›/group", "groups/‹group›/slots/‹n, 5 digits›"):
        assert name in page
        assert name in (groups.__doc__ or "")


def test_the_brokers_objects_have_the_names_that_the_format_page_says() -> None:
    assert broker.NODE_PREFIX == "broker/node/"
    assert broker.producers_prefix("orders") == "broker/producers/orders/"
    assert broker.ACLS_KEY == "broker/acls"
    assert broker.USERS_KEY == "broker/users"
    assert broker.INTERNAL_TOPIC == "__consumer_offsets"
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    for name in (
        broker.NODE_PREFIX,
        broker.PRODUCERS_PREFIX,
        broker.ACLS_KEY,
        broker.USERS_KEY,
        broker.INTERNAL_TOPIC,
    ):
        assert name in page
