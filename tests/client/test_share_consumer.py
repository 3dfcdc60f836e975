"""The share consumer with the model broker: requests, lost sessions, failed acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import connect
from mqd.client.errors import AcknowledgementFailed, ClientError, ConsumerClosed
from mqd.client.share_consumer import ShareConsumer, open_share_consumer
from mqd.client.share_records import ShareRecord
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import FakeCluster, HangUp
from tests.client.fake_share import FakeShare
from tests.client.test_consumer import fill

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
HEARTBEAT, FETCH, ACKNOWLEDGE = 76, 78, 79
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def cluster_of(
    nursery: trio.Nursery, *, partitions: int = 1, records: int = 10, nodes: int = 1
) -> FakeCluster:
    cluster = FakeCluster(nursery, nodes=nodes)
    for partition in cluster.add_topic("a", partitions):
        for _ in range(records // 10):
            fill(partition, 10)
    return cluster


@asynccontextmanager
async def consuming(cluster: FakeCluster, **options: Any) -> AsyncIterator[ShareConsumer]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client,
        open_share_consumer(client, "g", ["a"], **options) as consumer,
    ):
        yield consumer


async def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    with trio.fail_after(60):
        return [await consumer.next() for _ in range(count)]


def group_of(cluster: FakeCluster) -> FakeShare:
    return cluster.shares["g"]


async def test_acknowledgements_go_with_the_next_fetch(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, records=1000)
    async with consuming(cluster) as consumer:
        await take(consumer, 1000)
        assert consumer.assignment() == [A0]
    group = group_of(cluster)
    assert len(group.done[A0]) == 1000 and not group.acquired[A0] and not group.members
    assert len(group.requests) < 12, "acknowledgements are batched"
    assert group.acknowledged[0][:1] == (0,) and group.acknowledged[0][1] > 100
    assert group.requests[-1][:2] == (ACKNOWLEDGE, -1)
    assert all(stream.other.closed for stream in cluster.one.streams)


async def test_each_kind_of_acknowledgement(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    async with consuming(cluster, mode="explicit") as consumer:
        records = await take(consumer, 10)
        await records[0].accept()
        await records[1].renew()
        await records[1].reject()
        await records[2].release(delay=1.5)
        assert group_of(cluster).acknowledged == [
            (0, 0, ACCEPT, -1),
            (1, 1, RENEW, -1),
            (1, 1, REJECT, -1),
            (2, 2, RELEASE, 1500),
        ]
        records[3].release_soon(delay=1.0)
        records[4].release_soon(delay=1.0)
        records[5].release_soon()
        records[6].accept_soon()
        await consumer.flush()
        assert group_of(cluster).acknowledged[4:] == [
            (3, 4, RELEASE, 1000),
            (5, 5, RELEASE, -1),
            (6, 6, ACCEPT, -1),
        ]
        again = await take(consumer, 4)
        assert [(one.offset, one.delivery_count) for one in again] == [
            *((2, 2), (3, 2), (4, 2), (5, 2))
        ]
        with pytest.raises(AcknowledgementFailed, match="has been acknowledged"):
            await records[0].accept()
    assert not group_of(cluster).acquired[A0]


async def test_one_record_whose_lock_ended_fails_alone(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, records=100)
    failed: list[AcknowledgementFailed] = []
    async with consuming(
        cluster, mode="explicit", on_acknowledgement_failed=failed.append
    ) as consumer:
        records = await take(consumer, 100)
        held = group_of(cluster).acquired[A0]
        held[17] = held[64] = "another"
        accepted = [record.accept_soon() for record in records]
        with pytest.raises(AcknowledgementFailed, match="offset 17: "):
            await consumer.flush()
        assert [one.offset for one in accepted if one.error is not None] == [17, 64]
        assert [error.code for error in failed] == [ErrorCode.INVALID_RECORD_STATE] * 2
        await consumer.flush()
        group_of(cluster).expire(A0, 17, 64)
        again = await take(consumer, 2)
        assert [(one.offset, one.delivery_count) for one in again] == [(17, 2), (64, 2)]


@pytest.mark.parametrize("how", ["session", "connection", "response"])
async def test_a_lost_session_is_opened_again(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, how: str
) -> None:
    """Records that were acquired in it are void, and come again."""
    cluster = cluster_of(nursery)
    async with consuming(cluster, mode="explicit") as consumer:
        first, second, *_ = await take(consumer, 5)
        await trio.sleep(1)  # no fetch is in flight
        group = group_of(cluster)
        if how == "response":
            cluster.one.script(ACKNOWLEDGE, HangUp(after=True))
        else:
            group.end_sessions()
        if how == "connection":
            cluster.one.hang_up_all()
        with pytest.raises(AcknowledgementFailed) as failed:
            await first.accept()
        assert failed.value.code in (
            ErrorCode.SHARE_SESSION_NOT_FOUND,
            ErrorCode.NETWORK_EXCEPTION,
        )
        group.end_sessions()
        with pytest.raises(AcknowledgementFailed, match="is not acquired any more"):
            await second.accept()
        cluster.share_wake()
        left = 9 if how == "response" else 10
        again = await take(consumer, left)
        assert [one.offset for one in again] == list(range(10 - left, 10))
        for record in again:
            await record.accept()
    assert len(group.done[A0]) == 10


async def test_the_leader_moves(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    cluster = cluster_of(nursery, partitions=2, nodes=2, records=10)
    async with consuming(cluster, mode="explicit") as consumer:
        for record in await take(consumer, 20):
            await record.accept()
        cluster.partition(A1).leader, cluster.partition(A1).leader_epoch = 1, 1
        fill(cluster.partition(A1), 5)
        cluster.share_wake()
        for record in await take(consumer, 5):
            assert record.partition == 1
            record.accept_soon()
    assert len(group_of(cluster).done[A1]) == 15


async def test_a_fenced_member_joins_again(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    async with consuming(cluster) as consumer:
        await take(consumer, 1)
        group = group_of(cluster)
        group.members.clear()
        await trio.sleep(3)
        assert list(group.members) == [consumer.member_id]
        await take(consumer, 9)


async def test_a_record_limit_acquires_what_is_taken(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, partitions=2, nodes=2)
    async with consuming(cluster, acquire_mode="record_limit", max_records=1) as consumer:
        group = None
        for count in range(1, 21):
            await take(consumer, 1)
            group = group_of(cluster)
            await trio.sleep(0.2)
            assert sum(map(len, group.acquired.values())) <= 1
            assert sum(map(len, group.done.values())) >= count - 1
    assert group is not None and sum(map(len, group.done.values())) == 20


async def test_an_acknowledgement_does_not_wait_behind_a_fetch(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Another task of the program works on a record while `next` waits."""
    cluster = cluster_of(nursery)
    async with (
        consuming(cluster, mode="explicit", max_wait_ms=30_000) as consumer,
        trio.open_nursery() as tasks,
    ):
        records = await take(consumer, 10)
        tasks.start_soon(consumer.next)
        await trio.sleep(1)
        for record in records:
            before = trio.current_time()
            await record.accept()
            assert trio.current_time() - before < 0.1
        tasks.cancel_scope.cancel()


