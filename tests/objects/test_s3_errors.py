"""What each failure of an S3 request becomes. Raw sockets, so that botocore and urllib3 really take part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.errors import (
    Determinate,
    Indeterminate,
    LogStoreError,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
    UnsupportedStore,
)
from logstore.objects import ObjectStore, close_store, open_url
from logstore.objects.homes import s3
from logstore.objects.homes.s3 import S3Store
from tests.support.objects.scripted_server import (
    Action,
    ScriptedServer,
    answer,
    hang_up,
    refusal,
    reset,
    say_nothing,
    scripted_server,
    self_signed,
)
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.servers import Server

Call = Callable[[ObjectStore], object]

WRITES: dict[str, Call] = {
    "put": lambda store: store.put("k", b"data"),
    "create": lambda store: store.put("k", b"data", if_absent=True),
    "swap": lambda store: store.put("k", b"data", if_match="e"),
    "delete": lambda store: store.delete("k"),
}
READS: dict[str, Call] = {
    "get": lambda store: store.get("k"),
    "get range": lambda store: store.get("k", 0, 10),
    "list": lambda store: list(store.list("")),
}
ALL = WRITES | READS | {"head": lambda store: store.head("k")}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


@pytest.fixture
def store(server: ScriptedServer, request: pytest.FixtureRequest) -> Iterator[S3Store]:
    """It waits for an answer as long as one may take on a busy machine, unless none will come."""
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    silent = next((name for name, value in given.items() if value is say_nothing), None)
    timeout_s = {None: PATIENCE_S, "action": 0.3, "last": 3.0}[silent]  # those before the last are answered
    made = S3Store("bucket", endpoint_url=server.endpoint_url, region="us-east-1", read_timeout_s=timeout_s)
    yield made
    made.close()


def outcome(call: Call, store: ObjectStore) -> LogStoreError:
    with pytest.raises(LogStoreError) as caught:
        call(store)
    return caught.value


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("reset", reset),
        ("hang up", hang_up),
        ("say nothing", say_nothing),
        ("500", refusal(500, "InternalError")),
        ("502 of a proxy", answer(502, b"<html>Bad Gateway</html>")),
        ("503 of a proxy", answer(503, b"no healthy upstream")),
        ("504", answer(504)),
    ],
)
class TestLostAnswers:
    @pytest.mark.parametrize("verb", WRITES)
    def test_W03_a_write_may_have_happened(
        self, store: S3Store, server: ScriptedServer, verb: str, name: str, action: Action
    ) -> None:
        server.play(action)
        error = outcome(WRITES[verb], store)
        assert type(error) is Indeterminate
        assert "s3://bucket/k" in str(error)
        assert server.was_asked.wait(PATIENCE_S)
        assert len(server.requests) == 1, "the SDK must not repeat a write"

    @pytest.mark.parametrize("verb", READS)
    def test_W03_a_read_changed_nothing(
        self, store: S3Store, server: ScriptedServer, verb: str, name: str, action: Action
    ) -> None:
        server.play(action)
        error = outcome(READS[verb], store)
        assert type(error) is Determinate
        assert error.retriable
        assert server.was_asked.wait(PATIENCE_S)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "code", "kind", "retriable"),
    [
        (409, "ConditionalRequestConflict", Determinate, True),
        (409, "OperationAborted", Determinate, True),
        (503, "SlowDown", Determinate, True),
        (503, "ServiceUnavailable", Determinate, True),
        (429, "TooManyRequests", Determinate, True),
        (400, "RequestTimeout", Determinate, True),
        (400, "EntityTooLarge", Determinate, False),
        (403, "AccessDenied", StoreUnavailable, False),
        (403, "InvalidAccessKeyId", StoreUnavailable, False),
        (403, "SignatureDoesNotMatch", StoreUnavailable, False),
        (400, "ExpiredToken", StoreUnavailable, False),
        (404, "NoSuchBucket", StoreUnavailable, False),
    ],
)
@pytest.mark.parametrize("verb", ["create", "swap", "put", "delete", "get", "list"])
def test_W03_an_answer_sent_instead_of_the_work_is_determinate(
    store: S3Store, server: ScriptedServer, verb: str, status: int, code: str, kind: type, retriable: bool
) -> None:
    server.play(refusal(status, code))
    error = outcome(ALL[verb], store)
    assert type(error) is kind
    assert error.retriable is retriable
    assert code in str(error)
    assert len(server.requests) == 1


def test_W03_412_is_the_condition(store: S3Store, server: ScriptedServer) -> None:
    server.play(refusal(412, "PreconditionFailed"))
    assert type(outcome(WRITES["create"], store)) is PreconditionFailed
    assert type(outcome(WRITES["swap"], store)) is PreconditionFailed


def test_W03_if_match_on_a_missing_key_is_the_condition_too(store: S3Store, server: ScriptedServer) -> None:
    server.play(refusal(404, "NoSuchKey"))
    assert type(outcome(WRITES["swap"], store)) is PreconditionFailed
    assert type(outcome(WRITES["create"], store)) is Determinate, (
        "nothing is there, so nothing was in the way"
    )


def test_a_server_without_conditions_is_unsupported(store: S3Store, server: ScriptedServer) -> None:
    server.play(refusal(501, "NotImplemented"))
    assert type(outcome(WRITES["create"], store)) is UnsupportedStore


def test_404_of_a_get_is_a_missing_object(store: S3Store, server: ScriptedServer) -> None:
    server.play(refusal(404, "NoSuchKey"))
    assert type(outcome(READS["get"], store)) is ObjectNotFound


def test_the_conditions_are_on_the_wire(store: S3Store, server: ScriptedServer) -> None:
    server.play(answer(200, ETag='"new"'))
    assert store.put("k", b"data", if_absent=True).etag == "new"
    store.put("k", b"data", if_match="old")
    store.put("k", b"data")
    create, swap, plain = (request.headers for request in server.requests)
    assert (create["if-none-match"], create.get("if-match")) == ("*", None)
    assert (swap["if-match"], swap.get("if-none-match")) == ('"old"', None)
    assert "if-match" not in plain
    assert "if-none-match" not in plain
    assert [request.body for request in server.requests] == [b"data"] * 3


def test_a_short_body_is_noticed(store: S3Store, server: ScriptedServer) -> None:
    server.play(answer(200, b"only this", length=100))
    assert type(outcome(READS["get"], store)) is Determinate
    server.play(answer(206, b"abc", length=10, Content_Range="bytes 0-9/100"))
    assert type(outcome(READS["get range"], store)) is Determinate


def test_a_server_that_ignores_the_range_is_cut_to_it(store: S3Store, server: ScriptedServer) -> None:
    server.play(answer(200, b"0123456789"))
    assert store.get("k", 2, 5) == b"234"
    assert store.get("k", -3) == b"789"


def test_a_page_that_is_not_s3_is_noticed(store: S3Store, server: ScriptedServer) -> None:
    server.play(answer(200, b"<html><p>please log in</html>", Content_Type="text/html"))
    assert type(outcome(READS["list"], store)) is Determinate


def page_of(*keys: str) -> Action:
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag></Contents>" for key in keys)
    page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    return answer(200, page.encode(), Content_Type="application/xml")


def test_folders_that_a_console_made_are_no_objects(server: ScriptedServer) -> None:
    store = open_url(f"s3://bucket/shop?endpoint_url={server.endpoint_url}&region=us-east-1")
    server.play(page_of("shop/", "shop/topics/", "shop/topics/t"))
    assert [info.key for info in store.list("")] == ["topics/t"]
    close_store(store)


def test_a_listing_out_of_order_is_refused(store: S3Store, server: ScriptedServer) -> None:
    server.play(page_of("b", "a"))
    error = outcome(READS["list"], store)
    assert type(error) is UnsupportedStore
    assert "'a' after 'b'" in str(error)


class TestUnreachable:
    @pytest.mark.parametrize("verb", ALL)
    def test_nobody_listens(self, verb: str) -> None:
        store = S3Store("bucket", endpoint_url=f"http://127.0.0.1:{free_port()}", region="us-east-1")
        error = outcome(ALL[verb], store)
        assert type(error) is StoreUnavailable
        assert error.retriable
        close_store(store)

    @pytest.mark.parametrize("verb", ["create", "get"])
    def test_no_such_host(self, verb: str) -> None:
        store = S3Store("bucket", endpoint_url="http://no-such-host.invalid", region="us-east-1")
        assert type(outcome(ALL[verb], store)) is StoreUnavailable

    @pytest.mark.parametrize("verb", ["create", "get"])
    def test_a_certificate_that_nobody_signed(self, verb: str, tmp_path: Path) -> None:
        with scripted_server(self_signed(tmp_path)) as server:
            store = S3Store("bucket", endpoint_url=server.endpoint_url, region="us-east-1")
            error = outcome(ALL[verb], store)
            assert type(error) is StoreUnavailable
            assert "CERTIFICATE_VERIFY_FAILED" in str(error)
            assert server.requests == []
            close_store(store)

    @pytest.mark.parametrize("verb", ALL)
    def test_no_credentials(self, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        store = S3Store("bucket", endpoint_url=server.endpoint_url, region="us-east-1")
        error = outcome(ALL[verb], store)
        assert type(error) is StoreUnavailable
        assert not error.retriable
        assert "AWS_ACCESS_KEY_ID" in str(error)
        assert server.requests == []

    def test_an_unknown_profile(self) -> None:
        with pytest.raises(UnsupportedStore, match="no-such-profile"):
            open_url("s3://bucket?profile=no-such-profile")


@pytest.mark.s3
@pytest.mark.parametrize("home", ["moto", "seaweedfs"])
class TestRealServers:
    # Not "swap": no etag comes from a bucket that does not exist, and servers differ in what they check first.
    @pytest.mark.parametrize("verb", ["put", "create", "delete", "get", "get range", "list", "head"])
    def test_a_missing_bucket(self, home: str, verb: str, request: pytest.FixtureRequest) -> None:
        server: Server = request.getfixturevalue(home)
        store = open_url(server.url(bucket="no-such-bucket"))
        error = outcome(ALL[verb], store)
        assert type(error) is StoreUnavailable
        assert not error.retriable
        assert "create the bucket" in str(error)
        close_store(store)


@pytest.mark.s3
@pytest.mark.parametrize("verb", ALL)
def test_wrong_credentials(seaweedfs: Server, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    store = open_url(seaweedfs.url())
    error = outcome(ALL[verb], store)
    assert type(error) is StoreUnavailable
    assert not error.retriable
    assert "not-the-secret" not in str(error)
    close_store(store)


STARTED = answer(
    200, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
)
PART_STORED = answer(200, ETag='"p"')


class TestParts:
    """Unconditional puts in parts, made small enough for a test."""

    BODY = bytes(range(256)) * (22 << 10)  # 5.5 MiB: one full part and a rest

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3, "MULTIPART_BYTES", 1 << 20)
        monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)

    @pytest.mark.s3
    @pytest.mark.parametrize("home", ["moto", "seaweedfs"])
    def test_a_large_object_goes_in_parts(self, home: str, request: pytest.FixtureRequest) -> None:
        store = open_url(request.getfixturevalue(home).url())
        info = store.put("large", memoryview(self.BODY))
        assert info.etag.endswith("-2")
        assert store.head("large") == info
        assert store.get("large") == self.BODY
        close_store(store)

    @pytest.mark.s3
    def test_W03_a_conditional_put_never_does(self, moto: Server) -> None:
        store = open_url(moto.url())
        info = store.put("large", self.BODY, if_absent=True)
        assert "-" not in info.etag
        assert "-" not in store.put("large", self.BODY, if_match=info.etag).etag
        close_store(store)

    def test_a_lost_part_is_determinate_and_the_upload_is_aborted(
        self, store: S3Store, server: ScriptedServer
    ) -> None:
        server.play(STARTED, reset, reset, answer(204))
        assert type(outcome(lambda to: to.put("k", self.BODY), store)) is Determinate
        assert [request.method for request in server.requests] == ["POST", "PUT", "PUT", "DELETE"]
        assert "uploadId=u1" in server.requests[-1].path

    @pytest.mark.parametrize("last", [reset, say_nothing, refusal(200, "InternalError")])
    def test_a_lost_completion_is_indeterminate_and_not_aborted(
        self, store: S3Store, server: ScriptedServer, last: Action
    ) -> None:
        server.play(STARTED, PART_STORED, PART_STORED, last)
        assert type(outcome(lambda to: to.put("k", self.BODY), store)) is Indeterminate
        assert [request.method for request in server.requests] == ["POST", "PUT", "PUT", "POST"]


@pytest.mark.s3
@pytest.mark.parametrize("home", ["moto", "seaweedfs"])
class TestPages:
    def test_a_listing_goes_on_over_pages(self, home: str, request: pytest.FixtureRequest) -> None:
        """Pages of three, as if a thousand were three."""
        store = open_url(request.getfixturevalue(home).url())
        assert isinstance(store, S3Store)
        pages = []

        def small_pages(params: dict[str, object], **_: object) -> None:
            params["MaxKeys"] = 3
            pages.append(params)

        store._client.meta.events.register("provide-client-params.s3.ListObjectsV2", small_pages)
        flat = [f"flat/{number:02}" for number in range(10)]
        nested = ["n/a-", "n/a.b/1", "n/a.b/2", "n/a/1", "n/a/2", "n/a0/1", "n/b"]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), flat + nested))
        assert [info.key for info in store.list("flat/")] == flat
        assert len(pages) == 4
        assert [info.key for info in store.list("flat/", "flat/03")] == flat[4:]
        assert [info.key for info in store.list("n/")] == nested
        assert [info.key for info in store.list("")] == flat + nested
        close_store(store)
