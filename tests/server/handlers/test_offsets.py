"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: what handlers do around the
coordinator's own answers.
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
    """A shard behind the face of the service; `refusals` are what the service says by group."""

    def __init__(self) -> None:
        self.harness = group_harness(Topics({"t": 3}))
        self.refusals: dict[str, ErrorCode] = {}

    def partition_of(self, key: str) -> int:
        return 0

    async def call(self, key: str, op: Call) -> Mapping[str, Any]:
        if key in self.refusals:
            raise MqError(self.refusals[key])
        answer: Mapping[str, Any] = self.harness.answer(self.harness.operate(op))
        return answer


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
    answer = await node.ask("offset_fetch", version, group_id="g", topics=TOPIC)
    (topic,) = answer.topics
    assert topic.name == "t" and answer.error_code == 0
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
            for topic in (await node.ask("offset_fetch", version, group_id="g", topics=None)).topics
        ] == ["t"]


@pytest.mark.parametrize("version", range(1, 10))
@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_refusals_of_a_group(
    node: FakeNode, groups: Groups, version: int, refusal: ErrorCode, told: ErrorCode
) -> None:
    """The partitions say it, too, on which stock clients ask again that do not heed what is
    said of the group.
    """
    groups.refusals["g"] = refusal
    if version >= 8:
        first, second = (
            await node.ask(
                "offset_fetch",
                version,
                groups=[{"group_id": "g", "topics": TOPIC}, {"group_id": "h", "topics": TOPIC}],
            )
        ).groups
        assert [(row.group_id, row.error_code) for row in (first, second)] == [
            ("g", told),
            ("h", 0),
        ]
        assert [row.error_code for row in second.topics[0].partitions] == [0, 0]
    else:
        first = await node.ask("offset_fetch", version, group_id="g", topics=TOPIC)
        assert version < 2 or first.error_code == told
    (topic,) = first.topics
    of_row = told if version < 7 else ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert topic.name == "t"
    assert [
        (row.partition_index, row.committed_offset, row.error_code) for row in topic.partitions
    ] == [(0, -1, of_row), (1, -1, of_row)]


async def test_a_refusal_by_topic_id_names_them(node: FakeNode, groups: Groups) -> None:
    groups.refusals["g"] = ErrorCode.NOT_COORDINATOR
    wanted = [{"topic_id": UUID(int=7), "partition_indexes": [2]}]
    (row,) = (
        await node.ask("offset_fetch", 10, groups=[{"group_id": "g", "topics": wanted}])
    ).groups
    assert (
        row.error_code,
        row.topics[0].topic_id,
        row.topics[0].partitions[0].partition_index,
    ) == (16, UUID(int=7), 2)


@pytest.mark.parametrize("version", range(2, 10))
async def test_a_refusal_for_good_has_no_rows(node: FakeNode, groups: Groups, version: int) -> None:
    """Nor has one of all that a group has."""
    for refusal, topics in (
        (ErrorCode.GROUP_ID_NOT_FOUND, TOPIC),
        (ErrorCode.NOT_COORDINATOR, None),
    ):
        groups.refusals["g"] = refusal
        if version >= 8:
            (row,) = (
                await node.ask(
                    "offset_fetch", version, groups=[{"group_id": "g", "topics": topics}]
                )
            ).groups
        else:
            row = await node.ask("offset_fetch", version, group_id="g", topics=topics)
        assert (row.error_code, row.topics) == (refusal, [])


async def test_an_answer_has_a_bound_and_the_rest_is_asked_for_again(
    node: FakeNode, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_fetch, "FETCHED_OFFSETS_MAX", 5)
    names = ["a", "b", "c", "d"]
    for name in names:
        commit(groups.harness, (0, 1), (1, 2), (2, 3), group_id=name)
    answered: list[str] = []
    while names:
        answer = await node.ask(
            "offset_fetch", 9, groups=[{"group_id": name, "topics": None} for name in names]
        )
        done = [row.group_id for row in answer.groups if not row.error_code]
        assert {row.error_code for row in answer.groups} <= {
            0,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        }
        assert len(done) == 2
        answered += done
        names = names[2:]
    assert answered == ["a", "b", "c", "d"]


@pytest.mark.parametrize("version", range(2, 11))
async def test_a_commit_that_is_refused_says_so_of_each_partition(
    node: FakeNode, groups: Groups, version: int
) -> None:
    groups.refusals["g"] = ErrorCode.NOT_COORDINATOR
    rows = [{"partition_index": partition, "committed_offset": 1} for partition in (0, 2)]
    answer = await node.ask(
        "offset_commit", version, group_id="g", topics=[{"name": "t", "partitions": rows}]
    )
    (topic,) = answer.topics
    assert [(row.partition_index, row.error_code) for row in topic.partitions] == [(0, 16), (2, 16)]


async def test_a_deletion_that_is_refused_says_so_as_a_whole(
    node: FakeNode, groups: Groups
) -> None:
    rows = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    answer = await node.ask("offset_delete", 0, group_id="g", topics=rows)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    commit(groups.harness, (0, 1))
    answer = await node.ask("offset_delete", 0, group_id="g", topics=rows)
    assert answer.error_code == 0 and [row.error_code for row in answer.topics[0].partitions] == [0]


@pytest.mark.parametrize("version", range(6))
async def test_a_transaction_is_refused_in_words_that_its_version_knows(
    node: FakeNode, groups: Groups, version: int
) -> None:
    groups.refusals["g"] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    who: dict[str, Any] = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
    rows = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    for group_id, code in (("g", 15 if version < 2 else 14), ("", ErrorCode.INVALID_GROUP_ID)):
        answer = await node.ask("txn_offset_commit", version, group_id=group_id, topics=rows, **who)
        assert [(row.partition_index, row.error_code) for row in answer.topics[0].partitions] == [
            (0, code)
        ]
