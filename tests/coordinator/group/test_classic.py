"""Classic groups as members see them: joins, generations, assignments, sessions, and the errors of
Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.coordinator.group.classic_group import ClassicState
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_BYTES_MAX, MIB
from tests.coordinator.group.classic_support import GROUP, RANGE, Groups, subscribed


@pytest.fixture
def groups() -> Groups:
    return Groups()


def refusal(action: Any) -> ErrorCode:
    with pytest.raises(MqError) as caught:
        action()
    return caught.value.code


# -- joining


def test_first_members_wait_for_the_initial_delay_and_form_one_generation(groups: Groups) -> None:
    first = groups.join(protocols=[("range", b"first")])
    groups.advance(2)
    second = groups.join(protocols=[("range", b"second")])
    groups.advance(0.9)
    assert not groups.answers
    groups.advance(3.1)  # a member joined: three seconds more
    leader, follower = groups.answer(first), groups.answer(second)
    assert leader == {
        "error_code": ErrorCode.NONE,
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "client-1",
        "skip_assignment": False,
        "member_id": "client-1",
        "members": [
            {"member_id": "client-1", "group_instance_id": None, "metadata": b"first"},
            {"member_id": "client-2", "group_instance_id": None, "metadata": b"second"},
        ],
    }
    assert follower == {**leader, "member_id": "client-2", "members": []}
    assert groups.group().state is ClassicState.COMPLETING_REBALANCE


def test_initial_delay_is_prolonged_to_the_rebalance_timeout_at_most(groups: Groups) -> None:
    first = groups.join(rebalance_ms=7000)
    for _ in range(6):
        groups.advance(1)
        groups.join(rebalance_ms=7000)
    assert first not in groups.answers
    groups.advance(1)
    assert groups.answer(first)["generation_id"] == 1


def test_no_initial_delay_responds_at_once() -> None:
    groups = Groups(group_initial_rebalance_delay_ms=0)
    ticket = groups.join()
    groups.advance(0)
    assert groups.answer(ticket)["generation_id"] == 1


def test_since_version_4_a_new_member_joins_again_with_its_assigned_id(
    groups: Groups,
) -> None:
    assert groups.join_now(version=4, client_id="app") == {
        "error_code": ErrorCode.MEMBER_ID_REQUIRED,
        "member_id": "app-1",
        "protocol_name": None,
    }
    assert groups.describe()["group_state"] == "Empty"
    ticket = groups.join("app-1", version=4, client_id="app")
    groups.advance(3)
    assert groups.answer(ticket)["member_id"] == "app-1"


def test_a_pending_id_expires_after_the_session_timeout(groups: Groups) -> None:
    member_id = groups.join_now(version=4, session_ms=6000)["member_id"]
    groups.advance(6)
    assert groups.join_now(member_id, version=4)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.group().memory == 0


def test_a_rebalance_waits_for_pending_members(groups: Groups) -> None:
    (one,) = groups.form(None)
    pending = groups.join_now(version=4)["member_id"]
    again = groups.join(one)
    assert again not in groups.answers
    other = groups.join(pending, version=4)
    assert groups.answer(again)["generation_id"] == groups.answer(other)["generation_id"] == 2


def test_a_pending_member_that_leaves_does_not_delay_the_others(groups: Groups) -> None:
    (one,) = groups.form(None)
    pending = groups.join_now(version=4)["member_id"]
    again = groups.join(one)
    assert groups.leave(pending) == [ErrorCode.NONE]
    assert groups.answer(again)["generation_id"] == 2


@pytest.mark.parametrize(
    ("more", "error", "member_id"),
    [
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID, "stranger"),
    ],
)
def test_refused_joins_create_no_group(
    groups: Groups, more: dict[str, Any], error: ErrorCode, member_id: str
) -> None:
    answer = groups.join_now(**more)
    assert (answer["error_code"], answer["member_id"]) == (error, member_id)
    assert not groups.log
    assert groups.call("ListGroups", 5, {})["groups"] == []
    assert not groups.classic_timers()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "", "session_ms": 0}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_invalid_joins_are_refused(groups: Groups, more: dict[str, Any], error: ErrorCode) -> None:
    assert refusal(lambda: groups.join_now(**more)) == error
    assert not groups.log


def test_a_join_that_does_not_fit_the_group_is_refused(groups: Groups) -> None:
    groups.form(None)
    assert (
        groups.join_now(protocol_type="connect")["error_code"]
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert (
        groups.join_now(protocols=[("sticky", b"")])["error_code"]
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert groups.join_now("stranger")["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        groups.join_now("stranger", version=5, instance_id="a")["error_code"]
        == ErrorCode.UNKNOWN_MEMBER_ID
    )


def test_rebalance_timeout_of_version_0_is_the_session_timeout(groups: Groups) -> None:
    groups.join(version=0, session_ms=7000)
    groups.advance(3)
    (member,) = groups.group().members.values()
    assert member.rebalance_timeout_ms == 7000


def test_the_common_protocol_with_most_votes_is_chosen(groups: Groups) -> None:
    tickets = [
        groups.join(protocols=[("a", b"1"), ("b", b"1"), ("c", b"1")]),
        groups.join(protocols=[("c", b"2"), ("b", b"2")]),
        groups.join(protocols=[("c", b"3"), ("b", b"3")]),
        groups.join(protocols=[("c", b"4"), ("c", b"ignored"), ("b", b"4")]),
    ]
    groups.advance(6)
    leader = groups.answer(tickets[0])
    assert leader["protocol_name"] == "c"
    assert [row["metadata"] for row in leader["members"]] == [b"1", b"2", b"3", b"4"]


def test_any_protocol_type_forms_a_group(groups: Groups) -> None:
    groups.join(protocol_type="sr", protocols=[("v0", b'{"host":"a"}')], client_id="sr")
    groups.advance(3)
    named = {"version": 5, "protocol_type": "sr", "protocol_name": "v0"}
    assert groups.sync_now("sr-1", 1, {"sr-1": b"leader"}, **named)["assignment"] == b"leader"
    row = groups.describe()
    assert (row["protocol_type"], row["protocol_data"], row["group_state"]) == (
        "sr",
        "v0",
        "Stable",
    )


# -- the next generation


def test_all_members_rejoin_when_a_member_joins(groups: Groups) -> None:
    one, two = groups.form(None, None)
    new = groups.join()
    assert groups.heartbeat(one, 1) == groups.heartbeat(two, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal(lambda: groups.sync_now(one, 1)) == ErrorCode.REBALANCE_IN_PROGRESS
    tickets = [groups.join(one), groups.join(two), new]
    assert [groups.answer(ticket)["generation_id"] for ticket in tickets] == [2, 2, 2]
    assert refusal(lambda: groups.heartbeat(one, 1)) == ErrorCode.ILLEGAL_GENERATION
    groups.synchronize([one, two, groups.answer(new)["member_id"]], 2)
    assert groups.heartbeat(two, 2) == ErrorCode.NONE


def test_a_member_that_does_not_rejoin_in_time_is_removed(groups: Groups) -> None:
    one, two = groups.form(None, None, session_ms=30_000, rebalance_ms=20_000)
    again = groups.join(two, protocols=[("range", b"more")], session_ms=30_000, rebalance_ms=20_000)
    groups.advance(19.9)
    assert again not in groups.answers
    groups.advance(0.1)
    answer = groups.answer(again)
    assert (answer["generation_id"], answer["leader"]) == (2, two)  # the old leader did not rejoin
    assert refusal(lambda: groups.heartbeat(one, 1)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_repeats_its_join_gets_the_generation(groups: Groups) -> None:
    one, two = groups.form(None, None)
    answer = groups.join_now(two, protocols=RANGE)
    assert (answer["generation_id"], answer["leader"], answer["members"]) == (1, one, [])
    assert groups.group().state is ClassicState.STABLE


def test_a_member_that_repeats_its_join_before_the_assignment_gets_the_generation(
    groups: Groups,
) -> None:
    first, second = groups.join(), groups.join()
    groups.advance(6)
    assert groups.join_now("client-1") == groups.answer(first)
    assert groups.join_now("client-2") == groups.answer(second)


def test_a_leader_that_joins_again_begins_a_rebalance(groups: Groups) -> None:
    one, two = groups.form(None, None)
    again = groups.join(one)
    assert groups.heartbeat(two, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    groups.join(two)
    assert groups.answer(again)["generation_id"] == 2


def test_a_follower_with_another_subscription_begins_a_rebalance(groups: Groups) -> None:
    one, two = groups.form(None, None)
    groups.join(two, protocols=[("range", b"other")])
    assert groups.heartbeat(one, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rebalance_fails_members_that_wait_for_assignments(groups: Groups) -> None:
    groups.join()
    groups.join()
    groups.advance(6)
    waiting = groups.sync("client-2", 1)
    groups.join()
    assert groups.answer(waiting)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.group().state is ClassicState.PREPARING_REBALANCE


def test_a_repeated_join_ends_the_waiting_one(groups: Groups) -> None:
    one, two = groups.form(None, None)
    first = groups.join(one)
    second = groups.join(one)
    assert groups.answer(first)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    groups.join(two)
    assert groups.answer(second)["generation_id"] == 2


# -- assignments


def test_followers_get_their_assignments_after_the_leader_s_sync(groups: Groups) -> None:
    first, second = groups.join(), groups.join()
    groups.advance(6)
    assert groups.answer(first)["leader"] == "client-1" and second in groups.answers
    waiting = groups.sync("client-2", 1)
    assert waiting not in groups.answers
    leader = groups.sync_now("client-1", 1, {"client-2": b"all", "stranger": b"none"})
    assert leader == {
        "error_code": ErrorCode.NONE,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignment": b"",
    }
    assert groups.answer(waiting)["assignment"] == b"all"
    assert groups.sync_now("client-2", 1)["assignment"] == b"all"  # also when it requests again


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        (
            {"version": 5, "protocol_type": "connect", "protocol_name": "range"},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (
            {"version": 5, "protocol_type": "consumer", "protocol_name": "sticky"},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        # must be notified
        (
            {"version": 5, "protocol_type": "consumer", "group_id": ""},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"version": 5, "protocol_name": "range"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_invalid_syncs_are_refused(groups: Groups, more: dict[str, Any], error: ErrorCode) -> None:
    groups.form(None)
    request: dict[str, Any] = {"member_id": "client-1", "generation": 1, **more}
    assert refusal(lambda: groups.sync_now(**request)) == error


def test_a_member_that_does_not_sync_in_time_is_removed(groups: Groups) -> None:
    one, two = groups.form(None, None, session_ms=60_000, rebalance_ms=20_000)
    groups.join(one, session_ms=60_000, rebalance_ms=20_000)
    groups.join(two, session_ms=60_000, rebalance_ms=20_000)
    groups.sync_now(one, 2, {})
    groups.advance(20)
    assert refusal(lambda: groups.heartbeat(two, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat(one, 2) == ErrorCode.REBALANCE_IN_PROGRESS


# -- sessions


def test_a_silent_member_is_removed_after_its_session_timeout(groups: Groups) -> None:
    one, two = groups.form(None, None, session_ms=10_000)
    groups.advance(9)
    assert groups.heartbeat(one, 1) == ErrorCode.NONE
    groups.advance(1)
    assert groups.heartbeat(one, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal(lambda: groups.heartbeat(two, 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.join_now(one)["generation_id"] == 2


def test_a_waiting_member_needs_no_heartbeat(groups: Groups) -> None:
    one, two = groups.form(None, None, session_ms=6000)
    again = groups.join(one, session_ms=6000)
    for _ in range(10):
        groups.advance(5)
        assert groups.heartbeat(two, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    groups.advance(10)  # the other one has gone: its session, or the rebalance, is over
    assert groups.answer(again)["generation_id"] == 2


def test_a_new_member_waits_five_minutes_at_most(groups: Groups) -> None:
    groups.form(None, session_ms=1_800_000, rebalance_ms=1_800_000)
    new = groups.join(session_ms=6000)
    groups.advance(299)
    assert new not in groups.answers
    groups.advance(1)
    assert groups.answer(new) == {
        "error_code": ErrorCode.UNKNOWN_MEMBER_ID,
        "member_id": "",
        "protocol_name": None,
    }


def test_a_commit_extends_a_session(groups: Groups) -> None:
    (one,) = groups.form(None, session_ms=6000)
    groups.advance(5)
    groups.shard.classic.extend_session(groups.group(), one, groups.now)
    groups.advance(5)
    assert groups.heartbeat(one, 1) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_invalid_heartbeats_are_refused(
    groups: Groups, more: dict[str, Any], error: ErrorCode
) -> None:
    groups.form(None)
    request: dict[str, Any] = {"member_id": "client-1", "generation": 1, **more}
    assert refusal(lambda: groups.heartbeat(**request)) == error


# -- leaving


def test_a_group_is_empty_after_its_last_member_leaves(groups: Groups) -> None:
    (one,) = groups.form(None)
    assert groups.leave(one) == [ErrorCode.NONE]
    group = groups.group()
    assert (group.state, group.generation, group.protocol, group.members.leader) == (
        ClassicState.EMPTY,
        2,
        None,
        None,
    )
    assert group.protocol_type == "consumer"
    assert not groups.classic_timers()
    assert group.members.size == 0


def test_several_members_leave_at_once_with_an_error_each(groups: Groups) -> None:
    one, two, three = groups.form(None, None, None)
    waiting = groups.join(two, protocols=[("range", b"more")])
    assert groups.leave(one, "stranger", two) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert groups.answer(waiting)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(groups.group().members) == [three]
    assert groups.leave("anybody", group_id="none") == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_versions_without_several_members_return_the_members_error(groups: Groups) -> None:
    (one,) = groups.form(None)
    assert (
        groups.call("LeaveGroup", 2, {"group_id": GROUP, "member_id": "stranger"})["error_code"]
        == ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert (
        groups.call("LeaveGroup", 0, {"group_id": GROUP, "member_id": one})["error_code"]
        == ErrorCode.NONE
    )
    assert (
        refusal(lambda: groups.call("LeaveGroup", 0, {"group_id": "", "member_id": one}))
        == ErrorCode.INVALID_GROUP_ID
    )


def test_another_member_leads_after_the_leader_leaves(groups: Groups) -> None:
    one, two = groups.form(None, None)
    groups.leave(one)
    assert groups.join_now(two)["leader"] == two


# -- static members


def test_a_static_member_returns_under_a_new_id_without_a_rebalance(groups: Groups) -> None:
    one, two = groups.form("a", "b")
    answer = groups.join_now(version=5, instance_id="b")
    assert answer["member_id"] == "b-3" and answer["generation_id"] == 1
    assert (answer["leader"], answer["members"], answer["skip_assignment"]) == (one, [], False)
    assert groups.sync_now("b-3", 1, instance_id="b")["assignment"] == two.encode()
    assert (
        refusal(lambda: groups.heartbeat(two, 1, instance_id="b")) == ErrorCode.FENCED_INSTANCE_ID
    )
    assert refusal(lambda: groups.heartbeat(two, 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat("b-3", 1, instance_id="b") == ErrorCode.NONE
    assert groups.heartbeat(one, 1, instance_id="a") == ErrorCode.NONE


def test_a_returning_static_leader_must_not_assign_since_version_9(
    groups: Groups,
) -> None:
    one, two = groups.form("a", "b")
    answer = groups.join_now(version=9, instance_id="a")
    assert answer["leader"] == answer["member_id"] == "a-3"
    assert answer["skip_assignment"] is True
    assert sorted(row["member_id"] for row in answer["members"]) == ["a-3", two]
    assert groups.sync_now("a-3", 1, instance_id="a")["assignment"] == one.encode()


def test_a_returning_static_leader_of_version_8_gets_its_old_id_as_leader(
    groups: Groups,
) -> None:
    one, _ = groups.form("a", "b")
    answer = groups.join_now(version=8, instance_id="a")
    assert (
        answer["leader"],
        answer["member_id"],
        answer["members"],
        answer["skip_assignment"],
    ) == (one, "a-3", [], False)
    assert groups.group().members.leader == "a-3"


def test_a_static_member_that_changes_the_protocol_begins_a_rebalance(
    groups: Groups,
) -> None:
    (one,) = groups.form("a", protocols=[("range", b""), ("sticky", b"")])
    ticket = groups.join(version=5, instance_id="a", protocols=[("sticky", b"")])
    assert groups.answer(ticket)["generation_id"] == 2
    assert groups.answer(ticket)["protocol_name"] == "sticky"
    assert one not in groups.group().members


def test_a_static_member_that_returns_in_a_rebalance_replaces_the_old_one(
    groups: Groups,
) -> None:
    one, two = groups.form("a", "b")
    old = groups.join(one, version=5, instance_id="a")
    new = groups.join(version=5, instance_id="a")
    assert groups.answer(old)["error_code"] == ErrorCode.FENCED_INSTANCE_ID
    groups.join(two, version=5, instance_id="b")
    assert groups.answer(new)["generation_id"] == 2
    assert groups.answer(new)["leader"] == groups.answer(new)["member_id"] == "a-3"


def test_a_static_member_that_returns_before_the_assignment_starts_again(groups: Groups) -> None:
    tickets = [groups.join(version=5, instance_id=one) for one in "ab"]
    groups.advance(6)
    one, two = (groups.answer(ticket)["member_id"] for ticket in tickets)
    waiting = groups.sync(two, 1, instance_id="b")
    new = groups.join(version=5, instance_id="b")
    assert groups.answer(waiting)["error_code"] == ErrorCode.FENCED_INSTANCE_ID
    groups.join(one, version=5, instance_id="a")
    assert groups.answer(new)["generation_id"] == 2


def test_a_rebalance_keeps_a_missing_static_member_for_its_session(groups: Groups) -> None:
    one, two = groups.form("a", "b", session_ms=120_000, rebalance_ms=20_000)
    again = groups.join(one, version=5, instance_id="a", session_ms=120_000, rebalance_ms=20_000)
    groups.advance(20)
    answer = groups.answer(again)
    assert answer["generation_id"] == 2
    assert [row["group_instance_id"] for row in answer["members"]] == ["a", "b"]
    assert two in groups.group().members


def test_a_rebalance_without_joins_continues_to_wait(groups: Groups) -> None:
    one, two = groups.form("a", "b", session_ms=120_000, rebalance_ms=20_000)
    groups.leave(two)
    groups.advance(61)
    assert groups.group().state is ClassicState.PREPARING_REBALANCE
    groups.advance(60)
    assert one not in groups.group().members and groups.group().is_empty


@pytest.mark.parametrize("rebalance_ms", [0, -5])
def test_a_rebalance_without_timeout_and_joins_is_not_polled(
    groups: Groups, rebalance_ms: int
) -> None:
    (one,) = groups.form("a")
    groups.join(one, version=5, instance_id="a", rebalance_ms=rebalance_ms)
    groups.join(rebalance_ms=rebalance_ms)
    groups.leave("client-2")
    looked = 0
    while one in groups.group().members:  # until its session ends
        groups.carry_out(groups.shard.on_deadline(groups.now))
        groups._move_to(max(groups.shard.next_deadline() or 0, groups.now.seconds))
        looked += 1
        assert looked < 20


def test_an_administrator_removes_a_static_member_by_its_instance(groups: Groups) -> None:
    groups.form("a", "b")
    assert groups.leave("", instance_id="a") == [ErrorCode.NONE]
    assert groups.leave("", instance_id="nobody") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert groups.leave("wrong", instance_id="b") == [ErrorCode.FENCED_INSTANCE_ID]
    assert list(groups.group().members.static) == ["b"]


# -- bounds


def test_the_number_of_members_is_bounded() -> None:
    groups = Groups(group_max_size=2)
    groups.form(None, None)
    assert groups.join_now() == {
        "error_code": ErrorCode.GROUP_MAX_SIZE_REACHED,
        "member_id": "",
        "protocol_name": None,
    }
    assert groups.group().state is ClassicState.STABLE


def test_a_loaded_group_with_too_many_members_removes_the_last() -> None:
    groups = Groups()
    one, two, three = groups.form(None, None, None)
    groups.options.own["group.max.size"] = 2
    groups.fail_over()
    assert groups.heartbeat(one, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    tickets = [groups.join(one), groups.join(three)]
    assert groups.join_now(two)["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [groups.answer(ticket)["generation_id"] for ticket in tickets] == [2, 2]


def test_metadata_of_members_is_bounded(groups: Groups) -> None:
    large = bytes(GROUP_BYTES_MAX // 3)
    groups.join(protocols=[("range", large)])
    groups.join(protocols=[("range", large)])
    assert (
        groups.join_now(protocols=[("range", large)])["error_code"]
        == ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    assert groups.join_now(version=4, protocols=RANGE)["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    assert groups.group().memory <= GROUP_BYTES_MAX


def test_oversized_assignments_are_refused_and_the_group_rebalances() -> None:
    groups = Groups(message_max_bytes=10_000)
    groups.join()
    groups.join()
    groups.advance(6)
    waiting = groups.sync("client-2", 1)
    assert (
        groups.sync_now("client-1", 1, {"client-2": bytes(10_000)})["error_code"]
        == ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert groups.answer(waiting)["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.group().state is ClassicState.PREPARING_REBALANCE
    assert len(groups.written()) == 1
    again = groups.join("client-1"), groups.join("client-2")
    assert [groups.answer(ticket)["generation_id"] for ticket in again] == [2, 2]
    groups.synchronize(["client-1", "client-2"], 2)


def test_a_returning_static_member_with_too_much_metadata_is_refused() -> None:
    groups = Groups(message_max_bytes=10_000)
    (one,) = groups.form("a")
    answer = groups.join_now(version=5, instance_id="a", protocols=[("range", bytes(10_000))])
    assert answer["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.heartbeat(one, 1, instance_id="a") == ErrorCode.NONE


def test_long_names_count_as_metadata_of_members(groups: Groups) -> None:
    long = "p" * 32_000
    groups.join()
    groups.join(protocols=[*RANGE, *((f"{long}{number}", b"") for number in range(10))])
    assert groups.group().memory > 300_000


@pytest.mark.parametrize("instance_id", [None, "i" * 32_767])
def test_the_longest_names_yield_writable_member_ids(
    groups: Groups, instance_id: str | None
) -> None:
    ticket = groups.join(
        version=5 if instance_id else 3, instance_id=instance_id, client_id="c" * 32_767
    )
    groups.advance(3)
    member_id = groups.answer(ticket)["member_id"]
    groups.sync_now(member_id, 1, {member_id: b"work"})
    groups.fail_over()
    assert list(groups.group().members) == [member_id]


def test_pending_ids_are_bounded(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqd.coordinator.group.classic_join.GROUP_BYTES_MAX", MIB)
    answers = {groups.join_now(version=4)["error_code"] for _ in range(MIB // 1024 + 10)}
    assert answers == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}


# -- descriptions


def test_describing_a_group_in_each_state(groups: Groups) -> None:
    groups.join(protocols=[("range", b"said")])
    row = groups.describe()
    assert (row["group_state"], row["protocol_data"]) == ("PreparingRebalance", "")
    groups.advance(3)
    assert groups.describe()["group_state"] == "CompletingRebalance"
    groups.sync_now("client-1", 1, {"client-1": b"work"})
    assert groups.describe() == {
        "error_code": ErrorCode.NONE,
        "group_id": GROUP,
        "group_state": "Stable",
        "protocol_type": "consumer",
        "protocol_data": "range",
        "members": [
            {
                "member_id": "client-1",
                "group_instance_id": None,
                "client_id": "client",
                "client_host": "/10.0.0.1",
                "member_metadata": b"said",
                "member_assignment": b"work",
            }
        ],
    }


def test_describing_a_group_that_does_not_exist(groups: Groups) -> None:
    assert groups.describe("none", 5) == {
        "group_id": "none",
        "group_state": "Dead",
        "error_code": ErrorCode.NONE,
    }
    assert groups.describe("none", 6) == {
        "group_id": "none",
        "group_state": "Dead",
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
        "error_message": "Group none not found.",
    }


def test_listing_by_state_and_type(groups: Groups) -> None:
    groups.form(None)
    groups.join(group_id="other", protocol_type="connect")

    def listed(**filters: list[str]) -> list[str]:
        return [
            row["group_id"]
            for row in groups.call(
                "ListGroups", 5, {"states_filter": [], "types_filter": []} | filters
            )["groups"]
        ]

    assert listed() == [GROUP, "other"]
    assert listed(states_filter=["stable "]) == [GROUP]
    assert listed(states_filter=["PreparingRebalance", "Stable"]) == [GROUP, "other"]
    assert listed(types_filter=["Classic"]) == [GROUP, "other"]
    assert listed(types_filter=["consumer"]) == listed(types_filter=["nonsense"]) == []
    (row,) = groups.call("ListGroups", 5, {"states_filter": ["Stable"], "types_filter": []})[
        "groups"
    ]
    assert row == {
        "group_id": GROUP,
        "protocol_type": "consumer",
        "group_state": "Stable",
        "group_type": "classic",
    }


def test_only_an_empty_group_is_deleted(groups: Groups) -> None:
    (one,) = groups.form(None)

    def deleted(*names: str) -> list[ErrorCode]:
        return [
            row["error_code"]
            for row in groups.call("DeleteGroups", 2, {"groups_names": list(names)})["results"]
        ]

    assert deleted(GROUP, "none") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    groups.leave(one)
    assert deleted(GROUP) == [ErrorCode.NONE]
    assert groups.written()[-1] is None
    assert GROUP not in groups.shard.state.by_id
    groups.fail_over()
    assert GROUP not in groups.shard.state.by_id


# -- commits


def test_which_members_may_commit(groups: Groups) -> None:
    (one,) = groups.form(None)
    group = groups.group()

    def check(
        member_id: str,
        generation: int,
        *,
        transactional: bool = False,
        instance_id: str | None = None,
    ) -> ErrorCode:
        try:
            group.check_commit(
                member_id, generation, instance_id, transactional=transactional, version=9
            )
        except MqError as error:
            return error.code
        return ErrorCode.NONE

    assert check(one, 1) == ErrorCode.NONE
    assert check(one, 0) == ErrorCode.ILLEGAL_GENERATION
    assert check("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    # a commit without a member is refused while a group has members
    assert check("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1, transactional=True) == ErrorCode.NONE
    assert check(one, 1, instance_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    groups.join(one)
    assert group.state is ClassicState.COMPLETING_REBALANCE
    assert check(one, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert check(one, 2, transactional=True) == ErrorCode.NONE
    groups.leave(one)
    assert check("", -1) == ErrorCode.NONE


def test_subscribed_topics_are_in_use(groups: Groups) -> None:
    ticket = groups.join(protocols=[("range", subscribed("a", "b"))])
    groups.advance(3)
    group = groups.group()
    assert set(group.subscribed("abc").topics) == {"a", "b"}
    groups.join(groups.answer(ticket)["member_id"], protocols=[("range", b"not what it should be")])
    assert group.subscribed("c").topics == "c"  # the subscriptions are unknown
    other = groups.join(group_id="workers", protocol_type="connect")
    groups.advance(3)
    assert other in groups.answers and not groups.group("workers").subscribed("a").topics


def test_offsets_expire_after_the_group_is_empty(groups: Groups) -> None:
    (one,) = groups.form(None, protocols=[("range", subscribed("a"))])
    group = groups.group()
    assert group.offsets_expire_from(5) == 5
    groups.join()
    assert group.offsets_expire_from(5) is None  # not in a rebalance
    groups.advance(400)
    assert one not in group.members and group.is_empty
    assert group.offsets_expire_from(5) == group.since_ms


def test_subscriptions_that_no_member_has_any_more_count(groups: Groups) -> None:
    """Until the next generation, they protect offsets."""
    large = subscribed(*(f"topic-{number}" for number in range(1_000)))
    groups.form("a", "b", protocols=[("range", large)])
    group = groups.group()
    before = group.memory
    groups.join("a", protocols=[("range", subscribed("t"))])
    groups.leave("b")
    assert group.memory > before - 3 * 1024 > len(large)
