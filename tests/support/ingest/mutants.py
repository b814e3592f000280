"""The wrong ways, kept: one change of source text each, so that nothing in the tracker exists for the sake of
a test.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from logstore.ingest import flush_tracker
from logstore.ingest.flush_tracker import FlushTracker

MUTANTS: dict[str, tuple[str, str]] = {
    "equality instead of covering": (
        "while debts and debts[0].boundary <= up_to:",
        "while debts and debts[0].boundary == up_to:",
    ),
    "no latch": (
        "return sink is not None and sink.watermark is not None and sink.watermark >= boundary",
        "return False",
    ),
    "newest boundary only": (
        "            sink.debts.append(debt)\n",
        "            if sink.debts:\n"
        "                self._ledger.pay(sink.debts.pop(), name)\n"
        "            sink.debts.append(debt)\n",
    ),
    "generation ignored": (
        "current = sink is not None and sink.lease.generation == lease.generation",
        "current = sink is not None",
    ),
    "progress refreshed by commits": (
        "            if sink.debts is None:\n",
        "            sink.rearm(now_s)\n            if sink.debts is None:\n",
    ),
    "heartbeats overtake": (
        "counts = not self._ledger.owed and boundary > self._ledger.newest",
        "counts = boundary > self._ledger.newest",
    ),
    "one behind": (
        "return self._ledger.settled\n",
        "return self._ledger.settled - 1 if self._ledger.owed else self._ledger.settled\n",
    ),
    "old watermark survives a hand-over": (
        "        self.watermark: O | None = None\n",
        "        self.watermark: O | None = getattr(self, 'watermark', None)\n",
    ),
    "a failed report is forgotten": (
        "                self._on_flushed(settled)\n                self._reported = settled\n",
        "                self._reported = settled\n                self._on_flushed(settled)\n",
    ),
}


def mutant(name: str) -> type[FlushTracker[int]]:
    """The tracker with one rule broken."""
    right, wrong = MUTANTS[name]
    source = inspect.getsource(flush_tracker)
    assert source.count(right) == 1, f"the mutant {name!r} no longer fits the source"
    module = ModuleType(flush_tracker.__name__)
    module.__package__ = flush_tracker.__package__
    exec(compile(source.replace(right, wrong), f"<mutant: {name}>", "exec"), module.__dict__)
    tracker: type[FlushTracker[int]] = module.FlushTracker
    return tracker
