"""The lanes of an open store, and which partition commits through which."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from zlib import crc32

from logstore.engine.host.clock import waitable
from logstore.engine.lanes.lane_overview import LaneOverview
from logstore.engine.runtime import Runtime
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.lanes.lane_checkpoints import Splitter
from logstore.layout.paths import PartitionPaths, named_lane


class Lanes:
    """`config.lanes` of them, each under a name that nobody has used, or under that of `config.lane`; none at all if every
    partition commits to its own chain."""

    def __init__(self, runtime: Runtime, splitter: Splitter) -> None:
        config = runtime.config
        count = max(config.lanes, config.lane is not None) if config.writer == "exclusive" else 0
        self._runtime = runtime
        self._lanes = [
            Lane(
                runtime,
                self._new_name() if config.lane is None else named_lane(config.lane, number),
                splitter,
                is_named=config.lane is not None,
            )
            for number in range(count)
        ]

    def _new_name(self) -> str:
        return self._runtime.rng.randbytes(8).hex()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._lanes)

    def of(self, paths: PartitionPaths) -> Lane | None:
        """Always the same one for a partition."""
        return self._lanes[crc32(paths.prefix.encode()) % len(self._lanes)] if self._lanes else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """What all partitions ask for inside goes into the same uploads."""
        for lane in self._lanes:
            lane.hold()
        try:
            yield
        finally:
            for lane in self._lanes:
                lane.go_on()

    def after_fork_in_child(self) -> None:
        """After a fork, in the child, of a store that has written nothing: parent and child are writers of their own."""
        for lane in self._lanes if self._runtime.config.lane is None else ():
            lane.rename(self._new_name())

    def overviews(self) -> list[LaneOverview]:
        """Those that are in use, from memory alone."""
        return [lane.overview() for lane in self._lanes if lane.is_used]

    def collect(self) -> None:
        """Let go of entries that hold what was deleted."""
        for lane in self._lanes:
            lane.checkpoints.collect()

    def begin_close(self) -> None:
        for lane in self._lanes:
            lane.begin_close()

    def close(self, deadline: float) -> None:
        """After the last window was committed. Not past the deadline, also if the store does not answer: then the lane is
        left without its fence."""
        clock = self._runtime.clock
        ending: list[Future[None]] = []
        for lane in self._lanes:
            if lane.is_used:
                ended: Future[None] = Future()
                ending.append(ended)
                self._runtime.spawn_or_run("lane", partial(_end, lane, deadline, ended))
        wait(ending, waitable(deadline - clock.monotonic()))

    def let_go(self) -> None:
        """The end, whether or not it was closed in time: nobody may wait on."""
        for lane in self._lanes:
            lane.let_go()


def _end(lane: Lane, deadline: float, ended: Future[None]) -> None:
    try:
        lane.claiming.run()
        lane.close(deadline)
    finally:
        ended.set_result(None)
