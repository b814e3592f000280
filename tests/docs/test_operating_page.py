"""docs/operating.md, step by step: the policy is what a store asks for, no more and no less; bucket settings, backup and
restore, move, retention. Upgrading is in `test_upgrade.py`."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logstore
from logstore.cli import main
from logstore.objects.homes.s3 import S3Store
from tests.support.blocks import ROOT
from tests.support.servers import Server

PAGE = ROOT / "docs" / "operating.md"
NEEDS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}


def json_with(name: str) -> Any:
    """The block of the page that has this at its top."""
    found = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    (block,) = (each for each in found if name in each)
    return block


def allowed() -> set[str]:
    actions: set[str] = set()
    for statement in json_with("Statement")["Statement"]:
        named = statement["Action"]
        actions |= {named} if isinstance(named, str) else set(named)
    return actions


@pytest.mark.s3
def test_the_policy_allows_what_a_store_asks_for_and_nothing_else(moto_url: Callable[[], str]) -> None:
    asked: set[str] = set()
    with logstore.open(moto_url(), delete_grace=0.0) as store:
        assert isinstance(store.objects, S3Store)
        client: Any = store.objects._client
        client.meta.events.register("before-call.s3", lambda model, **_: asked.add(model.name))
        topic = store.create_topic("t", retention_bytes=1)
        for number in range(12):
            topic.append(b"%d" % number)
        assert list(topic.partition(0).records())
        log = topic.partition(0)._internal
        log.maintenance.expire(10**13)
        log.maintenance.compact(10**13, b"x" * 16)
        store.collect_garbage()
        store.objects.head("nothing")
        store.delete_topic("t")
        store.collect_garbage()
    assert {NEEDS[name] for name in asked} == allowed() - {"s3:AbortMultipartUpload"}, (
        "only a failed upload in parts"
    )


def test_a_backup_goes_on_where_it_was_and_is_restored_the_same_way(tmp_path: Path) -> None:
    live, backup, restored = (str(tmp_path / name) for name in ("live", "backup", "restored"))

    def values(where: str) -> list[bytes | None]:
        with logstore.open(where, writer="read_only") as store:
            return [record.value for record in store.topic("orders").partition(0).records()]

    for value in (b"first", b"second"):
        with logstore.open(live) as store:
            store.create_topic("orders", exist_ok=True).append(value)
        assert main(["cp", "orders", "--store", live, "--to", backup]) == 0
    assert main(["cp", "orders", "--store", backup, "--to", restored]) == 0
    assert values(restored) == values(backup) == values(live) == [b"first", b"second"]
    assert main(["verify", "--store", restored]) == 0
    with logstore.open(restored) as store:
        assert store.topic("orders").append(b"and on").offset == 2


@pytest.mark.s3
def test_in_a_bucket_with_versions_and_kms_a_damaged_object_is_brought_back(
    moto: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    client, bucket = moto.client(), "versioned"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    encryption = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "alias/log"}
    client.put_bucket_encryption(
        Bucket=bucket,
        ServerSideEncryptionConfiguration={"Rules": [{"ApplyServerSideEncryptionByDefault": encryption}]},
    )
    url = moto.url("shop", bucket=bucket)
    with logstore.open(url) as store:
        topic = store.create_topic("orders")
        for number in range(3):
            topic.append(b"order %d" % number)
    stored = client.list_objects_v2(Bucket=bucket)["Contents"]
    assert {client.head_object(Bucket=bucket, Key=one["Key"])["ServerSideEncryption"] for one in stored} == {
        "aws:kms"
    }
    key = next(one["Key"] for one in stored if b"order 1" in _body(client, bucket, one["Key"]))
    whole = client.head_object(Bucket=bucket, Key=key)["VersionId"]
    client.put_object(Bucket=bucket, Key=key, Body=_body(client, bucket, key).replace(b"order 1", b"order !"))
    assert main(["verify", "--store", url]) == 1
    assert key.removeprefix("shop/") in capsys.readouterr().out

    client.copy_object(
        Bucket=bucket,
        Key=key,
        CopySource={"Bucket": bucket, "Key": key, "VersionId": whole},
        MetadataDirective="COPY",
    )
    assert main(["verify", "--store", url]) == 0
    with logstore.open(url) as store:
        log = store.topic("orders").partition(0)
        assert [record.value for record in log.records()] == [b"order %d" % number for number in range(3)]
        assert log.append(b"and on").offset == 3


def orders_in(url: str, count: int) -> list[bytes]:
    """Orders that are appended one by one, so that each is an object of its own."""
    values = [b"order %d" % number for number in range(count)]
    with logstore.open(url) as store:
        topic = store.create_topic("orders")
        for value in values:
            topic.append(value)
    return values


def read_back(url: str, start: int = 0) -> list[bytes | None]:
    with logstore.open(url, writer="read_only") as store:
        return [record.value for record in store.topic("orders").partition(0).records(start=start)]


@pytest.mark.s3
def test_the_lifecycle_rule_of_the_page_takes_nothing_that_is_needed(moto: Server) -> None:
    """moto keeps the rule and does not act on it, so the test does what the rule says."""
    client, bucket = moto.client(), "kept-versions"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    rules = json.loads(json.dumps(json_with("Rules")).replace("PREFIX", "shop"))
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    (kept,) = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert kept["NoncurrentVersionExpiration"] == {"NoncurrentDays": 7}
    assert "Days" not in kept["Expiration"], "no current object expires"
    url = moto.url("shop", bucket=bucket)
    values = orders_in(url, 12)
    assert main(["compact", "orders", "--store", url]) == 0
    assert main(["gc", "--grace", "0", "--store", url]) == 0

    listed = client.list_object_versions(Bucket=bucket, Prefix="shop/")
    old = [each for each in listed["Versions"] if not each["IsLatest"]]
    assert len(old) >= 12, "the segments that were merged"
    for each in [*old, *listed["DeleteMarkers"]]:
        client.delete_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
    assert main(["verify", "--store", url]) == 0
    assert read_back(url) == values
    with logstore.open(url) as store:
        assert store.topic("orders").append(b"and on").offset == 12


@pytest.mark.s3
def test_a_rule_that_expires_or_archives_current_objects_is_damage_that_is_named(
    moto: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    client, bucket = moto.client(), "expiring"
    client.create_bucket(Bucket=bucket)
    url = moto.url("shop", bucket=bucket)
    values = orders_in(url, 3)
    with logstore.open(url, writer="read_only") as store:
        second = store.topic("orders").partition(0).segments()[1].key.partition("@")[0]
    place = {"Bucket": bucket, "Key": f"shop/{second}"}
    client.copy_object(**place, CopySource=place, StorageClass="GLACIER", MetadataDirective="COPY")
    with pytest.raises(logstore.StoreUnavailable, match=f"{second}.*lifecycle rule.*archive"):
        read_back(url)
    client.delete_object(**place)
    with pytest.raises(logstore.CorruptData, match=f"{second} at offset 1: the segment is missing"):
        read_back(url)
    assert read_back(url, start=2) == values[2:], "the rest stays readable"
    assert main(["verify", "--store", url]) == 1
    assert f"DAMAGED {second} at offset 1" in capsys.readouterr().out


@pytest.mark.s3
def test_a_store_is_moved_from_a_folder_to_a_bucket_object_by_object(moto: Server, tmp_path: Path) -> None:
    values = orders_in(str(tmp_path), 3)
    client, bucket = moto.client(), "moved-to"
    client.create_bucket(Bucket=bucket)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket, f"new/{path.relative_to(tmp_path).as_posix()}")
    url = moto.url("new", bucket=bucket)
    assert main(["verify", "--store", url]) == 0
    assert read_back(url) == values
    with logstore.open(url) as store:
        assert store.topic("orders").append(b"and on").offset == 3
    assert read_back(str(tmp_path)) == values, "the old one has not changed"


def test_an_idle_topic_loses_its_old_records_by_maintenance_every_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logstore maintain --every 1h` as it runs for two hours; the hour between its rounds passes at once."""
    url, day_ms = str(tmp_path / "store"), 86_400_000
    now_ms = time.time_ns() // 1_000_000
    with logstore.open(url) as store:
        log = store.create_topic("orders", retention_seconds=7 * 86_400).partition(0)
        for age in (9, 8, 1):
            log.append(logstore.Record(b"%d days old" % age, timestamp_ms=now_ms - age * day_ms))
    assert read_back(url) == [b"9 days old", b"8 days old", b"1 days old"], "nobody writes: nothing expires"
    waited: list[float] = []
    pause = SimpleNamespace(Event=lambda: SimpleNamespace(wait=waited.append))
    monkeypatch.setattr("logstore.cli.commands.maintenance.maintain.threading", pause)
    words = ["maintain", "--every", "1h", "--rounds", "2", "--grace", "0", "--json", "--store", url]
    assert main(words) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert waited == [3600.0]
    assert (first["expired_offsets"], second["expired_offsets"]) == (2, 0)
    assert first["deleted_objects"] + second["deleted_objects"] > 0
    assert read_back(url, start=2) == [b"1 days old"]
    with logstore.open(url, writer="read_only") as store:
        assert store.topic("orders").partition(0).low_watermark == 2


def test_a_copy_of_all_objects_is_the_store_of_that_moment(tmp_path: Path) -> None:
    """Also the way back after an upgrade: the copy that was taken before it."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    with logstore.open(live) as store:
        store.create_topic("orders").append(b"first")
    shutil.copytree(live, copy)
    with logstore.open(live) as store:
        store.topic("orders").append(b"after the copy")
    assert main(["verify", "--store", str(copy)]) == 0
    with logstore.open(copy) as store:
        log = store.topic("orders").partition(0)
        assert log.append(b"and on").offset == 1
        assert [record.value for record in log.records()] == [b"first", b"and on"]


def _body(client: Any, bucket: str, key: str) -> bytes:
    return bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
