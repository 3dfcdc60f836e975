"""DeleteRecords through the whole server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqd.errors import ErrorCode
from tests.log.support import batch
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values


async def delete(
    client: Client, topic: str, offset: int, *, version: int = 2, partition: int = 0
) -> tuple[int, int]:
    """(error code, low watermark)."""
    body = {
        "topics": [
            {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        ],
        "timeout_ms": 1000,
    }
    response = await client.request("delete_records", version, body)
    row = response.topics[0].partitions[0]
    return row.error_code, row.low_watermark


async def three_records(node: Rig, **configs: Any) -> Client:
    node.create("t", **configs)
    client = await node.connect()
    for value in (b"a", b"b", b"c"):
        await client.produce("t", batch(value))
    return client


@pytest.mark.parametrize("version", range(3))
async def test_the_log_start_never_decreases(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        client = await three_records(node)
        assert await delete(client, "t", 2, version=version) == (0, 2)
        assert await delete(client, "t", 1, version=version) == (0, 2)
        assert values((await client.fetch("t", 2)).records) == [b"c"]
        assert await delete(client, "t", -1, version=version) == (0, 3)
        row = await client.fetch("t", 3)
        assert (row.error_code, row.log_start_offset, row.high_watermark) == (0, 3, 3)
        assert (await client.produce("t", batch(b"d"))).base_offset == 3


@pytest.mark.parametrize("offset", [4, -2, 2**63 - 1])
async def test_invalid_offsets(tmp_path: Path, offset: int) -> None:
    async with rig(tmp_path) as node:
        client = await three_records(node)
        assert await delete(client, "t", offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert node.partition("t").log.log_start_offset == 0


async def test_nothing_beyond_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client, producer = await node.connect(), await node.connect()
        producer.post("produce", 9, node.produce_body("t", batch(b"a")))
        await run_until_idle()
        assert await delete(client, "t", 1) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete(client, "t", -1) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "code"),
    [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE)],
)
async def test_a_compacted_topic(tmp_path: Path, policy: str, code: ErrorCode) -> None:
    async with rig(tmp_path) as node:
        client = await three_records(node, cleanup_policy=policy)
        assert (await delete(client, "t", 1))[0] == code


async def test_partitions_that_are_not_led_here(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER))
        node.lead("t", OTHER)
        client = await node.connect()
        assert await delete(client, "t", 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert await delete(client, "t", 0, partition=1) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            -1,
        )


async def test_records_of_coordinators_are_not_deleted(tmp_path: Path) -> None:
    """Whatever the topic's cleanup policy is."""
    async with rig(tmp_path) as node:
        node.create("__consumer_offsets", cleanup_policy="delete")
        client = await node.connect()
        assert await delete(client, "__consumer_offsets", -1) == (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            -1,
        )
