"""B01: the group state machine, driven by hand: every effect, every deadline, no sockets and no sleeping."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker_shim.groups.group import Group, State
from broker_shim.groups.member import Effect, Joined, JoinRequest, Limits, Reply, Save, Synced
from broker_shim.wire.codes import Code
from tests.support.broker.group_requests import request

LIMITS = Limits(min_session_timeout_s=1.0, initial_rebalance_delay_s=3.0, max_group_size=20)


def new_group() -> Group:
    numbers = itertools.count(1)
    return Group("g", LIMITS, lambda prefix: f"{prefix}-{next(numbers)}")


def replies(effects: Iterable[Effect]) -> dict[object, Any]:
    """The answers, each a `Joined` or a `Synced`, by the request's token."""
    return {effect.token: effect.answer for effect in effects if isinstance(effect, Reply)}


def stable_pair() -> tuple[Group, str, str]:
    """Two members, generation 1, assignments handed out, at time 3."""
    group = new_group()
    assert group.join(request(), "a", 0.0) == []
    assert group.join(request(), "b", 1.0) == []
    joined = replies(group.tick(3.0))
    leader, follower = joined["a"].member_id, joined["b"].member_id
    assert joined["a"].leader == leader == joined["b"].leader
    assert [member for member, _, _ in joined["a"].members] == [leader, follower]
    assert joined["b"].members == ()
    assert group.sync(follower, None, 1, ("consumer", "range"), {}, "sb", 3.0) == []
    shares = {leader: b"L", follower: b"F"}
    assert group.sync(leader, None, 1, ("consumer", "range"), shares, "sa", 3.0) == [Save(1)]
    answers = replies(group.saved(Save(1), Code.NONE, 3.0))
    assert answers == {
        "sa": Synced(Code.NONE, b"L", "consumer", "range"),
        "sb": Synced(Code.NONE, b"F", "consumer", "range"),
    }
    assert group.state is State.STABLE
    return group, leader, follower


def test_B01_the_first_members_are_collected_into_one_generation() -> None:
    group, _, _ = stable_pair()
    assert group.generation == 1


def test_B01_a_new_member_is_told_its_id_first_and_is_waited_for() -> None:
    group = new_group()
    [told] = group.join(request(id_required=True), "t", 0.0)
    assert isinstance(told, Reply)
    assert told.answer == Joined(Code.MEMBER_ID_REQUIRED, "client-1")
    assert group.join(request("client-1", id_required=True), "u", 0.5) == []
    assert replies(group.tick(3.5))["u"].generation == 1


def test_B01_a_pending_id_that_never_returns_holds_nobody_up_past_its_session() -> None:
    group, leader, follower = stable_pair()
    group.join(request(session=5.0, id_required=True), "ghost", 4.0)
    group.join(request(leader), "a", 4.0)
    assert group.join(request(follower), "b", 4.0) == []
    assert group.deadline() == pytest.approx(9.0)
    assert set(replies(group.tick(9.0))) == {"a", "b"}


def test_B01_heartbeats_tell_the_others_to_rejoin_when_one_joins() -> None:
    group, leader, follower = stable_pair()
    assert group.heartbeat(leader, None, 1, 4.0) is Code.NONE
    assert group.join(request(), "c", 4.0) == []
    assert group.heartbeat(leader, None, 1, 4.1) is Code.REBALANCE_IN_PROGRESS
    group.join(request(leader), "a2", 4.2)
    answers = replies(group.join(request(follower), "b2", 4.3))
    assert {answer.generation for answer in answers.values()} == {2}
    assert set(answers) == {"a2", "b2", "c"}
    assert len(answers["a2"].members) == 3


def test_B01_who_does_not_rejoin_in_time_is_out_and_the_rest_goes_on() -> None:
    group, leader, follower = stable_pair()
    group.join(request(), "c", 4.0)
    group.join(request(leader), "a2", 4.0)
    group.heartbeat(follower, None, 1, 12.0)
    group.heartbeat(follower, None, 1, 21.0)
    group.heartbeat(follower, None, 1, 30.0)
    answers = replies(group.tick(34.0))
    assert set(answers) == {"a2", "c"}
    assert follower not in group.members
    assert group.heartbeat(follower, None, 1, 34.0) is Code.UNKNOWN_MEMBER_ID


