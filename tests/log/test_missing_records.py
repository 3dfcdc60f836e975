"""A node whose own recovery finds acknowledged records missing: it reports the loss, does not claim
clean logs, and copies the records.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.producer import open_producer
from mqd.controller.image import PartitionImage
from mqd.log.disk.last_registration import NO_BROKER_EPOCH, previous_broker_epoch
from mqd.node import data_directory
from mqd.node.data_directory import DataDirectory
from mqd.testing import Cluster, run
from mqd.types import NodeId, TopicPartition

ORDERS = TopicPartition("orders", 0)
CHECKPOINTED_S = 12
"""By then every replica has the high watermark in its checkpoint, and a dead node is fenced."""


def partition(cluster: Cluster) -> PartitionImage:
    node = next(node_id for node_id, node in cluster.nodes.items() if node.ready)
    found = cluster.daemon(node).machine.image.partition(*ORDERS)
    assert isinstance(found, PartitionImage)
    return found


async def produce(client: ClusterClient, first: int, last: int) -> None:
    """All of them are acknowledged one after the other, so that each is a separate batch."""
    async with open_producer(client) as producer:
        for number in range(first, last):
            await producer.send("orders", b"%d" % number)
            await producer.flush()
    await trio.sleep(CHECKPOINTED_S)


async def consume(client: ClusterClient, count: int) -> list[int]:
    found: list[int] = []
    async with open_consumer(client, {ORDERS: "beginning"}) as consumer:
        with trio.move_on_after(20):
            async for batch in consumer:
                found += [int(record.value or b"") for record in batch.records]
                if len(found) >= count:
                    break
    return found


@pytest.fixture
def vouched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The broker epochs that nodes found in their files at the start."""
    found: list[int] = []
    ask = previous_broker_epoch

    def previous_epoch(*args: Any, **options: Any) -> int:
        found.append(ask(*args, **options))
        return found[-1]

    monkeypatch.setattr(data_directory, "previous_broker_epoch", previous_epoch)
    return found


def lose_the_last_batch(cluster: Cluster, node_id: int) -> None:
    """Its last byte: the file alone looks like a torn tail."""
    log = next(path for path in cluster.disk(node_id).files("orders-0") if path.suffix == ".log")
    cluster.disk(node_id).corrupt(log, len(cluster.contents(node_id, log)) - 1)


def test_it_is_not_elected_and_nothing_is_lost() -> None:
    """It was in the ISR when all nodes died, its leader starts late, and the third replica has
    fewer records anyway.
    """

    async def main() -> None:
        async with Cluster(nodes=3, options={"min.insync.replicas": "2"}) as cluster:
            client = await cluster.client()
            await Admin(client).create_topic("orders", 1, 3, {})
            await produce(client, 0, 5)
            leader = partition(cluster).leader
            short, behind = (node_id for node_id in cluster.nodes if node_id != leader)
            cluster.nodes[behind].kill()
            await trio.sleep(CHECKPOINTED_S)
            await produce(client, 5, 8)
            cluster.nodes[short].kill()
            cluster.nodes[leader].kill()
            lose_the_last_batch(cluster, short)
            for node_id in (short, behind):
                await cluster.nodes[node_id].start(wait=False)
            for node_id in (short, behind):
                await cluster.nodes[node_id].wait_ready()
            await trio.sleep(CHECKPOINTED_S)
            assert partition(cluster).leader not in (short, behind)
            await cluster.nodes[leader].start()
            assert await consume(client, 8) == list(range(8))
            await trio.sleep(CHECKPOINTED_S)
            assert set(partition(cluster).isr) == {leader, short, behind}

    run(main, seed=1)


def test_the_only_replica_leads_again_with_its_remaining_records(vouched: list[int]) -> None:
    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            node = cluster.nodes[1]
            client = await cluster.client()
            await Admin(client).create_topic("orders", 1, 1, {})
            await produce(client, 0, 5)
            node.kill()
            lose_the_last_batch(cluster, 1)
            vouched.clear()
            await node.start()
            assert vouched == [NO_BROKER_EPOCH]
            client = await cluster.client()
            await produce(client, 5, 7)
            assert partition(cluster).leader == NodeId(1)
            assert await consume(client, 6) == [0, 1, 2, 3, 5, 6]
            broker_epoch = cluster.daemon(1).machine.image.brokers[NodeId(1)].epoch
            node.kill()
            await node.start()
            assert vouched[1:] == [broker_epoch], "its remaining log is complete again"

    run(main, seed=1)


@pytest.mark.parametrize("what", ["check_directories", "forget_last_registration"])
def test_a_failed_start_does_not_hide_the_loss_from_the_next_one(
    monkeypatch: pytest.MonkeyPatch, vouched: list[int], what: str
) -> None:
    """A clean shutdown writes the checkpoints of the present logs: then nothing shows that they
    were longer.
    """

    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            node = cluster.nodes[1]
            client = await cluster.client()
            await Admin(client).create_topic("orders", 1, 1, {})
            await produce(client, 0, 5)
            node.kill()
            lose_the_last_batch(cluster, 1)

            def fails(*_: object, **__: object) -> None:
                raise OSError(errno.EIO, "injected")

            with monkeypatch.context() as patched:
                patched.setattr(
                    DataDirectory if what == "check_directories" else data_directory, what, fails
                )
                with pytest.raises(RuntimeError, match="does not serve"):
                    await node.start()
            vouched.clear()
            await node.start()
            assert vouched == [NO_BROKER_EPOCH]

    run(main, seed=1)
