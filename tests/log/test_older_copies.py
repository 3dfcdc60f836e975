"""A node whose disk was detached, or replaced by an older copy, while its machine kept running: no
acknowledged record is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mqd.client.admin import Admin
from mqd.testing import Cluster, run
from mqd.testing.disk import MemoryDisk
from mqd.testing.inodes import Directory
from tests.log.test_missing_records import ORDERS, consume, partition, produce
from tests.seeds import seeds

HEARTBEAT_SECONDS = 0.5
"""`broker.heartbeat.interval.ms`"""
CHECKPOINT_SECONDS = 5.0
OPTIONS = {"log.flush.offset.checkpoint.interval.ms": f"{CHECKPOINT_SECONDS * 1000:.0f}"}
"""With the default of a minute, the clusters would be idle for most of the test."""


async def lose(cluster: Cluster, how: str) -> tuple[int, int]:
    """(a leader, its follower).

    Both acknowledge; both are killed, and the leader's disk is changed.
    """
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


async def in_sync(cluster: Cluster, nodes: set[int]) -> None:
    """Wait until these nodes are the ISR."""
    with trio.fail_after(20):
        while set(partition(cluster).isr) != nodes:  # noqa: ASYNC110
            await trio.sleep(0.1)


@pytest.mark.parametrize("seed", seeds(1, range(2)))
@pytest.mark.parametrize("how", ["older copy", "page cache"])
def test_acknowledged_records_survive(how: str, seed: int) -> None:
    async def main() -> None:
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            leader, follower = await lose(cluster, how)
            await cluster.nodes[leader].start()
            await trio.sleep(20)
            found = partition(cluster)
            end = (
                cluster.daemon(leader).logs.logs[ORDERS].log_end_offset
                if ORDERS in cluster.daemon(leader).logs.logs
                else 0
            )
            if end < 10:
                assert leader not in {found.leader, *found.isr, *found.elr}, (
                    "it lacks records that it acknowledged"
                )
            else:
                assert how == "page cache", "by chance nothing is lost"
            await cluster.nodes[follower].start()
            await in_sync(cluster, {leader, follower})
            assert sorted(await consume(await cluster.client(), 10)) == list(range(10))
            assert set(partition(cluster).isr) == {leader, follower}, (
                "it has copied the missing records"
            )
            assert cluster.daemon(leader).logs.logs[ORDERS].log_end_offset == 10

    run(main, seed=seed)


NOT_VOUCHED = "the controller ignores the replicas of this node"


@pytest.mark.parametrize("undo_write", [True, False])
def test_an_older_copy_is_reported_one_heartbeat_after_a_checkpoint(undo_write: bool) -> None:
    async def main() -> None:
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            client = await cluster.client()
            await Admin(client).create_topic("orders", 1, 3)
            await trio.sleep(2)
            leader = partition(cluster).leader
            node, disk = cluster.nodes[leader], cluster.disk(leader)
            await produce(client, 0, 5)
            copy = disk.copy()
            housekeeping = cluster.daemon(leader).logs.housekeeping
            serial = housekeeping.disk_serial
            await produce(client, 5, 10)
            with trio.fail_after(CHECKPOINT_SECONDS + 1):
                while housekeeping.disk_serial == serial:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await trio.sleep(HEARTBEAT_SECONDS + 0.1)
            node.kill()
            if undo_write:
                disk.roll_back(copy)
            await trio.sleep(1)
            await node.start()
            await trio.sleep(5)
            lines = [line for line in cluster.world.logs.lines if NOT_VOUCHED in line]
            assert len(lines) == undo_write

    run(main, seed=1)


@pytest.mark.parametrize("seed", range(1))
def test_without_a_loss_the_same_node_leads_again(seed: int) -> None:
    """No false alarm: otherwise the test above shows nothing."""

    async def main() -> None:
        async with Cluster(nodes=3, options=OPTIONS) as cluster:
            leader, _ = await lose(cluster, "not at all")
            await cluster.nodes[leader].start()
            await trio.sleep(20)
            assert partition(cluster).leader == leader

    run(main, seed=seed)


DATA = Path("/data")


def put_back_logs(disk: MemoryDisk, copy: Directory) -> None:
    """The log directory from `copy`; the metadata beside it stays.

    No process may be alive.
    """
    data = copy.names[DATA.name]
    assert isinstance(data, Directory)
    current = disk.directory(DATA)
    current.change(("logs", data.names["logs"]))
    current.sync()


async def stop_with_an_older_copy(cluster: Cluster, replicas: int, *, undo_write: bool) -> int:
    """The leader of all replicas is stopped last and cleanly, before its heartbeat reports a new
    disk serial.
    """
    client = await cluster.client()
    await Admin(client).create_topic(
        "orders", 1, replicas, configs={"min.insync.replicas": str(replicas)}
    )
    await trio.sleep(2)
    await produce(client, 0, 3)
    leader = partition(cluster).leader
    await cluster.nodes[leader].stop()
    copy = cluster.disk(leader).copy()
    await cluster.nodes[leader].start()
    await trio.sleep(20)
    await produce(await cluster.client(), 3, 6)
    leader = partition(cluster).leader if replicas == 1 else leader
    for node_id in sorted(partition(cluster).replicas, key=lambda one: one == leader):
        await cluster.nodes[node_id].stop()
        await trio.sleep(1)
    if undo_write:
        put_back_logs(cluster.disk(leader), copy)
    return leader


@pytest.mark.parametrize("undo_write", [True, False])
def test_a_restored_log_directory_after_a_clean_stop_is_reported(undo_write: bool) -> None:
    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            node_id = await stop_with_an_older_copy(cluster, 1, undo_write=undo_write)
            for starts in range(2):
                cluster.world.logs.lines.clear()
                await cluster.nodes[node_id].start()
                await trio.sleep(5)
                lines = [line for line in cluster.world.logs.lines if "is an older copy" in line]
                log = cluster.daemon(node_id).logs.logs[ORDERS]
                assert log.log_end_offset == (3 if undo_write else 6)
                assert len(lines) == (undo_write and starts == 0), "it is reported once"
                if lines:
                    line = "directory=/data/logs expected_disk_serial=2 found_disk_serial=1"
                    assert line in lines[0]
                cluster.nodes[node_id].kill()

    run(main, seed=1)


@pytest.mark.parametrize("seed", seeds(1, range(2)))
def test_a_restored_log_directory_loses_no_acknowledged_records(seed: int) -> None:
    async def main() -> None:
        async with Cluster(nodes=4) as cluster:
            older = await stop_with_an_older_copy(cluster, 2, undo_write=True)
            (other,) = set(partition(cluster).replicas) - {older}
            await cluster.nodes[older].start()
            await trio.sleep(20)
            found = partition(cluster)
            assert older not in {found.leader, *found.isr, *found.elr}
            await cluster.nodes[other].start()
            await in_sync(cluster, {older, other})
            assert sorted(await consume(await cluster.client(), 6)) == list(range(6))
            assert set(partition(cluster).isr) == {older, other}

    run(main, seed=seed)
