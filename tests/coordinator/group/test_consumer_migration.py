"""Groups that change from one protocol to the other while they are active (KIP-848), and members of
the classic protocol in a consumer group.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import LEAVING_FOR_NOW
from mqd.coordinator.group.record_codec import decode
from mqd.errors import ErrorCode, MqError
from mqd.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from mqd.types import TopicPartition
from tests.coordinator.group.consumer_support import GROUP, Group, owners

PROTOCOL = "cooperative-sticky"


class Mixed(Group):
    """A group that has members of the classic protocol, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__({"a": 4}, group_initial_rebalance_delay_ms=0, **options)

    def start_join(
        self,
        member_id: str,
        owned: tuple[int, ...] = (),
        topics: tuple[str, ...] = ("a",),
        **more: Any,
    ) -> int:
        subscription = Subscription(
            topics, tuple(TopicPartition("a", partition) for partition in owned)
        )
        protocols = [{"name": PROTOCOL, "metadata": encode_subscription(subscription, 2)}]
        request = {
            "group_id": GROUP,
            "member_id": member_id,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": protocols,
            **more,
        }
        return self.harness.ask("join_group", 9, request)

    def join_classic(
        self, member_id: str = "", owned: tuple[int, ...] = (), **more: Any
    ) -> dict[str, Any]:
        """Join; send a second request where the first only returns an id."""
        ticket = self.start_join(member_id, owned, **more)
        self.harness.advance(0.01)
        answer = self.harness.answer(ticket)
        if answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join_classic(answer["member_id"], owned, **more)
        return dict(answer)

    def sync(
        self,
        member_id: str,
        generation: int,
        assigned: dict[str, list[int]] | None = None,
        **more: Any,
    ) -> list[int]:
        rows = [
            {
                "member_id": one,
                "assignment": encode_assignment(
                    [TopicPartition("a", partition) for partition in found]
                ),
            }
            for one, found in (assigned or {}).items()
        ]
        request = {
            "group_id": GROUP,
            "member_id": member_id,
            "generation_id": generation,
            "assignments": rows,
            **more,
        }
        answer = self.harness.call(
            "sync_group", 5, {"protocol_type": "consumer", "protocol_name": PROTOCOL, **request}
        )
        assert answer["error_code"] == 0, answer
        return [partition for _, partition in decode_assignment(answer["assignment"])]

    def heartbeat(self, member_id: str, generation: int, **more: Any) -> ErrorCode:
        request = {"group_id": GROUP, "member_id": member_id, "generation_id": generation, **more}
        try:
            return ErrorCode(self.harness.call("heartbeat", 4, request)["error_code"])
        except MqError as error:
            return error.code

    def classic_alone(self, assigned: list[int] | None = None, **more: Any) -> str:
        """A classic group of one member. Returns its id."""
        answer = self.join_classic(**more)
        member_id = str(answer["member_id"])
        self.sync(
            member_id,
            answer["generation_id"],
            {member_id: [0, 1, 2, 3] if assigned is None else assigned},
            **more,
        )
        return member_id

    def type_of_group(self) -> type:
        return type(self.harness.shard.state.get(GROUP))

    def generation(self) -> int:
        """The generation, or the group epoch."""
        return self.harness.shard.state.group(GROUP).generation


