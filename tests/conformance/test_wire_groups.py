"""Classic groups on the wire: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups,
ListGroups and DeleteGroups in every version, and their errors.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`).
"""

from __future__ import annotations

from typing import Any

import pytest

from .classic_members import Members
from .wire import until

(
    NONE,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    INVALID_GROUP_ID,
    UNKNOWN_MEMBER,
    INVALID_SESSION_TIMEOUT,
) = 0, 22, 23, 24, 25, 26
REBALANCE_IN_PROGRESS, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE = (
    27,
    68,
    69,
    79,
    82,
)
JOIN_VERSIONS, SYNC_VERSIONS, HEARTBEAT_VERSIONS, LEAVE_VERSIONS = (
    range(10),
    range(6),
    range(5),
    range(6),
)
DESCRIBE_VERSIONS, LIST_VERSIONS, DELETE_VERSIONS = range(7), range(6), range(3)
ALL_GROUP_OPERATIONS = {3, 6, 8, 10, 11}
"""Read, delete, describe, describe configs, alter configs."""


# -- errors


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_invalid_joins_are_refused(members: Members, version: int) -> None:
    def refused(**more: Any) -> tuple[int, str]:
        answer = members.joined(members.admin, version, **more)
        assert (answer.generation_id, answer.leader, list(answer.members)) == (-1, "", [])
        assert answer.protocol_name == (None if version >= 7 else "")
        return answer.error_code, answer.member_id

    assert refused(group_id="", member="m") == (INVALID_GROUP_ID, "m")
    assert refused(session_timeout_ms=0) == (INVALID_SESSION_TIMEOUT, "")
    assert refused(session_timeout_ms=1_800_001) == (INVALID_SESSION_TIMEOUT, "")
    assert refused(member="stranger") == (UNKNOWN_MEMBER, "stranger")
    assert refused(protocols=()) == (INCONSISTENT_PROTOCOL, "")
    assert refused(protocol_type="") == (INCONSISTENT_PROTOCOL, "")


@pytest.mark.parametrize("version", SYNC_VERSIONS)
def test_invalid_syncs_are_refused(members: Members, version: int) -> None:
    wire = members.connect()
    member = members.alone(wire)
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}

    def refused(who: str = member, generation: int = 1, **more: Any) -> int:
        answer = members.synced(wire, who, generation, None, version, **{**named, **more})
        assert answer.assignment == b""
        code: int = answer.error_code
        return code

    assert refused(group_id="") == INVALID_GROUP_ID
    assert refused("stranger") == UNKNOWN_MEMBER
    assert refused(generation=2) == ILLEGAL_GENERATION
    if version >= 3:
        assert refused(group_instance_id="nobody") == UNKNOWN_MEMBER
    if version >= 5:
        for wrong in (
            {"protocol_type": "connect"},
            {"protocol_name": "sticky"},
            {"protocol_type": None},
            {"protocol_name": None},
        ):
            assert refused(**wrong) == INCONSISTENT_PROTOCOL
        assert refused(group_id="", protocol_type=None) == INCONSISTENT_PROTOCOL


@pytest.mark.parametrize("version", HEARTBEAT_VERSIONS)
def test_invalid_heartbeats_are_refused(members: Members, version: int) -> None:
    member = members.alone(members.connect())
    assert members.heartbeat(member, 1, version) == NONE
    assert members.heartbeat(member, 0, version) == ILLEGAL_GENERATION
    assert members.heartbeat("stranger", 1, version) == UNKNOWN_MEMBER
    assert members.heartbeat(member, 1, version, group_id="") == INVALID_GROUP_ID
    if version >= 3:
        assert members.heartbeat(member, 1, version, group_instance_id="nobody") == UNKNOWN_MEMBER


