"""CreateTopics: requests and responses, the configs of version 5, timeouts, forwarding to the
controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode
from mqd.limits import CREATED_TOPICS_MAX
from mqd.server.context import PEER
from mqd.server.handlers import create_topics
from tests.server.handlers.node import running_node


def topic(name: str, partitions: int = -1, factor: int = -1, **rest: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **rest}


@pytest.mark.parametrize("version", range(2, 8))
async def test_every_version(version: int) -> None:
    async with running_node() as node:
        rows = [
            topic("good", 2),
            topic("b/d"),
            topic("null", configs=[{"name": "retention.ms", "value": None}]),
        ]
        good, bad, null = (
            await node.request("create_topics", version, topics=rows, timeout_ms=1000)
        ).topics
        assert (good.name, good.error_code, good.error_message) == ("good", 0, None)
        assert (
            (bad.error_code, null.error_code) == (17, 40)
            and bad.error_message
            and null.error_message
        )
        assert len(node.image.topics["good"].partitions) == 2
        if version >= 5:
            assert (good.num_partitions, good.replication_factor) == (2, 1)
            assert (bad.num_partitions, bad.replication_factor, list(bad.configs)) == (-1, -1, [])
        if version >= 7:
            assert good.topic_id == node.image.topics["good"].topic_id


async def test_other_requests_are_served_while_a_large_response_is_built(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    rounds = 0
    seen = []

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await trio.lowlevel.checkpoint()

    make = create_topics._row

    def row(*args: Any) -> dict[str, Any]:
        seen.append(rounds)
        return make(*args)

    monkeypatch.setattr(create_topics, "_row", row)
    async with running_node() as node:
        nursery.start_soon(others)
        response = await node.request(
            "create_topics",
            7,
            topics=[topic(f"t{number}") for number in range(100)],
            validate_only=True,
        )
    assert [one.error_code for one in response.topics] == [0] * 100
    assert len(set(seen)) >= 10


async def test_a_request_with_too_many_topics_is_refused_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node() as node:
        monkeypatch.setattr(node.entropy, "uuid", lambda: pytest.fail("an id was drawn"))
        rows = [topic(f"t{number}") for number in range(CREATED_TOPICS_MAX + 1)]
        response = await node.request("create_topics", 7, topics=rows)
        assert {one.error_code for one in response.topics} == {ErrorCode.POLICY_VIOLATION}


async def test_the_response_has_the_effective_configs() -> None:
    async with running_node(log_segment_bytes="3000000") as node:
        configs = [{"name": "retention.ms", "value": "77"}]
        response = await node.request(
            "create_topics", 7, topics=[topic("t", configs=configs)], validate_only=True
        )
        rows = {row.name: row for row in response.topics[0].configs}
        assert list(rows) == sorted(rows) and len(rows) > 20
        assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("77", 1)
        assert (rows["segment.bytes"].value, rows["segment.bytes"].config_source) == ("3000000", 4)
        assert (rows["cleanup.policy"].value, rows["cleanup.policy"].config_source) == ("delete", 5)
        assert "t" not in node.image.topics


async def test_the_nodes_number_of_partitions_is_the_default() -> None:
    async with running_node(num_partitions="4") as node:
        assigned = topic("a", assignments=[{"partition_index": 0, "broker_ids": [1]}])
        response = await node.request("create_topics", 5, topics=[topic("t"), assigned])
        assert [row.num_partitions for row in response.topics] == [4, 1]


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_timeout_of_zero_times_out_each_topic(timeout_ms: int) -> None:
    async with running_node() as node:
        response = await node.request(
            "create_topics", 2, topics=[topic("t"), topic("u"), topic("u")], timeout_ms=timeout_ms
        )
        assert [(row.name, row.error_code) for row in response.topics] == [("t", 7), ("u", 7)]
        assert not node.image.topics


async def test_without_a_controller_it_waits_until_its_timeout(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        node.quorum.leader_id = None
        start = trio.current_time()
        response = await node.request("create_topics", 7, topics=[topic("t")], timeout_ms=1500)
        assert response.topics[0].error_code == 7 and trio.current_time() - start == pytest.approx(
            1.5
        )


async def test_the_request_is_forwarded_unchanged(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        requested: list[Any] = []

        async def forward(
            node_id: int, api: str, version: int, request: Mapping[str, Any]
        ) -> Mapping[str, Any]:
            requested.append((node_id, api, version, request["topics"][0]["name"]))
            return {"topics": [{"name": "t", "error_code": 36}]}

        node.controller.channel.forward = forward
        node.quorum.leader_id = 2
        response = await node.request("create_topics", 7, topics=[topic("t")], timeout_ms=1500)
        assert response.topics[0].error_code == 36
        assert requested == [(2, "CreateTopics", 7, "t")]
        response = await node.request(
            "create_topics", 7, listener=PEER, topics=[topic("t")], timeout_ms=1500
        )
        # forwarded requests are not forwarded again
        assert response.topics[0].error_code == 41 and len(requested) == 1
