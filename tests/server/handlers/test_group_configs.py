"""Configuration of single groups (KIP-848) and the list of configured resources (KIP-1142), as
Apache Kafka 4.3.1 returns them for the same bytes.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.config import GROUP_OPTIONS, NodeConfig
from mqd.errors import ErrorCode
from mqd.resource_configs import AUTO_OFFSET_RESET, group_option
from tests.server.handlers.node import FakeNode, running_node

GROUP = 32
SESSION, HEARTBEAT, INTERVAL = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)


async def alter(
    node: FakeNode, name: str, *changes: tuple[str, int, str | None]
) -> tuple[int, str | None]:
    rows = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": rows}
    (row,) = (await node.request("incremental_alter_configs", 1, resources=[resource])).responses
    return row.error_code, row.error_message


async def describe(node: FakeNode, name: str) -> Any:
    resource = {"resource_type": GROUP, "resource_name": name, "configuration_keys": None}
    (row,) = (
        await node.request("describe_configs", 4, resources=[resource], include_synonyms=True)
    ).results
    return row


async def test_a_group_has_its_own_value_or_the_node_s() -> None:
    async with running_node(group_consumer_assignment_interval_ms="2000") as node:
        assert await alter(node, "g", (SESSION, 0, "50000")) == (0, None)
        rows = {row.name: row for row in (await describe(node, "g")).configs}
        assert set(rows) == set(GROUP_OPTIONS)
        found = {
            name: (
                row.value,
                row.config_source,
                row.config_type,
                row.read_only,
                [(one.name, one.value, one.source) for one in row.synonyms],
            )
            for name, row in rows.items()
            if name.startswith("consumer.")
        }
        assert found == {
            SESSION: (
                "50000",
                8,
                3,
                False,
                [(SESSION, "50000", 8), (f"group.{SESSION}", "45000", 5)],
            ),
            HEARTBEAT: ("5000", 5, 3, False, [(f"group.{HEARTBEAT}", "5000", 5)]),
            INTERVAL: (
                "2000",
                4,
                3,
                False,
                [(f"group.{INTERVAL}", "2000", 4), (f"group.{INTERVAL}", "1000", 5)],
            ),
        }
        assert {
            row.value
            for row in (await describe(node, "other")).configs
            if row.name.startswith("consumer.")
        } == {
            "45000",
            "5000",
            "2000",
        }
        assert await alter(node, "g", (SESSION, 1, None)) == (0, None)
        assert node.image.configs == {}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            (SESSION, 0, "1000"),
            ErrorCode.INVALID_CONFIG,
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"
            "; use at least 45000, or lower that key of the brokers",
        ),
        (
            (HEARTBEAT, 0, "90000"),
            ErrorCode.INVALID_CONFIG,
            f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms"
            "; use at most 15000, or raise that key of the brokers",
        ),
        (
            (INTERVAL, 0, "20000"),
            ErrorCode.INVALID_CONFIG,
            f"{INTERVAL} must be less than or equal to group.consumer.max.assignment.interval.ms"
            "; use at most 15000, or raise that key of the brokers",
        ),
        (
            (HEARTBEAT, 0, "x"),
            ErrorCode.INVALID_CONFIG,
            f"Invalid value x for configuration {HEARTBEAT}: Not a number of type INT; set it to a "
            "whole number of at least 1",
        ),
        (
            ("consumer.zz", 0, "1"),
            ErrorCode.INVALID_CONFIG,
            "Unknown group config name: consumer.zz; choose from "
            + ", ".join(map(repr, GROUP_OPTIONS)),
        ),
        (
            (SESSION, 2, "50000"),
            ErrorCode.INVALID_CONFIG,
            f"Can't APPEND to key {SESSION} because its type is not LIST.",
        ),
        (
            (AUTO_OFFSET_RESET, 0, f"by_duration:P{'9' * 19}D"),
            ErrorCode.INVALID_CONFIG,
            f"Invalid value by_duration:P{'9' * 19}D for configuration {AUTO_OFFSET_RESET}: the "
            "duration has more than 2^63 milliseconds",
        ),
        (
            (AUTO_OFFSET_RESET, 0, f"by_duration:P{'9' * 4_000}D"),
            ErrorCode.INVALID_CONFIG,
            f"Invalid value by_duration:P{'9' * 4_000}D for configuration {AUTO_OFFSET_RESET}: "
            "choose earliest, latest, or by_duration: and an ISO 8601 duration, such as "
            "by_duration:PT1H",
        ),
        (
            (SESSION, 0, None),
            ErrorCode.INVALID_REQUEST,
            f"Null value not supported for : {SESSION}",
        ),
    ],
)
async def test_invalid_configs_of_a_group_are_refused(
    change: tuple[str, int, str | None], code: ErrorCode, message: str
) -> None:
    async with running_node() as node:
        assert await alter(node, "g", change) == (code, message)
        assert node.image.configs == {}


async def test_a_session_timeout_exceeds_the_heartbeat_interval() -> None:
    async with running_node(
        group_consumer_min_session_timeout_ms="1000", group_consumer_session_timeout_ms="12000"
    ) as node:
        code, message = await alter(node, "g", (HEARTBEAT, 0, "12000"))
        assert (code, message) == (
            ErrorCode.INVALID_CONFIG,
            f"{SESSION} must be greater than {HEARTBEAT}",
        )
        assert (await alter(node, "g", (HEARTBEAT, 0, "12000"), (SESSION, 0, "13000")))[0] == 0


async def test_a_group_needs_a_name() -> None:
    async with running_node() as node:
        assert await alter(node, "", (SESSION, 0, "50000")) == (
            ErrorCode.INVALID_REQUEST,
            "Default group resources are not allowed.",
        )
        row = await describe(node, "")
        assert (row.error_code, row.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "Group name must not be empty",
        )


def test_effective_values_are_within_the_current_bounds() -> None:
    config = NodeConfig.load(overrides={"group.consumer.max.session.timeout.ms": "48000"})
    assert group_option(SESSION, config, {SESSION: "60000"}) == 48_000
    assert group_option(SESSION, config, {SESSION: "1"}) == 45_000
    assert group_option(SESSION, config, {}) == 45_000


async def test_configured_resources_are_listed_by_type() -> None:
    async with running_node() as node:
        await node.create("t", "u")
        await alter(node, "g", (SESSION, 0, "50000"))

        async def listed(version: int, **request: Any) -> Any:
            response = await node.request("list_config_resources", version, **request)
            return response.error_code, [
                (row.resource_type, row.resource_name) for row in response.config_resources
            ]

        assert await listed(0) == (0, [])
        assert await listed(1, resource_types=[32]) == (0, [(32, "g")])
        assert await listed(1, resource_types=[]) == (
            0,
            [(32, "g"), (8, "1"), (4, "1"), (2, "t"), (2, "u")],
        )
        assert await listed(1, resource_types=[2, 3]) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_without_the_feature_there_are_no_consumer_groups() -> None:
    async with running_node() as node:
        assert node.image.features["group.version"] == 1
        node.image.features["group.version"] = 0
        response = await node.request(
            "consumer_group_heartbeat", 1, group_id="g", member_id="m", member_epoch=0
        )
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        (row,) = (await node.request("consumer_group_describe", 1, group_ids=["g"])).groups
        assert (row.group_id, row.error_code) == ("g", ErrorCode.UNSUPPORTED_VERSION)


async def test_a_node_may_disable_the_protocol() -> None:
    async with running_node(group_coordinator_rebalance_protocols="classic") as node:
        response = await node.request(
            "consumer_group_heartbeat", 1, group_id="g", member_id="m", member_epoch=0
        )
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
