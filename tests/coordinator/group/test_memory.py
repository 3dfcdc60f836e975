"""The memory of a node for the metadata of all members of all groups is bounded."""

from __future__ import annotations

from typing import Any

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


def test_ids_and_names_of_the_members_of_a_consumer_group_count() -> None:
    long = 30_000
    group = Group(group_members_memory_bytes=8 * long)
    more: dict[str, Any] = {"instance_id": "i" * long, "rack_id": "r" * long, "owned": ()}
    wanted = {"subscribed_topic_names": ["a"], "rebalance_timeout_ms": 1000, **more}
    epoch = group.join("m" * long, ["a"], **more)["member_epoch"]
    assert group.state.memory > 4 * long, "the id is also a key of the target assignment"
    other = {**wanted, "instance_id": "j" * long}
    assert group.refusal("n" * long, 0, **other) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    size = group.state.memory
    group.beat("m" * long, epoch, rack_id="s", instance_id="i" * long)
    assert group.state.memory == size - long + 1, "a shorter rack needs less"
    group.leave("m" * long, -1)
    assert group.state.memory == 0


def test_ids_of_the_members_of_a_classic_group_count() -> None:
    long = 30_000
    groups = Groups(group_members_memory_bytes=9 * long)
    texts: dict[str, Any] = {"client_id": "é" * long, "instance_id": "i" * long}
    groups.join(group_id="a", version=5, **texts)
    assert groups.group("a").memory > 5 * long, "up to four bytes for each letter"
    with pytest.raises(MqError) as result:
        groups.answer(groups.join(group_id="b", version=5, **texts))
    assert result.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