def test_B01_a_silent_member_expires_exactly_at_its_session_timeout() -> None:
    group, leader, follower = stable_pair()
    group.heartbeat(leader, None, 1, 9.0)
    assert group.deadline() == pytest.approx(13.0)
    assert group.tick(12.999) == []
    assert group.state is State.STABLE
    group.tick(13.0)
    assert follower not in group.members
    assert group.state is State.PREPARING  # type: ignore[comparison-overlap]


def test_B01_a_clean_leave_rebalances_at_once_and_the_last_one_empties_the_group() -> None:
    group, leader, follower = stable_pair()
    code, effects = group.leave(follower, None, 4.0)
    assert (code, effects) == (Code.NONE, [])
    [answer] = replies(group.join(request(leader), "a2", 4.1)).values()
    assert (answer.generation, answer.leader) == (2, leader)
    code, effects = group.leave(leader, None, 5.0)
    assert (code, effects, group.state) == (Code.NONE, [Save(3)], State.EMPTY)
    assert group.deadline() is None


def test_B01_the_leader_leaving_hands_the_lead_to_another() -> None:
    group, leader, follower = stable_pair()
    group.leave(leader, None, 4.0)
    [answer] = replies(group.join(request(follower), "b2", 4.1)).values()
    assert answer.leader == follower
    assert [member for member, _, _ in answer.members] == [follower]


def test_B01_a_lost_join_answer_is_given_again_without_a_rebalance() -> None:
    group, _, follower = stable_pair()
    [answer] = replies(group.join(request(follower), "again", 5.0)).values()
    assert (answer.generation, group.state) == (1, State.STABLE)


def test_B01_the_leader_rejoining_means_something_changed_so_all_rebalance() -> None:
    group, leader, _ = stable_pair()
    assert group.join(request(leader), "again", 5.0) == []
    assert group.state is State.PREPARING


def test_B01_an_assignment_is_handed_out_only_after_it_is_saved() -> None:
    group, leader, follower = stable_pair()
    group.join(request(leader), "a2", 4.0)
    group.join(request(follower), "b2", 4.0)
    effects = group.sync(leader, None, 2, (None, None), {leader: b"all"}, "s", 4.1)
    assert effects == [Save(2)]
    assert group.heartbeat(leader, None, 2, 4.2) is Code.NONE
    failed = replies(group.saved(Save(2), Code.COORDINATOR_NOT_AVAILABLE, 4.3))
    assert failed == {"s": Synced(Code.COORDINATOR_NOT_AVAILABLE)}
    assert group.state is State.PREPARING


def test_B01_a_save_that_finishes_after_the_next_rebalance_began_changes_nothing() -> None:
    group, leader, follower = stable_pair()
    group.join(request(leader), "a2", 4.0)
    group.join(request(follower), "b2", 4.0)
    group.sync(leader, None, 2, (None, None), {leader: b"old"}, "s", 4.1)
    cancelled = replies(group.join(request(), "c", 4.2))
    assert cancelled == {"s": Synced(Code.REBALANCE_IN_PROGRESS)}
    assert group.saved(Save(2), Code.NONE, 4.3) == []
    assert group.state is State.PREPARING


def test_B01_a_static_member_returns_to_its_place_without_a_rebalance() -> None:
    group = new_group()
    group.join(request(instance="i1"), "a", 0.0)
    group.join(request(instance="i2"), "b", 0.0)
    joined = replies(group.tick(3.0))
    one, two = joined["a"].member_id, joined["b"].member_id
    group.sync(two, "i2", 1, (None, None), {}, "sb", 3.0)
    group.sync(one, "i1", 1, (None, None), {one: b"1", two: b"2"}, "sa", 3.0)
    group.saved(Save(1), Code.NONE, 3.0)

    [save] = group.join(request(instance="i2"), "b2", 4.0)
    assert isinstance(save, Save), "it is told nothing before its new id is saved"
    back = replies(group.saved(save, Code.NONE, 4.0))["b2"]
    assert (back.error, back.generation, group.state) == (Code.NONE, 1, State.STABLE)
    again = replies(group.sync(back.member_id, "i2", 1, (None, None), {}, "sb2", 4.0))
    assert again["sb2"].assignment == b"2"
    assert group.heartbeat(two, "i2", 1, 4.1) is Code.FENCED_INSTANCE_ID
    assert group.heartbeat(back.member_id, "i2", 1, 4.1) is Code.NONE

    leader_back = returned(group, request(instance="i1"), "a2")
    assert leader_back.leader == one, "the old leader id: the newcomer must not assign into a stable group"
    assert leader_back.members == ()
    skipping = returned(group, request(instance="i1", can_skip_assignment=True), "a3")
    assert skipping.skip_assignment
    assert skipping.leader == skipping.member_id


