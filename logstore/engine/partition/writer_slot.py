"""The writers of one partition in this process: which kinds there are, and that they do not get in each other's way.

`append` uses one writer, exclusive or shared as the store was opened. Replicated writers are asked for by name. One process
does not have both on one partition: the first commit of one would stop the other.

Every call is made with the partition's opening lock held, which is held during I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from logstore.config import Ack, TakeOver
from logstore.engine.chain.chain import Chain
from logstore.engine.chain.many_chains import Recalled, recalled
from logstore.engine.chain.segment_table import LostRange
from logstore.engine.chain.tail import ChainTail
from logstore.engine.lanes.transfers import Taken
from logstore.engine.memory.catch_up import catch_up
from logstore.engine.memory.partition_state import PartitionState
from logstore.engine.memory.topic_settings import TopicSettings
from logstore.engine.memory.waiters import BlockingWait
from logstore.engine.replicated.replicated_writer import ReplicatedWriter
from logstore.engine.runtime import Runtime
from logstore.engine.shared.shared_writer import SharedWriter
from logstore.engine.write.exclusive_writer import ExclusiveWriter
from logstore.engine.write.lanes.lane import Lane
from logstore.engine.write.lifecycle import WriterLifecycle
from logstore.engine.write.ownership import (
    WrittenByShared,
    check_may_stop,
    is_surely_gone,
    shared_in_the_way,
)
from logstore.engine.write.takeover import claim_ahead, take_over
from logstore.engine.write.wal.local_sync import LocalSync
from logstore.engine.write.wal.wal import WalPart
from logstore.engine.write.wal.wal_files import UNSETTLED
from logstore.engine.write.writer_health import WriterHealth
from logstore.engine.write.writer_protocol import Writer
from logstore.errors import LogStoreError, ReadOnly, StoreError, StoreUnavailable

logger = logging.getLogger(__name__)


RECALLED_S = 1.0
"""For so long what a lane told of its partitions will do to open their writers."""


@dataclass(eq=False)
class PartitionWriters:
    _runtime: Runtime
    _chain: Chain
    _topic: TopicSettings
    lane: Lane | None
    _local_sync: LocalSync | None
    _writer: Writer | None = field(default=None, init=False)
    _replicated: dict[str, ReplicatedWriter] = field(default_factory=dict, init=False)
    _wal: WalPart | None = field(default=None, init=False)

    def open(
        self,
        state: PartitionState,
        on_commit: Callable[[], None],
        ack: Ack,
        timeout: float,
        *,
        take_over: TakeOver,
        alone: bool,
    ) -> Writer:
        """The writer that `append` uses. `take_over`: as in `StoreConfig`. An exclusive one that finds shared writers joins
        them, unless it must be `alone` or is to give acks that they do not have."""
        self.check_writable()
        alive = [name for name, writer in self._replicated.items() if writer.failed is None]
        if alive:
            raise ValueError(
                f"{self._chain.paths} has replicated writers in this process ({', '.join(alive)}): append through them, or "
                "close this store and open it again"
            )
        writer: Writer
        if self._runtime.config.writer == "shared":
            writer = self._open_shared(state, on_commit, take_over)
        else:
            try:
                writer = self._open_exclusive(state, on_commit, ack, timeout, take_over)
            except WrittenByShared:
                writer = self._join(state, on_commit, ack, take_over, alone)
        self._writer = writer
        return writer

    def carried_on(self, take_over: TakeOver) -> ChainTail | None:
        """Where the chain ends, if an earlier life of this process wrote it last, through a lane with a name. None also if
        the store cannot be asked: then whoever opens the partition is told why."""
        config = self._runtime.config
        if self.lane is None or config.writer != "exclusive":
            return None
        with suppress(StoreError):
            if self._has_something_in_wal():
                return None  # which is stored again first, at the end of all there is
            self.lane.enter(take_over)
            return self.lane.carried_on(self._chain.paths.prefix)
        return None

    def _open_shared(
        self, state: PartitionState, on_commit: Callable[[], None], take_over: TakeOver
    ) -> SharedWriter:
        catch_up(self._chain, state)
        with suppress(WrittenByShared):
            check_may_stop(self._chain, state.tail, take_over)
        return SharedWriter(self._runtime, self._chain, state, self._topic, on_commit)

    def _join(
        self,
        state: PartitionState,
        on_commit: Callable[[], None],
        ack: Ack,
        take_over: TakeOver,
        alone: bool,
    ) -> SharedWriter:
        """An exclusive writer was asked for, and others may be at work here that are not."""
        config = self._runtime.config
        if alone:
            raise shared_in_the_way(self._chain, "This writer must be the only one")
        if ack != "durable" or config.ack != "durable":
            asked = ack if ack != "durable" else config.ack
            raise shared_in_the_way(
                self._chain, f'They know durable acks only, and ack="{asked}" was asked for'
            )
        logger.info(
            "%s: joins the shared writers that it finds; take_over=True makes it exclusive", self._chain.paths
        )
        return self._open_shared(state, on_commit, take_over)

    def _open_exclusive(
        self,
        state: PartitionState,
        on_commit: Callable[[], None],
        ack: Ack,
        timeout: float,
        may_stop: TakeOver,
    ) -> ExclusiveWriter:
        wal = self._open_wal()
        try:
            state.own()
            known = state.lost_ranges()
            take_over(
                self._runtime,
                self._chain,
                state,
                wal,
                reserve=ack != "durable",
                timeout=timeout,
                may_stop=may_stop,
                lane=self.lane,
            )
            self._tell_lost(lost for lost in state.lost_ranges() if lost not in known)
            if wal is not None:
                wal.start(state.tail.epoch, state.tail.end_offset, lambda: state.durable)
        except BaseException:
            state.disown()
            if wal is not None:
                wal.close(-1)
            raise
        writer = ExclusiveWriter(self._runtime, self._chain, state, self._topic, on_commit, self.lane)
        if wal is not None and self._local_sync is not None:
            wal.durable = writer.stored_until
            self._local_sync.add(state, writer, wal)
        self._wal = wal
        return writer

    def tell(self, tail: ChainTail) -> None:
        """The lane in which the chain goes on tells of all its partitions, for those that are opened next."""
        if tail.claim is not None and self._opens_ahead:
            with suppress(LogStoreError):  # whoever opens them is told what is wrong
                self._runtime.lanes.tell(tail.claim.lane, self._runtime.clock.monotonic() - RECALLED_S)

    def recalled(self) -> Recalled | None:
        """The partition as a lane told it a moment ago, if its writer may be made of that."""
        if not self._opens_ahead:
            return None
        return recalled(self._chain, self._runtime.lanes, self._runtime.clock.monotonic() - RECALLED_S)

    @property
    def _opens_ahead(self) -> bool:
        config, lane = self._runtime.config, self.lane
        if lane is None or config.writer != "exclusive" or config.wal_dir is not None:
            return False
        return lane.is_entered and self._chain.paths.birth_lane is not None

    def open_ahead(
        self, state: PartitionState, on_commit: Callable[[], None], *, has_ended: bool
    ) -> Writer | None:
        """The writer of a partition that nobody can append to any more, before its claim is committed: until then what it
        is given waits, and nothing of it is shown. So many partitions that are opened one after the other share an entry.
        None if somebody may append."""
        lane, tail = self.lane, state.tail
        assert lane is not None
        if not has_ended or self._runtime.config.take_over == "if_gone":
            check_may_stop(self._chain, tail, self._runtime.config.take_over)
        if tail.claim is None or not (has_ended or is_surely_gone(self._chain, tail)):
            return None
        state.own()
        known = state.lost_ranges()
        outcome = claim_ahead(self._runtime, self._chain, state, lane)
        self._tell_lost(lost for lost in state.lost_ranges() if lost not in known)
        writer = ExclusiveWriter(
            self._runtime, self._chain, state, self._topic, on_commit, lane, is_ahead=True
        )
        claimed: BlockingWait[None] = BlockingWait()
        writer.claim_committed = claimed
        self._runtime.watch.began(writer, self._chain.paths)
        outcome.add_done_callback(partial(self._claimed, writer, state, tail, claimed))
        self._writer = writer
        return writer

    def _claimed(
        self,
        writer: ExclusiveWriter,
        state: PartitionState,
        before: ChainTail,
        claimed: Future[None],
        outcome: Future[Taken | None],
    ) -> None:
        """What became of the claim of a writer that was opened ahead."""
        self._runtime.watch.ended(writer)
        error, lane = outcome.exception(), self.lane
        taken = outcome.result() if error is None else None
        assert lane is not None
        if taken is not None:
            state.raise_low_watermark(taken.low)
            lane.claiming.decided(writer, writer.claim_key)
            claimed.set_result(None)
            writer.claim_committed = None
            return
        if error is None and (error := writer.failed) is None:
            again = partial(self._take_over_again, writer, state, before, claimed)
            try:
                self._runtime.spawn("open", again)  # by another thread: this one makes the claims
                return
            except RuntimeError as none_left:
                error = none_left
        assert error is not None
        self._give_up(writer, state, before, claimed, error)

    def _take_over_again(
        self, writer: ExclusiveWriter, state: PartitionState, before: ChainTail, claimed: Future[None]
    ) -> None:
        """Another was faster, or has appended since: the chain is asked, and whoever writes it now is judged."""
        config = self._runtime.config
        state.retreat(before)
        try:
            take_over(
                self._runtime,
                self._chain,
                state,
                None,
                reserve=False,
                timeout=config.append_timeout,
                may_stop=config.take_over,
                lane=self.lane,
            )
        except WrittenByShared:
            why = "This writer was opened ahead of its claim"
            self._give_up(writer, state, before, claimed, shared_in_the_way(self._chain, why))
        except BaseException as error:
            self._give_up(writer, state, before, claimed, error)
        else:
            writer.go_on_behind_another()
            claimed.set_result(None)
            writer.claim_committed = None

    def _give_up(
        self,
        writer: ExclusiveWriter,
        state: PartitionState,
        before: ChainTail,
        claimed: Future[None],
        error: BaseException,
    ) -> None:
        if not isinstance(error, LogStoreError):
            error = StoreUnavailable(f"{self._chain.paths}: the writer could not be opened: {error!r}")
        writer.stop(error)
        if self.lane is not None:
            self.lane.claiming.decided(writer, writer.claim_key)
        if state.tail.next_seq == before.next_seq + 1:
            state.retreat(before)
        claimed.set_exception(error)

    def _tell_lost(self, ranges: Iterable[LostRange]) -> None:
        for start, end in ranges:
            logger.warning(
                "%s: an earlier writer ended before it had stored all that it may have acked: at most %d records are lost, "
                "offsets %d to %d",
                self._chain.paths,
                end - start,
                start,
                end - 1,
            )

    def _open_wal(self) -> WalPart | None:
        return None if self._local_sync is None else self._local_sync.wal.part(self._chain.paths)

    def _has_something_in_wal(self) -> bool:
        wal = self._open_wal()
        if wal is None:
            return False
        try:
            return not wal.is_empty
        finally:
            wal.close(-1)

    def replicated(
        self, state: PartitionState, on_commit: Callable[[], None], writer_id: str, *, passive: bool
    ) -> ReplicatedWriter:
        """The replicated writer of that name: the one there is, or a new one."""
        self.check_writable()
        if not isinstance(writer_id, str) or not writer_id:
            raise ValueError(f"writer_id={writer_id!r}: it is a name, a str that is not empty")
        if self._writer is not None and self._writer.failed is None:
            raise ValueError(
                f"{self._chain.paths} has a writer in this process that `append` uses: use one kind, in one process, on one "
                "partition"
            )
        known = self._replicated.get(writer_id)
        if known is not None and known.failed is None and known.is_passive == passive:
            return known
        catch_up(self._chain, state)
        made = ReplicatedWriter(
            writer_id, self._runtime, self._chain, state, self._topic, on_commit, passive=passive
        )
        self._replicated[writer_id] = made
        return made

    def check_writable(self) -> None:
        """`ReadOnly` if this process has no business changing the partition."""
        if self._runtime.config.writer == "read_only":
            raise ReadOnly(f'{self._chain.paths}: the store was opened with writer="read_only"')

    def _all(self) -> list[WriterLifecycle]:
        return [*self._replicated.values(), *([self._writer] if self._writer is not None else ())]

    def health_reports(self) -> tuple[WriterHealth | None, list[WriterHealth]]:
        """Of the writer that `append` uses, if there is one, and of the replicated ones. Holds the partition's lock."""
        writer = self._writer.health_report() if self._writer is not None else None
        return writer, [each.health_report() for each in list(self._replicated.values())]

    def stop(self, error: LogStoreError) -> None:
        """At once and for good: there is no place to store anything any more."""
        for writer in self._all():
            writer.stop(error)

    def after_fork_in_child(self, error: LogStoreError) -> None:
        """After a fork, in the child: refuse everything. Takes no lock."""
        for writer in self._all():
            writer.after_fork_in_child(error)

    def hand_over(self) -> None:
        """Before it is closed alone, while its store stays open: give the partition up."""
        if isinstance(self._writer, ExclusiveWriter):
            self._writer.hand_over()

    def begin_close(self) -> None:
        """Take no more appends and start the last flush."""
        for writer in self._all():
            writer.begin_close()

    def finish_close(self, deadline: float) -> str | None:
        """Wait for it. Returns what is not stored, in words, or None."""
        problems = [writer.finish_close(deadline) for writer in self._all()]
        return "; ".join(problem for problem in problems if problem) or None

    def release(self, *, is_deleted: bool) -> None:
        """After the writer has stopped, or the task pool: let go of what the WAL has of it. `is_deleted`: nobody will ever
        ask for that."""
        wal, self._wal = self._wal, None
        if wal is not None and self._local_sync is not None:
            self._local_sync.remove(wal)
            wal.close(UNSETTLED if is_deleted else wal.durable())
