"""DeleteTopics and CreatePartitions: requests and responses of every version."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.server.handlers.node import running_node


@pytest.mark.parametrize("version", range(1, 6))
async def test_delete_by_name(version: int) -> None:
    async with running_node() as node:
        await node.create("a", "b")
        response = await node.request(
            "delete_topics", version, topic_names=["a", "zz"], timeout_ms=1000
        )
        assert [(row.name, row.error_code) for row in response.responses] == [("a", 0), ("zz", 3)]
        assert list(node.image.topics) == ["b"]


async def test_delete_by_id_returns_the_name() -> None:
    async with running_node() as node:
        await node.create("a")
        topic_id = node.image.topics["a"].topic_id
        rows = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": UUID(int=7)}]
        good, unknown = (
            await node.request("delete_topics", 6, topics=rows, timeout_ms=1000)
        ).responses
        assert (good.name, good.topic_id, good.error_code, good.error_message) == (
            "a",
            topic_id,
            0,
            None,
        )
        assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, UUID(int=7), 100)


@pytest.mark.parametrize(("version", "code"), [(1, 42), (3, 73)])
async def test_deletion_may_be_disabled(version: int, code: int) -> None:
    async with running_node(delete_topic_enable="false") as node:
        await node.create("a")
        response = await node.request("delete_topics", version, topic_names=["a"], timeout_ms=1000)
        assert response.responses[0].error_code == code and "a" in node.image.topics


async def test_delete_without_time() -> None:
    async with running_node() as node:
        await node.create("a")
        response = await node.request("delete_topics", 6, topics=[{"name": "a"}], timeout_ms=0)
        assert response.responses[0].error_code == 7 and "a" in node.image.topics


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(version: int) -> None:
    async with running_node() as node:
        await node.create("a", "b")
        rows = [
            {"name": "a", "count": 3, "assignments": None},
            {"name": "b", "count": 1, "assignments": None},
            {"name": "c", "count": 1, "assignments": None},
        ]
        response = await node.request("create_partitions", version, topics=rows, timeout_ms=1000)
        assert [(row.name, row.error_code) for row in response.results] == [
            ("a", 0),
            ("b", 37),
            ("c", 3),
        ]
        assert len(node.image.topics["a"].partitions) == 3
        more = [{"name": "b", "count": 2, "assignments": [{"broker_ids": [1]}]}]
        response = await node.request(
            "create_partitions", version, topics=more, timeout_ms=1000, validate_only=True
        )
        assert response.results[0].error_code == 0 and len(node.image.topics["b"].partitions) == 1
        response = await node.request("create_partitions", version, topics=more, timeout_ms=0)
        assert response.results[0].error_code == 7
