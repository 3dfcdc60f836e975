"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: what handlers add to the coordinator's
responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.shard import Call
from mqd.errors import ErrorCode, MqError
from mqd.server.handlers import offset_fetch
from tests.coordinator.group.offset_support import commit
from tests.coordinator.group.support import Topics, group_harness
from tests.server.handlers.node import FakeNode


class Groups:
    """A shard behind the interface of the service; `refusals` are the service's errors by group."""

    def __init__(self) -> None:
        self.harness = group_harness(Topics({"t": 3}))
        self.refusals: dict[str, ErrorCode] = {}

    def partition_of(self, key: str) -> int:
        return 0

    async def call(self, key: str, op: Call) -> Mapping[str, Any]:
        if key in self.refusals:
            raise MqError(self.refusals[key])
        response: Mapping[str, Any] = self.harness.answer(self.harness.operate(op))
        return response


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.fixture
def node(groups: Groups) -> FakeNode:
    return FakeNode(groups=groups, replica={})


TOPIC = [{"name": "t", "partition_indexes": [0, 1]}]


@pytest.mark.parametrize("version", range(1, 8))
async def test_versions_of_one_group(node: FakeNode, groups: Groups, version: int) -> None:
    commit(groups.harness, (1, 5), metadata="note", epoch=3)
    response = await node.request("offset_fetch", version, group_id="g", topics=TOPIC)
    (topic,) = response.topics
    assert topic.name == "t" and response.error_code == 0
    assert [
        (row.partition_index, row.committed_offset, row.metadata, row.error_code)
        for row in topic.partitions
    ] == [
        (0, -1, "", 0),
        (1, 5, "note", 0),
    ]
    assert [row.committed_leader_epoch for row in topic.partitions] == [
        -1,
        3 if version >= 5 else -1,
    ]
    if version >= 2:
        assert [
            topic.name
            for topic in (
                await node.request("offset_fetch", version, group_id="g", topics=None)
            ).topics
        ] == ["t"]


@pytest.mark.parametrize("version", range(1, 10))
@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_refusals_of_a_group(
    node: FakeNode, groups: Groups, version: int, refusal: ErrorCode, expected: ErrorCode
) -> None:
    """The partitions have the error, too: some stock clients ignore the error of the group, and
    retry on an error of a partition.
    """
    groups.refusals["g"] = refusal
    if version >= 8:
        first, second = (
            await node.request(
                "offset_fetch",
                version,
                groups=[{"group_id": "g", "topics": TOPIC}, {"group_id": "h", "topics": TOPIC}],
            )
        ).groups
        assert [(row.group_id, row.error_code) for row in (first, second)] == [
            ("g", expected),
            ("h", 0),
        ]
        assert [row.error_code for row in second.topics[0].partitions] == [0, 0]
    else:
        first = await node.request("offset_fetch", version, group_id="g", topics=TOPIC)
        assert version < 2 or first.error_code == expected
    (topic,) = first.topics
    of_row = expected if version < 7 else ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert topic.name == "t"
    assert [
        (row.partition_index, row.committed_offset, row.error_code) for row in topic.partitions
    ] == [(0, -1, of_row), (1, -1, of_row)]


async def test_an_error_has_the_topic_ids_of_the_request(node: FakeNode, groups: Groups) -> None:
    groups.refusals["g"] = ErrorCode.NOT_COORDINATOR
    wanted = [{"topic_id": UUID(int=7), "partition_indexes": [2]}]
    (row,) = (
        await node.request("offset_fetch", 10, groups=[{"group_id": "g", "topics": wanted}])
    ).groups
    assert (
        row.error_code,
        row.topics[0].topic_id,
        row.topics[0].partitions[0].partition_index,
    ) == (16, UUID(int=7), 2)


@pytest.mark.parametrize("version", range(2, 10))
async def test_a_final_error_has_no_rows(node: FakeNode, groups: Groups, version: int) -> None:
    """Nor has a fetch of all offsets of a group."""
    for refusal, topics in (
        (ErrorCode.GROUP_ID_NOT_FOUND, TOPIC),
        (ErrorCode.NOT_COORDINATOR, None),
    ):
        groups.refusals["g"] = refusal
        if version >= 8:
            (row,) = (
                await node.request(
                    "offset_fetch", version, groups=[{"group_id": "g", "topics": topics}]
                )
            ).groups
        else:
            row = await node.request("offset_fetch", version, group_id="g", topics=topics)
        assert (row.error_code, row.topics) == (refusal, [])


async def test_a_response_has_a_bound_and_clients_retry_the_rest(
    node: FakeNode, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_fetch, "FETCHED_OFFSETS_MAX", 5)
    names = ["a", "b", "c", "d"]
    for name in names:
        commit(groups.harness, (0, 1), (1, 2), (2, 3), group_id=name)
    finished: list[str] = []
    while names:
        response = await node.request(
            "offset_fetch", 9, groups=[{"group_id": name, "topics": None} for name in names]
        )
        done = [row.group_id for row in response.groups if not row.error_code]
        assert {row.error_code for row in response.groups} <= {
            0,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        }
        assert len(done) == 2
        finished += done
        names = names[2:]
    assert finished == ["a", "b", "c", "d"]


@pytest.mark.parametrize("version", range(2, 11))
async def test_a_refused_commit_has_an_error_for_each_partition(
    node: FakeNode, groups: Groups, version: int
) -> None:
    groups.refusals["g"] = ErrorCode.NOT_COORDINATOR
    rows = [{"partition_index": partition, "committed_offset": 1} for partition in (0, 2)]
    response = await node.request(
        "offset_commit", version, group_id="g", topics=[{"name": "t", "partitions": rows}]
    )
    (topic,) = response.topics
    assert [(row.partition_index, row.error_code) for row in topic.partitions] == [(0, 16), (2, 16)]


async def test_a_refused_deletion_has_one_error(node: FakeNode, groups: Groups) -> None:
    rows = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    response = await node.request("offset_delete", 0, group_id="g", topics=rows)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    commit(groups.harness, (0, 1))
    response = await node.request("offset_delete", 0, group_id="g", topics=rows)
    assert response.error_code == 0 and [
        row.error_code for row in response.topics[0].partitions
    ] == [0]


@pytest.mark.parametrize("version", range(6))
async def test_a_refused_transaction_gets_the_error_of_its_version(
    node: FakeNode, groups: Groups, version: int
) -> None:
    groups.refusals["g"] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    who: dict[str, Any] = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
    rows = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    for group_id, code in (("g", 15 if version < 2 else 14), ("", ErrorCode.INVALID_GROUP_ID)):
        response = await node.request(
            "txn_offset_commit", version, group_id=group_id, topics=rows, **who
        )
        assert [(row.partition_index, row.error_code) for row in response.topics[0].partitions] == [
            (0, code)
        ]
