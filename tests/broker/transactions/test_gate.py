"""B14: what a partition has asked a coordinator counts for as long as the partition is its broker's, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker_shim.partitions.append import Append, nobody
from broker_shim.partitions.transaction_gate import TransactionGate
from broker_shim.wire.codes import Code
from logstore.format.batches.batch import read_info
from logstore.format.batches.transactions import Transactions
from tests.support.broker.transactions import transactional_batch


def test_B14_an_answer_that_comes_when_the_partition_was_lost_is_forgotten() -> None:
    """It was kept for when the partition comes back, and by then the transaction may have ended elsewhere."""

    async def story() -> None:
        answer = asyncio.Event()
        asked: list[int] = []

        async def answered() -> Code:
            await answer.wait()
            return Code.NONE

        def verify(producer_id: int, epoch: int) -> Coroutine[Any, Any, Code]:
            asked.append(producer_id)
            return answered()

        async def prepare() -> Code:
            return Code.NONE

        went_on: list[Append] = []
        loop = asyncio.get_running_loop()
        gate = TransactionGate(loop, went_on.append, lambda *_: None, lambda: True, prepare)

        def first_batch() -> Append:
            raw = memoryview(transactional_batch(b"x", producer_id=7, epoch=0, sequence=0))
            return Append(raw, read_info(raw), False, "durable", nobody, verify=verify)

        before, after = first_batch(), first_batch()
        assert not gate.may_pass(before, Transactions())
        assert gate.close() == [before]
        answer.set()
        await asyncio.gather(*gate._tasks)
        asked.clear()
        assert not gate.may_pass(after, Transactions())
        await asyncio.gather(*gate._tasks)
        assert asked == [7]
        assert went_on == [after]

    asyncio.run(story())
