from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientError, CommitFailed, TransactionBroken
from mqd.client.group_consumer import open_group_consumer
from mqd.client.group_member import GroupMetadata
from mqd.client.transactional import TransactionalProducer, open_transactional_producer
from mqd.client.txn import Phase
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import INIT_PRODUCER_ID, PRODUCE, FakeCluster, Hang, HangUp
from tests.client.test_consumer import fill, values

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
both = pytest.mark.parametrize("version", [1, 2])


@asynccontextmanager
async def producing(
    cluster: FakeCluster, name: str = "t", **options: Any
) -> AsyncIterator[tuple[ClusterClient, TransactionalProducer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client,
        open_transactional_producer(client, name, **options) as producer,
    ):
        yield client, producer


def cluster_of(nursery: trio.Nursery, version: int, nodes: int = 1) -> FakeCluster:
    cluster = FakeCluster(nursery, nodes=nodes)
    cluster.transaction_version = version
    cluster.add_topic("a", 2)
    return cluster


async def read(client: ClusterClient) -> list[bytes]:
    """The values in both partitions; none of them is null."""
    async with open_consumer(
        client, dict.fromkeys((A0, A1), "beginning"), end="end", read_committed=True
    ) as consumer:
        found = [value for each in (await values(consumer)).values() for value in each]
    present = [value for value in found if value is not None]
    assert present == found
    return present


@both
async def test_all_or_none(nursery: trio.Nursery, version: int) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        first = producer.producer
        async with producer.transaction():
            for number in range(10):
                await producer.enqueue("a", b"%d" % number, partition=number % 2)
            assert await read(client) == []
        assert sorted(await read(client)) == [b"%d" % number for number in range(10)]
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("a", b"never", partition=0)
                raise KeyError
        async with producer.transaction():
            await producer.send("a", b"last", partition=0)
        assert sorted(await read(client))[-1] == b"last" and len(await read(client)) == 11
        assert producer.producer == (first if version == 1 else (first[0], first[1] + 3))
    requested = [key for key, _ in cluster.one.requests]
    assert (ADD_PARTITIONS in requested) == (version == 1)
    assert {number for key, number in cluster.one.requests if key == END_TXN} == (
        {4} if version == 1 else {5}
    )
    assert all(
        (number >= 12) == (version == 2) for key, number in cluster.one.requests if key == PRODUCE
    )


@both
async def test_a_copy_that_moves_its_offsets_with_its_records(
    nursery: trio.Nursery, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    fill(cluster.add_topic("in")[0], 40)
    source = TopicPartition("in", 0)
    async with producing(cluster) as (client, producer):
        options: dict[str, Any] = {
            "reset": "beginning",
            "auto_commit": False,
            "read_committed": True,
        }
        async with open_group_consumer(client, "g", ["in"], **options) as consumer:
            for attempt in range(5):
                batch = await consumer.next()
                try:
                    async with producer.transaction():
                        for record in batch.records:
                            await producer.enqueue("a", record.value)
                        await producer.send_offsets(consumer.positions(), consumer.group_metadata())
                        if attempt == 1:
                            raise KeyError
                except KeyError:
                    await consumer.rewind()
        assert cluster.groups["g"].offsets == {source: (40, "")}
        assert sorted(await read(client)) == sorted(b"%d" % number for number in range(40))
    assert (ADD_OFFSETS in [key for key, _ in cluster.one.requests]) == (version == 1)


@both
async def test_a_fenced_member_cannot_commit(nursery: trio.Nursery, version: int) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (_, producer):
        with pytest.raises(CommitFailed) as caught:
            async with producer.transaction():
                await producer.send("a", b"x")
                await producer.send_offsets({A0: 5}, GroupMetadata("g", 3, "gone"))
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID and producer.phase is Phase.READY
        assert (
            cluster.groups["g"].offsets == {}
            and cluster.transactions["t"].state != "CompleteCommit"
        )


@both
async def test_a_successor_fences_and_ends_the_open_transaction(
    nursery: trio.Nursery, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, old):
        await old.begin()
        await old.send("a", b"old")
        async with producing(cluster) as (_, new):
            assert new.producer[0] == old.producer[0] and new.producer[1] > old.producer[1]
            with pytest.raises(ClientError):
                await old.send("a", b"older", partition=0)
                await old.commit()
            with pytest.raises(ClientError) as caught:
                await old.abort()
                await old.begin()
            assert old.phase is Phase.DEAD and "another producer" in caught.value.remedy
            async with new.transaction():
                await new.send("a", b"new")
        assert await read(client) == [b"new"]


@both
async def test_lost_responses_have_no_effect(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    broker = cluster.one
    broker.script(
        INIT_PRODUCER_ID,
        {"error_code": 51, "producer_id": -1},
        {"error_code": 16, "producer_id": -1},
    )
    async with producing(cluster) as (client, producer):
        broker.script(PRODUCE, HangUp(after=True), HangUp())
        broker.script(ADD_PARTITIONS, HangUp(after=True))
        broker.script(END_TXN, HangUp(after=True), {"error_code": 14}, HangUp())
        for number in range(3):
            async with producer.transaction():
                await producer.enqueue("a", b"%d" % number, partition=0)
                await producer.enqueue("a", b"-%d" % number, partition=1)
        assert sorted(await read(client), key=str) == sorted(
            [b"0", b"1", b"2", b"-0", b"-1", b"-2"], key=str
        )


@both
async def test_a_refused_record_breaks_only_its_transaction(
    nursery: trio.Nursery, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    refused = {
        "responses": [
            {
                "name": "a",
                "topic_id": cluster.ids["a"],
                "partition_responses": [{"index": 0, "error_code": 10}],
            }
        ]
    }
    async with producing(cluster) as (client, producer):
        cluster.one.script(PRODUCE, refused)
        with pytest.raises(TransactionBroken, match="message too large"):
            async with producer.transaction():
                delivery = await producer.enqueue("a", b"huge", partition=0)
                with pytest.raises(ClientError):
                    await delivery.wait()
                await producer.enqueue("a", b"more", partition=0)
        async with producer.transaction():
            await producer.send("a", b"small", partition=0)
        assert await read(client) == [b"small"]


@both
async def test_records_in_doubt_are_never_read(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    """The leader stores a record and never responds; the transaction is aborted, and the next one
    is not affected.
    """
    cluster = cluster_of(nursery, version)
    async with producing(cluster, delivery_timeout_s=2.0) as (client, producer):
        cluster.one.script(PRODUCE, *[HangUp(after=True)] * 30)
        with pytest.raises(ClientError):
            async with producer.transaction():
                await producer.send("a", b"doubt", partition=0)
        cluster.one.actions[PRODUCE].clear()
        before = producer.producer
        async with producer.transaction():
            await producer.send("a", b"sure", partition=0)
        assert await read(client) == [b"sure"]
        assert before[1] > 0


async def test_the_coordinator_moves_and_is_found_again(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, 2, nodes=2)
    async with producing(cluster) as (client, producer):
        async with producer.transaction():
            await producer.send("a", b"1")
        cluster.coordinator = 2
        async with producer.transaction():
            await producer.send("a", b"2")
        assert sorted(await read(client), key=str) == [b"1", b"2"]
    assert (END_TXN, 5) in cluster.brokers[2].requests


@both
async def test_a_commit_without_a_response_may_be_retried(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster, timeout_s=1.0) as (client, producer):
        await producer.begin()
        await producer.send("a", b"x")
        cluster.one.script(END_TXN, *[{"error_code": 16}] * 50)
        with pytest.raises(ClientError, match="in time"):
            await producer.commit()
        assert producer.phase is Phase.COMMITTING
        with pytest.raises(ClientError):
            await producer.enqueue("a", b"too late")
        cluster.one.actions[END_TXN].clear()
        await producer.commit()
        assert await read(client) == [b"x"]


@both
async def test_a_cancelled_block_aborts(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    """Even when every surrounding scope is cancelled, including the client's own connections."""
    cluster = cluster_of(nursery, version)
    with trio.move_on_after(3) as scope:
        async with producing(cluster) as (_, producer), producer.transaction():
            await producer.send("a", b"x")
            await trio.sleep_forever()
    assert scope.cancelled_caught and cluster.transactions["t"].state == "CompleteAbort"
    assert cluster.partition(A0).last_stable_offset == cluster.partition(A0).end


@both
async def test_records_unsent_before_the_abort_are_not_in_the_next_transaction(
    nursery: trio.Nursery, version: int
) -> None:
    cluster = cluster_of(nursery, version)
    async with producing(cluster, linger_ms=60_000) as (client, producer):
        await producer.begin()
        delivery = await producer.enqueue("a", b"waits", partition=0)
        await producer.abort()
        with pytest.raises(ClientError, match="was aborted"):
            await delivery.wait()
        async with producer.transaction():
            await producer.enqueue("a", b"goes", partition=0)
        assert await read(client) == [b"goes"]


@both
async def test_a_batch_split_during_the_abort_is_not_in_the_next_transaction(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int
) -> None:
    """It was in flight when the transaction was aborted: its halves belong to that transaction, not
    to the next one.
    """
    cluster = cluster_of(nursery, version)
    requested = trio.Event()

    def too_large(broker: Any, request: Any) -> Any:
        requested.set()
        row = {"index": 0, "error_code": int(ErrorCode.MESSAGE_TOO_LARGE)}
        return {
            "responses": [{"name": "a", "topic_id": cluster.ids["a"], "partition_responses": [row]}]
        }

    async with producing(cluster, linger_ms=10) as (client, producer):
        cluster.one.script(PRODUCE, too_large)
        await producer.begin()
        deliveries = [
            await producer.enqueue("a", b"never %d" % number, partition=0) for number in range(2)
        ]
        await requested.wait()
        await producer.abort()
        async with producer.transaction():
            await producer.send("a", b"next", partition=0)
        assert await read(client) == [b"next"]
        for delivery in deliveries:
            with pytest.raises(ClientError, match="aborted"):
                await delivery.wait()


async def test_an_abort_waits_for_partitions_that_are_being_added(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Version 1: the coordinator adds the partition, so it must also receive the end."""
    cluster = cluster_of(nursery, 1)
    requested = trio.Event()

    def held(broker: Any, request: Any) -> Hang:
        requested.set()
        return Hang(after=True)

    async with producing(cluster, close_timeout_s=10.0) as (client, producer):
        cluster.one.script(ADD_PARTITIONS, held)
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.enqueue("a", b"never", partition=0)
                await requested.wait()
                raise KeyError
        assert cluster.transactions["t"].state == "CompleteAbort"
        async with producer.transaction():
            await producer.send("a", b"x", partition=1)
        assert await read(client) == [b"x"]


@both
@pytest.mark.parametrize("commits", [True, False])
async def test_an_end_waits_for_offsets_that_another_task_sends(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int, commits: bool
) -> None:
    """Otherwise a commit would lack them, and an abort could leave them in the next transaction."""
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        cluster.one.script(TXN_OFFSET_COMMIT, Hang())
        await producer.begin()
        await producer.send("a", b"x", partition=0)
        async with trio.open_nursery() as sending:
            sending.start_soon(producer.send_offsets, {A0: 5}, GroupMetadata("g"))
            await trio.sleep(0.1)
            await (producer.commit() if commits else producer.abort())
            assert not sending.child_tasks
        assert cluster.groups["g"].offsets == ({A0: (5, "")} if commits else {})
        async with producer.transaction():
            await producer.send("a", b"y", partition=1)
        assert cluster.groups["g"].offsets == ({A0: (5, "")} if commits else {})
        assert await read(client) == ([b"x", b"y"] if commits else [b"y"])


async def test_a_producer_fenced_during_its_abort_stays_unusable(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Seed 500152 of 3 nodes: the response to AddPartitionsToTxn was fatal, and no broker had the
    transaction. The abort sent no request, and the producer counted as usable.
    """
    cluster = cluster_of(nursery, 1)
    received = trio.Event()

    def lost(broker: Any, request: Any) -> Hang:
        received.set()
        return Hang()

    row = {"partition_index": 0, "partition_error_code": int(ErrorCode.PRODUCER_FENCED)}
    fenced = {"results_by_topic_v3_and_below": [{"name": "a", "results_by_partition": [row]}]}
    async with producing(cluster) as (_, producer):
        cluster.one.script(ADD_PARTITIONS, lost, fenced)
        await producer.begin()
        await producer.enqueue("a", b"never", partition=0)
        await received.wait()
        with pytest.raises(ClientError) as caught:
            await producer.abort()
        assert caught.value.code is ErrorCode.PRODUCER_FENCED
        assert producer.phase is Phase.DEAD
        with pytest.raises(ClientError, match="fenced"):
            await producer.begin()


@pytest.mark.parametrize(
    ("version", "which"), [(1, ADD_OFFSETS), (1, TXN_OFFSET_COMMIT), (2, TXN_OFFSET_COMMIT)]
)
async def test_offsets_of_a_cancelled_send_never_count(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, version: int, which: int
) -> None:
    """It is unknown whether they arrived: the transaction cannot be committed, and the next one
    does not contain them.
    """
    cluster = cluster_of(nursery, version)
    async with producing(cluster) as (client, producer):
        cluster.one.script(which, Hang(after=True))
        with pytest.raises(TransactionBroken, match="cancelled"):
            async with producer.transaction():
                with trio.move_on_after(1):
                    await producer.send_offsets({A0: 5}, GroupMetadata("g"))
        async with producer.transaction():
            await producer.send("a", b"x", partition=1)
        assert cluster.groups["g"].offsets == {}
        assert await read(client) == [b"x"]


async def test_a_transaction_open_at_the_end_of_the_block_is_aborted(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2)
    async with producing(cluster) as (_, producer):
        await producer.begin()
        await producer.send("a", b"x")
    assert cluster.transactions["t"].state == "CompleteAbort"


async def test_with_leave_false_the_next_producer_ends_the_transaction(
    nursery: trio.Nursery,
) -> None:
    cluster = cluster_of(nursery, 2)
    with pytest.raises(KeyError):
        async with producing(cluster, leave=False) as (_, producer), producer.transaction():
            await producer.send("a", b"x")
            raise KeyError
    assert cluster.transactions["t"].state == "Ongoing"
    async with producing(cluster):
        assert cluster.transactions["t"].state == "Empty" and not any(
            partition.open for partition in cluster.topics["a"]
        )


async def test_records_outside_a_transaction_are_refused(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 2)
    async with producing(cluster) as (_, producer):
        for refused in (
            producer.send("a", b"x"),
            producer.commit(),
            producer.abort(),
            producer.send_offsets({A0: 1}, GroupMetadata("g")),
        ):
            with pytest.raises(ClientError) as caught:
                await refused
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE and caught.value.message
    with pytest.raises(ClientError, match="transactional_id is empty"):
        async with producing(cluster, ""):
            pass
