"""Subscriptions of client metrics (KIP-714): the rows of DescribeConfigs and ListConfigResources,
as Apache Kafka 4.3.1 returns them.
"""

from __future__ import annotations

from typing import Any

from tests.server.handlers.node import FakeNode, running_node

KIND = 16


async def alter(node: FakeNode, name: str, **values: str) -> None:
    rows = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": KIND, "resource_name": name, "configs": rows}
    (row,) = (await node.request("incremental_alter_configs", 1, resources=[resource])).responses
    assert row.error_code == 0, row


async def described(node: FakeNode, name: str, keys: list[str] | None = None) -> Any:
    resource = {"resource_type": KIND, "resource_name": name, "configuration_keys": keys}
    response = await node.request("describe_configs", 4, resources=[resource])
    (row,) = response.results
    return row


async def test_described_keys() -> None:
    async with running_node() as node:
        await alter(node, "s", metrics=" a , b,a", interval_ms=" +0500 ")
        found = await described(node, "s")
        assert [
            (row.name, row.value, row.config_source, row.config_type, row.read_only)
            for row in found.configs
        ] == [
            ("interval.ms", "500", 7, 3, False),
            ("match", "", 5, 7, False),
            ("metrics", "a,b", 7, 7, False),
        ]
        resource = {"resource_type": KIND, "resource_name": "s", "configuration_keys": None}
        response = await node.request(
            "describe_configs", 4, resources=[resource], include_synonyms=True
        )
        assert [
            [(one.name, one.value, one.source) for one in row.synonyms]
            for row in response.results[0].configs
        ] == [[("interval.ms", "500", 7)], [], [("metrics", "a,b", 7)]]


async def test_a_subscription_that_does_not_exist_has_the_defaults() -> None:
    async with running_node() as node:
        found = await described(node, "none")
        assert [(row.name, row.value, row.config_source) for row in found.configs] == [
            ("interval.ms", "300000", 5),
            ("match", "", 5),
            ("metrics", "", 5),
        ]
        found = await described(node, "none", ["foo"])
        assert (found.error_code, list(found.configs)) == (0, [])
        found = await described(node, "")
        assert (found.error_code, found.error_message) == (
            42,
            "Client metrics subscription name must not be empty",
        )


async def test_listed_names() -> None:
    async with running_node() as node:
        await alter(node, "b", metrics="a")
        await alter(node, "a", metrics="a")
        listed = await node.request("list_config_resources", 0)
        assert [row.resource_name for row in listed.config_resources] == ["a", "b"]
        for wanted in ([KIND], []):
            listed = await node.request("list_config_resources", 1, resource_types=wanted)
            rows = [(row.resource_name, row.resource_type) for row in listed.config_resources]
            assert [row for row in rows if row[1] == KIND] == [("a", KIND), ("b", KIND)]
        listed = await node.request("list_config_resources", 1, resource_types=[32])
        assert not list(listed.config_resources), "no groups"