@pytest.mark.parametrize("version", LEAVE_VERSIONS)
def test_leaving_in_every_version(members: Members, version: int) -> None:
    def leave(member: str, **more: Any) -> int:
        if version < 3:
            code: int = members.admin.ask(
                "LeaveGroup", version, **{"group_id": members.group, "member_id": member, **more}
            ).error_code
            return code
        answer = members.admin.ask(
            "LeaveGroup",
            version,
            **{"group_id": members.group, "members": [{"member_id": member}], **more},
        )
        both: int = answer.error_code or answer.members[0].error_code
        return both

    assert leave("stranger") == UNKNOWN_MEMBER
    assert leave("m", group_id="") == INVALID_GROUP_ID
    member = members.alone(members.connect())
    assert leave("stranger") == UNKNOWN_MEMBER
    assert leave(member) == NONE
    assert members.state() == "Empty"


# -- the life of a group


def test_a_group_from_its_first_member_to_its_end(members: Members) -> None:
    one, two = members.connect(), members.connect()
    first = members.joined(one)
    assert first.error_code == MEMBER_ID_REQUIRED and first.member_id.startswith("wire-")
    # Apache Kafka responds before that is replicated
    until(lambda: members.state() == "Empty", "the group exists")
    a = first.member_id
    answer = members.joined(one, member=a)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.member_id) == (
        NONE,
        1,
        a,
        a,
    )
    assert (answer.protocol_type, answer.protocol_name, answer.skip_assignment) == (
        "consumer",
        "range",
        False,
    )
    assert [(row.member_id, row.group_instance_id, row.metadata) for row in answer.members] == [
        (a, None, b"r")
    ]
    assert members.state() == "CompletingRebalance"
    result = members.synced(
        one,
        a,
        1,
        {a: b"mine", "stranger": b"x"},
        5,
        protocol_type="consumer",
        protocol_name="range",
    )
    assert (result.error_code, result.protocol_type, result.protocol_name, result.assignment) == (
        NONE,
        "consumer",
        "range",
        b"mine",
    )
    assert members.deleted(members.group) == {members.group: NON_EMPTY_GROUP}

    assert members.joined(two, 5, protocol_type="connect").error_code == INCONSISTENT_PROTOCOL
    assert members.joined(two, 5, protocols=[("sticky", b"")]).error_code == INCONSISTENT_PROTOCOL
    b = members.joined(two).member_id
    assert members.heartbeat(a, 1) == NONE  # no member has joined yet
    waiting = members.join(two, member=b)
    until(
        lambda: members.heartbeat(a, 1) == REBALANCE_IN_PROGRESS, "the member is told to join again"
    )
    assert members.synced(one, a, 1).error_code == REBALANCE_IN_PROGRESS
    leader, follower = members.joined(one, member=a), two.answer(waiting)
    assert (
        leader.generation_id,
        leader.leader,
        sorted(row.member_id for row in leader.members),
    ) == (2, a, sorted([a, b]))
    assert (follower.generation_id, follower.leader, list(follower.members)) == (2, a, [])
    assert members.heartbeat(a, 1) == ILLEGAL_GENERATION
    waiting = members.sync(two, b, 2)
    assert members.synced(one, a, 2, {a: b"A", b: b"B"}).assignment == b"A"
    assert two.answer(waiting).assignment == b"B"

    again = members.joined(two, member=b)  # a follower that repeats its request gets the generation
    assert (again.error_code, again.generation_id, members.state()) == (NONE, 2, "Stable")
    assert members.leave((b, None), ("stranger", None), ("", "nobody")) == [
        NONE,
        UNKNOWN_MEMBER,
        UNKNOWN_MEMBER,
    ]
    assert members.heartbeat(a, 2) == REBALANCE_IN_PROGRESS
    assert members.joined(one, member=a).generation_id == 3
    assert members.leave((a, None)) == [NONE]
    row = members.described()
    assert (row.group_state, row.protocol_type, row.protocol_data, list(row.members)) == (
        "Empty",
        "consumer",
        "",
        [],
    )
    unknown = members.neighbour("no such group")
    assert members.deleted(members.group, unknown) == {
        members.group: NONE,
        unknown: GROUP_ID_NOT_FOUND,
    }
    assert members.described().error_code == GROUP_ID_NOT_FOUND


