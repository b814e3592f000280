"""A member that is killed, or stopped and woken, at each request of what it does: join, save, give partitions up, leave."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from logstore.errors import Fenced, StoreUnavailable
from logstore.groups.documents import Place
from logstore.groups.membership import Membership
from logstore.objects import MemoryStore
from logstore.testing import ManualClock
from tests.support.engine.dying import DiesAt, OvertakenAt
from tests.support.groups.memberships import PLACES, TIMEOUT_S, joined, member

REQUESTS_MAX = 100


class Life:
    """What a member does from its beginning to its end beside a `peer`. `acked`: positions that it was told to be saved;
    `tried`: the last of those that it wanted to save."""

    def __init__(self, objects: DiesAt, peer: Membership) -> None:
        self._member = member(objects, 1)
        self._peer = peer
        self.acked: dict[Place, int] = {}
        self.tried: dict[Place, int] = {}

    def run(self) -> None:
        self._member.join()
        self._share_out()
        self._save(10)
        self._member.look()
        self._save(20)
        self._member.give(self._member.plan.to_give)
        self._save(30)
        self._member.leave()

    def _share_out(self) -> None:
        """The peer gives up what is the member's, with what it has saved."""
        self._peer.look()
        self._peer.give(self._peer.plan.to_give)
        self._member.look()

    def _save(self, offset: int) -> None:
        wanted = dict.fromkeys(self._member.plan.owned, offset)
        self.tried |= wanted
        refused = self._member.save(wanted)
        self.acked |= {place: offset for place in wanted if place not in refused}


def take_all(peer: Membership, clock: ManualClock) -> None:
    """It looks as often as it takes to replace one that shows no life."""
    for _ in range(3):
        peer.look()
        clock.advance(TIMEOUT_S)
    peer.look()


def at_each_request(run: Callable[[int], bool]) -> int:
    """Until there is no such request any more. How many there were."""
    requests = next(number for number in count() if not run(number) or number > REQUESTS_MAX)
    assert requests <= REQUESTS_MAX
    return requests


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_P01_P02_C04_a_member_that_is_killed_at_any_request_loses_no_position(after: bool) -> None:
    def run(request: int) -> bool:
        objects, clock = MemoryStore(), ManualClock()
        peer = joined(objects, 2, clock)
        peer.save(dict.fromkeys(PLACES, 5))
        dying = DiesAt(objects)
        life = Life(dying, peer)
        dying.die_at(request, after=after)
        try:
            life.run()
        except StoreUnavailable:
            assert dying.died
        take_all(peer, clock)
        assert list(peer.plan.owned) == PLACES
        for place in PLACES:
            found = peer.position(place)
            assert found in (life.acked.get(place, 5), life.tried.get(place, 5)), (request, place)
        late = joined(objects, 3)
        take_all(peer, clock)
        assert {late.position(place) for place in late.plan.owned} <= {5, 10, 20, 30}
        return dying.died

    assert at_each_request(run) > 15


def test_P02_W06_a_member_that_is_replaced_before_any_request_saves_nothing_over_its_successor() -> None:
    def run(request: int) -> bool:
        objects, clock = MemoryStore(), ManualClock()
        peer = joined(objects, 2, clock)
        peer.save(dict.fromkeys(PLACES, 5))
        stopped = OvertakenAt(objects)
        life = Life(stopped, peer)
        before: dict[Place, int] = {}
        owned: list[Place] = []

        def overtake() -> None:
            before.update(life.acked)
            take_all(peer, clock)
            owned.extend(peer.plan.owned)
            for place in owned:
                assert peer.position(place) in (before.get(place, 5), life.tried.get(place, 5)), request
            peer.save(dict.fromkeys(owned, 1000))

        stopped.overtake_at(request, overtake)
        try:
            life.run()
        except Fenced:  # else it was no member yet, or none any more
            fenced.append(request)
            peer.look()
            assert [peer.position(place) for place in PLACES] == [1000] * len(PLACES), request
        return bool(owned)

    fenced: list[int] = []
    assert at_each_request(run) > 15
    assert len(fenced) > 5
