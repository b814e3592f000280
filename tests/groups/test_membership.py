"""The protocol of a group by hand: each member has a clock of its own, and no thread moves anything."""

from __future__ import annotations

import random

import pytest

from logstore.errors import Fenced, Indeterminate, OutcomeUnknown, PreconditionFailed, StoreError
from logstore.groups.documents import Document, Place, Slot
from logstore.groups.membership import Membership
from logstore.layout.groups import group_document, group_slot
from logstore.objects import MemoryStore, ObjectStore
from logstore.testing import (
    ANY_DELIVERY,
    Delivery,
    Fault,
    FaultyStore,
    GatedStore,
    ManualClock,
    SlowStore,
)
from tests.support.engine.harness import background
from tests.support.groups.memberships import PLACES, TIMEOUT_S, joined, member
from tests.support.patience import PATIENCE_S
from tests.support.scheduler import RandomChoices, Schedule


def document(objects: ObjectStore) -> Document:
    return Document.parse("", objects.get(group_document("g")))


def all_given(*members: Membership) -> None:
    for _ in range(3):
        for each in members:
            each.look()
            each.give(each.plan.to_give)


def test_P02_a_lone_member_owns_everything_and_two_share() -> None:
    objects = MemoryStore()
    a = joined(objects, 1)
    assert list(a.plan.owned) == PLACES
    b = joined(objects, 2)
    assert not b.plan.owned, "nothing is taken from one that lives"
    assert b.plan.is_hungry
    all_given(a, b)
    assert len(a.plan.owned) == len(b.plan.owned) == 2
    assert {*a.plan.owned} | {*b.plan.owned} == {*PLACES}


def test_P01_a_position_is_handed_over_with_its_partition() -> None:
    objects = MemoryStore()
    a = joined(objects, 1)
    a.save({place: 10 + place[1] for place in PLACES})
    b = joined(objects, 2)
    all_given(a, b)
    assert {place: b.position(place) for place in b.plan.owned} == {
        place: 10 + place[1] for place in b.plan.owned
    }
    assert a.save(dict.fromkeys(PLACES, 99)) == list(b.plan.owned), "it owns those no more"
    assert {b.position(place) for place in b.plan.owned}.isdisjoint({99})


def test_P02_a_silent_member_is_replaced_after_its_time_out_and_its_late_save_is_refused() -> None:
    objects, clock = MemoryStore(), ManualClock()
    a = joined(objects, 1)
    b = joined(objects, 2, clock)
    all_given(a, b)
    a.save(dict.fromkeys(a.plan.owned, 7))
    b.look()
    clock.advance(TIMEOUT_S - 1)
    b.look()
    assert len(b.plan.owned) == 2, "not yet"
    clock.advance(1)
    b.look()
    assert list(b.plan.owned) == PLACES
    assert [b.position(place) for place in PLACES].count(7) == 2
    with pytest.raises(Fenced, match="what it saves now is refused"):
        a.save(dict.fromkeys(a.plan.owned, 8))
    assert 8 not in [b.position(place) for place in PLACES]
    with pytest.raises(Fenced):
        a.save({})
    a.join()
    b.look()
    all_given(a, b)
    assert len(a.plan.owned) == len(b.plan.owned) == 2


def test_P02_who_shows_life_is_not_replaced_whatever_the_clocks_say() -> None:
    objects, fast = MemoryStore(), ManualClock()
    a = joined(objects, 1)  # its clock stands still
    b = joined(objects, 2, fast)
    for _ in range(5):
        b.look()
        fast.advance(TIMEOUT_S * 100)
        a.save({})
        b.look()
    a.save({})
    assert a.fenced is None


def test_P02_an_observer_that_slept_looks_before_it_judges() -> None:
    objects, clock = MemoryStore(), ManualClock()
    a = joined(objects, 1)
    b = joined(objects, 2, clock)
    b.look()
    clock.advance(1_000_000)
    a.save({})  # b has slept: what it remembers is old, but it was not told that nothing changed
    b.look()
    assert a.life in {each.life for each in document(objects).members.values()}


