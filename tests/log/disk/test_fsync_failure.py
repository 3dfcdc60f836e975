"""After a failed sync the page cache holds data that is on no disk: the next start writes it again
before any response depends on it.
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
    """The number of acknowledged records; each is produced after the previous one."""
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
def test_records_acknowledged_after_a_failed_sync_survive_a_power_failure(
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
def test_unsynced_records_of_a_killed_process_are_synced_before_acks(
    seed: int,
) -> None:
    """This includes the directory of the partition and its metadata: a process created them and
    ended before it synced them.
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