def test_a_rebalance_fails_members_that_wait_for_their_assignments(members: Members) -> None:
    one, two, three = (members.connect() for _ in range(3))
    a = members.alone(one)
    waiting = members.join(two, 3)
    until(lambda: members.heartbeat(a, 1) == REBALANCE_IN_PROGRESS, "the rebalance has begun")
    members.joined(one, 3, member=a)
    b = two.answer(waiting).member_id
    waiting = members.sync(two, b, 2)
    until(lambda: members.state() == "CompletingRebalance", "both have joined")
    third = members.join(three, 3)
    assert two.answer(waiting).error_code == REBALANCE_IN_PROGRESS
    tickets = members.join(one, 3, member=a), members.join(two, 3, member=b)
    answers = one.answer(tickets[0]), two.answer(tickets[1]), three.answer(third)
    assert {answer.generation_id for answer in answers} == {3} and {
        answer.leader for answer in answers
    } == {a}


def test_a_silent_member_is_removed(members: Members) -> None:
    wire = members.connect()
    member = members.alone(wire, session_timeout_ms=6000)
    until(lambda: members.state() == "Empty", "the session has ended", 30)
    assert members.heartbeat(member, 1) == UNKNOWN_MEMBER


def test_a_pending_id_can_leave(members: Members) -> None:
    wire = members.connect()
    member = members.joined(wire, 4).member_id
    assert members.leave((member, None)) == [NONE]
    assert members.joined(wire, 4, member=member).error_code == UNKNOWN_MEMBER


def test_the_common_protocol_with_most_votes_is_chosen(members: Members) -> None:
    one, two, three = (members.connect() for _ in range(3))
    a = members.alone(one, protocols=[("a", b"1"), ("b", b"1"), ("c", b"1")])
    waiting = [
        (wire, members.join(wire, version, protocols=[("c", b"2"), ("b", b"2")]))
        for wire, version in ((two, 3), (three, 0))
    ]
    until(lambda: len(members.described().members) == 3, "all are there")
    answer = members.joined(one, 7, member=a, protocols=[("a", b"1"), ("b", b"1"), ("c", b"1")])
    assert answer.protocol_name == "c"
    assert sorted(row.metadata for row in answer.members) == [b"1", b"2", b"2"]
    assert {wire.answer(ticket).protocol_name for wire, ticket in waiting} == {"c"}


# -- static members


