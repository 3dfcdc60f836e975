"""Requests beyond the quota of changes of the metadata (KIP-599)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqd.security.quotas import CONTROLLER_MUTATION_RATE
from tests.server.handlers.node import FakeNode, running_node

THROTTLED = 89


def set_quota(node: FakeNode, mutations: int) -> list[int]:
    """Allow so many mutations; returns a list to which each count of a request is added."""
    counted: list[int] = []

    def mutate(count: int, *, strict: bool) -> bool:
        counted.append(count)
        return not strict or sum(counted) <= mutations

    node.quotas = SimpleNamespace(keys=frozenset({CONTROLLER_MUTATION_RATE}))
    node.mutate = mutate
    return counted


def codes(rows: Any) -> dict[str, int]:
    return {row.name: row.error_code for row in rows}


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, THROTTLED), (7, THROTTLED)])
async def test_created_partitions_count(version: int, code: int) -> None:
    async with running_node() as node:
        await node.create("old")
        counted = set_quota(node, 3)
        topics = [
            {"name": name, "num_partitions": 2, "replication_factor": 1}
            for name in ("old", "a", "b")
        ]
        response = await node.request("create_topics", version, topics=topics, timeout_ms=1000)
        assert codes(response.topics) == {"old": 36, "a": 0, "b": code}
        assert counted == [2, 2], "a topic that exists changes nothing"
        assert ("b" in node.image.topics) == (code == 0)


@pytest.mark.parametrize(("version", "code"), [(2, 0), (3, THROTTLED)])
async def test_added_partitions_count(version: int, code: int) -> None:
    async with running_node() as node:
        await node.create("a", "b")
        counted = set_quota(node, 3)
        topics = [{"name": name, "count": 3, "assignments": None} for name in ("a", "b")]
        response = await node.request("create_partitions", version, topics=topics, timeout_ms=1000)
        assert codes(response.results) == {"a": 0, "b": code}
        assert counted == [2, 2]


@pytest.mark.parametrize(("version", "code"), [(4, 0), (5, THROTTLED), (6, THROTTLED)])
async def test_deleted_partitions_count(version: int, code: int) -> None:
    async with running_node() as node:
        await node.create("a", "b")
        counted = set_quota(node, 1)
        names: dict[str, Any] = (
            {"topics": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}
            if version == 6
            else {"topic_names": ["a", "b", "c"]}
        )
        response = await node.request("delete_topics", version, **names, timeout_ms=1000)
        assert codes(response.responses) == {"a": 0, "b": code, "c": 3}
        assert counted == [1, 1]


async def test_a_validated_request_takes_nothing() -> None:
    async with running_node() as node:
        counted = set_quota(node, 0)
        topics = [{"name": "a", "num_partitions": 2, "replication_factor": 1}]
        await node.request("create_topics", 7, topics=topics, timeout_ms=1000, validate_only=True)
        assert counted == []
