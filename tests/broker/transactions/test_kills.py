"""B14: kill -9 of the broker at every one of its writes to the store, in the middle of transactions. The next one goes on:
committed all, aborted none, offsets with them, and nothing hangs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from logstore.objects.homes.local import LocalStore
from tests.support.broker.harness import LocalBroker, Wire, as_users_have_it
from tests.support.broker.steps import make_topic
from tests.support.broker.transactions import Transactor, committed_offset, committed_values
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

Start = Callable[..., LocalBroker]
STEPS = 45
"""More than the script makes: the last ones run to the end, and say so."""
SOME = [(7, "chains"), (16, "chains"), (21, "chains"), (9, "lane"), (14, "lane"), (16, "lane")]


class Killed(Exception):
    """The broker is gone; what was asked last may be done or not."""


class Story:
    """What the producer knows when its broker dies."""

    def __init__(self) -> None:
        self.committed: list[bytes] = []
        self.in_doubt: list[bytes] | None = None
        self.offset: set[int] = {-1}

    def tell(self, wire: Wire) -> None:
        """Transactions over two partitions and an offset: committed, aborted, and committed again."""
        producer = Transactor(wire)
        self._ok(producer.init)
        for number, commit in enumerate((True, False, True)):
            values = [b"%d-%d" % (number, partition) for partition in (0, 1)]
            self._ok(lambda: producer.add("t", 0, 1))
            for partition, value in enumerate(values):
                self._ok(lambda p=partition, v=value: producer.send(v, partition=p))  # type: ignore[misc]
            self._ok(producer.add_offsets)
            self._ok(lambda n=number: producer.commit_offset(n))  # type: ignore[misc]
            if commit:
                self.in_doubt = values
                self.offset = {*self.offset, number}
            self._ok(lambda c=commit: producer.end(commit=c))  # type: ignore[misc]
            if commit:
                self.committed += values
                self.in_doubt, self.offset = None, {number}
        # Its markers are written before it may go on.
        self._ok(lambda: producer.add("t", 0, 1))

    @staticmethod
    def _ok(step: Callable[[], Code]) -> None:
        try:
            code = step()
        except (AssertionError, OSError) as gone:
            raise Killed from gone
        assert code is Code.NONE


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("number", "lanes"),
    [
        pytest.param(n, lanes, marks=[] if (n, name) in SOME else pytest.mark.soak, id=f"{n}-{name}")
        for lanes, name in enumerate(("chains", "lane"))
        for n in range(1, STEPS + 1)
    ],
)
def test_B14_kill_9_at_a_write(
    tmp_path: Path, start_broker: Start, number: int, lanes: int, when: str
) -> None:
    port = free_port()
    command = as_users_have_it("tests.support.broker.killed_broker")
    with LocalBroker(LocalStore(tmp_path), lanes=lanes) as before, Wire(before.port) as wire:
        make_topic(wire, partitions=2)
    broker = subprocess.Popen(
        [*command, str(tmp_path), str(port), str(number), when, str(lanes)], stdout=subprocess.PIPE
    )
    story, was_killed = Story(), True
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith(b"ready"), "it is killed later"
        with Wire(port) as wire:
            wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
            story.tell(wire)
        was_killed = False
    except Killed:
        broker.wait(PATIENCE_S)
    finally:
        broker.kill()
        broker.wait(PATIENCE_S)
        assert broker.stdout is not None
        broker.stdout.close()
    is_one_of_some = (number, ("chains", "lane")[lanes]) in SOME
    assert was_killed or not is_one_of_some, "the script is shorter than was thought"
    second = start_broker(LocalStore(tmp_path), node_id=2)
    with Wire(second.port) as wire:
        wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        # A new life: whatever was open is aborted, whatever was decided is told to its partitions.
        after = Transactor(wire)
        assert again(after.init) is Code.NONE
        assert again(lambda: after.add("t", 0, 1)) is Code.NONE
        assert [after.send(b"end", partition=partition) for partition in (0, 1)] == [Code.NONE, Code.NONE]
        assert after.end() is Code.NONE
        assert again(lambda: after.add("t", 0, 1)) is Code.NONE, "the markers stand"
        found = [committed_values(wire, partition=partition) for partition in (0, 1)]
        wanted = [[v for v in story.committed if v.endswith(b"-%d" % p)] + [b"end"] for p in (0, 1)]
        if story.in_doubt is not None and found != wanted:
            wanted = [[*rest[:-1], story.in_doubt[p], b"end"] for p, rest in enumerate(wanted)]
            assert committed_offset(wire)[1] == max(story.offset), "the offset goes with it"
        assert found == wanted, "all of a transaction, or nothing"
        code, offset = committed_offset(wire)
        assert code is Code.NONE, "nothing is pending"
        assert offset in story.offset


def again(step: Callable[[], Code]) -> Code:
    """As clients do while a transaction is being ended."""
    code = step()
    while code in (Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOAD_IN_PROGRESS):
        code = step()
    return code
