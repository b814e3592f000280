"""B09 with franz-go: a consumer whose leader is killed goes on with the next one, also where nobody writes any more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker_shim.wire.apis import Api
from broker_shim.wire.codes import Code
from tests.compat.__main__ import HERE, Skipped, go_program
from tests.support.broker.harness import BrokerProcess, Wire
from tests.support.broker.steps import batch, make_topic

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
FLAGS = ("--heartbeat-interval", "0.2", "--heartbeat-timeout", "2")
PARTITIONS, EACH = 4, 100


@pytest.fixture(scope="module")
def reader() -> str:
    try:
        return go_program("kgo_reader", HERE / "kgo_reader.go", "github.com/twmb/franz-go")
    except Skipped as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("lanes", ["0", "1"])
@pytest.mark.parametrize("others", [1, 2])
def test_B09_franz_go_goes_on_when_a_leader_is_killed(
    tmp_path: Path, reader: str, others: int, lanes: str
) -> None:
    store = f"file://{tmp_path}/store"
    flags = (*FLAGS, "--lanes", lanes)
    brokers = [BrokerProcess(store, "--node-id", str(n), *flags).start() for n in range(1, 2 + others)]
    written = {f"{index}-{number}" for index in range(PARTITIONS) for number in range(EACH)}
    try:
        by_id = dict(enumerate(brokers, 1))
        with Wire(brokers[-1].port) as wire:
            make_topic(wire, partitions=PARTITIONS)
            led = leaders(wire, len(brokers))
        for index, node_id in led.items():
            with Wire(by_id[node_id].port) as wire:
                wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
                for number in range(EACH):
                    record = batch(b"%d-%d" % (index, number))
                    while (code := wire.produce("t", record, partition=index).error_code) != Code.NONE:
                        assert code == Code.NOT_LEADER_OR_FOLLOWER, "it has just come, and leads in a moment"
        killed = by_id[led[0]]
        seed = ",".join(broker.address for broker in brokers)
        command = [reader, seed, "t", str(len(written) // 2), str(len(written))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            lines: list[str] = []
            while (line := client.stdout.readline()) != "half\n":
                assert line, "it ended before it had read half of them"
                lines.append(line)
            killed.kill()
            rest, _ = client.communicate("go on\n")
            lines += rest.splitlines()
        found = [line.split() for line in lines]
        assert client.returncode == 0, lines[-1]
        assert [f"{p}-{offset}" for p, offset, _ in found] == [value for _, _, value in found]
        assert {value for _, _, value in found} == written
        assert len(found) == len(written), "each once"
    finally:
        for broker in brokers:
            broker.kill()


def leaders(wire: Wire, count: int) -> dict[int, int]:
    """Who leads which partition, once all brokers know of each other and each leads something, or the first one does."""
    while True:
        answer = wire.ask(Api.METADATA, 9, topics=[{"name": "t"}])
        led = {row.partition_index: row.leader_id for row in answer.topics[0].partitions}
        if len(answer.brokers) == count and -1 not in led.values():
            return led