def test_P02_each_member_is_judged_by_its_own_time_out() -> None:
    objects, clock = MemoryStore(), ManualClock()
    patient = joined(objects, 1, timeout=1000.0)
    hasty = joined(objects, 2, clock, timeout=1.0)
    hasty.look()
    clock.advance(999)
    hasty.look()
    assert patient.slot in document(objects).members
    clock.advance(1)
    hasty.look()
    assert patient.slot not in document(objects).members


def test_P02_not_everybody_replaces_at_once() -> None:
    objects = MemoryStore()
    clocks = [ManualClock() for _ in range(4)]
    members = [joined(objects, seed, clock) for seed, clock in enumerate(clocks, 1)]
    for each in members[1:]:
        each.look()
    for clock in clocks:
        clock.advance(TIMEOUT_S)
    generation = document(objects).generation
    for each in members[:0:-1]:  # all but the first, which is silent; those that come later in the list first
        each.save({})
    for each in members[1:]:
        each.look()
    clocks[3].advance(0)
    assert members[0].slot not in document(objects).members
    assert document(objects).generation == generation + 1


def test_P02_a_named_member_takes_its_own_place_at_once() -> None:
    objects = MemoryStore()
    old = joined(objects, 1, name="worker-1")
    old.save(dict.fromkeys(PLACES, 5))
    new = joined(objects, 2, name="worker-1")
    assert new.slot == old.slot
    assert [new.position(place) for place in PLACES] == [5] * 4
    old.give([])  # a look at the document, in which the slot is another's
    assert old.plan.owned == {}
    with pytest.raises(Fenced):
        old.save({})


def test_P02_who_joins_looks_whether_its_slot_is_still_its_own() -> None:
    """Between its look at the document and its swap another of the same name has taken the slot, joined and saved."""
    objects = MemoryStore()
    joined(objects, 1, name="w").save(dict.fromkeys(PLACES, 5))
    gated = GatedStore(objects)
    slow = member(gated, 2, name="w")
    with gated.hold("put", prefix="groups/g/group") as gate:
        joining = background(slow.join)
        gate.wait_held()
        quick = joined(objects, 3, name="w")
        quick.save(dict.fromkeys(PLACES, 7))
        gate.open()
        joining.result(PATIENCE_S)
    assert [slow.position(place) for place in PLACES] == [7] * 4
    with pytest.raises(Fenced):
        quick.save({})


def test_P02_one_that_shows_life_just_now_is_not_replaced() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    a, b = joined(objects, 1), joined(gated, 2, clock)
    b.look()
    clock.advance(TIMEOUT_S)
    with gated.hold("head", suffix=f"slots/{a.slot:05d}") as gate:
        looking = background(b.look)
        gate.wait_held()  # it has listed, and takes a for dead
        a.save({})
        gate.open()
        looking.result(PATIENCE_S)
    a.save({})
    assert a.fenced is None


def test_P02_many_who_join_at_once_take_nobodys_place() -> None:
    objects = MemoryStore()
    slow = SlowStore(objects, put=0.03, get=0.02, head=0.01, list=0.04)
    everybody = [member(slow, seed, partitions=24) for seed in range(12)]
    for joining in [background(each.join) for each in everybody]:
        joining.result(PATIENCE_S)
    for _ in range(2):
        for each in everybody:
            each._stored._objects = objects  # the rest may be quick
            each.look()
            each.give(each.plan.to_give)
    assert [len(each.plan.owned) for each in everybody] == [2] * 12
    assert len(document(objects).members) == 12


def test_P01_who_leaves_hands_over_at_once() -> None:
    objects = MemoryStore()
    a, b = joined(objects, 1), joined(objects, 2)
    all_given(a, b)
    a.save(dict.fromkeys(a.plan.owned, 3))
    a.leave()
    b.look()
    assert list(b.plan.owned) == PLACES
    b.leave()
    c = joined(objects, 3)
    assert sorted(str(c.position(place)) for place in PLACES) == ["3", "3", "None", "None"]


