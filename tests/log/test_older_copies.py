"""A node whose disk was detached, or replaced by an older copy, while its machine ran on: no acknowledged record is lost."""

from __future__ import annotations

import pytest
import trio

from mqd.client.admin import Admin
from mqd.log.service import CHECKPOINT_SECONDS
from mqd.testing import Cluster, run
from tests.log.test_missing_records import ORDERS, consume, partition, produce


async def lose(cluster: Cluster, how: str) -> tuple[int, int]:
    """(a leader, its follower). Both acknowledge; both are killed, and the leader's disk is not what it was."""
    client = await cluster.client()
    await Admin(client).create_topic("orders", 1, 2, configs={"min.insync.replicas": "2"})
    await trio.sleep(2)
    leader, follower = partition(cluster).replicas
    await produce(client, 0, 5)
    await trio.sleep(CHECKPOINT_SECONDS)
    disk = cluster.disk(leader)
    copy = disk.copy()
    await produce(client, 5, 10)
    await trio.sleep(CHECKPOINT_SECONDS)
    assert partition(cluster).leader == leader and len(partition(cluster).isr) == 2
    for node_id in (leader, follower):
        cluster.nodes[node_id].kill()
    await trio.sleep(15)
    boot = disk.boots
    if how == "older copy":
        disk.roll_back(copy)
    elif how == "page cache":
        disk.lose_page_cache()
    assert disk.boots == boot
    return leader, follower


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("how", ["older copy", "page cache"])
def test_what_was_acknowledged_survives(how: str, seed: int) -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            leader, follower = await lose(cluster, how)
            await cluster.nodes[leader].start()
            await trio.sleep(20)
            found = partition(cluster)
            end = cluster.daemon(leader).logs.logs[ORDERS].log_end_offset if ORDERS in cluster.daemon(leader).logs.logs else 0
            if end < 10:
                assert leader not in {found.leader, *found.isr, *found.elr}, "it has not what it acknowledged"
            else:
                assert how == "page cache", "by chance nothing is lost"
            await cluster.nodes[follower].start()
            await trio.sleep(20)
            assert sorted(await consume(await cluster.client(), 10)) == list(range(10))
            assert set(partition(cluster).isr) == {leader, follower}, "it has copied what it lacked"
            assert cluster.daemon(leader).logs.logs[ORDERS].log_end_offset == 10

    run(main, seed=seed)


@pytest.mark.parametrize("seed", range(1))
def test_without_a_loss_the_same_node_leads(seed: int) -> None:
    """No false alarm: else the test above shows nothing."""

    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            leader, _ = await lose(cluster, "not at all")
            await cluster.nodes[leader].start()
            await trio.sleep(20)
            assert partition(cluster).leader == leader

    run(main, seed=seed)
