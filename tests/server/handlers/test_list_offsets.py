"""ListOffsets through the whole server: special timestamps by version, by time, isolation,
fencing.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from mqd.errors import ErrorCode
from tests.log.support import NOW, batch
from tests.server.rig import ME, OTHER, Client, rig, run_until_idle

VERSIONS = range(1, 12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(
    -1, -7, -1
)
SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NOWHERE = (0, -1, -1)


async def row_of(
    client: Client, topic: str, timestamp: int, version: int = 11, **options: Any
) -> Any:
    isolation_level = options.pop("isolation_level", 0)
    partition = {"partition_index": 0, "timestamp": timestamp, **options}
    body = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    response = await client.request("list_offsets", version, body)
    return response.topics[0].partitions[0]


async def look(
    client: Client, topic: str, timestamp: int, version: int = 11, **options: Any
) -> tuple[int, int, int]:
    """(error code, timestamp, offset)."""
    row = await row_of(client, topic, timestamp, version, **options)
    return row.error_code, row.timestamp, row.offset


@pytest.mark.parametrize("version", VERSIONS)
async def test_special_timestamps_in_every_version(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        for data in (
            batch(b"a", timestamp=NOW),
            batch(b"b", timestamp=NOW + 9),
            batch(b"c", timestamp=NOW + 5),
        ):
            await client.produce("t", data)
        node.logs.delete_records(node.partition("t").log, 1)
        expected = {
            LATEST: (0, -1, 3),
            EARLIEST: (0, -1, 1),
            MAX_TIMESTAMP: (0, NOW + 9, 1),
            EARLIEST_LOCAL: (0, -1, 1),
            LATEST_TIERED: NOWHERE,
            EARLIEST_PENDING_UPLOAD: NOWHERE,
            NOW + 1: (0, NOW + 9, 1),
            NOW + 10: NOWHERE,
        }
        for requested, response in expected.items():
            known = version >= SINCE.get(requested, 0)
            assert await look(client, "t", requested, version) == (
                response if known else (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
            )
        for requested in (-7, -(2**63)):
            assert await look(client, "t", requested, version) == (
                ErrorCode.UNSUPPORTED_VERSION,
                -1,
                -1,
            )


async def test_an_empty_partition(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        assert [await look(client, "t", requested) for requested in (LATEST, EARLIEST)] == [
            (0, -1, 0)
        ] * 2
        assert [await look(client, "t", requested) for requested in (MAX_TIMESTAMP, 0, NOW)] == [
            NOWHERE
        ] * 3


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_the_end_is_the_high_watermark(tmp_path: Path, isolation_level: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client, producer = await node.connect(), await node.connect()
        producer.post("produce", 9, node.produce_body("t", batch(b"a", timestamp=NOW)))
        await run_until_idle()
        assert await look(client, "t", LATEST, isolation_level=isolation_level) == (0, -1, 0)
        assert await look(client, "t", MAX_TIMESTAMP, isolation_level=isolation_level) == NOWHERE
        assert await look(client, "t", NOW, isolation_level=isolation_level) == NOWHERE


async def test_leader_epochs_are_returned_and_fence(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER), isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"a"))
        node.lead("t", ME)
        assert (await row_of(client, "t", LATEST)).leader_epoch == 1
        assert (await row_of(client, "t", EARLIEST)).leader_epoch == 0
        assert (await row_of(client, "t", 0)).leader_epoch == 0
        assert (await look(client, "t", LATEST, current_leader_epoch=1))[0] == 0
        assert (await look(client, "t", LATEST, current_leader_epoch=0))[
            0
        ] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await look(client, "t", LATEST, current_leader_epoch=2))[
            0
        ] == ErrorCode.UNKNOWN_LEADER_EPOCH
        node.lead("t", OTHER, isr=(ME, OTHER))
        assert (await look(client, "t", LATEST))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_unknown_and_offline_partitions(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        assert (await look(client, "missing", LATEST))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.disk.write_error = errno.EIO
        node.create("t")
        assert (await look(client, "t", LATEST))[0] == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_partition_on_another_node_is_not_unknown(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(OTHER,))
        client = await node.connect()
        assert (await look(client, "t", LATEST))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_partition_named_twice_has_one_row_with_an_error(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        node.create("u")
        client = await node.connect()
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "timestamp": LATEST} for index in indexes
                ],
            }
            for name, indexes in (("t", (1, 0)), ("u", (0,)), ("t", (0, 0)))
        ]
        response = await client.request("list_offsets", 7, {"replica_id": -1, "topics": topics})
        rows = {
            topic.name: [(row.partition_index, row.error_code) for row in topic.partitions]
            for topic in response.topics
        }
        assert rows == {"t": [(0, ErrorCode.INVALID_REQUEST), (1, 0)], "u": [(0, 0)]}
        assert len(response.topics) == 2, "a topic that is named twice is one topic in the response"


async def test_a_segment_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a", timestamp=NOW))
        (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(
            b"\0" * node.partition("t").log.size_bytes
        )
        assert (await look(client, "t", NOW))[0] == ErrorCode.KAFKA_STORAGE_ERROR
