"""Objects in an S3 bucket, through boto3. The only file that imports it.

* Conditions are `If-None-Match: *` and `If-Match` on a plain PutObject: the two that every server which has
  conditions at all makes atomic. An unconditional put above `MULTIPART_BYTES` goes in parts.
* The SDK never repeats a request: a repeated conditional PUT whose first answer was lost would report a
  failure for a success. `RetryingStore` repeats what may be repeated.
* Every failure becomes one of ours. What failed before a byte was sent is `StoreUnavailable`; a write whose
  answer did not arrive is `Indeterminate`.
* Credentials come from boto3's chain (environment, profile, instance role). Request checksums of the SDK are
  off: what we store carries its own CRC-32C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import boto3
import botocore.loaders
import botocore.session
import botocore.utils
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError

from logstore.errors import (
    Determinate,
    Indeterminate,
    LogStoreError,
    ObjectNotFound,
    StoreUnavailable,
    UnsupportedStore,
)
from logstore.objects.homes.s3_errors import Condition, from_answer
from logstore.objects.keys import check_key, check_prefix
from logstore.objects.protocol import Buffer, ObjectInfo
from logstore.objects.ranges import check_end

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MULTIPART_BYTES = 64 << 20
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4

# The SDK's description of S3, parsed once for the process: opening a second store takes 20 ms instead of 90.
_MODELS = botocore.loaders.create_loader()

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/")
_NOT_SENT = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError)
_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.NoAuthTokenError,
    sdk.TokenRetrievalError,
)


class S3Store:
    """An `ObjectStore` in `bucket`; every key is put behind `prefix`, which callers never see."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 30.0,
        connections_max: int = 64,
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        check_prefix(self.prefix)
        given = {"endpoint_url": endpoint_url, "region": region, "profile": profile}
        self._parameters = urlencode({name: value for name, value in given.items() if value})
        self._bucket_seen = False
        self._walks_folders = False
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            max_pool_connections=connections_max,
            tcp_keepalive=True,
            # Or the SDK puts a long one together, twice for each request: a tenth of what a small one costs.
            user_agent=f"logstore Boto3/{boto3.__version__}",
            retries={"total_max_attempts": 1},
            # It would refuse a memoryview, which all that comes after it takes: a segment is sent from where it lies.
            parameter_validation=False,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # TLS already vouches for the body; hashing it once more costs 5 ms of CPU for 8 MiB.
            s3=None if (endpoint_url or "").startswith("http:") else {"payload_signing_enabled": False},
        )
        try:
            self._client = _client(endpoint_url, region, profile, config)
        except (sdk.BotoCoreError, ValueError) as error:
            raise UnsupportedStore(
                f"s3://{bucket}: {error}. Fix the URL's parameters or the AWS profile"
            ) from error

    def __repr__(self) -> str:
        return f"S3Store({self.bucket!r}, {self.prefix!r})"

    @property
    def url(self) -> str:
        """What opens it again, also in another process, with the credentials that boto3 finds there."""
        return f"s3://{self.bucket}/{self.prefix}" + (self._parameters and f"?{self._parameters}")

    def for_other_clients(self) -> dict[str, str]:
        """Endpoint, region and credentials of this moment, for a library that talks to the same bucket by itself. What
        boto3 does not know is left out."""
        found: dict[str, str | None] = {
            "endpoint_url": dict(parse_qsl(self._parameters)).get("endpoint_url"),
            "region": self._client.meta.region_name,
        }
        held: Any = self._client._request_signer._credentials  # type: ignore[attr-defined]
        if held is not None:
            frozen = held.get_frozen_credentials()
            found |= {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "session_token": frozen.token,
            }
        return {name: value for name, value in found.items() if value}

    def close(self) -> None:
        """Give the pooled connections back."""
        self._client.close()

    # -- reading -------------------------------------------------------------------------------------------

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        check_end(end)
        if end is not None and (start is None or start >= 0) and end <= (start or 0):
            return self._get_nothing(key)
        full = self._full(key)
        wanted = _range_header(start, end)
        with self._translated("get", key):
            try:
                if wanted is None:
                    return self._client.get_object(Bucket=self.bucket, Key=full)["Body"].read()
                answer = self._client.get_object(Bucket=self.bucket, Key=full, Range=wanted)
                body = answer["Body"].read()
            except sdk.ClientError as error:
                status, code = _status(error)
                if status == 416:  # the range begins past the end of the object
                    return b""
                if status == 404 and code != "NoSuchBucket":
                    raise ObjectNotFound(f"{key}: no such object in {self._where}") from None
                raise
        return _cut(body, answer.get("ContentRange"), start, end)

    def _get_nothing(self, key: str) -> bytes:
        """An empty range cannot be asked for in HTTP, but the object must exist all the same."""
        if self.head(key) is None:
            raise ObjectNotFound(f"{key}: no such object in {self._where}")
        return b""

    def head(self, key: str) -> ObjectInfo | None:
        full = self._full(key)
        with self._translated("head", key):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=full)
            except sdk.ClientError as error:
                if _status(error)[0] != 404:
                    raise
                self._check_bucket()
                return None
        self._bucket_seen = True
        return ObjectInfo(key, answer["ContentLength"], _bare(answer["ETag"]))

    def _check_bucket(self) -> None:
        """The answer to a HEAD has no body, so a missing bucket looks like a missing object: ask once."""
        if self._bucket_seen:
            return
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except sdk.ClientError as error:
            if _status(error)[0] == 404:
                raise from_answer(
                    f"head s3://{self.bucket}", 404, "NoSuchBucket", "no such bucket", write=False
                ) from error
        self._bucket_seen = True

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._list(prefix, start_after)

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """In key order, also from SeaweedFS, which walks folders: it lists `a/b` before `a-b`, S3 after it.

        Its order differs from the first nested key on, so the rest is collected and sorted there. What cannot
        be repaired: after a key like `a-b` it leaves out the folder `a/`. No key of ours is laid out like
        that.
        """
        found = self._pages(prefix, start_after)
        last = start_after
        for info in found:
            if self._walks_folders and "/" in info.key[len(prefix) :]:
                yield from sorted(other for other in chain((info,), found) if other.key > start_after)
                return
            if info.key <= last:
                raise UnsupportedStore(
                    f"{self._where} lists {info.key!r} after {last!r}: that is not S3's order"
                )
            last = info.key
            yield info

    def _pages(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        wanted: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self.prefix + prefix}
        if start_after:
            wanted["StartAfter"] = self.prefix + start_after
        while True:
            with self._translated("list", prefix):
                page = self._client.list_objects_v2(**wanted)
            server = page["ResponseMetadata"]["HTTPHeaders"].get("server", "")
            self._walks_folders = server.startswith("SeaweedFS")
            for found in page.get("Contents", ()):
                if found["Key"].endswith("/"):
                    continue  # no object of ours, but what consoles and file system layers make for an empty folder
                yield ObjectInfo(found["Key"][len(self.prefix) :], found["Size"], _bare(found["ETag"]))
            if not page["IsTruncated"]:
                return
            wanted["ContinuationToken"] = page["NextContinuationToken"]

    # -- writing -------------------------------------------------------------------------------------------

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        full = self._full(key)
        condition: Condition = None
        headers: dict[str, Any] = {}
        if if_absent:
            condition, headers = "if_absent", {"IfNoneMatch": "*"}
        elif if_match is not None:
            condition, headers = "if_match", {"IfMatch": f'"{if_match}"'}
        size = memoryview(data).nbytes
        if size > MULTIPART_BYTES and condition is None:
            return self._put_in_parts(key, full, memoryview(data).cast("B"))
        body: Any = memoryview(data).cast("B")
        with self._translated("put", key, write=True, condition=condition):
            answer = self._client.put_object(Bucket=self.bucket, Key=full, Body=body, **headers)
        return ObjectInfo(key, size, _bare(answer["ETag"]))

    def _put_in_parts(self, key: str, full: str, data: memoryview) -> ObjectInfo:
        """Nothing exists before the last request, so a failure up to there is `Determinate`."""
        with self._translated("put", key):
            upload = self._client.create_multipart_upload(Bucket=self.bucket, Key=full)["UploadId"]
        target: dict[str, Any] = {"Bucket": self.bucket, "Key": full, "UploadId": upload}

        def send(number: int) -> Any:
            part: Any = data[(number - 1) * PART_BYTES : number * PART_BYTES]
            answer = self._client.upload_part(**target, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            with self._translated("put", key), ThreadPoolExecutor(PARTS_AT_ONCE, "logstore-s3-part") as pool:
                parts = list(pool.map(send, range(1, -(-data.nbytes // PART_BYTES) + 1)))
        except BaseException:
            # Best effort: a bucket rule that expires unfinished uploads catches what this cannot.
            with suppress(sdk.BotoCoreError, sdk.ClientError):
                self._client.abort_multipart_upload(**target)
            raise
        with self._translated("put", key, write=True):
            done = self._client.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})
        return ObjectInfo(key, data.nbytes, _bare(done["ETag"]))

    def delete(self, key: str) -> None:
        full = self._full(key)
        with self._translated("delete", key, write=True):
            self._client.delete_object(Bucket=self.bucket, Key=full)

    # -- names and errors ----------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def _full(self, key: str) -> str:
        check_key(key)
        full = self.prefix + key
        check_key(full)
        return full

    @contextmanager
    def _translated(
        self, operation: str, key: str, *, write: bool = False, condition: Condition = None
    ) -> Iterator[None]:
        what = f"{operation} {self._where}{key}"
        try:
            yield
        except LogStoreError:
            raise
        except sdk.ClientError as error:
            status, code = _status(error)
            message = error.response.get("Error", {}).get("Message", "")
            raise from_answer(what, status, code, message, write=write, condition=condition) from error
        except (sdk.BotoCoreError, ResponseParserError) as error:
            raise _from_sdk(what, error, write) from error


def _client(endpoint_url: str | None, region: str | None, profile: str | None, config: Config) -> S3Client:
    session = botocore.session.Session(profile=profile)
    session.register_component("data_loader", _MODELS)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    return boto3.Session(botocore_session=session, region_name=region).client(
        "s3", endpoint_url=endpoint_url, config=config
    )


def _timestamp(value: Any) -> datetime:
    """ISO times, which listings are full of, without dateutil: it is three quarters of the cost of a LIST."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return botocore.utils.parse_timestamp(value)


def _status(error: sdk.ClientError) -> tuple[int, str]:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status, error.response.get("Error", {}).get("Code", "")


def _from_sdk(what: str, error: Exception, write: bool) -> LogStoreError:
    """The error for a request that got no answer, or none that can be read."""
    why = f"{what}: {error}"
    if isinstance(error, _NO_CREDENTIALS):
        missing = StoreUnavailable(
            f"{why}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or put ?profile=… into the URL"
        )
        missing.retriable = False
        return missing
    untrusted = isinstance(error, sdk.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    if isinstance(error, _NOT_SENT) or untrusted:
        return StoreUnavailable(f"{why}. Is the server up, and endpoint_url right?")
    if isinstance(error, sdk.ParamValidationError | sdk.ValidationError):
        refused = Determinate(why)
        refused.retriable = False
        return refused
    if not write:
        return Determinate(why)
    return Indeterminate(f"{why}. It may have happened: look before you try again")


def _range_header(start: int | None, end: int | None) -> str | None:
    if start is None and end is None:
        return None
    if start is not None and start < 0:
        return f"bytes={start}"
    return f"bytes={start or 0}-" if end is None else f"bytes={start or 0}-{end - 1}"


def _cut(body: bytes, content_range: str | None, start: int | None, end: int | None) -> bytes:
    """What was asked for, out of what was sent: a suffix may pass `end`, and a server may send it all."""
    found = _CONTENT_RANGE.match(content_range or "")
    position = int(found.group(1)) if found else 0
    size = position + len(body)
    first = size + start if start is not None and start < 0 else start or 0
    first = max(first, position)
    last = size if end is None else min(end, size)
    if first == position and last == size:
        return body
    return body[first - position : max(first, last) - position]


def _bare(etag: str) -> str:
    """Servers differ in where they quote an etag."""
    return etag.strip('"')