def returned(group: Group, asked: JoinRequest, token: str) -> Joined:
    """A static member comes back, and that is saved."""
    [save] = group.join(asked, token, 5.0)
    assert isinstance(save, Save)
    answer = replies(group.saved(save, Code.NONE, 5.0))[token]
    assert isinstance(answer, Joined)
    return answer


def test_B08_a_static_member_whose_return_was_not_saved_is_not_told_that_it_is_back() -> None:
    group = new_group()
    group.join(request(instance="i1"), "a", 0.0)
    leader = replies(group.tick(3.0))["a"].member_id
    group.sync(leader, "i1", 1, (None, None), {leader: b"1"}, "sa", 3.0)
    group.saved(Save(1), Code.NONE, 3.0)
    [first] = group.join(request(instance="i1"), "b", 4.0)
    [second] = group.join(request(instance="i1"), "c", 4.1)
    assert isinstance(first, Save)
    assert isinstance(second, Save)
    assert replies(group.saved(first, Code.NONE, 4.2))["b"].error is Code.FENCED_INSTANCE_ID
    refused = replies(group.saved(second, Code.NOT_COORDINATOR, 4.3))["c"]
    assert refused.error is Code.NOT_COORDINATOR


def test_B01_a_static_member_survives_a_rebalance_it_missed_and_expires_by_its_session() -> None:
    group = new_group()
    group.join(request(instance="i1", session=100.0), "a", 0.0)
    group.join(request(instance="i2", session=100.0), "b", 0.0)
    joined = replies(group.tick(3.0))
    away = joined["b"].member_id
    group.join(request(), "c", 4.0)
    group.join(request(joined["a"].member_id, instance="i1", session=100.0), "a2", 4.0)
    assert set(replies(group.tick(34.0))) == {"a2", "c"}
    assert away in group.members
    group.heartbeat(joined["a"].member_id, "i1", 2, 102.0)
    group.tick(103.0)
    assert away not in group.members


def test_B01_a_member_that_joins_and_never_syncs_is_dropped() -> None:
    group = new_group()
    group.join(request(session=1000.0), "a", 0.0)
    group.join(request(session=1000.0), "b", 0.0)
    joined = replies(group.tick(3.0))
    leader, mute = joined["a"].member_id, joined["b"].member_id
    group.sync(leader, None, 1, (None, None), {leader: b"x"}, "s", 3.0)
    group.saved(Save(1), Code.NONE, 3.0)
    assert group.deadline() == pytest.approx(33.0)
    group.tick(33.0)
    assert mute not in group.members
    assert group.heartbeat(leader, None, 1, 33.0) is Code.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_timeout_s": 0.5}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_s": 9999.0}, Code.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, Code.UNKNOWN_MEMBER_ID),
    ],
)
def test_B01_a_join_that_cannot_be_is_refused_and_disturbs_nobody(change: dict[str, Any], code: Code) -> None:
    group, leader, _ = stable_pair()
    [answer] = replies(group.join(request(**change), "x", 4.0)).values()
    assert answer.error is code
    assert group.state is State.STABLE
    assert group.heartbeat(leader, None, 1, 4.0) is Code.NONE


def test_B01_the_size_of_a_group_is_bounded() -> None:
    group = new_group()
    for number in range(LIMITS.max_group_size):
        assert group.join(request(), number, 0.0) == []
    [answer] = replies(group.join(request(), "one too many", 0.0)).values()
    assert answer.error is Code.GROUP_MAX_SIZE_REACHED


def test_B01_the_protocol_that_most_members_prefer_and_all_know_wins() -> None:
    group = new_group()
    group.join(request(protocols=(("range", b""), ("sticky", b"a"))), "a", 0.0)
    group.join(request(protocols=(("sticky", b"b"), ("range", b""))), "b", 0.0)
    group.join(request(protocols=(("only-c", b""), ("sticky", b"c"), ("range", b""))), "c", 0.0)
    answers = replies(group.tick(3.0))
    assert {answer.protocol for answer in answers.values()} == {"sticky"}
    assert [metadata for _, _, metadata in answers["a"].members] == [b"a", b"b", b"c"]


