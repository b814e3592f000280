"""The servers that tests and benchmarks run against: one in a process of its own, and gone afterwards."""

from __future__ import annotations

import pytest
from servers import moto_server_process

from logstore.errors import StoreUnavailable
from logstore.objects import check_conditions, close_store, open_url


@pytest.mark.s3
def test_moto_in_its_own_process_keeps_conditions_and_ends() -> None:
    with moto_server_process() as server:
        store = open_url(server.url())
        check_conditions(store, "probe/")
        store.put("k", b"x", if_absent=True)
        assert store.get("k") == b"x"
    with pytest.raises(StoreUnavailable):
        store.put("k", b"y", if_match="e")
    close_store(store)
