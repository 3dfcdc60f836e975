"""Requests of many rows to a coordinator: portions, and responses that equal those of one
decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mqd.coordinator.shard import Call
from mqd.errors import ErrorCode, MqError
from mqd.server.portions import PORTION_ROWS, in_portions
from tests.coordinator.group.offset_support import commit
from tests.server.handlers.node import FakeNode
from tests.server.handlers.test_offsets import Groups

MANY = 2 * PORTION_ROWS


class Row(dict[str, Any]):
    """A decoded structure."""

    __getattr__ = dict.__getitem__


@given(st.lists(st.integers(0, 3 * PORTION_ROWS), max_size=20))
def test_portions_are_all_rows_in_their_order(sizes: list[int]) -> None:
    topics: list[Any] = [
        Row(name=f"t{number}", partitions=list(range(size))) for number, size in enumerate(sizes)
    ]
    portions = list(in_portions(topics))
    found = [
        (topic.name, partition)
        for portion in portions
        for topic in portion
        for partition in topic.partitions
    ]
    assert found == [(topic.name, partition) for topic in topics for partition in topic.partitions]
    assert list(dict.fromkeys(topic.name for portion in portions for topic in portion)) == [
        topic.name for topic in topics
    ]
    assert all(
        sum(1 + len(topic.partitions) for topic in portion) <= PORTION_ROWS + 1
        for portion in portions
    )
    assert len(portions) <= 1 + sum(2 + size for size in sizes) // (PORTION_ROWS // 2)


class CountingGroups(Groups):
    """Records each decision; refuses from one of them on."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions = 0
        self.refuse_from: int | None = None

    async def call(self, key: str, op: Call) -> Mapping[str, Any]:
        self.decisions += 1
        if self.refuse_from is not None and self.decisions >= self.refuse_from:
            raise MqError(ErrorCode.NOT_COORDINATOR)
        return await super().call(key, op)


@pytest.fixture
def groups() -> CountingGroups:
    return CountingGroups()


@pytest.fixture
def node(groups: CountingGroups) -> FakeNode:
    return FakeNode(groups=groups, replica={})


def rows_of(response: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.name, row.partition_index, row.error_code)
        for topic in response.topics
        for row in topic.partitions
    ]


async def commit_many(node: FakeNode) -> Any:
    rows = [{"partition_index": index % 5, "committed_offset": index} for index in range(MANY)]
    return await node.request(
        "offset_commit",
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[{"name": "t", "partitions": rows}],
    )


async def test_commits_of_many_partitions(node: FakeNode, groups: CountingGroups) -> None:
    response = await commit_many(node)
    assert groups.decisions > 1
    (topic,) = response.topics
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = sorted((row.partition_index, row.error_code) for row in topic.partitions)
    assert found == sorted((index % 5, 0 if index % 5 < 3 else unknown) for index in range(MANY))
    fetched = await node.request(
        "offset_fetch", 7, group_id="g", topics=[{"name": "t", "partition_indexes": [0, 1, 2]}]
    )
    assert [row.committed_offset for row in fetched.topics[0].partitions] == [
        MANY - 5,
        MANY - 4,
        MANY - 3,
    ]


async def test_a_refused_portion_has_errors_in_its_rows_only(
    node: FakeNode, groups: CountingGroups
) -> None:
    groups.refuse_from = 2
    codes = [code for _, _, code in rows_of(await commit_many(node))]
    assert len(codes) == MANY
    assert 0 in codes and ErrorCode.NOT_COORDINATOR in codes
    groups.refuse_from = 1
    assert {code for _, _, code in rows_of(await commit_many(node))} == {ErrorCode.NOT_COORDINATOR}


async def test_fetches_of_many_partitions(node: FakeNode, groups: CountingGroups) -> None:
    commit(groups.harness, (1, 5))
    wanted = [
        {"name": "t", "partition_indexes": [1] * MANY},
        {"name": "u", "partition_indexes": [0]},
    ]
    response = await node.request("offset_fetch", 8, groups=[{"group_id": "g", "topics": wanted}])
    (group,) = response.groups
    assert groups.decisions > 1
    assert [(topic.name, len(topic.partitions)) for topic in group.topics] == [
        ("t", MANY),
        ("u", 1),
    ]
    assert {row.committed_offset for row in group.topics[0].partitions} == {5}


async def test_deletions_of_many_offsets(node: FakeNode, groups: CountingGroups) -> None:
    commit(groups.harness, (1, 5), (2, 6))
    rows = [{"partition_index": index % 3} for index in range(MANY)]
    response = await node.request(
        "offset_delete", 0, group_id="g", topics=[{"name": "t", "partitions": rows}]
    )
    assert groups.decisions > 1
    assert [code for _, _, code in rows_of(response)] == [0] * MANY
    fetched = await node.request("offset_fetch", 7, group_id="g", topics=None)
    assert list(fetched.topics) == []


async def test_departures_of_many_members(node: FakeNode, groups: CountingGroups) -> None:
    members = [{"member_id": f"m{number}"} for number in range(MANY)]
    response = await node.request("leave_group", 5, group_id="g", members=members)
    assert groups.decisions > 1
    assert [(row.member_id, row.error_code) for row in response.members] == [
        (f"m{number}", ErrorCode.UNKNOWN_MEMBER_ID) for number in range(MANY)
    ]
