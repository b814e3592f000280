"""`check_conditions` refuses stores that take a condition and ignore it, as some S3 servers do."""

from __future__ import annotations

import pytest

from logstore.errors import PreconditionFailed, UnsupportedStore
from logstore.objects import LocalStore, MemoryStore, ObjectInfo, check_conditions
from logstore.objects.protocol import Buffer


class IgnoresBoth(MemoryStore):
    """Like `rclone serve s3`: 200 for everything."""

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return super().put(key, data)


class IgnoresMatch(MemoryStore):
    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return super().put(key, data, if_absent=if_absent)


class ContentEtags(MemoryStore):
    """If-Match compares sizes only, so that it takes a stale version of the same length."""

    def put(
        self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        found = self.head(key)
        if if_match is not None and (found is None or str(found.size) != if_match):
            raise PreconditionFailed(key)
        info = super().put(key, data, if_absent=if_absent)
        return info._replace(etag=str(info.size))


class ForgetsWrites(MemoryStore):
    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        super().get(key)
        return b"stale"


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (IgnoresBoth, "If-None-Match"),
        (IgnoresMatch, "If-Match"),
        (ContentEtags, "If-Match"),
        (ForgetsWrites, "did not return"),
    ],
)
def test_W03_a_store_that_breaks_the_promise_is_refused(broken: type[MemoryStore], says: str) -> None:
    store = broken()
    with pytest.raises(UnsupportedStore, match=says):
        check_conditions(store, "probe/")
    assert list(store.list("")) == [], "the probe cleans up though it failed"


def test_a_store_that_keeps_it_passes(tmp_path: object) -> None:
    check_conditions(MemoryStore(), "probe/")
    check_conditions(LocalStore(str(tmp_path)), "probe/")