def test_a_static_member_that_returns(members: Members) -> None:
    one, two = members.connect(), members.connect()
    a = members.alone(one, instance="A")
    waiting = members.join(two, 5, instance="B")
    until(lambda: members.heartbeat(a, 1) == REBALANCE_IN_PROGRESS, "the rebalance has begun")
    members.joined(one, 5, member=a, instance="A")
    b = two.answer(waiting).member_id
    assert (a.startswith("A-"), b.startswith("B-")) == (True, True)
    waiting = members.sync(two, b, 2, group_instance_id="B")
    members.synced(one, a, 2, {a: b"for A", b: b"for B"}, group_instance_id="A")
    assert two.answer(waiting).assignment == b"for B"

    back = members.joined(two, instance="B")  # a follower, without its member id
    assert (
        back.error_code,
        back.generation_id,
        back.leader,
        back.skip_assignment,
        list(back.members),
    ) == (NONE, 2, a, False, [])
    assert back.member_id != b and members.state() == "Stable"
    assert members.heartbeat(b, 2, group_instance_id="B") == FENCED_INSTANCE
    assert members.heartbeat(b, 2) == UNKNOWN_MEMBER
    assert members.joined(two, member=b, instance="B").error_code == FENCED_INSTANCE
    assert members.synced(two, b, 2, group_instance_id="B").error_code == FENCED_INSTANCE
    assert members.leave((b, "B")) == [FENCED_INSTANCE]
    assert members.synced(two, back.member_id, 2, group_instance_id="B").assignment == b"for B"

    # the leader: before KIP-814 its response does not name it as leader
    old = members.joined(one, 8, instance="A")
    assert (old.error_code, old.leader, old.skip_assignment, list(old.members)) == (
        NONE,
        a,
        False,
        [],
    )
    new = members.joined(one, 9, instance="A")
    assert (new.error_code, new.leader, new.skip_assignment) == (NONE, new.member_id, True)
    assert sorted(row.group_instance_id for row in new.members) == ["A", "B"]
    assert members.synced(one, new.member_id, 2, group_instance_id="A").assignment == b"for A"

    # now a rebalance, in which it rejoins once more
    waiting = members.join(one, member=new.member_id, instance="A")
    until(lambda: members.state() == "PreparingRebalance", "the leader has joined again")
    three = members.connect()
    last = members.join(three, instance="A")
    assert one.answer(waiting).error_code == FENCED_INSTANCE
    # as an administrator does
    assert members.leave(("", "B"), ("", "nobody")) == [NONE, UNKNOWN_MEMBER]
    answer = three.answer(last)
    assert (answer.generation_id, answer.leader, len(answer.members)) == (3, answer.member_id, 1)


# -- descriptions


@pytest.mark.parametrize("version", DESCRIBE_VERSIONS)
def test_describing_in_every_version(members: Members, version: int) -> None:
    row = members.described(version)
    assert row.group_state == "Dead" and row.error_code == (
        GROUP_ID_NOT_FOUND if version >= 6 else NONE
    )
    if version >= 6:
        assert row.error_message == f"Group {members.group} not found."
    member = members.alone(members.connect(), protocol_type="anything", protocols=[("v1", b"said")])
    row = members.described(
        version, **({"include_authorized_operations": True} if version >= 3 else {})
    )
    assert (row.error_code, row.group_state, row.protocol_type, row.protocol_data) == (
        NONE,
        "Stable",
        "anything",
        "v1",
    )
    (result,) = row.members
    assert (
        result.member_id,
        result.client_id,
        result.member_metadata,
        result.member_assignment,
    ) == (
        member,
        "wire",
        b"said",
        b"all",
    )
    assert result.client_host.startswith("/")
    if version >= 3:
        assert row.authorized_operations == ALL_GROUP_OPERATIONS


@pytest.mark.parametrize("version", LIST_VERSIONS)
def test_listing_in_every_version(members: Members, version: int) -> None:
    members.alone(members.connect(), protocol_type="anything")

    def listed(**filters: list[str]) -> list[Any]:
        answer = members.admin.ask("ListGroups", version, **filters)
        assert answer.error_code == NONE
        return [row for row in answer.groups if row.group_id == members.group]

    (row,) = listed()
    assert row.protocol_type == "anything"
    if version >= 4:
        assert row.group_state == "Stable"
        assert len(listed(states_filter=["stable"])) == 1 and not listed(states_filter=["Empty"])
    if version >= 5:
        assert row.group_type == "classic"
        assert (
            len(listed(types_filter=["Classic"])) == 1
            and not listed(types_filter=["consumer"])
            and not listed(types_filter=["x"])
        )


@pytest.mark.parametrize("version", DELETE_VERSIONS)
def test_deleting_in_every_version(members: Members, version: int) -> None:
    member = members.alone(members.connect())
    assert members.deleted(members.group, version=version) == {members.group: NON_EMPTY_GROUP}
    members.leave((member, None))
    assert members.deleted(members.group, version=version) == {members.group: NONE}
    assert members.deleted(members.group, version=version) == {members.group: GROUP_ID_NOT_FOUND}
    assert members.deleted(version=version) == {}
