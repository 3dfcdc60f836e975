"""After a failed sync the page cache tells what no disk has: the next start writes it again
before anything rests on it.
"""

from __future__ import annotations

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType
from mqd.client.errors import ClientError
from mqd.client.producer import open_producer
from mqd.errors import MqError
from mqd.testing import Cluster, run
from mqd.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


async def produce(client: ClusterClient, count: int) -> int:
    """How many of so many records were acknowledged, one after the other."""
    acknowledged = 0
    async with open_producer(client, delivery_timeout_s=5) as producer:
        for number in range(count):
            try:
                acknowledged = (
                    await producer.send("orders", b"%d" % number, partition=0)
                ).offset + 1
            except (ClientError, MqError):
                break
    return acknowledged


@pytest.mark.parametrize("seed", range(6))
def test_what_is_acknowledged_after_a_failed_sync_and_a_restart_outlives_a_power_cut(
    seed: int,
) -> None:
    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            node, disk = cluster.nodes[1], cluster.disk(1)
            client = await cluster.client()
            await Admin(client).create_topic("orders", 1, 1, {"flush.before.ack": "true"})
            assert await produce(client, 3) == 3
            disk.fail_sync("orders-0")
            assert await produce(client, 1) == 0
            with trio.move_on_after(60):
                while node.running:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            assert not node.running and any(path.name == ".mqd_suspect" for path in disk.files())
            await node.start()
            client = await cluster.client()
            acknowledged = await produce(client, 3)
            assert acknowledged >= 6
            assert not any(path.name == ".mqd_suspect" for path in disk.files())
            node.power_cut()
            await node.start()
            client = await cluster.client()
            assert await produce(client, 1) == acknowledged + 1
            log = cluster.daemon(1).logs.logs[ORDERS]
            assert log.log_end_offset == acknowledged + 1

    run(main, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_what_a_killed_process_never_synced_is_durable_before_more_is_acknowledged(
    seed: int,
) -> None:
    """The directory of the partition and its metadata, too: they were made by a process
    that did not come to sync them.
    """

    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            node = cluster.nodes[1]
            client = await cluster.client()
            await Admin(client).create_topic("orders", 1, 1, {})
            assert await produce(client, 3) == 3
            node.kill()
            await node.start()
            client = await cluster.client()
            change = ConfigChange("flush.before.ack", ConfigOperation.SET, "true")
            assert set(
                (
                    await Admin(client).alter_configs(
                        {Resource(ResourceType.TOPIC, "orders"): [change]}
                    )
                ).values()
            ) == {None}
            assert await produce(client, 3) == 6
            node.power_cut()
            await node.start()
            client = await cluster.client()
            assert await produce(client, 1) == 7

    run(main, seed=seed)
