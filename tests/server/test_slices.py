"""Large requests yield to others: slow ones are handled in slices, and logged once."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.controller.records import AddPartitions, Placement
from mqd.errors import ErrorCode
from mqd.limits import (
    CONFIG_RESOURCES_MAX,
    REQUEST_ELEMENTS_MAX,
    REQUEST_STRING_BYTES_MAX,
    STRUCTURE_ELEMENTS,
    TASK_SLICE_SECONDS_MAX,
)
from mqd.protocol import apis
from mqd.protocol.chunks import Chunks
from mqd.protocol.primitives import pack_unsigned_varint
from mqd.server.slices import finished_in_slices, finished_soon
from tests.log.support import batch
from tests.server.rig import OTHER, Client, Rig, rig, run_until_idle

LATEST = -1
MANY = 5000


@pytest.mark.parametrize("at_once", [True, False])
async def test_slow_rows_make_short_slices(mock_clock: MockClock, at_once: bool) -> None:
    """A slice ends by the clock, too: the rows of a client may be slower than most."""
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            await trio.lowlevel.checkpoint()
            others += 1

    def rows() -> Generator[int, None, str]:
        for _ in range(10):
            mock_clock.jump(2 * TASK_SLICE_SECONDS_MAX)
            yield 1
        return "done"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        finished = finished_soon if at_once else finished_in_slices
        assert await finished(rows()) == "done"
        nursery.cancel_scope.cancel()
    assert others >= 8


async def large(node: Rig) -> None:
    """Metadata of many partitions; one of them is on this node, and has many producers."""
    topic_id = node.create("large")
    node.change(AddPartitions(topic_id, 1, (Placement((OTHER,), OTHER, (OTHER,)),) * (MANY - 1)))
    client = await node.connect()
    for producer_id in range(600):
        await client.produce("large", batch(b"x", producer_id=producer_id, epoch=0, sequence=0))


def partitions(key: str, name: str, **fields: int) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": "large",
                "name": "large",
                key: [{name: index, **fields} for index in range(MANY)],
            }
        ]
    }


LARGE: dict[str, tuple[str, int, Mapping[str, Any]]] = {
    "metadata of all topics": ("metadata", 12, {"topics": None}),
    "metadata of one large topic": ("metadata", 12, {"topics": [{"name": "large"}]}),
    "metadata of many names": (
        "metadata",
        12,
        {
            "topics": [{"name": f"n{row}"} for row in range(MANY)],
            "allow_auto_topic_creation": False,
        },
    ),
    "configs of many": (
        "describe_configs",
        4,
        {
            "resources": [
                {"resource_type": 2, "resource_name": f"n{row}"}
                for row in range(CONFIG_RESOURCES_MAX)
            ]
        },
    ),
    "producers": (
        "describe_producers",
        0,
        {"topics": [{"name": "large", "partition_indexes": range(MANY)}]},
    ),
    "epochs": ("offset_for_leader_epoch", 4, partitions("partitions", "partition", leader_epoch=0)),
    "offsets": ("list_offsets", 7, partitions("partitions", "partition_index", timestamp=LATEST)),
    "offsets by time": (
        "list_offsets",
        7,
        {"topics": [{"name": "large", "partitions": [{"partition_index": n} for n in range(50)]}]},
    ),
    "records": ("delete_records", 2, partitions("partitions", "partition_index", offset=0)),
    "pages": (
        "describe_topic_partitions",
        0,
        {"topics": [{"name": "large"}], "response_partition_limit": 2000},
    ),
    "coordinators": (
        "find_coordinator",
        4,
        {"key_type": 9, "coordinator_keys": ["k" * 100] * MANY},
    ),
}


async def test_other_requests_are_served_while_a_large_response_is_built(tmp_path: Path) -> None:
    async with rig(tmp_path, max_request_partition_size_limit="2000") as node:
        await large(node)
        node.node.controller.controller_id = 1
        slow, other = await node.connect(), await node.connect()
        held_back = []
        for name, (api, version, body) in LARGE.items():
            slow.post(api, version, body)
            while not node.server.dispatcher.requests or slow.sock.incoming:
                await trio.lowlevel.checkpoint()  # until it is taken up
            other.post("list_offsets", 1, {"topics": []})
            while not (responses := other.responses()):
                await trio.lowlevel.checkpoint()
            assert len(responses) == 1
            if slow.sock.sent:
                held_back.append(name)
            await run_until_idle()
            (response,) = slow.responses()
            assert response is not None, name
        assert held_back == []


async def test_slices_yield_the_same_bytes() -> None:
    partition = {"partition_index": 3, "leader_id": 1, "replica_nodes": [1, 2], "isr_nodes": [1]}
    topics = [
        {"name": f"t{row}", "partitions": [partition] * row} for row in (0, 1, 99, 100, 101, 250)
    ]
    response = {
        "brokers": [{"node_id": 1, "host": "h", "port": 2}] * 130,
        "cluster_id": "c",
        "controller_id": 1,
        "topics": topics,
    }
    metadata = apis.by_name("metadata")
    assert metadata is not None
    for version in range(metadata.versions[0], metadata.versions[1] + 1):
        chunks = Chunks()
        weights = list(metadata.encode_response_in_slices(version, response, chunks))
        assert b"".join(chunks.take()) == metadata.encode_response(version, response)
        assert max(weights) <= 100 and sum(weights) == 130 + 551 + len(topics)


async def rows(
    client: Client, api: str, version: int, partitions: list[Any], key: str = "partitions"
) -> list[Any]:
    response = await client.request(
        api,
        version,
        {"topics": [{"name": "t", "topic": "t", key: partitions}] * 2, "timeout_ms": 1000},
    )
    return [list(topic.partitions) for topic in response.topics]


async def test_a_resource_named_twice_has_one_row(tmp_path: Path) -> None:
    """DeleteRecords like Apache Kafka 4.3.

    Kafka's DescribeProducers responds to each repetition. Its DescribeConfigs does, too; here a
    resource has at most ten rows.
    """
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        client = await node.connect()
        await client.produce("t", batch(b"a", producer_id=7, epoch=0, sequence=0))
        (found,) = await rows(client, "describe_producers", 0, [0, 1, 0, 9, 9], "partition_indexes")
        assert [(row.partition_index, row.error_code) for row in found] == [
            (0, 0),
            (1, 0),
            (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        offsets = [{"partition_index": 0, "offset": offset} for offset in (1, 5)]
        (found,) = await rows(client, "delete_records", 2, offsets)
        assert [(row.partition_index, row.error_code) for row in found] == [
            (0, ErrorCode.OFFSET_OUT_OF_RANGE)
        ]
        one = ["retention.ms"]
        requested = [
            {"resource_type": 2, "resource_name": "t", "configuration_keys": keys}
            for keys in (one, None, one)
        ]
        response = await client.request("describe_configs", 4, {"resources": requested * 100})
        assert [row.error_code for row in response.results] == [ErrorCode.NONE] * 15 + [
            code
            for _ in range(5)
            for code in (ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
        ] + [ErrorCode.INVALID_REQUEST] * 270
        too_many = await client.request(
            "describe_configs", 4, {"resources": requested[:1] * (CONFIG_RESOURCES_MAX + 1)}
        )
        assert {row.error_code for row in too_many.results} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(("size", "count"), [(30_000, 279), (120, 69_905)])
@pytest.mark.parametrize("more", [0, 1])
async def test_the_bytes_of_all_strings_are_bounded(
    tmp_path: Path, size: int, count: int, more: int
) -> None:
    """DescribeConfigs v4: `count` keys are the most, both of long ones and of short ones."""
    assert count == REQUEST_STRING_BYTES_MAX // size
    async with rig(tmp_path) as node:
        client = await node.connect()
        names = (pack_unsigned_varint(size + 1) + b"x" * size) * (count + more)
        keys = pack_unsigned_varint(count + more + 1) + names
        body = b"\0\x02\x04\x01" + keys + b"\0\0\0\0"
        client.send_frame(pack(">hhih", 32, 4, 1, -1) + body)
        await run_until_idle()
        assert client.sock.closed == bool(more)


@pytest.mark.parametrize(
    ("count", "closed"), [(REQUEST_ELEMENTS_MAX // STRUCTURE_ELEMENTS + 1, True), (20_000, False)]
)
async def test_the_rows_of_a_request_are_bounded(tmp_path: Path, count: int, closed: bool) -> None:
    async with rig(tmp_path, auto_create_topics_enable="false") as node:
        client = await node.connect()
        names = pack(">h2s", 2, b"tt") * count
        client.send_frame(pack(">hhih", 3, 1, 1, -1) + pack(">i", count) + names)
        node.node.controller.controller_id = 1
        await run_until_idle()
        assert client.sock.closed == closed
