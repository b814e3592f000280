"""docs/operating.md: the policy is what a store asks for, no more and no less; a backup is made, and restored."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
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


def allowed() -> set[str]:
    (policy,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    actions: set[str] = set()
    for statement in json.loads(policy)["Statement"]:
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