def test_B08_a_restored_group_accepts_heartbeats_and_expires_who_stays_away() -> None:
    before, leader, follower = stable_pair()
    after = new_group()
    after.generation, after.protocol, after.leader = before.generation, before.protocol, before.leader
    after.protocol_type = before.protocol_type
    after.restore(list(before.members.values()), 100.0)
    assert after.heartbeat(leader, None, 1, 105.0) is Code.NONE
    after.tick(110.0)
    assert follower not in after.members
    assert leader in after.members


def test_B01_commits_are_taken_from_members_of_this_generation_only() -> None:
    group, leader, _ = stable_pair()
    assert group.check_commit(leader, None, 1, 4.0) is Code.NONE
    assert group.check_commit(leader, None, 0, 4.0) is Code.ILLEGAL_GENERATION
    assert group.check_commit("stranger", None, 1, 4.0) is Code.UNKNOWN_MEMBER_ID
    assert group.check_commit("", None, -1, 4.0) is Code.UNKNOWN_MEMBER_ID
    assert new_group().check_commit("", None, -1, 4.0) is Code.NONE


class GroupMachine(RuleBasedStateMachine):
    """Any order of requests and silences: no request is answered twice, and all are once time runs on."""

    def __init__(self) -> None:
        super().__init__()
        self.group = new_group()
        self.now = 0.0
        self.tokens = itertools.count()
        self.waiting: set[int] = set()
        self.ids: list[str] = []
        self.saves: list[Save] = []
        self.generation = 0

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self.saves.append(effect)
                continue
            assert effect.token in self.waiting, "answered twice, or never asked"
            self.waiting.remove(effect.token)
            answer = effect.answer
            if isinstance(answer, Joined) and answer.member_id and answer.member_id not in self.ids:
                self.ids.append(answer.member_id)

    def ask(self) -> int:
        token = next(self.tokens)
        self.waiting.add(token)
        return token

    @rule(required=st.booleans(), instance=st.sampled_from([None, None, "i1", "i2"]))
    def join_new(self, required: bool, instance: str | None) -> None:
        self.carry_out(
            self.group.join(request(id_required=required, instance=instance), self.ask(), self.now)
        )

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), metadata=st.sampled_from([b"topics", b"other"]))
    def rejoin(self, data: st.DataObject, metadata: bytes) -> None:
        member = data.draw(st.sampled_from(self.ids))
        again = request(member, protocols=(("range", metadata),))
        self.carry_out(self.group.join(again, self.ask(), self.now))

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), late=st.integers(0, 1))
    def sync(self, data: st.DataObject, late: int) -> None:
        member = data.draw(st.sampled_from(self.ids))
        shares = {each: each.encode() for each in self.group.members}
        generation = self.group.generation - late
        self.carry_out(self.group.sync(member, None, generation, (None, None), shares, self.ask(), self.now))

    @precondition(lambda self: self.saves)
    @rule(code=st.sampled_from([Code.NONE, Code.NONE, Code.COORDINATOR_NOT_AVAILABLE]))
    def save_done(self, code: Code) -> None:
        self.carry_out(self.group.saved(self.saves.pop(0), code, self.now))

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        _, effects = self.group.leave(data.draw(st.sampled_from(self.ids)), None, self.now)
        self.carry_out(effects)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.group.heartbeat(data.draw(st.sampled_from(self.ids)), None, self.group.generation, self.now)

    @rule(seconds=st.sampled_from([0.1, 3.0, 9.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.group.tick(self.now))

    @invariant()
    def the_generation_never_goes_back(self) -> None:
        assert self.group.generation >= self.generation
        self.generation = self.group.generation

    @invariant()
    def a_group_without_members_is_empty_and_a_leader_is_a_member(self) -> None:
        group = self.group
        assert (group.state is State.EMPTY) <= (not group.members)
        assert group.leader is None or group.leader in group.members
        if group.state is State.STABLE:
            assert group.members

    @invariant()
    def what_is_due_lies_ahead(self) -> None:
        due = self.group.deadline()
        assert self.waiting == set() or due is not None or self.saves, (
            "a request waits and nothing will wake it"
        )

    def teardown(self) -> None:
        """Silence: saves succeed, time runs on; nobody is left waiting and nobody is left in the group."""
        for _ in range(100):
            while self.saves:
                self.carry_out(self.group.saved(self.saves.pop(0), Code.NONE, self.now))
            due = self.group.deadline()
            if due is None:
                break
            self.now = max(self.now, due)
            self.carry_out(self.group.tick(self.now))
        assert self.waiting == set()
        assert not self.group.members


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
