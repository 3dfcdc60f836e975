"""Delete on acknowledge: segments that all groups have read are deleted early (I61)."""

from __future__ import annotations

from typing import Any

import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.group_consumer import open_group_consumer
from mqd.client.producer import open_producer
from mqd.server.acknowledged_retention import acknowledged
from mqd.testing import Cluster, run
from mqd.types import TopicPartition

JOBS = TopicPartition("jobs", 0)
OPTIONS = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
}


def response(awaited: bool = False, **topics: dict[int, int]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "is_awaited": int(awaited),
                "partitions": [
                    {"partition": partition, "offset": offset}
                    for partition, offset in offsets.items()
                ],
            }
            for name, offsets in topics.items()
        ]
    }


def test_the_lowest_offset_of_all_groups_counts() -> None:
    assert acknowledged([]) == {}
    assert acknowledged([response(jobs={0: 7, 1: 3}), response(jobs={0: 5})]) == {
        JOBS: 5,
        TopicPartition("jobs", 1): 3,
    }


def test_a_subscribed_group_without_an_offset_keeps_all_records() -> None:
    both = [response(jobs={0: 7, 1: 3}), response(awaited=True, jobs={1: 9})]
    assert acknowledged(both) == {TopicPartition("jobs", 1): 3}
    assert acknowledged([response(jobs={0: 7}), response(awaited=True, jobs={})]) == {}


async def produce(client: ClusterClient, count: int) -> None:
    async with open_producer(client) as producer:
        for _ in range(count):
            await producer.send("jobs", bytes(200_000))


async def read(client: ClusterClient, group: str, count: int) -> None:
    with trio.fail_after(60):
        async with open_group_consumer(client, group, ["jobs"], reset="beginning") as consumer:
            done = 0
            async for batch in consumer:
                done += len(batch.records)
                if done >= count:
                    await consumer.commit()
                    return


async def first_offset(client: ClusterClient) -> int:
    async with open_consumer(client, {JOBS: "beginning"}, end="end") as consumer:
        async for batch in consumer:
            return batch.records[0].offset
    return -1


def log_starts(cluster: Cluster) -> set[int]:
    return {cluster.daemon(node).logs.logs[JOBS].log_start_offset for node in cluster.nodes}


def test_segments_that_all_groups_have_read_are_deleted_on_all_replicas() -> None:
    async def main() -> None:
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            client = await cluster.client()
            configs = {"mqd.retention.acknowledged": "true", "segment.bytes": "1048576"}
            await Admin(client).create_topic("jobs", 1, 3, configs=configs)
            await trio.sleep(1)
            await produce(client, 60)
            await trio.sleep(4)
            assert await first_offset(client) == 0  # there is no group
            await read(client, "slow", 10)
            await read(client, "fast", 40)
            await trio.sleep(8)
            first = await first_offset(client)
            assert 0 < first <= 15
            await read(client, "slow", 40)
            await trio.sleep(8)
            assert first < await first_offset(client) <= 45
            with trio.fail_after(20):
                while len(log_starts(cluster)) > 1:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            assert log_starts(cluster).pop() > first

    run(main)
