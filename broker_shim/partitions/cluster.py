"""Which brokers serve this store, and which of them leads which partition.

The log's own fence decides who may write; this module only decides who *tries*, so a wrong answer costs a
retry and never a record.

* **Alone** (`heartbeat_interval=0`): the broker says once where it can be found and leads everything that
  nobody has taken from it. It makes no request while idle. A second broker started on the same store takes
  each partition over when it is asked to write there; the first one then answers NOT_LEADER_OR_FOLLOWER and
  points to the newcomer. If there is none, a service or the command line has written there: the broker still
  leads, follows that writer, and takes the partition back when it is asked to write.
* **Several** (`heartbeat_interval` > 0): each broker rewrites its object `broker/‹id›` every interval and
  lists the others'. One whose object has not changed for `heartbeat_timeout`, by the observer's own monotonic
  clock, is dead. Every broker computes leaders from the set of the living by rendezvous hashing, so a change
  moves only what has to move. A broker that could not write its own heartbeat for that long leads nothing:
  the others may think it dead. A newcomer waits two intervals before it leads, so that the others have seen
  it and have flushed what they hand over.

`view` and its users live on the event loop; `beat` does I/O and runs in a worker thread, one at a time.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import blake2b

from logstore.errors import ObjectNotFound, PreconditionFailed, StoreError
from logstore.layout.broker import NODE_PREFIX
from logstore.objects import ObjectStore
from logstore.objects.settled import put_settled

log = logging.getLogger(__name__)
NOBODY = -1


@dataclass(frozen=True)
class Node:
    """A broker as clients are told of it. `incarnation` is new for each process."""

    node_id: int
    host: str
    port: int
    incarnation: str
    started_ms: int
    rack: str = ""


@dataclass(frozen=True)
class View:
    """The brokers that are thought to be alive, by id. Always holds this broker itself."""

    nodes: dict[int, Node]


class Cluster:
    def __init__(
        self,
        objects: ObjectStore,
        me: Node,
        *,
        interval_s: float,
        timeout_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.me = me
        self.interval_s = interval_s
        self._timeout_s = timeout_s
        self._objects = objects
        self._monotonic = monotonic
        self.view = View({me.node_id: me})
        self._leaders: dict[tuple[str, int], int] = {}
        self._taken: dict[tuple[str, int], int] = {}
        self._beat_number = 0
        self._etag: str | None = None
        self._beaten_at = monotonic()
        self._seen: dict[str, tuple[str, float, Node]] = {}
        self._settled_at = monotonic()
        self.replaced = False
        self.generation = 0
        """Grows whenever a partition may have another leader than before."""

    # ── on the event loop ────────────────────────────────────────────────────────────────────────────────

    @property
    def is_several(self) -> bool:
        return self.interval_s > 0

    def leader(self, topic: str, partition: int) -> int:
        """The id of the broker that leads, as far as this one knows; `NOBODY` if it cannot say."""
        taken = self._taken.get((topic, partition))
        if taken is not None:
            return taken
        if not self.is_several:
            return self.me.node_id
        place = (topic, partition)
        if place not in self._leaders:
            self._leaders[place] = rendezvous(self.view.nodes, f"{topic}/{partition}")
        return self._leaders[place]

    def leads(self, topic: str, partition: int) -> bool:
        return self.may_lead and self.leader(topic, partition) == self.me.node_id

    @property
    def may_lead(self) -> bool:
        """Whether this broker leads anything at all now."""
        if self.replaced:
            return False
        if not self.is_several:
            return True
        now = self._monotonic()
        return now - self._beaten_at <= self._timeout_s and now >= self._settled_at

    def nearest(self, rack: str, topic: str, partition: int) -> int | None:
        """A broker in the consumer's rack that it may read from instead of this one, which leads. None: it reads here."""
        if not rack or not self.me.rack or rack == self.me.rack or not self.is_several:
            return None
        there = {node_id: node for node_id, node in self.view.nodes.items() if node.rack == rack}
        return rendezvous(there, f"{topic}/{partition}") if there else None

    def may_follow(self, rack: str) -> bool:
        """Whether this broker serves consumers of the rack what others lead: durable records, from the store."""
        return bool(rack) and rack == self.me.rack and self.is_several and self.may_lead

    def replicas(self, leader: int) -> list[int]:
        """The leader, and all brokers that may be read from instead: clients ask none that is not in this list."""
        nodes = self.view.nodes
        rack = nodes[leader].rack if leader in nodes else ""
        others = [each.node_id for each in nodes.values() if each.rack and each.rack != rack]
        return [leader, *(each for each in others if rack and self.is_several and each != leader)]

    @property
    def is_settled(self) -> bool:
        """Whether the others have had the time to see this broker, and to hand over what it leads."""
        return self._monotonic() >= self._settled_at

    def node(self, node_id: int) -> Node | None:
        return self.view.nodes.get(node_id)

    def fenced(self, topic: str, partition: int) -> None:
        """Somebody took this partition from us. Until the next view it is not ours; `look_around` finds out whose."""
        self._taken[(topic, partition)] = self._newcomer(self.view)
        self.generation += 1

    @property
    def was_replaced_somewhere(self) -> bool:
        """Whether something is another's, as far as this broker knows, which has no heartbeats to learn more from."""
        return bool(self._taken) and not self.is_several

    def _newcomer(self, view: View) -> int:
        """The broker that has probably taken what was ours. Alone, only one that came later does that: an older one
        that still exists there, or has died without signing off, leaves a newer one what it has.
        """
        mine = (self.me.started_ms, self.me.node_id)
        ages = [(node.started_ms, node.node_id) for node in view.nodes.values() if node.node_id != mine[1]]
        return max((age for age in ages if self.is_several or age > mine), default=(0, NOBODY))[1]

    def adopt(self, view: View) -> bool:
        """Make `view` the current one. True if it differs."""
        if self._taken or view != self.view:
            self.generation += 1
        if self.is_several:
            # Leadership follows the view. A fence by somebody that the view does not know yet was news to us;
            # with a fresh view we either agree with him or take the partition back.
            self._taken.clear()
        else:
            newcomer = self._newcomer(view)
            if newcomer == NOBODY:
                self._taken.clear()  # whoever fenced us is no broker: nobody else can lead
            for place in self._taken:
                self._taken[place] = newcomer
        if view == self.view:
            return False
        self.view = view
        self._leaders.clear()
        return True

    # ── in a worker thread ───────────────────────────────────────────────────────────────────────────────

    def register(self) -> View:
        """Say where this broker is, whatever was there before: a restart takes its own id over."""
        self._put(None)
        view = self.look_around()
        if self.is_several and len(view.nodes) > 1:
            self._settled_at = self._monotonic() + 2 * self.interval_s
        return view

    def beat(self) -> View:
        """One heartbeat and a look at the others'. Raises StoreError if the store cannot be asked."""
        began = self._monotonic()
        try:
            self._put(self._etag)
        except PreconditionFailed:
            self._look_for_rival()
        else:
            self._beaten_at = began
        return self.look_around()

    def look_around(self) -> View:
        """Who is there: a peer whose object changed within the timeout, or was first seen within it."""
        now = self._monotonic()
        present: set[str] = set()
        nodes = {self.me.node_id: self.me}
        for info in self._objects.list(NODE_PREFIX):
            if info.key == self._key:
                if info.etag != self._etag:
                    self._look_for_rival()
                continue
            present.add(info.key)
            known = self._seen.get(info.key)
            if known is None or known[0] != info.etag:
                node = self._read(info.key)
                if node is None:
                    continue
                known = self._seen[info.key] = (info.etag, now, node)
            if not self.is_several or now - known[1] <= self._timeout_s:
                nodes[known[2].node_id] = known[2]
        for key in set(self._seen) - present:
            del self._seen[key]
        return View(dict(sorted(nodes.items())))

    def leave(self) -> None:
        """Say good-bye, so that the others need not wait for the timeout. A failure only makes them wait."""
        try:
            if not self.replaced:
                self._objects.delete(self._key)
        except StoreError as error:
            log.warning("could not sign off; the others will notice in %.1f s: %s", self._timeout_s, error)

    @property
    def _key(self) -> str:
        return f"{NODE_PREFIX}{self.me.node_id:010d}"

    def _put(self, etag: str | None) -> None:
        self._beat_number += 1
        me = asdict(self.me)
        if not self.me.rack:
            del me["rack"]  # a broker of before there were racks would not understand it
        data = json.dumps({**me, "beat": self._beat_number}).encode()
        stored = (
            self._objects.put(self._key, data)
            if etag is None
            else put_settled(self._objects, self._key, data, etag)
        )
        if stored is None:
            raise PreconditionFailed(f"{self._key}: it was changed since our last heartbeat")
        self._etag = stored.etag

    def _look_for_rival(self) -> None:
        """Our object has changed under us: another broker that was given the same id is there now, or it was us."""
        if not self._is_ours():
            self.replaced = True
            log.error("another broker with node id %d has started: this one leads nothing", self.me.node_id)

    def _is_ours(self) -> bool:
        """A put whose answer was lost changed the etag under us: that is no rival."""
        try:
            content = json.loads(self._objects.get(self._key))
        except (ObjectNotFound, ValueError):
            content = {}
        if content.get("incarnation") not in (self.me.incarnation, None):
            return False
        self._put(None)
        return True

    def _read(self, key: str) -> Node | None:
        try:
            content = json.loads(self._objects.get(key))
            content.pop("beat")
            return Node(**content)
        except ObjectNotFound:
            return None
        except (ValueError, TypeError, KeyError) as error:
            log.warning("%s is no heartbeat: %r; it is left out", key, error)
            return None


def rendezvous(nodes: dict[int, Node], name: str) -> int:
    """The node with the highest score for `name`: when one joins or leaves, only its own share moves."""
    return max(nodes, key=lambda node_id: blake2b(f"{name}@{node_id}".encode(), digest_size=8).digest())


def new_incarnation() -> str:
    return secrets.token_hex(8)
