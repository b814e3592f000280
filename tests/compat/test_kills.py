"""B14 with Java's client: kill -9 of the broker at every one of its writes. librdkafka's is in tests/broker/transactions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import pytest

from tests.compat.__main__ import HERE, KAFKA, Skipped, jars
from tests.support.broker.client_kills import Told, at_every_write

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]
Story = Callable[[str], Told]


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """One JVM for all kills: it is told addresses, and tells what became of its transactions at each."""
    try:
        lib = jars("clients", f"org.apache.kafka:kafka-clients:{KAFKA}")
    except Skipped as why:
        pytest.skip(str(why))
    command = ["java", "-cp", f"{lib}/*", str(HERE / "Kills.java")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
        says, hears = java.stdout, java.stdin
        assert says is not None
        assert hears is not None

        waiting: dict[str, Future[str]] = {}

        def listen() -> None:
            for line in says:
                address, _, told = line.rstrip("\n").partition(";")
                waiting.pop(address).set_result(told)
            for each in waiting.values():
                each.set_result("failed: the JVM has ended")

        def tell(address: str) -> Told:
            answer = waiting[address] = Future()
            print(address, file=hears, flush=True)
            said = answer.result()
            assert not said.startswith("failed"), said
            committed, unknown, zombie, first, second, offset = said.split(";")
            return Told(
                committed=_values(committed),
                unknown=_values(unknown),
                zombie_committed=bool(zombie),
                read=[_values(first), _values(second)],
                offset=int(offset) if offset else None,
            )

        assert says.readline() == "ready\n"
        listener = Thread(target=listen, name="told-by-java")
        listener.start()
        yield tell
        java.kill()
        listener.join()


def _values(joined: str) -> list[str]:
    return joined.split(",") if joined else []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lanes", [0, 1])
def test_B14_java_goes_on_after_kill_9_at_every_write(
    tmp_path: Path, story: Story, lanes: int, when: str
) -> None:
    kills = at_every_write(tmp_path, when, lanes, story)
    print(f"Java {KAFKA}, lanes={lanes}, {when}: {kills} kills")
    assert kills > 8
