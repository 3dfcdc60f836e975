"""DescribeProducers through the whole server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqd.errors import ErrorCode
from mqd.log.partition_log import LogFailure
from tests.log.support import NOW, batch
from tests.server.rig import ME, OTHER, Client, rig


async def describe(client: Client, topic: str, partition: int = 0) -> Any:
    response = await client.request(
        "describe_producers", 0, {"topics": [{"name": topic, "partition_indexes": [partition]}]}
    )
    return response.topics[0].partitions[0]


async def test_producers_of_a_partition(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        client = await node.connect()
        await client.produce(
            "t", batch(b"a", b"b", producer_id=7, epoch=2, sequence=0, timestamp=NOW)
        )
        await client.produce(
            "t", batch(b"c", producer_id=9, epoch=0, sequence=5, timestamp=NOW + 1)
        )
        await client.produce("t", batch(b"nobody's"))
        row = await describe(client, "t")
        assert row.error_code == 0
        found = [
            (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp)
            for one in row.active_producers
        ]
        assert found == [(7, 2, 1, NOW), (9, 0, 5, NOW + 1)]
        assert {one.current_txn_start_offset for one in row.active_producers} == {-1}
        assert list((await describe(client, "t", 1)).active_producers) == []


async def test_a_follower_describes_its_own_replica(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER), isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(producer_id=7, epoch=2, sequence=0))
        node.lead("t", OTHER, isr=(ME, OTHER))
        row = await describe(client, "t")
        assert (row.error_code, [one.producer_id for one in row.active_producers]) == (0, [7])


async def test_partitions_on_other_nodes(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(OTHER,))
        client = await node.connect()
        elsewhere, unknown = await describe(client, "t"), await describe(client, "missing")
        assert (elsewhere.error_code, unknown.error_code) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        assert elsewhere.error_message


async def test_a_replica_whose_disk_failed(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        node.partition("t").log.failure = LogFailure("the disk is gone")
        row = await describe(client, "t")
        assert (row.error_code, row.error_message) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            "the disk is gone",
        )
