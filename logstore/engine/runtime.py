"""What all partitions of an open store share."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from logstore.config import StoreConfig
from logstore.engine.chain.block_cache import BlockCache
from logstore.engine.chain.segment_reader import SegmentReader
from logstore.engine.host.breaker import CircuitBreaker
from logstore.engine.host.budget import Budget
from logstore.engine.host.clock import Clock, waitable
from logstore.engine.host.counters import Counters, Observer
from logstore.engine.host.ids import Ids
from logstore.engine.host.stall_watch import StallWatch
from logstore.engine.host.task_pool import TaskPool
from logstore.engine.lanes.lane_reader import LaneReader
from logstore.objects.homes.disk import Disk, Folders
from logstore.objects.protocol import ObjectStore
from logstore.objects.wrappers.retrying import RetryPolicy
from logstore.process.presence import Presence

_PREFETCH_THREADS = 4
_UPKEEP_THREADS = 2
_DISK_THREADS = 2
_SIDE_THREADS = 64


class Runtime:
    """Clock, randomness, object store and the WAL's disk are passed in, so that a test can drive each of them."""

    def __init__(
        self,
        store: ObjectStore,
        config: StoreConfig,
        clock: Clock,
        rng: random.Random,
        disk: Disk | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self.rng = rng
        self.new_id = Ids(rng).new
        self.store_id = ""
        self.presence = Presence()
        self.retries = RetryPolicy(None, base_s=0.1, cap_s=config.probe_interval)
        self.budget = Budget(config.max_buffered_bytes, clock)
        self.cache = BlockCache(config.cache_bytes)
        self.task_pool = TaskPool(clock, config.uploads_max)
        # Of its own: an upload, for which every partition of a lane waits, never waits for checkpoints of all of them.
        self.upkeep = TaskPool(clock, _UPKEEP_THREADS, "upkeep")
        # Of its own: a `local` ack waits for the disk, never for an upload that the store does not answer.
        self.disk = TaskPool(clock, _DISK_THREADS, "wal")
        self.wal_folders = Folders(disk or Disk(), config.wal_dir or "")
        self.watch = StallWatch(clock, config.stall_after)
        self.counters = Counters()
        self.observer = Observer()
        self.breaker = CircuitBreaker(config.probe_interval, clock, self.task_pool.all_now)
        self._prefetcher = ThreadPoolExecutor(
            _PREFETCH_THREADS, thread_name_prefix="logstore-prefetch", initializer=self._remember_thread
        )
        # For requests that their caller may stop waiting for.
        self.side_pool = ThreadPoolExecutor(
            _SIDE_THREADS, thread_name_prefix="logstore-side", initializer=self._remember_thread
        )
        self.reader = SegmentReader(store, self.cache, self._prefetcher, clock)
        self.lanes = LaneReader(store, clock, keep=self.reader.keep_found)
        self._pause = threading.Condition(threading.Lock())
        self.closed = False
        self._spawned: list[threading.Thread] = []
        # One partition at a time: compaction takes memory for two segments.
        self.maintaining = threading.Lock()

    @property
    def has_threads(self) -> bool:
        """Whether something was uploaded or synced here: a forked child does not have what that needs."""
        pools = (self.task_pool, self.upkeep, self.disk, self.watch)
        return any(pool.has_threads for pool in pools)

    def pause(self, seconds: float) -> None:
        """Wait on the store's clock; `close` cuts it short."""
        deadline = self.clock.monotonic() + seconds
        with self._pause:
            while not self.closed and (left := deadline - self.clock.monotonic()) > 0:
                self.clock.wait(self._pause, left)

    def spawn(self, name: str, call: Callable[[], object]) -> None:
        """Run `call`, which handles its own errors, on a thread of its own. `close` waits for it."""
        thread = threading.Thread(target=call, name=f"logstore-{name}", daemon=True)
        with self._pause:
            thread.start()
            self._remember(thread)

    def spawn_or_run(self, name: str, call: Callable[[], object]) -> None:
        """`spawn`, or, where no thread can be started any more, run it here: Python 3.12 starts none once the
        interpreter ends."""
        try:
            self.spawn(name, call)
        except RuntimeError:
            call()

    def _remember_thread(self) -> None:
        with self._pause:
            self._remember(threading.current_thread())

    def _remember(self, thread: threading.Thread) -> None:
        self._spawned = [*(known for known in self._spawned if known.is_alive()), thread]

    def backoff(self, failures: int) -> float:
        """Full jitter: somewhere between nothing and a limit that doubles up to the probe interval."""
        return self.retries.pause_s(failures, self.rng.random)

    def back_off(self, failures: int, deadline: float) -> bool:
        """Wait before the next attempt, at the most until `deadline`. False if that has passed, or the store is closed:
        then there is no further attempt."""
        left = deadline - self.clock.monotonic()
        if left <= 0 or self.closed:
            return False
        self.pause(min(left, self.backoff(failures)))
        return True

    def begin_close(self) -> None:
        """Cut every `pause` short: a writer that is still being opened gives up."""
        with self._pause:
            self.closed = True
            self._pause.notify_all()

    def close(self, timeout: float) -> bool:
        """Stop every thread. False if one did not end in time, which is for all of them together."""
        deadline = self.clock.monotonic() + timeout
        self.begin_close()
        self.budget.close()
        self._prefetcher.shutdown(wait=False, cancel_futures=True)
        ended = self.disk.close(timeout)
        for stop in (self.task_pool.close, self.upkeep.close, self.watch.close, self._join_spawned):
            ended &= stop(max(0.0, deadline - self.clock.monotonic()))
        return ended

    def _join_spawned(self, timeout: float) -> bool:
        self.side_pool.shutdown(wait=False, cancel_futures=True)  # not before: a task that ends late asks it
        deadline = self.clock.monotonic() + timeout
        with self._pause:
            spawned = [thread for thread in self._spawned if thread is not threading.current_thread()]
        for thread in spawned:
            thread.join(waitable(deadline - self.clock.monotonic()))
        return not any(thread.is_alive() for thread in spawned)
