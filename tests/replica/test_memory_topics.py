"""Topics with `mqd.storage=memory` on whole clusters in virtual time: what restarts lose, and what
they must not (I59).
"""

from __future__ import annotations

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType
from mqd.client.errors import ClientError
from mqd.client.producer import open_producer
from mqd.errors import ErrorCode, MqError
from mqd.log.memory_logs import first_offset
from mqd.testing import Cluster, run
from mqd.types import TopicPartition
from tests.seeds import seeds

TICKS = TopicPartition("ticks", 0)
IN_MEMORY = {"mqd.storage": "memory"}


async def create(client: ClusterClient, replicas: int, **configs: str) -> None:
    await Admin(client).create_topic("ticks", 1, replicas, configs={**IN_MEMORY, **configs})
    await trio.sleep(1)


async def produce(client: ClusterClient, values: list[bytes]) -> list[int]:
    """Their offsets."""
    offsets = []
    with trio.fail_after(60):
        async with open_producer(client) as producer:
            for value in values:
                offsets.append((await producer.send("ticks", value)).offset)
    return offsets


async def consume(client: ClusterClient, seconds: float = 3) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    with trio.move_on_after(seconds):
        async with open_consumer(client, {TICKS: "beginning"}) as consumer:
            async for fetched in consumer:
                found |= {record.offset: record.value or b"" for record in fetched.records}
    return found


def in_sync(cluster: Cluster) -> int:
    node = next(node_id for node_id, node in cluster.nodes.items() if node.ready)
    partition = cluster.daemon(node).machine.image.partition(*TICKS)
    return len(partition.isr) if partition is not None else 0


async def until_in_sync(cluster: Cluster, count: int) -> None:
    with trio.fail_after(60):
        while in_sync(cluster) < count:  # noqa: ASYNC110
            await trio.sleep(0.1)


def ticks_on_disks(cluster: Cluster) -> list[str]:
    return [str(path) for node_id in cluster.nodes for path in cluster.disk(node_id).files("ticks")]


def test_one_replica_begins_again_beyond_its_offsets() -> None:
    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            client = await cluster.client()
            await create(client, 1)
            assert await produce(client, [b"a", b"b", b"c"]) == [0, 1, 2]
            assert await consume(client) == {0: b"a", 1: b"b", 2: b"c"}
            assert ticks_on_disks(cluster) == []
            cluster.nodes[1].kill()
            await cluster.start()
            (offset,) = await produce(client, [b"d"])
            partition = cluster.daemon(1).machine.image.partition(*TICKS)
            assert partition is not None
            assert offset == first_offset(partition.leader_epoch) > 2
            assert await consume(client) == {offset: b"d"}
            with pytest.raises((ClientError, MqError)) as refused:
                async with open_consumer(client, {TICKS: 1}) as consumer:
                    async for _ in consumer:
                        pytest.fail("records at a lost offset")
            assert "OFFSET_OUT_OF_RANGE" in repr(refused.value) + str(refused.value)
            assert ticks_on_disks(cluster) == []

    run(main)


def test_restarts_one_after_the_other_lose_nothing() -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client()
            await create(client, 3)
            await produce(client, [b"%d" % number for number in range(10)])
            for number, node in enumerate(cluster.nodes.values()):
                node.kill()
                await trio.sleep(0.5)
                await node.start()
                await until_in_sync(cluster, 3)
                await produce(client, [b"%d" % (10 + number)])
            assert await consume(client) == {number: b"%d" % number for number in range(13)}
            assert ticks_on_disks(cluster) == []

    run(main)


@pytest.mark.parametrize("seed", seeds(2, range(6)))
def test_restarts_of_all_nodes_at_once_lose_all_and_the_topic_goes_on(seed: int) -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client()
            await create(client, 3)
            before = await produce(client, [b"before"] * 5)
            for node in cluster.nodes.values():
                node.kill()
            async with trio.open_nursery() as nursery:
                for node in cluster.nodes.values():
                    nursery.start_soon(node.start)
            after = await produce(client, [b"after"] * 5)
            assert before == [0, 1, 2, 3, 4]
            assert after == list(range(after[0], after[0] + 5))
            assert after[0] >= first_offset(1)
            await until_in_sync(cluster, 3)
            assert await consume(client) == dict.fromkeys(after, b"after")

    run(main, seed=seed)


