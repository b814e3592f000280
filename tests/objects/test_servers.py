"""The servers that tests and benchmarks run against: one in a process of its own, and gone afterwards."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from logstore.errors import StoreUnavailable
from logstore.objects import check_conditions, close_store, open_url
from tests.support.ports import free_port
from tests.support.servers import moto_server_process


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


def test_a_port_for_a_server_is_none_that_the_kernel_hands_out_and_is_given_once() -> None:
    """Else a connection of any process could take it while its server is down for a moment."""
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == len(ports)
    with ExitStack() as stack:
        by_kernel = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(50)]
        assert max(ports) < min(server.getsockname()[1] for server in by_kernel)
