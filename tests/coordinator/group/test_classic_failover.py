"""What survives the coordinator of a classic group: the last generation in the log, and nothing
that was not written.
"""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqd.coordinator.group.classic_group import ClassicGroup, ClassicState
from mqd.coordinator.group.classic_member import member_size
from mqd.coordinator.group.records import GroupMetadata
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.shard import CoordinatorResult
from mqd.errors import ErrorCode, MqError
from tests.coordinator.group.classic_support import GROUP, Groups, subscribed
from tests.coordinator.group.support import Topics


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_members_continue_with_heartbeats_after_a_failover(groups: Groups) -> None:
    one, two = groups.form(None, "b", session_ms=10_000)
    groups.advance(9)
    groups.fail_over()
    assert groups.describe()["group_state"] == "Stable"
    groups.advance(9)  # sessions restarted
    assert groups.heartbeat(one, 1) == groups.heartbeat(two, 1, instance_id="b") == ErrorCode.NONE
    assert groups.sync_now(two, 1, instance_id="b")["assignment"] == two.encode()


def test_a_member_silent_after_a_failover_is_removed(groups: Groups) -> None:
    one, two = groups.form(None, None, session_ms=10_000)
    groups.fail_over()
    groups.advance(9)
    assert groups.heartbeat(one, 1) == ErrorCode.NONE
    groups.advance(1)
    assert groups.heartbeat(one, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert two not in groups.group().members


def test_a_generation_without_assignments_is_lost(groups: Groups) -> None:
    (one,) = groups.form(None)
    new = groups.join()
    groups.join(one)
    assert groups.answer(new)["generation_id"] == 2
    groups.fail_over()
    with pytest.raises(MqError, match="UNKNOWN_MEMBER_ID"):
        groups.sync_now(groups.answer(new)["member_id"], 2)
    with pytest.raises(MqError, match="ILLEGAL_GENERATION"):
        groups.sync_now(one, 2)
    assert groups.heartbeat(one, 1) == ErrorCode.NONE


def test_a_group_without_members_survives_a_failover(groups: Groups) -> None:
    waiting = groups.join()
    assert groups.written() == [GroupMetadata("", 0, None, None, groups.now.wall_ms)]
    groups.fail_over()
    with pytest.raises(MqError, match="NOT_COORDINATOR"):
        groups.answer(waiting)
    assert groups.group().is_empty and groups.group().protocol_type is None


def test_a_member_that_returns_under_a_new_id_keeps_it(groups: Groups) -> None:
    one, two = groups.form("a", "b")
    groups.join_now(version=9, instance_id="a")
    groups.fail_over()
    assert groups.group().members.static == {"b": two, "a": "a-3"}
    assert groups.group().members.leader == "a-3"
    assert groups.sync_now("a-3", 1, instance_id="a")["assignment"] == one.encode()


def test_a_returned_static_leader_leads_the_next_generation_too(groups: Groups) -> None:
    _, two = groups.form("a", "b")
    groups.join_now(version=9, instance_id="a")
    groups.join("a-3", version=9, instance_id="a")
    groups.join(two, version=9, instance_id="b")
    groups.synchronize(["a-3", two], 2)
    assert groups.group().members.leader == "a-3"
    groups.fail_over()
    assert groups.group().members.leader == "a-3" and groups.group().generation == 2


def test_an_empty_group_keeps_its_generation_and_type(groups: Groups) -> None:
    (one,) = groups.form(None)
    groups.leave(one)
    groups.fail_over()
    group = groups.group()
    assert (group.state, group.generation, group.protocol_type) == (
        ClassicState.EMPTY,
        2,
        "consumer",
    )
    ticket = groups.join()
    groups.advance(3)
    assert groups.answer(ticket)["generation_id"] == 3


def test_records_without_a_rebalance_timeout_use_the_session_timeout(groups: Groups) -> None:
    groups.form(None)
    value = groups.written()[-1]
    assert value is not None
    (row,) = value.members
    old = GroupMetadata(
        **{
            name: getattr(value, name)
            for name in ("protocol_type", "generation", "protocol", "leader")
        },
        members=(row,),
    )
    group = ClassicGroup(GROUP, None)
    group.replay(old)
    assert group.since_ms is None
    (member,) = group.members.values()
    assert (member.rebalance_timeout_ms, member.protocols) == (60_000, (("range", b"r"),))


# -- an append that is refused


def refuse(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the log refuses appends; the requests that the same decision answers get that
    error.
    """

    def carry_out(decision: CoordinatorResult) -> None:
        for ticket, outcome in decision.responses:
            groups._answer(
                ticket,
                MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE) if decision.records else outcome,
            )

    monkeypatch.setattr(groups, "carry_out", carry_out)


def test_a_group_is_unchanged_when_its_assignments_cannot_be_written(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.join()
    groups.join()
    groups.advance(6)
    waiting = groups.sync("client-2", 1)
    with monkeypatch.context() as patch:
        refuse(groups, patch)
        for ticket in (groups.sync("client-1", 1, {"client-1": b"x"}), waiting):
            with pytest.raises(MqError, match="COORDINATOR_NOT_AVAILABLE"):
                groups.answer(ticket)
    assert groups.group().state is ClassicState.COMPLETING_REBALANCE
    assert groups.join_now("client-1")["generation_id"] == 1  # as clients do then
    groups.synchronize(["client-1", "client-2"], 1)


def test_an_unwritable_empty_state_is_written_later(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = groups.form(None)
    with monkeypatch.context() as patch:
        refuse(groups, patch)
        with pytest.raises(MqError, match="COORDINATOR_NOT_AVAILABLE"):
            groups.leave(one)
        groups.advance(7)
    assert groups.group().state is ClassicState.PREPARING_REBALANCE
    groups.advance(5)
    assert groups.group().is_empty and groups.group().generation == 2
    groups.fail_over()
    assert groups.group().is_empty and groups.group().generation == 2


def test_a_static_member_keeps_its_id_when_a_new_one_cannot_be_written(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = groups.form("a")
    with monkeypatch.context() as patch:
        refuse(groups, patch)
        with pytest.raises(MqError, match="COORDINATOR_NOT_AVAILABLE"):
            groups.join_now(version=5, instance_id="a")
    assert groups.heartbeat(one, 1, instance_id="a") == ErrorCode.NONE
    assert groups.join_now(version=5, instance_id="a")["member_id"] == "a-3"


def test_a_group_whose_record_cannot_be_written_does_not_exist(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse(groups, patch)
        groups.join(protocols=[("roundrobin", b"r")])
    assert groups.shard.state.get(GROUP) is None
    groups.advance(700)
    assert not groups.classic_timers()
    ticket = groups.join()
    assert list(groups.group().members) == ["client-2"]
    groups.advance(3)
    assert groups.answer(ticket)["protocol_name"] == "range"


# -- live and loading alike


def test_a_returning_static_member_keeps_protocols_without_a_record(groups: Groups) -> None:
    """The group selects another protocol as soon as all members support it."""
    both = [("sticky", b"s"), ("range", b"r")]
    groups.form("a", "b")
    groups.join_now(version=9, instance_id="a", protocols=both)
    assert groups.group().members["a-3"].protocols == tuple(both)
    groups.join(version=9, instance_id="b", protocols=both)
    assert groups.group().state is ClassicState.PREPARING_REBALANCE
    groups.join("a-3", version=9, instance_id="a", protocols=both)
    assert groups.group().protocol == "sticky"


def test_the_record_alone_changes_a_live_group(groups: Groups) -> None:
    """The state and the subscriptions of the group are those of a group that was loaded."""
    groups.form("a", "b", protocols=[("range", subscribed("t"))])
    groups.join_now(version=9, instance_id="a", protocols=[("range", subscribed("t", "u"))])
    loaded = groups.read_again().state.by_id[GROUP]
    assert isinstance(loaded, ClassicGroup)
    live = groups.group()
    assert set(live.subscribed("tuv").topics) == set(loaded.subscribed("tuv").topics) == {"t", "u"}
    assert (live.state, live.since_ms) == (loaded.state, loaded.since_ms)


# -- anything in any order


MEMBERS = st.integers(0, 4)


class AnyOrder(RuleBasedStateMachine):
    """Five clients, three of them static, act at random; occasionally the coordinator fails
    over.
    """

    @initialize(delay=st.sampled_from([0, 3000]))
    def begin(self, delay: int) -> None:
        self.groups = Groups(group_initial_rebalance_delay_ms=delay, group_max_size=4)
        self.ids = dict.fromkeys(range(5), "")
        self.generations: dict[int, int] = dict.fromkeys(range(5), -1)
        self.tickets: dict[int, int] = {}
        self.owners: dict[tuple[int, str], int] = {}

    def _instance(self, client: int) -> str | None:
        return f"static{client}" if client < 3 else None

    @rule(
        client=MEMBERS,
        fresh=st.booleans(),
        version=st.sampled_from([5, 9]),
        protocols=st.sampled_from(["a", "b", "ab", "ba"]),
    )
    def join(self, client: int, fresh: bool, version: int, protocols: str) -> None:
        self.tickets[client] = self.groups.join(
            "" if fresh else self.ids[client],
            version=version,
            instance_id=self._instance(client),
            protocols=[(name, bytes([client])) for name in protocols],
            session_ms=12_000 + 1000 * client,
            rebalance_ms=20_000,
        )
        self.process_join_response(client)

    @rule(client=MEMBERS)
    def process_join_response(self, client: int) -> None:
        """Process the response to the last JoinGroup."""
        answer = self.groups.answers.get(self.tickets.get(client, -1))
        if isinstance(answer, dict):
            self.ids[client] = answer["member_id"]
            self.generations[client] = answer.get("generation_id", -1)

    @rule(client=MEMBERS)
    def sync(self, client: int) -> None:
        group = self.groups.shard.state.get(GROUP)
        members = list(group.members) if isinstance(group, ClassicGroup) else []
        ticket = self.groups.sync(
            self.ids[client],
            self.generations[client],
            {
                one: f"{self.generations[client]}:{number}".encode()
                for number, one in enumerate(members)
            },
            instance_id=self._instance(client),
        )
        self._own(client, ticket)

    def _own(self, client: int, ticket: int) -> None:
        answer = self.groups.answers.get(ticket)
        if (
            isinstance(answer, dict)
            and answer["error_code"] == ErrorCode.NONE
            and answer["assignment"]
        ):
            who = self.owners.setdefault(
                (self.generations[client], answer["assignment"].decode()), client
            )
            assert who == client, "two owners in one generation"

    @rule(clients=st.lists(MEMBERS, unique=True, min_size=1, max_size=4), early=st.booleans())
    def complete_rebalance(self, clients: list[int], early: bool) -> None:
        """These clients behave correctly: they join and request their assignments, the leader first
        or last.
        """
        for client in clients:
            self.join(client, False, 9, "ab")
        for client in clients:
            self.process_join_response(client)
            if not self.ids[client]:
                self.join(client, True, 9, "ab")
        for _ in range(60):
            if all(self.tickets[client] in self.groups.answers for client in clients):
                break
            self.groups.advance(0.5)
        for client in clients:
            self.process_join_response(client)
        group = self.groups.shard.state.get(GROUP)
        leader = group.members.leader if isinstance(group, ClassicGroup) else None
        for client in sorted(clients, key=lambda one: (self.ids[one] == leader) != early):
            self.sync(client)

    @rule(client=MEMBERS)
    def heartbeat(self, client: int) -> None:
        try:
            self.groups.heartbeat(
                self.ids[client], self.generations[client], instance_id=self._instance(client)
            )
        except MqError as error:
            assert error.code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.FENCED_INSTANCE_ID,
            )

    @rule(client=MEMBERS)
    def leave(self, client: int) -> None:
        self.groups.leave(self.ids[client], instance_id=self._instance(client))

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 4.0, 13.0]))
    def wait(self, seconds: float) -> None:
        self.groups.advance(seconds)

    @rule()
    @precondition(lambda self: self.groups.shard.state.by_id)
    def fail_over(self) -> None:
        self.groups.fail_over()
        self.owners.clear()  # a generation that was not written may be assigned again

    @invariant()
    def what_is_written_is_what_a_successor_would_have(self) -> None:
        if not hasattr(self, "groups"):
            return
        groups = self.groups
        successor = GroupShard(Topics(), groups.options, lambda: "never")
        for record, producer in groups.log:
            assert not isinstance(record, bool)
            successor.replay(record, producer)
        live, loaded = groups.shard.state.get(GROUP), successor.state.get(GROUP)
        assert (live is None) == (loaded is None)
        if not isinstance(live, ClassicGroup) or not isinstance(loaded, ClassicGroup):
            return
        if live.state in (ClassicState.STABLE, ClassicState.EMPTY):
            assert (
                live.state == loaded.state
                and live.generation == loaded.generation
                and live.protocol == loaded.protocol
                and live.since_ms == loaded.since_ms
                and set(live.subscribed("tuv").topics) == set(loaded.subscribed("tuv").topics)
            )
            assert (
                live.members.leader == loaded.members.leader
                and live.members.static == loaded.members.static
            )
            result = [
                (one.member_id, one.instance_id, one.assignment) for one in live.members.values()
            ]
            assert sorted(result) == sorted(
                (one.member_id, one.instance_id, one.assignment) for one in loaded.members.values()
            )
        else:
            assert loaded.generation <= live.generation

    @invariant()
    def the_group_is_consistent(self) -> None:
        if not hasattr(self, "groups"):
            return
        group = self.groups.shard.state.get(GROUP)
        if not isinstance(group, ClassicGroup):
            return
        known = group.members
        members = known.values()
        assert known.static == {
            one.instance_id: one.member_id for one in members if one.instance_id is not None
        }
        assert known.waiting_to_join == sum(one.join_ticket is not None for one in members)
        assert all(one.join_ticket is None or one.sync_ticket is None for one in members)
        assert known.size == sum(one.size for one in members) + sum(
            member_size([member_id]) for member_id in known.pending
        )
        assert not known.pending.keys() & known.keys() and known.not_synced.keys() <= known.keys()
        assert (known.leader in known) if members else known.leader is None
        counts: dict[str, int] = {}
        for one in members:
            for name, _ in one.protocols:
                counts[name] = counts.get(name, 0) + 1
        assert known.supports == counts
        if group.state is ClassicState.STABLE:
            assert known.waiting_to_join == 0 and all(one.sync_ticket is None for one in members)
        if group.state is ClassicState.EMPTY:
            assert not members
        if group.state is not ClassicState.PREPARING_REBALANCE:
            assert known.waiting_to_join == 0

    @invariant()
    def no_ticket_is_lost(self) -> None:
        """No ticket is lost: it belongs to a member, or it has a response.

        A group that is not at rest has a deadline.
        """
        if not hasattr(self, "groups"):
            return
        group = self.groups.shard.state.get(GROUP)
        members = group.members.values() if isinstance(group, ClassicGroup) else ()
        held = {
            ticket
            for one in members
            for ticket in (one.join_ticket, one.sync_ticket)
            if ticket is not None
        }
        assert self.groups.waiting == held
        if held:
            assert self.groups.shard.next_deadline() is not None

    def teardown(self) -> None:
        if hasattr(self, "groups"):
            self.groups.advance(700)
            assert not self.groups.waiting
            group = self.groups.shard.state.get(GROUP)
            assert group is None or group.is_empty
            assert not self.groups.classic_timers()


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