def test_slots_are_taken_again() -> None:
    objects = MemoryStore()
    for seed in range(1, 6):
        joined(objects, seed).leave()
    assert [info.key for info in objects.list("groups/")] == [group_document("g"), group_slot("g", 0)]


def test_a_slot_whose_member_died_while_it_joined_is_freed() -> None:
    objects, clock = MemoryStore(), ManualClock()
    a = joined(objects, 1, clock)
    objects.put(group_slot("g", 7), Slot(1, "dead").pack())
    for _ in range(2):
        a.look()
        clock.advance(TIMEOUT_S)
    assert Slot.parse("", objects.get(group_slot("g", 7))).life is None


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Delivery.DENIED, Delivery.LATE])
def test_C03_a_save_whose_answer_says_nothing_is_settled(fault: Fault | Delivery) -> None:
    objects = MemoryStore()
    faulty = FaultyStore(objects, seed=1)
    a = joined(faulty, 1)
    faulty.fail("put", prefix="groups/g/slots/", with_=fault)
    a.save(dict.fromkeys(PLACES, 4))
    faulty.deliver()
    assert offsets(objects, 0) == {4}
    a.save(dict.fromkeys(PLACES, 5))
    assert offsets(objects, 0) == {5}


def test_C05_a_save_that_comes_after_its_member_was_replaced_changes_nothing() -> None:
    objects, clock = MemoryStore(), ManualClock()
    faulty = FaultyStore(objects, seed=1)
    a, b = joined(faulty, 1), joined(objects, 2, clock)
    a.save(dict.fromkeys(PLACES, 4))
    faulty.fail("put", prefix="groups/g/slots/", with_=Delivery.LATE, times=None)
    with pytest.raises(OutcomeUnknown, match="commit again"):
        a.save(dict.fromkeys(PLACES, 5))
    b.look()
    clock.advance(TIMEOUT_S)
    b.look()
    assert [b.position(place) for place in PLACES] == [4] * 4
    faulty.heal()
    faulty.deliver()
    assert [joined(objects, 3, name="watcher").position(place) for place in PLACES] == [4] * 4
    with pytest.raises(Fenced):
        a.save(dict.fromkeys(PLACES, 6))


def test_C03_a_save_that_came_before_its_member_was_replaced_is_not_called_refused() -> None:
    objects, clock = MemoryStore(), ManualClock()
    gated = GatedStore(objects)
    a, b = joined(gated, 1), joined(objects, 2, clock)
    b.look()
    with gated.hold("put", prefix="groups/g/slots/", after=True) as gate:
        saving = background(a.save, dict.fromkeys(PLACES, 5))
        gate.wait_held()  # it is stored; its answer is on the way
        b.look()
        clock.advance(TIMEOUT_S)
        b.look()
        assert [b.position(place) for place in PLACES] == [5] * 4
        gate.fail(PreconditionFailed("a gateway has sent it twice"))
        assert saving.result(PATIENCE_S) == []
    assert a.fenced


def test_P02_what_was_given_up_is_known_before_anything_is_saved() -> None:
    """The swap that gives two partitions away is not answered and comes late: a position saved meanwhile would be undone."""
    objects = MemoryStore()
    faulty = FaultyStore(objects, seed=1)
    a, b = joined(faulty, 1), joined(objects, 2)
    a.save(dict.fromkeys(PLACES, 4))
    a.look()
    faulty.fail("put", prefix="groups/g/group", with_=Delivery.LATE, times=None)
    with pytest.raises(Indeterminate):
        a.give(a.plan.to_give)
    with pytest.raises(Indeterminate):
        a.save(dict.fromkeys(PLACES, 5))
    assert offsets(objects, a.slot) == {4}, "nothing is saved while it may still come"
    faulty.heal()
    faulty.deliver(count=1)
    gone = a.save(dict.fromkeys(PLACES, 5))
    faulty.deliver()
    b.look()
    assert set(gone) == set(b.plan.owned)
    assert len(gone) == 2
    assert {b.position(place) for place in b.plan.owned} == {4}


