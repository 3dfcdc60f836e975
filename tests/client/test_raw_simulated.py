"""Raw produce and range reads with a simulated cluster of real nodes whose leaders die, freeze and
are partitioned.
"""

from __future__ import annotations

import random

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.descriptions import LATEST
from mqd.client.group_member import GroupMetadata
from mqd.client.ranges import open_range
from mqd.client.raw_producer import (
    PreparedTransaction,
    RawProducer,
    end_transaction,
    open_raw_producer,
)
from mqd.errors import MqError
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import iterate_records
from mqd.testing import Cluster, run
from mqd.types import TopicPartition
from tests.client.test_raw_producer import Built, numbered

PARTITIONS = 3
RECORDS = 600
OPTIONS = {
    "broker.session.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "min.insync.replicas": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


async def prepared_cluster(cluster: Cluster) -> ClusterClient:
    client = await cluster.client(request_timeout_s=2.0)
    await Admin(client).create_topic("a", PARTITIONS, 3, {"flush.before.ack": "true"})
    return client


async def disturb(cluster: Cluster, chance: random.Random, finished: trio.Event) -> None:
    """One node after the other dies, freezes or is partitioned, and returns."""
    nodes = list(cluster.nodes)
    while not finished.is_set():
        await trio.sleep(chance.uniform(0.05, 0.4))
        node = cluster.nodes[chance.choice(nodes)]
        what = chance.choice(["kill", "power_cut", "pause", "isolate", "break"])
        if what == "pause":
            node.pause(chance.uniform(0.3, 2.0))
        elif what == "isolate":
            cluster.network.isolate(node.id)
        elif what == "break":
            cluster.network.break_connections("c1", node.id)
        else:
            getattr(node, what)()
        await trio.sleep(chance.uniform(0.3, 1.5))
        cluster.network.heal()
        node.resume()
        await node.start()


async def send_slowly(producer: RawProducer, chance: random.Random, start: int, stop: int) -> None:
    """The same numbers to each partition, in occasional batches."""
    for batches in zip(
        *(numbered(index, start, stop, 4) for index in range(PARTITIONS)), strict=True
    ):
        for batch in batches:
            await producer.send("a", batch)
        if chance.random() < 0.3:
            await trio.sleep(chance.uniform(0, 0.1))


async def contents(
    client: ClusterClient, index: int, *, read_committed: bool
) -> list[bytes | None]:
    """The values of a partition from a range reader, without markers and aborted records."""
    tp = TopicPartition("a", index)
    listed = (await Admin(client).list_offsets({tp: LATEST}, read_committed=read_committed))[tp]
    assert not isinstance(listed, MqError)
    found: list[bytes | None] = []
    async with open_range(
        client, tp, 0, listed.offset, read_committed=read_committed, bytes_max=2000
    ) as reader:
        async for fetched in reader:
            aborted = set()
            waiting = list(fetched.aborted)
            for position, _, header in iterate_batches(fetched.data):
                while waiting and waiting[0].first_offset <= header.last_offset:
                    aborted.add(waiting.pop(0).producer_id)
                if header.is_control:
                    (marker,) = iterate_records(fetched.data, position)
                    if marker.key == b"\0\0\0\0":
                        aborted.discard(header.producer_id)
                elif header.producer_id not in aborted:
                    found += [
                        record.value
                        for record in iterate_records(fetched.data, position)
                        if fetched.start <= record.offset < fetched.next_offset
                    ]
    return found


async def idempotent(seed: int) -> None:
    chance = random.Random(seed)
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await prepared_cluster(cluster)
        finished = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, chance, finished)
            async with open_raw_producer(client, buffer_bytes_max=4000) as producer:
                await send_slowly(producer, chance, 0, RECORDS)
            for index in range(PARTITIONS):  # read while nodes die, too
                expected = [b"%d" % number for number in range(RECORDS)]
                assert await contents(client, index, read_committed=False) == expected
            finished.set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_batches_are_stored_once_and_in_order_despite_failures(seed: int) -> None:
    run(idempotent, seed, seed=seed)


async def two_phases(seed: int) -> None:
    """Writers prepare transactions and end; another client commits some and aborts the others, with
    retries.
    """
    chance = random.Random(seed)
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await prepared_cluster(cluster)
        driver = await cluster.client(request_timeout_s=2.0)
        finished = trio.Event()
        committed: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, chance, finished)
            for round_ in range(8):
                prepared = await written(client, chance, round_ * 40)
                commit = chance.random() < 0.6
                await trio.sleep(chance.choice([0.0, 0.5, 5.0]))
                for _ in range(chance.choice([1, 2])):
                    await end_transaction(driver, *prepared[:3], commit)
                if commit:
                    committed += [b"%d" % number for number in range(round_ * 40, round_ * 40 + 40)]
            finished.set()
        for index in range(PARTITIONS):
            assert await contents(client, index, read_committed=True) == committed
        found = (await Admin(client).list_group_offsets(["g"], stable=True))["g"]
        assert not isinstance(found, MqError)
        assert found[TopicPartition("a", 0)].offset == int(committed[-1]) + 1


async def written(client: ClusterClient, chance: random.Random, start: int) -> PreparedTransaction:
    """A prepared transaction with 40 records in each partition; another writer replaces one that
    fails.
    """
    while True:
        try:
            async with open_raw_producer(
                client,
                transactional_id="t",
                transaction_timeout_ms=3000,
                two_phase=True,
                buffer_bytes_max=4000,
                timeout_s=30,
            ) as producer:
                await producer.begin()
                await send_slowly(producer, chance, start, start + 40)
                await producer.send_offsets(
                    {TopicPartition("a", 0): start + 40}, GroupMetadata("g")
                )
                return await producer.prepare()
        except MqError:
            await trio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 38])
def test_prepared_transactions_end_as_decided_despite_failures(seed: int) -> None:
    run(two_phases, seed, seed=seed)


async def big_and_small(seed: int) -> None:
    """A range reader keeps its position through elections, with batches of any size."""
    chance = random.Random(seed)
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await prepared_cluster(cluster)
        sizes = [chance.choice([1, 10, 3000]) for _ in range(120)]
        expected = [b"%d" % number * size for number, size in enumerate(sizes)]
        async with open_raw_producer(client) as producer:
            for value in expected:
                await producer.send("a", Built(0, value))
        finished = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, chance, finished)
            for _ in range(5):
                assert await contents(client, 0, read_committed=True) == expected
                await trio.sleep(0.3)
            finished.set()


@pytest.mark.parametrize("seed", range(1))
def test_a_range_is_read_completely_despite_failures(seed: int) -> None:
    run(big_and_small, seed, seed=seed)
