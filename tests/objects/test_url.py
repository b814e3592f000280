"""`open_url`: what opens what, and which mistakes are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.errors import UnsupportedStore
from logstore.objects import LocalStore, MemoryStore, ObjectStore, RetryingStore, open_url
from logstore.objects.homes.s3 import S3Store
from logstore.objects.url import url_of


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    for where in (
        str(tmp_path / "a b"),
        tmp_path / "a b",
        f"file://{tmp_path}/a%20b",
        f"file://localhost{tmp_path}/a b",
        f"file:{tmp_path}/a b",
    ):
        store = open_url(where)
        assert isinstance(store, LocalStore)
        assert store.root == str(tmp_path / "a b")


def test_a_relative_path_is_fixed_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_url("shop")
    monkeypatch.chdir("/")
    store.put("k", b"x")
    assert (tmp_path / "shop" / "k").read_bytes() == b"x"


def test_memory_by_name() -> None:
    assert open_url("memory://test-url/a") is MemoryStore.named("test-url/a")


def test_s3_takes_bucket_prefix_and_parameters() -> None:
    store = open_url("s3://bucket/some/prefix/?endpoint_url=http%3A%2F%2F127.0.0.1%3A1&region=eu-north-1")
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix) == ("bucket", "some/prefix/")
    assert store._client.meta.endpoint_url == "http://127.0.0.1:1"
    assert store._client.meta.region_name == "eu-north-1"
    plain = open_url("s3://bucket?endpoint_url=http://127.0.0.1:1&region=us-east-1")
    assert isinstance(plain, S3Store)
    assert plain.prefix == ""


@pytest.mark.parametrize(
    "url",
    [
        "s3://shop",
        "s3://shop/a/b",
        "s3://shop/a%20b?endpoint_url=http://127.0.0.1:9000&region=eu-west-1",
        "memory://x/y%20z",
        "file:///tmp/a%20b%3F%23c",
    ],
)
def test_T01_a_store_knows_the_url_that_opens_it_again(url: str) -> None:
    store = open_url(url)
    told = url_of(RetryingStore(store))
    assert told is not None
    again = open_url(told)
    assert type(again) is type(store)
    if isinstance(store, S3Store) and isinstance(again, S3Store):
        assert (again.bucket, again.prefix) == (store.bucket, store.prefix)
        assert again._client.meta.endpoint_url == store._client.meta.endpoint_url
        assert again._client.meta.region_name == store._client.meta.region_name
    elif isinstance(store, LocalStore) and isinstance(again, LocalStore):
        assert again.root == store.root
    else:
        assert again is store
    assert url_of(MemoryStore()) is None


def test_W03_the_sdk_makes_one_attempt_and_no_checksums() -> None:
    store = open_url("s3://bucket?endpoint_url=http://127.0.0.1:1&region=us-east-1")
    assert isinstance(store, S3Store)
    config = store._client.meta.config
    assert config.retries["total_max_attempts"] == 1  # type: ignore[attr-defined]
    assert config.request_checksum_calculation == "when_required"  # type: ignore[attr-defined]
    assert config.response_checksum_validation == "when_required"  # type: ignore[attr-defined]


def test_an_object_with_the_methods_is_returned_as_it_is() -> None:
    for store in (MemoryStore(), RetryingStore(MemoryStore())):
        assert open_url(store) is store
        assert isinstance(store, ObjectStore)


def test_a_wrapper_that_passes_its_methods_on_is_a_store_too() -> None:
    class PassesOn:
        def __getattr__(self, name: str) -> object:
            return getattr(MemoryStore, name)

    store = PassesOn()
    assert open_url(store) is store  # type: ignore[arg-type, comparison-overlap]


def test_what_lacks_a_method_is_told_which() -> None:
    with pytest.raises(
        UnsupportedStore, match="a dict is no object store, it has no put, no head, no list, no delete: use"
    ):
        open_url({})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("gs://bucket/x", "gs:// is not known: use s3://bucket/prefix, file:///absolute/path, memory://name"),
        ("s3a://bucket/x", "s3a:// is Hadoop's name for a bucket: use s3://bucket/prefix"),
        ("s3:/bucket/x", "the bucket's name is missing: s3://bucket/prefix"),
        ("memory:/x", "memory:// needs a name: memory://name"),
        ("s3:bucket/x", "the bucket's name is missing: s3://bucket/prefix"),
        ("memory:x", "memory:// needs a name: memory://name"),
        ("file:x", "file:///absolute/path"),
        ("gs:/bucket", "gs:// is not known"),
        ("http://host/x", "http:// is not known"),
        ("", "empty string"),
        ("s3://", "s3://bucket/prefix"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://bucket?endpoint=http://x", "'endpoint'; allowed: endpoint_url, region, profile"),
        ("s3://bucket?region=", "region is empty"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?endpoint_url=127.0.0.1:9000", "must be an http:// or https:// URL"),
        ("s3://bucket?endpoint_url=ftp://x", "must be an http:// or https:// URL"),
        ("s3://bucket/a#b", "'#'"),
        ("memory://", "memory://name"),
        ("memory://x?y=1", "allowed: none at all"),
        ("file:///x?y=1", "allowed: none at all"),
        ("file://host/x", "file:///absolute/path"),
        ("file://", "file:///absolute/path"),
        (17, "a int is no object store"),
        (None, "a NoneType is no object store"),
        (b"/path", "a bytes is no object store"),
    ],
)
def test_what_cannot_be_opened_says_what_can(where: object, says: str) -> None:
    with pytest.raises(UnsupportedStore) as caught:
        open_url(where)  # type: ignore[arg-type]
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "where",
    [
        "s3://key:hunter2@bucket/x",
        "s3://bucket?endpoint_url=http://key:hunter2@host",
        "s3://bucket?aws_secret_access_key=hunter2",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(where: str) -> None:
    with pytest.raises(UnsupportedStore) as caught:
        open_url(where)
    assert "hunter2" not in str(caught.value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(UnsupportedStore, match="is a file"):
        open_url(tmp_path / "file")


def test_opening_touches_nothing(tmp_path: Path) -> None:
    open_url(tmp_path / "new")
    assert not (tmp_path / "new").exists()
