"""The partitions of a share group whose states exist: created, altered and deleted (KIP-932)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.group.share_group import LEAVING
from mqd.coordinator.group.share_partitions import (
    BeginAlteration,
    ForgetPartitions,
    InitializedPartitions,
    PartitionsDeleted,
    ShareStateRequest,
)
from mqd.coordinator.shard import Call
from mqd.errors import ErrorCode, MqError
from tests.coordinator.group.support import Topics
from tests.coordinator.group.test_share import GROUP, Shares


def call(shares: Shares, request: ShareStateRequest) -> Any:
    op = Call(type(request).__name__, 0, request)
    return shares.harness.answer(shares.harness.operate(op))


def id_of(topics: Topics, name: str) -> UUID:
    found = topics.topic_id(name)
    assert found is not None
    return found


def known(shares: Shares) -> dict[UUID, frozenset[int]]:
    found: dict[UUID, frozenset[int]] = call(shares, InitializedPartitions(GROUP))["partitions"]
    return found


def forget(shares: Shares, topics: Collection[UUID] | None) -> Any:
    return call(shares, ForgetPartitions(GROUP, topics))["partitions"]


def empty_group(topics: dict[str, int] | None = None) -> Shares:
    """A group whose only member has left."""
    shares = Shares(topics)
    joined = shares.join("m1", *(topics or ("a",)))
    assert joined["member_epoch"] > 0
    shares.beat("m1", LEAVING)
    return shares


def test_a_group_without_partitions_and_no_group_have_none() -> None:
    assert known(Shares()) == {}
    shares = empty_group()
    assert known(shares) == {id_of(shares.topics, "a"): frozenset(range(4))}


def test_a_group_without_members_is_kept() -> None:
    """Its offsets are at the share coordinators. Without it, nobody could read or delete them."""
    shares = empty_group()
    shares.harness.advance(30 * 86_400)
    assert shares.group.state_name() == "Empty"
    assert known(shares) == {id_of(shares.topics, "a"): frozenset(range(4))}


def test_an_alteration_creates_the_group_and_raises_its_epoch() -> None:
    shares = Shares()
    assert [call(shares, BeginAlteration(GROUP, 1))["group_epoch"] for _ in range(3)] == [1, 2, 3]
    assert (shares.group.state_name(), shares.group.epoch) == ("Empty", 3)
    shares.harness.fail_over()
    assert call(shares, BeginAlteration(GROUP, 1))["group_epoch"] == 4


def test_partitions_of_a_group_with_members_stay() -> None:
    shares = Shares()
    shares.join("m1")
    for request in (BeginAlteration(GROUP, 1), ForgetPartitions(GROUP, None)):
        with pytest.raises(MqError) as raised:
            call(shares, request)
        assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    assert known(shares)


def test_forgotten_partitions_are_initialized_again() -> None:
    """Also if their deletion was interrupted."""
    shares = empty_group()
    a = id_of(shares.topics, "a")
    assert forget(shares, None) == {a: [0, 1, 2, 3]}
    assert known(shares) == {}
    shares.harness.fail_over()
    assert forget(shares, None) == {a: [0, 1, 2, 3]}, "their states may still exist"
    answer = shares.beat("m2", 0, subscribed_topic_names=["a"])
    assert answer["uninitialized"] == {a: (0, 1, 2, 3)}
    shares.initialize(answer["uninitialized"])
    assert known(shares) == {a: frozenset(range(4))}
    assert shares.group.partitions.deleting_topics == ()


def test_only_the_named_topics_are_forgotten() -> None:
    shares = empty_group({"a": 2, "b": 1})
    a, b = (id_of(shares.topics, name) for name in "ab")
    assert forget(shares, [b, UUID(int=77)]) == {b: [0]}
    assert known(shares) == {a: frozenset({0, 1})}
    call(shares, PartitionsDeleted(GROUP, [b]))
    assert forget(shares, [b]) == {}
    assert shares.group.partitions.deleting_topics == ()
    assert shares.group.has_states


def test_a_group_with_states_is_not_deleted() -> None:
    shares = empty_group()

    def delete() -> Any:
        [row] = shares.harness.call("delete_groups", 2, {"groups_names": [GROUP]})["results"]
        return row

    assert delete() == {"group_id": GROUP, "error_code": ErrorCode.NONE, "has_states": True}
    assert not shares.group.members
    call(shares, PartitionsDeleted(GROUP, tuple(forget(shares, None))))
    assert delete() == {"group_id": GROUP, "error_code": ErrorCode.NONE}
    for shard in (shares.harness.shard, shares.harness.read_again()):
        assert GROUP not in shard.state.by_id


def test_the_states_of_deleted_topics_are_left_to_the_share_coordinator() -> None:
    shares = empty_group({"a": 2, "b": 1})
    shares.topics.delete("a")
    assert forget(shares, None) == {id_of(shares.topics, "b"): [0]}
    assert known(shares) == {}
