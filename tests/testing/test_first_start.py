"""Clients that wait for a cluster which is started for the first time."""

from __future__ import annotations

import trio

from mqd.client.errors import ClientError
from mqd.protocol import apis
from mqd.testing import Cluster, simulated


@simulated(seed=1)
async def test_a_group_that_waits_for_a_new_cluster_gets_all_replicas() -> None:
    find = apis.by_name("find_coordinator")
    assert find is not None
    cluster = Cluster(nodes=3, start=False)

    async def wait_for_coordinator(node_id: int) -> None:
        while True:
            try:
                connection = await cluster.connect(node_id)
                answer = await connection.request(
                    find, {"key_type": 0, "coordinator_keys": ["g"]}, 4, timeout_s=60
                )
                if answer.coordinators[0].error_code == 0:
                    return
            except ClientError:
                pass
            await trio.sleep(0.05)

    async with cluster:
        async with trio.open_nursery() as nursery:
            for node_id in cluster.nodes:
                nursery.start_soon(wait_for_coordinator, node_id)
            await cluster.start()
        partitions = cluster.daemon(1).machine.image.topics["__consumer_offsets"].partitions
        assert {tuple(sorted(partition.replicas)) for partition in partitions} == {(1, 2, 3)}
