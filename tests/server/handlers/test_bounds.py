"""Requests that name too many objects are refused before they are processed."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.errors import ErrorCode
from mqd.limits import (
    CONFIG_CHANGES_MAX,
    CONFIG_RESOURCES_MAX,
    CREATED_TOPICS_MAX,
    JOIN_PROTOCOLS_MAX,
    PARTITIONS_PER_REQUEST_MAX,
)
from tests.server.handlers.node import FakeNode


def topics(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"t{number}", **fields} for number in range(count)]


def configs(resources: int, values: int) -> list[dict[str, Any]]:
    rows = [{"name": f"n{number}", "value": "1"} for number in range(values)]
    return [
        {"resource_type": 2, "resource_name": f"t{number}", "configs": rows}
        for number in range(resources)
    ]


@pytest.mark.parametrize(
    ("api", "version", "request_", "code"),
    [
        (
            "join_group",
            5,
            {"protocols": topics(JOIN_PROTOCOLS_MAX + 1)},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (
            "update_features",
            1,
            {"feature_updates": [{"feature": f"f{number}"} for number in range(101)]},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            "alter_configs",
            2,
            {"resources": configs(CONFIG_RESOURCES_MAX + 1, 1)},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            "alter_configs",
            2,
            {"resources": configs(1, CONFIG_CHANGES_MAX + 1)},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            "incremental_alter_configs",
            1,
            {"resources": configs(2, CONFIG_CHANGES_MAX // 2 + 1)},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            "create_partitions",
            3,
            {"topics": topics(CREATED_TOPICS_MAX + 1)},
            ErrorCode.POLICY_VIOLATION,
        ),
        (
            "alter_partition_reassignments",
            0,
            {
                "topics": topics(
                    1, partitions=[{"partition_index": 0}] * (PARTITIONS_PER_REQUEST_MAX + 1)
                )
            },
            ErrorCode.POLICY_VIOLATION,
        ),
        (
            "elect_leaders",
            2,
            {
                "topic_partitions": [
                    {"topic": "t", "partitions": [0] * (PARTITIONS_PER_REQUEST_MAX + 1)}
                ]
            },
            ErrorCode.POLICY_VIOLATION,
        ),
    ],
)
async def test_requests_with_too_many_rows_are_refused(
    api: str, version: int, request_: dict[str, Any], code: ErrorCode
) -> None:
    response = await FakeNode().request(api, version, **request_)
    rows = response.get("responses") or response.get("results") or [response]
    assert {row.error_code for row in rows} == {code}
