"""A cluster whose leader holds a damaged batch: a replica that copies it detects the damage,
another replica leads, and all are in sync again.
"""

from __future__ import annotations

from pathlib import Path

import trio

from mqd.client.admin import Admin
from mqd.client.producer import open_producer
from mqd.testing import Cluster, simulated
from mqd.types import NodeId, TopicPartition

ORDERS = TopicPartition("orders", 0)


@simulated(seed=5)
async def test_damage_in_the_leader_s_log_is_repaired_from_another_replica() -> None:
    async with Cluster(nodes=3) as cluster:
        client = await cluster.client()
        await Admin(client).create_topic("orders", 1, 3)
        async with open_producer(client, delivery_timeout_s=30) as producer:
            for number in range(30):
                await producer.send("orders", b"%d" % number * 100, partition=0)
        await trio.sleep(5)
        image = cluster.daemon(1).machine.image
        leader = image.topics["orders"].partitions[0].leader
        follower = next(NodeId(one) for one in cluster.nodes if one != leader)
        segment = next(
            path for path in cluster.disk(leader).files("orders-0") if path.name == f"{0:020}.log"
        )
        cluster.disk(leader).corrupt(segment, 200)
        cluster.nodes[follower].power_cut()
        logs_directory = cluster.disk(follower).directory(Path("/data/logs"))
        del logs_directory.names["orders-0"], logs_directory.durable["orders-0"]
        await cluster.nodes[follower].start()
        with trio.fail_after(120):
            while True:
                await trio.sleep(1)
                partition = cluster.daemon(1).machine.image.topics["orders"].partitions[0]
                if set(partition.isr) == {1, 2, 3} and partition.leader != leader:
                    break
        logs = [cluster.daemon(one).logs.logs[ORDERS] for one in cluster.nodes]
        assert {(log.log_start_offset, log.log_end_offset, log.failure) for log in logs} == {
            (0, 30, None)
        }