def offsets(objects: ObjectStore, slot: int) -> set[int]:
    return {saved.offset for saved in Slot.parse("", objects.get(group_slot("g", slot))).saved.values()}


class WildClock(ManualClock):
    """Says anything: each look at it may be years later."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def monotonic(self) -> float:
        if self._rng.random() < 0.4:
            self.advance(self._rng.choice([3.0, 2 * TIMEOUT_S, 1e6]))
        return super().monotonic()


class Counter:
    """Who saves counts one further than what it found. So no number may be told as saved twice, and none go missing."""

    def __init__(self) -> None:
        self.told: dict[Place, set[int]] = {place: set() for place in PLACES}
        self.refused = self.in_doubt = self.moved = 0

    def saved(self, place: Place, offset: int) -> None:
        assert offset not in self.told[place], f"{place}: {offset} was saved twice"
        self.told[place].add(offset)


def act(objects: ObjectStore, seed: int, rounds: int, counter: Counter) -> None:
    rng = random.Random(seed)
    me = member(objects, seed, WildClock(rng))
    doubtful: dict[Place, int] = {}
    for _ in range(rounds):
        try:
            if me.fenced:
                doubtful = {}
                me.join()
            what = rng.random()
            if what < 0.5:
                wanted = doubtful or {
                    place: (me.position(place) or 0) + 1 for place in me.plan.owned if rng.random() < 0.7
                }
                doubtful = wanted
                gone = me.save(wanted)
                doubtful = {}
                for place in wanted.keys() - set(gone):
                    counter.saved(place, wanted[place])
            elif what < 0.7:
                before = len(me.plan.owned)
                me.give(me.plan.to_give)
                counter.moved += before != len(me.plan.owned)
            elif what < 0.97:
                me.look()
            else:
                me.leave()
        except Fenced:
            counter.refused += 1
        except OutcomeUnknown:
            counter.in_doubt += 1
        except StoreError:
            pass


def test_P02_no_save_is_lost_or_doubled_in_random_schedules() -> None:
    _random_schedules(range(8), rounds=40)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 1200, 10))
def test_P02_no_save_is_lost_or_doubled_in_many_random_schedules(first: int) -> None:
    _random_schedules(range(first, first + 10), rounds=150)


def _random_schedules(seeds: range, rounds: int) -> None:
    counters = []
    for seed in seeds:
        try:
            counters.append(_random_schedule(seed, rounds))
        except BaseException as error:
            error.add_note(f"seed {seed}, {rounds} rounds")
            raise
    for what in ("refused", "moved"):
        assert any(getattr(counter, what) for counter in counters), f"nothing was {what}: they show nothing"
    assert all(any(counter.told.values()) for counter in counters)


def _random_schedule(seed: int, rounds: int) -> Counter:
    objects, counter = MemoryStore(), Counter()
    late = FaultyStore(objects, seed=seed)
    late.random(put=0.05, faults=ANY_DELIVERY, within=60)
    schedule = Schedule(late, RandomChoices(seed), faults_max=12, reads_fail=True)
    schedule.run(
        [
            lambda store, number=number: act(store, 100 * seed + number, rounds, counter)  # type: ignore[misc]
            for number in range(4)
        ]
    )
    late.heal()
    late.deliver()
    clock = ManualClock()
    last = joined(objects, 9999, clock)
    for _ in range(3):
        last.look()
        clock.advance(TIMEOUT_S)
    last.look()
    assert list(last.plan.owned) == PLACES
    for place in PLACES:
        assert (last.position(place) or 0) >= max(counter.told[place], default=0), f"{place}: a save is lost"
    return counter