@pytest.mark.parametrize("seed", seeds(2, range(40)))
def test_no_offset_has_two_records(seed: int) -> None:
    """Nodes are killed, lose power, and are paused and cut off, several at a time. Records may get
    lost, but an offset never gets another record, and consumers find what was acknowledged there.
    """

    async def faults(cluster: Cluster) -> None:
        chance = cluster.world.random("faults")
        while True:
            await trio.sleep(chance.uniform(0.5, 4))
            chosen = [node for node in cluster.nodes.values() if chance.random() < 0.5]
            for node in chosen:
                match chance.choice(["kill", "power", "pause", "cut off"]):
                    case "kill":
                        node.kill()
                    case "power":
                        node.power_cut()
                    case "pause":
                        node.pause(chance.uniform(1, 12))
                    case "cut off":
                        cluster.network.isolate(node.id)
            await trio.sleep(chance.uniform(0.5, 8))
            cluster.network.heal()
            for node in chosen:
                node.resume()
            await cluster.start()

    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client("shop")
            replicas = 1 + cluster.world.random("replicas").randrange(3)
            await create(client, replicas)
            acknowledged: dict[int, bytes] = {}
            seen: dict[int, bytes] = {}

            async def read() -> None:
                reader = await cluster.client("reader")
                while True:
                    with trio.move_on_after(5):
                        try:
                            for offset, value in (await consume(reader, 2)).items():
                                assert seen.setdefault(offset, value) == value
                        except (ClientError, MqError, OSError):
                            pass
                    await trio.sleep(0.2)

            async def write() -> None:
                for number in range(120):
                    value = b"%d" % number
                    try:
                        (offset,) = await produce(client, [value])
                    except (ClientError, MqError, trio.TooSlowError):
                        continue
                    assert acknowledged.setdefault(offset, value) == value
                    await trio.sleep(0.1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(faults, cluster)
                nursery.start_soon(read)
                await write()
                nursery.cancel_scope.cancel()
            cluster.network.heal()
            for node in cluster.nodes.values():
                node.resume()
            await cluster.start()
            (offset,) = await produce(client, [b"last"])
            assert offset > max(acknowledged, default=-1)
            await until_in_sync(cluster, replicas)
            found = await consume(client)
            assert found[offset] == b"last"
            for where, value in {**found, **seen}.items():
                assert acknowledged.get(where, value) == value, where
            assert ticks_on_disks(cluster) == []

    run(main, seed=seed)


def test_what_a_topic_in_memory_refuses() -> None:
    async def refused(client: ClusterClient, name: str, configs: dict[str, str]) -> ErrorCode:
        with pytest.raises((ClientError, MqError)) as error:
            await Admin(client).create_topic(name, 1, 1, configs=configs)
        code: ErrorCode = error.value.code
        return code

    async def altered(client: ClusterClient, topic: str, value: str) -> ErrorCode | None:
        resource = Resource(ResourceType.TOPIC, topic)
        change = ConfigChange("mqd.storage", ConfigOperation.SET, value)
        error = (await Admin(client).alter_configs({resource: [change]}))[resource]
        return None if error is None else error.code

    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            client = await cluster.client()
            for name, configs in (
                ("compacted", {"cleanup.policy": "compact"}),
                ("synced", {"flush.before.ack": "true"}),
                ("__consumer_offsets", {}),
            ):
                code = await refused(client, name, {**IN_MEMORY, **configs})
                assert code is ErrorCode.INVALID_CONFIG, name
            await create(client, 1)
            await Admin(client).create_topic("plain", 1, 1)
            assert await altered(client, "ticks", "disk") is ErrorCode.INVALID_CONFIG
            assert await altered(client, "plain", "memory") is ErrorCode.INVALID_CONFIG
            assert await altered(client, "ticks", "memory") is None

    run(main)
