"""Fixtures for tests of code that uses the log: a store, a Kafka broker, faults, latency, a clock. All in memory.

`logstore_store` is an open store, new for each test. A test that asks for `logstore_faults`, `logstore_slow` or
`logstore_clock` gets the same store with faults to be injected below it, with S3's latency, or on a clock that it moves
itself. `logstore_broker` is a Kafka broker on a port of its own. `@pytest.mark.logstore(**settings)` opens the store with
these settings. Nothing is imported before a test asks for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker_shim.server import Server
    from logstore.objects import MemoryStore
    from logstore.store import Store
    from logstore.testing import FaultyStore, ManualClock, SlowStore

_START_S = 30.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "logstore(**settings): fields of StoreConfig for logstore_store")


@pytest.fixture
def logstore_memory() -> MemoryStore:
    """The objects of the store: for a second store on the same data, or to look at what is there."""
    from logstore.objects import MemoryStore

    return MemoryStore()


@pytest.fixture
def logstore_faults(logstore_memory: MemoryStore) -> FaultyStore:
    """Faults below `logstore_store`: `logstore_faults.fail("put", times=3)`, `.down()`, `.heal()`."""
    from logstore.testing import FaultyStore

    return FaultyStore(logstore_memory, seed=1)


@pytest.fixture
def logstore_slow(request: pytest.FixtureRequest, logstore_memory: MemoryStore) -> SlowStore:
    """S3's latency below `logstore_store`."""
    from logstore.testing import S3_LATENCY, SlowStore

    faulty = "logstore_faults" in request.fixturenames
    inner = request.getfixturevalue("logstore_faults") if faulty else logstore_memory
    return SlowStore(inner, **S3_LATENCY)  # type: ignore[arg-type]


@pytest.fixture
def logstore_clock() -> ManualClock:
    """The clock of `logstore_store`: it stands still until `logstore_clock.advance(seconds)`."""
    from logstore.testing import ManualClock

    return ManualClock()


@pytest.fixture
def logstore_store(request: pytest.FixtureRequest, logstore_memory: MemoryStore) -> Iterator[Store]:
    """An open store in memory, closed after the test. What a test has broken on purpose is no error at the end."""
    import logstore

    objects: Any = logstore_memory
    for below in ("logstore_slow", "logstore_faults"):
        if below in request.fixturenames:
            objects = request.getfixturevalue(below)
            break
    clock = request.getfixturevalue("logstore_clock") if "logstore_clock" in request.fixturenames else None
    marker = request.node.get_closest_marker("logstore")
    settings = dict(marker.kwargs) if marker is not None else {}
    store = logstore.open(objects, clock=clock, **settings)
    yield store
    if "logstore_faults" in request.fixturenames:
        request.getfixturevalue("logstore_faults").heal()
    try:
        store.close()
    except logstore.OutcomeUnknown:
        if "logstore_faults" not in request.fixturenames and clock is None:
            raise


class Broker:
    """A Kafka broker in this process, on its own thread. `address` is what a client connects to, `store` the log below
    it."""

    def __init__(self) -> None:
        from logstore.errors import needs

        with needs("broker"):
            from broker_shim.config import BrokerConfig
            from broker_shim.server import Server
        from logstore.objects import MemoryStore

        self._config = BrokerConfig(store="memory://", listen="127.0.0.1:0", drain_timeout=5.0)
        self.server: Server = Server(self._config, MemoryStore())
        self._loop = asyncio.new_event_loop()
        self._failed: list[BaseException] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logstore-broker", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise TimeoutError(f"the broker did not start within {_START_S:g} s")
        if self._failed:
            raise self._failed[0]
        self.store: Store = self.server.store
        self.address = f"127.0.0.1:{self.server.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.server.start())
        except BaseException as error:
            self._failed.append(error)
            return
        finally:
            self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self.server.stop())
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@pytest.fixture
def logstore_broker() -> Iterator[Broker]:
    """A Kafka broker on an empty store in memory. Needs the extra `broker`."""
    broker = Broker()
    yield broker
    broker.stop()
