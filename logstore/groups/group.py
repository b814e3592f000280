"""What users hold of a group: records of the partitions that this member owns, and the positions that it saves.

At least once: who takes a partition over begins at the last position that was saved. A position is saved by `commit`, and
covers what was handed out before. A partition moves to another member only between two calls of this one: when everything
that was handed out of it is saved, or, if nothing is saved for a `session_timeout`, without that.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from logstore.config import Visibility, check_visibility
from logstore.engine.partition.many_partitions import Cursor, ManyPartitions, Taken, look_at
from logstore.engine.partition.partition_log import PartitionLog
from logstore.errors import Closed, Fenced, LogStoreError
from logstore.format.batches.record import TopicRecord
from logstore.groups.documents import Place
from logstore.groups.host import Host, find_topics
from logstore.groups.lag import PartitionLag, lag
from logstore.groups.membership import Membership
from logstore.groups.places import Places, Seek, Start, named, place_of, resolved, several
from logstore.layout.groups import check_group_name
from logstore.layout.paths import check_topic_name
from logstore.objects.fan_out import fan_out

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S = 30.0
MAX_POLL_INTERVAL_S = 300.0
MAX_RECORDS = 500
_ITERATE_S = 60.0


class _Share:
    """One partition that this member owns. `handed_out`: behind the last record that the caller got; `saved`: what the store
    has. `leaving_since`: when we learned that another should own it."""

    def __init__(self, cursor: Cursor, since: int, saved: int | None) -> None:
        self.cursor = cursor
        self.since = since
        self.saved = self.handed_out = saved
        self.leaving_since: float | None = None

    @property
    def is_saved(self) -> bool:
        return self.handed_out == self.saved


class Group:
    """One member of a group: a context manager, for one thread at a time. Get it from `Store.group`.

    >>> import logstore
    >>> with logstore.open("memory://docs-group") as store:
    ...     orders = store.create_topic("orders", partitions=2)
    ...     for n in range(3):
    ...         _ = orders.append(b"%d" % n)
    ...     with store.group("workers", "orders") as group:
    ...         seen = []
    ...         while len(seen) < 3:
    ...             seen += group.poll(timeout=1.0)
    ...             group.commit()
    >>> sorted(record.value for record in seen)
    [b'0', b'1', b'2']
    """

    def __init__(
        self,
        host: Host,
        name: str,
        topics: str | Iterable[str],
        *,
        member: str | None = None,
        session_timeout: float = SESSION_TIMEOUT_S,
        max_poll_interval: float = MAX_POLL_INTERVAL_S,
        start: Start = "beginning",
        visibility: Visibility = "durable",
    ) -> None:
        self._host = host
        self._name = check_group_name(name)
        self._topics = tuple(sorted({check_topic_name(each) for each in several(topics)}))
        if member is not None:
            check_group_name(member)
        for setting, value in (
            ("session_timeout", session_timeout),
            ("max_poll_interval", max_poll_interval),
        ):
            if not value > 0:
                raise ValueError(f"{setting}={value!r}: it is a number of seconds, above 0")
        if start not in ("beginning", "end"):
            raise ValueError(f'start={start!r}: it is "beginning" or "end"')
        check_visibility(visibility)
        runtime = host._runtime
        self._clock = runtime.clock
        self._runtime = runtime
        self._session_timeout = session_timeout
        self._max_poll_interval = max_poll_interval
        self._start: Start = start
        self._visibility: Visibility = visibility
        self._membership = Membership(
            runtime.store,
            runtime.clock,
            runtime.rng,
            self._name,
            name=member,
            topics=self._topics,
            session_timeout=session_timeout,
            find_topics=partial(find_topics, host),
        )
        self._many = ManyPartitions(runtime.clock, runtime.config.follow_interval, visibility)
        self._using = threading.RLock()  # held by whoever calls, also while it waits
        self._shares: dict[Place, _Share] = {}
        self._paused: set[Place] = set()
        self._buffer: deque[tuple[_Share, Taken, int]] = deque()
        self._refused: set[Place] = set()
        self._synced: tuple[str, int] | None = None
        self._called_at = runtime.clock.monotonic()
        self._pid = os.getpid()
        self._closed = False
        self._beating = threading.Condition(threading.Lock())
        find_topics(host, self._topics)  # before anything is written
        self._membership.join()
        runtime.spawn(f"group-{self._name}", self._keep_alive)

    @property
    def name(self) -> str:
        """The group's name."""
        return self._name

    @property
    def member(self) -> str:
        """This member's own name; a new one after it was replaced, unless it was given one."""
        document, slot = self._membership.document, self._membership.slot
        known = document.members.get(slot)
        return self._membership.life if known is None else known.name

    @property
    def assignment(self) -> list[Place]:
        """The partitions that are this member's, as `(topic, partition)`, sorted, as last seen. From memory."""
        return sorted(self._membership.plan.owned)

    def __repr__(self) -> str:
        return f"Group({self._name!r}, {list(self._topics)!r}, member={self.member!r})"

    # Reading

    def poll(self, timeout: float = 1.0, *, max_records: int = MAX_RECORDS) -> list[TopicRecord]:
        """The next records, at most `max_records`, of all partitions that are this member's; nothing if there are none
        within `timeout` seconds. Those of one partition come in the order of their offsets.

        A member that was replaced joins again here. Call it at least every `max_poll_interval` seconds, else others take
        this member for stalled. Raises `OffsetOutOfRange` if retention has taken what comes next (`seek` says where to go
        on), `CorruptData`, `UnknownTopic`, `StoreUnavailable`, `Closed`.
        """
        if max_records < 1:
            raise ValueError(f"max_records={max_records!r}: it is at least 1")
        deadline = self._clock.monotonic() + timeout
        with self._using:
            while True:
                woken = self._many.woken
                self._fill(max_records)
                records = self._hand_out(max_records)
                left = deadline - self._clock.monotonic()
                if records or left <= 0:
                    return records
                self._many.wait(woken, left)

    def __iter__(self) -> Iterator[TopicRecord]:
        """The records one by one, for ever; ends when the group or the store is closed. `commit` covers those that the loop
        has got so far, this one included."""
        while True:
            try:
                records = self.poll(_ITERATE_S, max_records=1)
            except Closed:
                return
            yield from records

    def _fill(self, max_records: int) -> None:
        """Read what there is now, unless some is left: everything of `poll` that may ask the store."""
        with self._using:
            self._check_open()
            self._called_at = self._clock.monotonic()
            self._sync()
            if not self._buffer:
                for taken in self._many.take(max_records):
                    share = self._shares[taken.cursor.topic, taken.cursor.partition]
                    self._buffer.append((share, taken, 0))

    def _hand_out(self, max_records: int) -> list[TopicRecord]:
        """From now on the caller has them: `commit` covers them. From memory."""
        records: list[TopicRecord] = []
        with self._using:
            while self._buffer and len(records) < max_records:
                share, taken, begin = self._buffer.popleft()
                end = begin + max_records - len(records)
                records += taken.records[begin:end]
                if end < len(taken.records):
                    self._buffer.appendleft((share, taken, end))
                    share.handed_out = (taken.records[end - 1].offset or 0) + 1
                else:
                    share.handed_out = taken.next_offset
        return records

    # Saving

    def commit(self) -> None:
        """Save the positions behind everything that was handed out so far: one request, or none if there is nothing new.
        When it returns, no member of this group gets those records again.

        Raises `Fenced` if this member was replaced, or has lost some of the partitions, since it got the records: of those
        nothing was saved, and others get them again. `OutcomeUnknown` if the store does not say: call it again.
        `StoreUnavailable`, `Closed`.
        """
        with self._using:
            self._check_open()
            self._called_at = self._clock.monotonic()
            refused, self._refused = self._refused, set()
            new = {
                place: share.handed_out
                for place, share in self._shares.items()
                if not share.is_saved and share.handed_out is not None
            }
            if new:
                try:
                    refused |= set(self._membership.save(new))
                except Fenced:
                    self._drop_all()
                    self._refused.clear()
                    raise
                for place in new.keys() - refused:
                    self._shares[place].saved = new[place]
            if refused:
                lost = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(refused))
                raise Fenced(
                    f"group {self._name}: {lost} went to other members before the records that were handed out here were "
                    "committed: those are not saved, and are handed out there again; the others are saved"
                )
            if not self._membership.fenced:
                self._sync()

    # Where to read

    def seek(self, positions: Mapping[int | Place, Seek] | Start | datetime) -> None:
        """Go on elsewhere: `{partition: offset}`, or `{(topic, partition): offset}` in a group of several topics. Instead of
        an offset: `"beginning"`, `"end"`, or a datetime (the first record at or after it); one of these alone is for all
        partitions of this member. The next `commit` saves it.

        Raises `ValueError` for a partition that is not this member's.
        """
        with self._using:
            self._check_open()
            self._sync()
            if isinstance(positions, Mapping):
                wanted = {place_of(each, self._topics): to for each, to in positions.items()}
            else:
                wanted = dict.fromkeys(self._shares, positions)
            for place in wanted:
                if place not in self._shares:
                    raise ValueError(f"{place[0]}/{place[1]} is not this member's: it has {self.assignment}")
            calls = [
                partial(resolved, self._log(place), to, self._visibility) for place, to in wanted.items()
            ]
            for place, offset in zip(wanted, fan_out(calls), strict=True):
                share = self._shares[place]
                share.cursor = self._cursor(place, offset)
                share.handed_out = offset
                self._unbuffer(place)
            self._read_shares()

    def pause(self, partitions: Places | None = None) -> None:
        """Hand out no more of these partitions of this member, or of all, until `resume`. They stay this member's."""
        with self._using:
            self._check_open()
            self._sync()
            for place in set(self._shares) if partitions is None else named(partitions, self._topics):
                self._paused.add(place)
                self._unbuffer(place)
            self._read_shares()

    def resume(self, partitions: Places | None = None) -> None:
        """Go on with partitions that were paused, or with all."""
        with self._using:
            self._check_open()
            self._paused -= named(partitions, self._topics) if partitions is not None else set(self._paused)
            self._read_shares()

    def lag(self) -> list[PartitionLag]:
        """How far behind the saved positions are, for each partition of the whole group. Asks the store for the end of each
        partition, so not for every record."""
        self._check_open()
        return lag(self._host, self._name)

    # Ending

    def close(self) -> None:
        """Leave the group: others take this member's partitions at once, from what was committed. A second call does
        nothing. If the store cannot be reached, they do after `session_timeout`."""
        if self._closed:
            return
        self._closed = True
        self._wake_all()
        if os.getpid() != self._pid:
            return
        with self._using:
            self._many.close()
            self._shares.clear()
            self._buffer.clear()
        try:
            self._membership.leave()
        except LogStoreError as error:
            logger.warning(
                "group %s: could not leave (%s): others take over after %g s",
                self._name,
                error,
                self._session_timeout,
            )

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _keep_alive(self) -> None:
        """On a thread of its own."""
        while not (self._closed or self._runtime.closed):
            try:
                self._show_life()
            except Exception as error:  # the store, mostly: it is asked again
                logger.warning("group %s: %s", self._name, error)
            with self._beating:
                if not (self._closed or self._runtime.closed):
                    self._clock.wait(self._beating, max(self._membership.delay, self._session_timeout / 60))

    def _show_life(self) -> None:
        """Do what is due, as long as somebody calls `poll` or `commit`."""
        is_stalled = self._clock.monotonic() - self._called_at > self._max_poll_interval
        if not is_stalled and self._membership.tick():
            self._many.wake()

    def _wake_all(self) -> None:
        with self._beating:
            self._beating.notify_all()
        self._many.wake()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise Closed(
                f"group {self._name}: it was opened before this process was forked, and is the parent's: open it again here"
            )
        if self._closed or self._runtime.closed:
            raise Closed(f"group {self._name}: it is closed")

    def _sync(self) -> None:
        """Join again if we were replaced; give up what should be another's; read what is ours now."""
        member = self._membership
        if member.fenced:
            logger.warning(
                "group %s: this member was replaced (%s), and joins again", self._name, member.fenced
            )
            self._drop_all()
            member.join()
        if member.plan.to_give:
            self._give_up()
        plan = member.plan
        version = (plan.life, plan.document.generation)
        if version == self._synced:
            return
        gone = [
            place
            for place, share in self._shares.items()
            if place not in plan.owned or plan.owned[place].since != share.since
        ]
        for place in gone:
            self._drop(place)
        new = [place for place in sorted(plan.owned) if place not in self._shares]
        for place in new:
            saved = member.position(place, plan)
            self._shares[place] = _Share(self._cursor(place, saved), plan.owned[place].since, saved)
        self._synced = version
        try:
            self._begin_at_the_end([place for place in new if self._shares[place].saved is None])
        except BaseException:
            for place in new:
                self._drop(place)
            self._synced = None
            raise
        self._read_shares()

    def _begin_at_the_end(self, places: list[Place]) -> None:
        """Of `start="end"`: where that is must be saved before anything is handed out. Else whoever takes the partition over
        would begin at a later end."""
        if self._start != "end" or not places:
            return
        logs = [self._log(place)._internal for place in places]
        look_at(logs)
        ends = {place: log.end_seen(self._visibility) for place, log in zip(places, logs, strict=True)}
        self._membership.save(ends)
        for place, end in ends.items():
            share = self._shares[place]
            share.saved = share.handed_out = share.cursor.position = end

    def _give_up(self) -> None:
        """What another should own, as soon as everything that was handed out of it is saved. Until then no more of it is
        handed out; after a session time-out it goes all the same."""
        now = self._clock.monotonic()
        ready = []
        for place in self._membership.plan.to_give:
            share = self._shares.get(place)
            if share is None:
                if self._start == "beginning" or self._membership.position(place) is not None:
                    ready.append(place)
                continue
            if share.leaving_since is None:
                share.leaving_since = now
                self._unbuffer(place)
            if share.is_saved or now - share.leaving_since >= self._session_timeout:
                ready.append(place)
        if ready:
            try:
                self._membership.give(ready)
            except Fenced:
                return  # the next step joins again
        self._read_shares()

    def _drop_all(self) -> None:
        for place in list(self._shares):
            self._drop(place)
        self._synced = None
        self._read_shares()

    def _drop(self, place: Place) -> None:
        share = self._shares.pop(place)
        self._unbuffer(place)
        self._paused.discard(place)
        if not share.is_saved:
            self._refused.add(place)

    def _unbuffer(self, place: Place) -> None:
        """What was read of it and not handed out is read again."""
        kept: deque[tuple[_Share, Taken, int]] = deque()
        for share, taken, begin in reversed(self._buffer):
            if (taken.cursor.topic, taken.cursor.partition) != place:
                kept.appendleft((share, taken, begin))
            elif taken.records[begin:]:
                taken.cursor.position = taken.records[begin].offset
        self._buffer = kept

    def _read_shares(self) -> None:
        for place, share in self._shares.items():
            share.cursor.paused = place in self._paused or share.leaving_since is not None
        self._many.put(share.cursor for share in self._shares.values())

    def _cursor(self, place: Place, position: int | None) -> Cursor:
        return Cursor(partial(self._log, place), position)

    def _log(self, place: Place) -> PartitionLog:
        return self._host.topic(place[0]).partition(place[1])
