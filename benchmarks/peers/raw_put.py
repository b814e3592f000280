"""The floor: the rows' bytes, joined, as one object for each append. No offsets, no index, no checksum of ours.

Through boto3, set up as a careful user would, and through obstore (Rust).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.material import KEY_SIZE, ROW_SIZE, Row
from tests.support.servers import BUCKET, CREDENTIALS, REGION, Server


def boto3_client(server: Server) -> Any:
    """No checksums that nobody reads, and connections that are kept."""
    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=64,
        s3={"addressing_style": "path"},
    )
    return boto3.client("s3", endpoint_url=server.endpoint_url, region_name=REGION, config=config)


class RawPut:
    level = "in the object store"

    def __init__(self, put: Callable[[str, bytes], Any], get: Callable[[str], bytes]) -> None:
        self._put = put
        self._get = get
        self._numbers = count()

    def append(self, rows: Sequence[Row]) -> None:
        number = next(self._numbers)  # threads share it: each append gets a number of its own
        self._put(f"{number:020}", b"".join([part for row in rows for part in row]))

    def scan(self) -> Iterator[Row]:
        for number in range(next(self._numbers)):
            data = self._get(f"{number:020}")
            for start in range(0, len(data), ROW_SIZE):
                yield data[start : start + KEY_SIZE], data[start + KEY_SIZE : start + ROW_SIZE]


@contextmanager
def with_boto3(server: Server, prefix: str) -> Iterator[RawPut]:
    client = boto3_client(server)
    yield RawPut(
        lambda key, data: client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=data),
        lambda key: client.get_object(Bucket=BUCKET, Key=f"{prefix}/{key}")["Body"].read(),
    )
    client.close()


@contextmanager
def with_obstore(server: Server, prefix: str) -> Iterator[RawPut]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        prefix=prefix,
        endpoint=server.endpoint_url,
        region=REGION,
        access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )
    yield RawPut(
        lambda key, data: obstore.put(store, key, data, use_multipart=False),
        lambda key: bytes(obstore.get(store, key).bytes()),
    )