def test_the_first_consumer_member_upgrades_a_classic_group() -> None:
    group = Mixed()
    classic = group.classic_alone()
    joined = group.join("m1")
    assert (joined["member_epoch"], group.assigned(joined)) == (2, [])
    assert group.type_of_group() is ConsumerGroup
    assert [member["member_type"] for member in group.described()["members"]] == [0, 1]
    assert group.heartbeat(classic, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    result = group.join_classic(classic, (0, 1, 2, 3))
    assert (
        result["generation_id"],
        result["protocol_name"],
        result["leader"],
        result["members"],
    ) == (
        1,
        PROTOCOL,
        "",
        [],
    )
    assert group.sync(classic, 1) == [0, 1]
    assert "assignment" not in group.beat("m1", 2)
    assert group.heartbeat(classic, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert group.join_classic(classic, (0, 1))["generation_id"] == 2
    assert group.sync(classic, 2) == [0, 1]
    assert group.heartbeat(classic, 2) is ErrorCode.NONE
    assert group.assigned(group.beat("m1", 2)) == [2, 3]
    assert group.described()["group_state"] == "Stable"


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_classic_member_owns_lost_partitions_until_it_is_notified(
    fails_over: bool,
) -> None:
    """The group is converted between its JoinGroup, in which it reports its partitions, and its
    SyncGroup, whose response revokes some of them.
    """
    group = Mixed()
    leader = group.classic_alone()
    second = str(group.harness.answer(group.start_join(""))["member_id"])
    ticket = group.start_join(second)
    group.join_classic(leader, (0, 1, 2, 3))
    assert group.harness.answer(ticket)["generation_id"] == 2
    group.sync(leader, 2, {leader: [0, 1], second: [2, 3]})
    assert group.sync(second, 2) == [2, 3]
    tickets = [group.start_join(leader, (0, 1)), group.start_join(second, (2, 3))]
    assert [group.harness.answer(one)["generation_id"] for one in tickets] == [3, 3]
    group.sync(leader, 3, {leader: [0, 1], second: [2]})
    if fails_over:
        group.harness.fail_over()
    topic_id = group.topics.topic_id("a")
    assert topic_id is not None
    group.join("k")
    for _ in range(5):
        group.later()
        answer = group.beat("k", group.state.members["k"].epoch)
        assert group.assigned(answer) in (None, []), (
            "3 is not free, and no other member has revoked anything"
        )
        assert owners(group.state)[topic_id, 3] == second
    assert group.sync(second, 3) == [2], "now it receives the revocation"
    assert group.heartbeat(second, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    group.join_classic(second, (2,))
    group.sync(second, group.state.members[second].epoch)
    assert group.assigned(group.beat("k", group.state.members["k"].epoch)) == [3]
    assert owners(group.state)[topic_id, 3] == "k"


def test_a_partition_reported_by_two_members_has_one_owner() -> None:
    group = Mixed()
    leader = group.classic_alone()
    second = str(group.harness.answer(group.start_join(""))["member_id"])
    ticket = group.start_join(second, (0, 1, 9))
    group.join_classic(leader, (0, 1, 2, 3))
    assert group.harness.answer(ticket)["generation_id"] == 2
    group.sync(leader, 2, {leader: [3], second: [0]})
    group.join("k")
    found = {partition: owner for (_, partition), owner in owners(group.state).items()}
    assert found == {0: second, 1: leader, 2: leader, 3: leader}, (
        "a partition that both reported has one owner, a deleted one has none"
    )


def test_waiting_classic_members_must_rejoin_after_the_upgrade() -> None:
    group = Mixed()
    classic = group.classic_alone()
    second = group.harness.answer(group.start_join(""))["member_id"]
    waiting = group.start_join(second)
    assert waiting not in group.harness.answers
    group.join("m1")
    with pytest.raises(MqError) as result:
        answer = group.harness.answer(waiting)
        raise MqError(answer["error_code"])
    assert result.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert classic in group.state.members


@pytest.mark.parametrize("topics", [["a"], [f"{number:0100}" for number in range(100)]])
def test_waiting_classic_members_stay_when_the_consumer_is_refused(
    topics: list[str],
) -> None:
    group = Mixed(message_max_bytes=5_000)
    classic = group.classic_alone()
    second = group.harness.answer(group.start_join(""))["member_id"]
    waiting = group.start_join(second)
    with pytest.raises(MqError):
        group.join("m1", topics=topics, subscribed_topic_regex="(")
    assert group.join_classic(classic)["generation_id"] == 2
    assert group.harness.answer(waiting)["generation_id"] == 2


def test_an_empty_group_is_replaced_by_the_other_type_with_later_epochs() -> None:
    group = Mixed()
    reached = 0
    for _ in range(2):
        classic = group.classic_alone()
        assert group.type_of_group() is ClassicGroup and group.generation() > reached
        reached = group.generation()
        group.harness.call(
            "leave_group", 5, {"group_id": GROUP, "members": [{"member_id": classic}]}
        )
        group.harness.fail_over()
        assert group.join("m1")["member_epoch"] > reached
        assert group.type_of_group() is ConsumerGroup
        reached = group.generation()
        group.leave("m1")
        group.harness.fail_over()
        assert group.type_of_group() is ConsumerGroup


def test_an_incomplete_classic_group_keeps_its_generation() -> None:
    group = Mixed()
    epoch = group.join("m1")["member_epoch"]
    group.leave("m1")
    group.start_join("")
    group.harness.fail_over()
    assert group.type_of_group() is ClassicGroup and group.generation() >= epoch


def test_a_member_without_its_target_keeps_its_partitions_after_a_downgrade() -> None:
    """It continues to read: if another member had the partition, and the group became classic
    again, both would read it.
    """
    group = Mixed()
    classic = group.classic_alone()
    group.join("m1")
    topic_id = group.topics.topic_id("a")
    assert topic_id is not None and len(group.state.targets[classic][topic_id]) == 2
    group.leave("m1")
    kept = group.harness.shard.state.group(GROUP)
    assert isinstance(kept, ClassicGroup)
    assert sorted(
        partition for _, partition in decode_assignment(kept.members[classic].assignment)
    ) == [0, 1, 2, 3]
    assert group.assigned(group.join("m2")) == []


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        ("bidirectional", 1, 1),
        ("upgrade", 1, 0),
        ("downgrade", 0, 1),
        ("disabled", 0, 0),
        ("no", 0, 0),
    ],
)
def test_the_policy_decides_which_migration_is_allowed(policy: str, up: bool, down: bool) -> None:
    group = Mixed(group_consumer_migration_policy=policy)
    group.classic_alone()
    if not up:
        with pytest.raises(MqError, match="online upgrade is disabled") as refused:
            group.join("m1")
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    else:
        group.join("m1")
        group.leave("m1")
        assert group.type_of_group() is (ClassicGroup if down else ConsumerGroup)


def test_without_migration_no_classic_member_joins_a_consumer_group() -> None:
    group = Mixed(group_consumer_migration_policy="disabled")
    group.join("m1")
    with pytest.raises(MqError) as refused:
        group.join_classic()
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_with_custom_user_data_is_not_migrated() -> None:
    group = Mixed()
    answer = group.join_classic()
    custom = encode_assignment([TopicPartition("a", 0)], user_data=b"more")
    request = {
        "group_id": GROUP,
        "member_id": answer["member_id"],
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": PROTOCOL,
    }
    group.harness.call(
        "sync_group",
        5,
        {**request, "assignments": [{"member_id": answer["member_id"], "assignment": custom}]},
    )
    with pytest.raises(MqError, match="an unsupported custom assignor is in use") as refused:
        group.join("m1")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert group.type_of_group() is ClassicGroup


@pytest.mark.parametrize("kind", ["connect", "consumer"])
def test_a_group_with_another_protocol_type_is_not_upgraded(kind: str) -> None:
    group = Mixed()
    protocol = {"name": "p", "metadata": b"\0"}
    request: dict[str, Any] = {"protocol_type": kind, "protocols": [protocol]}
    answer = group.join_classic(**request)
    more = {"protocol_type": kind, "protocol_name": "p"}
    group.harness.call(
        "sync_group",
        5,
        {
            "group_id": GROUP,
            "member_id": answer["member_id"],
            "generation_id": 1,
            "assignments": [],
            **more,
        },
    )
    with pytest.raises(MqError) as refused:
        group.join("m1")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def mixed() -> tuple[Mixed, str]:
    """A classic member with 0 and 1, m1 with 2 and 3, both in epoch 2."""
    group = Mixed()
    classic = group.classic_alone()
    group.join("m1")
    group.join_classic(classic, (0, 1, 2, 3))
    group.sync(classic, 1)
    group.join_classic(classic, (0, 1))
    group.sync(classic, 2)
    assert group.assigned(group.beat("m1", 2)) == [2, 3]
    return group, classic


def test_the_group_is_classic_again_after_the_last_consumer_leaves() -> None:
    group, classic = mixed()
    group.leave("m1")
    assert group.type_of_group() is ClassicGroup
    found = group.harness.shard.state.get(GROUP)
    assert isinstance(found, ClassicGroup)
    assert (found.generation, found.protocol, found.members.leader, list(found.members)) == (
        2,
        PROTOCOL,
        classic,
        [classic],
    )
    assert [partition for _, partition in decode_assignment(found.members[classic].assignment)] == [
        0,
        1,
    ]
    assert group.heartbeat(classic, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    again = group.join_classic(classic, (0, 1))
    assert (again["generation_id"], again["leader"]) == (3, classic)
    assert group.sync(classic, 3, {classic: [0, 1, 2, 3]}) == [0, 1, 2, 3]
    group.harness.fail_over()
    assert group.type_of_group() is ClassicGroup
    keys = [decode(entry) for entry, _ in group.harness.log if not isinstance(entry, bool)]
    live = {found.key: found.value for found in keys}
    assert [type(key).__name__ for key, value in live.items() if value is not None] == [
        "GroupMetadataKey"
    ]


def test_the_group_is_classic_again_after_the_last_consumer_expires() -> None:
    group, classic = mixed()
    for _ in range(10):
        group.later(5)
        group.heartbeat(classic, 2)
    assert group.type_of_group() is ClassicGroup


def test_a_classic_static_member_takes_the_place_of_the_last_consumer() -> None:
    group = Mixed()
    group.join("s1", instance_id="i")
    group.leave("s1", LEAVING_FOR_NOW, instance_id="i")
    answer = group.join_classic(group_instance_id="i")
    assert (answer["error_code"], answer["generation_id"]) == (0, 2)
    assert group.type_of_group() is ClassicGroup
    assert group.heartbeat(answer["member_id"], 2, group_instance_id="i") is ErrorCode.NONE, (
        "the same subscription: no new assignment"
    )
    assert group.sync(answer["member_id"], 2, group_instance_id="i") == [0, 1, 2, 3]
    group.harness.fail_over()
    assert group.type_of_group() is ClassicGroup


def test_a_static_member_that_becomes_classic_downgrades_the_group() -> None:
    group = Mixed()
    group.join("s1", instance_id="i")
    group.later()
    assert group.join_classic("s1", (0, 1, 2, 3), group_instance_id="i")["generation_id"] == 2
    assert group.type_of_group() is ClassicGroup
    assert group.sync("s1", 2, group_instance_id="i") == [0, 1, 2, 3]
    group.harness.fail_over()
    assert group.heartbeat("s1", 2, group_instance_id="i") is ErrorCode.NONE


def test_the_response_to_a_classic_member_that_must_rejoin_names_no_protocol() -> None:
    group = Mixed()
    group.join("m1")
    answer = group.harness.answer(group.start_join(""))
    assert (answer["error_code"], answer["protocol_name"]) == (ErrorCode.MEMBER_ID_REQUIRED, None)


def test_a_consumer_takes_the_place_of_a_classic_static_member() -> None:
    group = Mixed()
    group.classic_alone(group_instance_id="i")
    answer = group.join("s1", instance_id="i")
    assert group.assigned(answer) == [0, 1, 2, 3]
    assert list(group.state.members) == ["s1"]


def test_a_classic_member_that_ignores_a_rebalance_is_removed() -> None:
    group, classic = mixed()
    group.later()
    group.beat("m1", 2, subscribed_topic_names=["a", "b"])
    for _ in range(3):
        assert group.heartbeat(classic, 2) is ErrorCode.REBALANCE_IN_PROGRESS
        group.later(6)
    group.heartbeat(classic, 2)
    group.later(3)
    assert list(group.state.members) == ["m1"]


def test_a_classic_member_that_joins_and_does_not_sync_is_removed() -> None:
    group, classic = mixed()
    group.join_classic(classic, (0, 1))
    for _ in range(3):
        assert group.heartbeat(classic, 2) is ErrorCode.NONE
        group.later(6)
    group.heartbeat(classic, 2)
    group.later(3)
    assert list(group.state.members) == ["m1"]


def test_a_classic_member_has_the_session_timeout_that_it_requested() -> None:
    group, classic = mixed()
    group.later(9)
    assert classic in group.state.members
    group.harness.fail_over()
    group.later(9)
    assert classic in group.state.members
    group.later(2)
    assert classic not in group.state.members


def test_classic_requests_in_a_consumer_group_are_checked() -> None:
    group, classic = mixed()
    assert group.heartbeat(classic, 1) is ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat("zz", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat("m1", 2) is ErrorCode.UNKNOWN_MEMBER_ID, (
        "it is not a member of the classic protocol"
    )
    with pytest.raises(MqError) as refused:
        group.sync(classic, 2, protocol_name="range")
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with pytest.raises(MqError) as refused:
        group.join_classic(
            protocols=[{"name": "range", "metadata": encode_subscription(Subscription(("a",)), 0)}]
        )
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    check = group.state.check_commit(classic, 1, None, transactional=False, version=7)
    topic_id = group.topics.topic_id("a")
    assert check is not None and topic_id is not None
    check("a", topic_id, 0)
    with pytest.raises(MqError) as refused:
        check("a", topic_id, 2)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_members_of_both_protocols_leave_by_leave_group() -> None:
    group, classic = mixed()
    members = [
        {"member_id": classic},
        {"member_id": "zz"},
        {"member_id": "", "group_instance_id": "none"},
    ]
    answer = group.harness.call("leave_group", 5, {"group_id": GROUP, "members": members})
    assert [row["error_code"] for row in answer["members"]] == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert list(group.state.members) == ["m1"]
    group.later()
    assert group.assigned(group.beat("m1", 2)) == [0, 1, 2, 3]
    owners(group.state)


def test_a_classic_member_of_version_0_rejoins_within_its_session() -> None:
    group, classic = mixed()
    protocols = [{"name": PROTOCOL, "metadata": encode_subscription(Subscription(("a",)), 0)}]
    request = {
        "group_id": GROUP,
        "member_id": classic,
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    assert group.harness.call("join_group", 0, request)["error_code"] == 0
    assert group.state.members[classic].rebalance_timeout_ms == 10_000
    group.later(5)
    assert classic in group.state.members


def test_the_next_coordinator_loads_both_kinds_of_members() -> None:
    group, classic = mixed()
    before = group.described()
    group.harness.fail_over()
    assert group.described() == before
    assert group.heartbeat(classic, 2) is ErrorCode.NONE
    assert group.sync(classic, 2) == [0, 1]
    assert group.beat("m1", 2)["member_epoch"] == 2