async def test_the_end_of_the_block(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    cluster = cluster_of(nursery)
    async with consuming(cluster) as consumer:
        records = await take(consumer, 3)
        records[2].release_soon()
    group = group_of(cluster)
    assert sorted(group.done[A0]) == [0, 1] and not group.acquired[A0]
    with pytest.raises(ConsumerClosed):
        await consumer.next()
    with pytest.raises(ZeroDivisionError):
        async with consuming(cluster) as consumer:
            await take(consumer, 2)
            raise ZeroDivisionError
    assert sorted(group.done[A0]) == [0, 1, 2]


async def test_errors_reach_the_program(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    cluster.one.script(HEARTBEAT, {"error_code": 30})
    async with consuming(cluster) as consumer:
        with pytest.raises(ClientError) as refused:
            await consumer.next()
    assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    del cluster.one.versions[HEARTBEAT]
    async with consuming(cluster) as consumer:
        with pytest.raises(ClientError, match="does not serve ShareGroupHeartbeat"):
            await consumer.next()


async def test_an_older_broker_limits_no_records(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    cluster.one.versions[FETCH] = (1, 1)
    async with consuming(cluster, acquire_mode="record_limit") as consumer:
        with pytest.raises(ClientError, match="neither limits records nor renews locks"):
            await consumer.next()


async def test_a_wrong_delay(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    cluster = cluster_of(nursery)
    async with consuming(cluster, mode="explicit") as consumer:
        [record] = await take(consumer, 1)
        for wrong in (-1, "x", float("nan"), 1e12, float("inf")):
            with pytest.raises((ValueError, TypeError), match=r"delay is .*: give "):
                await record.release(wrong)  # type: ignore[arg-type]
        await record.release(0.5)
