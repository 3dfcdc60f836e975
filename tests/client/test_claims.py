"""Claims of topics that one producer at a time may write to, on whole clusters in virtual time."""

from __future__ import annotations

import pytest
import trio

from mqd.client import (
    ClaimRefused,
    ClientError,
    ClusterClient,
    ErrorCode,
    TopicPartition,
    open_consumer,
    open_transactional_producer,
)
from mqd.client.admin import Admin
from mqd.testing import Cluster, simulated

ORDERS = TopicPartition("orders", 0)
OPTIONS = {"transaction.state.log.num.partitions": "3"}


async def create(client: ClusterClient, access: str) -> None:
    configs = {"mqd.producer.access": access, "mqd.producer.lease.ms": "5000"}
    await Admin(client).create_topic("orders", 1, configs=configs)
    await trio.sleep(1)


async def committed(client: ClusterClient) -> list[bytes | None]:
    async with open_consumer(
        client, {ORDERS: "beginning"}, end="end", read_committed=True
    ) as consumer:
        return [record.value async for batch in consumer for record in batch.records]


@simulated(seed=21)
async def test_a_second_producer_is_refused_while_the_owner_is_active() -> None:
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await cluster.client()
        await create(client, "exclusive")
        async with (
            open_transactional_producer(client, "first") as first,
            open_transactional_producer(client, "second") as second,
        ):
            await first.claim("orders")
            with pytest.raises(ClaimRefused) as caught:
                await second.claim("orders")
            assert caught.value.owner == "first"
            assert caught.value.message == (
                "the topic 'orders' is owned by the transactional id 'first', so 'second' may not "
                "write to it"
            )
            assert "after 5000 ms" in caught.value.remedy
            async with first.transaction():
                await first.send("orders", b"1")
            await trio.sleep(6)
            await second.claim("orders")
            async with second.transaction():
                await second.send("orders", b"2")
            with pytest.raises(ClientError):
                async with first.transaction():
                    await first.send("orders", b"no")
        assert await committed(client) == [b"1", b"2"]


@simulated(seed=22)
async def test_another_producer_waits_until_the_owner_is_idle() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await cluster.client()
        await create(client, "wait")
        async with (
            open_transactional_producer(client, "first") as first,
            open_transactional_producer(client, "second") as second,
        ):
            await first.claim("orders", "wait")
            with pytest.raises(ClaimRefused, match="owned by the transactional id 'first'"):
                await second.claim("orders", "wait", timeout_s=2)
            began = trio.current_time()
            await second.claim("orders", "wait", timeout_s=20)
            assert 1 < trio.current_time() - began < 10
            async with second.transaction():
                await second.send("orders", b"2")
        assert await committed(client) == [b"2"]


@simulated(seed=23)
async def test_a_cancelled_claim_leaves_a_usable_producer() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await cluster.client()
        await create(client, "wait")
        async with (
            open_transactional_producer(client, "first") as first,
            open_transactional_producer(client, "second") as second,
        ):
            await first.claim("orders", "wait")
            with trio.move_on_after(1) as scope:
                await second.claim("orders", "wait")
            assert scope.cancelled_caught
            await second.claim("orders", "wait")
            async with second.transaction():
                with pytest.raises(ClientError, match="is in a transaction") as caught:
                    await second.claim("orders", "wait")
                assert caught.value.code is ErrorCode.INVALID_TXN_STATE
                await second.send("orders", b"2")
        assert await committed(client) == [b"2"]


@pytest.mark.parametrize("actual", ["shared", "wait"])
def test_a_topic_with_another_access_mode(actual: str) -> None:
    @simulated(seed=24)
    async def main() -> None:
        async with Cluster(nodes=1, options=OPTIONS) as cluster:
            client = await cluster.client()
            await create(client, actual)
            async with open_transactional_producer(client, "first") as first:
                with pytest.raises(
                    ClientError, match=f"has mqd.producer.access={actual}, and"
                ) as e:
                    await first.claim("orders")
                assert e.value.code is ErrorCode.INVALID_CONFIG
                assert e.value.remedy == (
                    "run `mqctl topic config set orders mqd.producer.access=exclusive`"
                )

    main()
