"""The memory of a node for the metadata of all members of all groups is bounded."""

from __future__ import annotations

import pytest

from mqd.errors import ErrorCode, MqError
from tests.coordinator.group.classic_support import Groups
from tests.coordinator.group.consumer_support import Group


def test_metadata_of_the_members_of_all_groups_is_bounded() -> None:
    groups = Groups(group_members_memory_bytes=100_000)
    large = [("range", bytes(30_000))]
    tickets = [groups.join(group_id=group_id, protocols=large) for group_id in ("a", "b", "c")]
    for group_id in ("a", "d"):
        refused = groups.join(group_id=group_id, protocols=large)
        with pytest.raises(MqError) as result:
            groups.answer(refused)
        assert result.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE, "a code that clients retry"
    assert groups.shard.state.get("d") is None
    groups.advance(3)
    one, *_ = (groups.answer(ticket)["member_id"] for ticket in tickets)
    assert groups.join_now(one, group_id="a", protocols=large)["error_code"] == ErrorCode.NONE, (
        "it joins again with as much metadata as before"
    )
    groups.fail_over()
    assert sum(group.memory for group in groups.shard.groups) < 100, "this was not written"
    groups.join(group_id="d", protocols=large)


def test_a_member_that_left_makes_room_for_others() -> None:
    groups = Groups(group_members_memory_bytes=100_000)
    large = [("range", bytes(80_000))]
    ticket = groups.join(group_id="a", protocols=large)
    groups.advance(3)
    member_id = groups.answer(ticket)["member_id"]
    with pytest.raises(MqError):
        groups.answer(groups.join(group_id="b", protocols=large))
    groups.call("leave_group", 2, {"group_id": "a", "member_id": member_id})
    groups.advance(1)
    groups.join(group_id="b", protocols=large)
    groups.advance(3)
    assert groups.shard.state.by_id["b"].memory > 80_000


def test_metadata_of_members_of_consumer_groups_is_bounded_too() -> None:
    names = [f"{number:0100}" for number in range(300)]
    group = Group(group_members_memory_bytes=70_000)
    epoch = group.join("m1", names)["member_epoch"]
    assert (
        group.refusal("m2", 0, subscribed_topic_names=names, rebalance_timeout_ms=1000, owned=())
        is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert list(group.state.members) == ["m1"] and group.state.memory > 48_000
    assert group.beat("m1", epoch, subscribed_topic_names=names)["member_epoch"] == epoch
    group.later()
    assert group.beat("m1", epoch, subscribed_topic_names=["a"])["member_epoch"] > epoch
    assert group.state.memory < 2_000
    group.join("m2", names)
    group.harness.fail_over()
    group.later()
    assert (
        group.refusal("m3", 0, subscribed_topic_names=names, rebalance_timeout_ms=1000, owned=())
        is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    for member_id in ("m1", "m2"):
        group.leave(member_id)
    assert group.state.memory == 0
