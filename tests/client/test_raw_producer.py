from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError, DeadlineExceeded, ProducerClosed
from mqd.client.raw_producer import RawProducer, open_raw_producer
from mqd.errors import ErrorCode
from mqd.protocol.batch import parse_header
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record, iterate_records
from mqd.types import TopicPartition
from tests.client.fake import PRODUCE, FakeBroker, FakeCluster, Hang, HangUp
from tests.client.test_producer import refusing

A0 = TopicPartition("a", 0)


class Built:
    """A prebuilt batch, like `columns.EncodedBatch`."""

    def __init__(self, partition: int, *values: bytes) -> None:
        self.partition = partition
        self._records = [Record(0, 1000, None, value) for value in values]
        self.records = len(self._records)
        self.data = build_batch(self._records)
        self.finished: list[tuple[int, int, int]] = []

    def finish(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
    ) -> None:
        self.finished.append((producer_id, producer_epoch, base_sequence))
        self.data = build_batch(
            self._records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )


def numbered(partition: int, start: int, stop: int, each: int = 3) -> list[Built]:
    """Batches of `each` records "start", "start + 1", ..."""
    return [
        Built(partition, *(b"%d" % number for number in range(first, min(first + each, stop))))
        for first in range(start, stop, each)
    ]


def values_of(cluster: FakeCluster, tp: TopicPartition) -> list[bytes | None]:
    return [
        record.value for batch in cluster.partition(tp).batches for record in iterate_records(batch)
    ]


@asynccontextmanager
async def producing(
    cluster: FakeCluster, **options: Any
) -> AsyncIterator[tuple[ClusterClient, RawProducer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=2.0) as client,
        open_raw_producer(client, **options) as producer,
    ):
        yield client, producer


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def as_usual(broker: FakeBroker, request: Any) -> None:
    """An action: the broker's normal behaviour."""


async def send_all(producer: RawProducer, batches: list[Built]) -> None:
    for batch in batches:
        await producer.send("a", batch)


def produces(cluster: FakeCluster, node_id: int = 1) -> int:
    return sum(key == PRODUCE for key, _ in cluster.brokers[node_id].requests)


async def test_batches_arrive_in_order(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a", 3)
    async with producing(cluster) as (_, producer):
        for partition in range(3):
            await send_all(producer, numbered(partition, 0, 100))
        await producer.flush()
        for partition in range(3):
            assert values_of(cluster, TopicPartition("a", partition)) == numbers(100)
        headers = [parse_header(batch) for batch in cluster.partition(A0).batches]
        assert [header.base_sequence for header in headers] == list(range(0, 100, 3))
        assert {(header.producer_id, header.producer_epoch) for header in headers} == {
            producer.producer
        }


async def test_requests_in_flight_carry_several_partitions(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 3)
    gate = trio.Event()
    seen: list[list[int]] = []

    served = cluster.one._on_0

    async def gated(request: Any) -> Any:
        seen.append([row.index for topic in request.topic_data for row in topic.partition_data])
        await gate.wait()
        return await served(request)

    cluster.one._on_0 = gated  # type: ignore[method-assign]  # replaced by the test
    async with producing(cluster, buffer_bytes_max=1 << 20) as (_, producer):
        for batches in zip(*(numbered(partition, 0, 60) for partition in range(3)), strict=True):
            await send_all(producer, list(batches))
        await wait_all_tasks_blocked()
        assert producer._queue.in_flight <= 3  # the first batch of each partition goes alone
        gate.set()
        await wait_all_tasks_blocked()
        await producer.flush()
    assert any(len(each) == 3 for each in seen)
    for partition in range(3):
        assert values_of(cluster, TopicPartition("a", partition)) == numbers(60)


async def test_several_batches_of_a_partition_are_in_flight(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await send_all(producer, numbered(0, 0, 3))
        await producer.flush()
        cluster.one.script(PRODUCE, *[Hang(after=True)] * 5)
        before = produces(cluster)
        await send_all(producer, numbered(0, 3, 60))
        await wait_all_tasks_blocked()
        assert produces(cluster) - before == producer._queue.in_flight == 5
        cluster.one.hang_up_all()
        await producer.flush()
    assert values_of(cluster, A0) == numbers(60)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", range(8))
async def test_a_broken_connection_loses_and_doubles_nothing(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, after: bool, place: int
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(
        PRODUCE,
        *[as_usual] * place,
        HangUp(after=after),
        HangUp(after=after),
        as_usual,
        HangUp(after=after),
    )
    async with producing(cluster) as (_, producer):
        await send_all(producer, numbered(0, 0, 100))
    assert values_of(cluster, A0) == numbers(100)


@pytest.mark.parametrize("code", [5, 6, 7, 19, 20, 56, 2, 51])
@pytest.mark.parametrize("place", [0, 1, 3])
async def test_transient_errors_are_retried_in_order(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, code: int, place: int
) -> None:
    """The broker refuses later batches with OUT_OF_ORDER_SEQUENCE_NUMBER, because they were already
    in flight.
    """
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 2)
    act = refusing(ErrorCode(code))
    cluster.one.script(PRODUCE, *[as_usual] * place, act, as_usual, act, act)
    async with producing(cluster) as (_, producer):
        for batches in zip(numbered(0, 0, 60), numbered(1, 0, 60), strict=True):
            await send_all(producer, list(batches))
    for partition in range(2):
        assert values_of(cluster, TopicPartition("a", partition)) == numbers(60)


async def test_a_request_without_response_is_sent_again_with_the_same_sequence(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, as_usual, Hang(after=True), as_usual, Hang())
    batches = numbered(0, 0, 30)
    async with producing(cluster) as (_, producer):
        await send_all(producer, batches)
    assert values_of(cluster, A0) == numbers(30)
    assert [len(batch.finished) for batch in batches] == [1] * 10


async def test_a_moved_leader_is_found(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await send_all(producer, numbered(0, 0, 30))
        partition.leader, partition.leader_epoch = 2, 1
        await send_all(producer, numbered(0, 30, 90))
        await producer.flush()
        assert produces(cluster, 2)
    assert values_of(cluster, A0) == numbers(90)


async def test_batches_in_flight_hold_the_partition_at_the_old_leader(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (client, producer):
        await send_all(producer, numbered(0, 0, 3))
        await producer.flush()
        cluster.one.script(PRODUCE, Hang(after=True))
        await send_all(producer, numbered(0, 3, 6))
        await trio.sleep(0.1)
        partition.leader, partition.leader_epoch = 2, 1
        await client.refresh(["a"])
        await send_all(producer, numbered(0, 6, 60))
        await trio.sleep(0.1)
        assert not produces(cluster, 2)
    assert values_of(cluster, A0) == numbers(60)


async def test_a_deleted_topic_is_named(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    with pytest.raises(
        DeadlineExceeded, match="not acknowledged within 9 s; last: topic 'a': unknown topic"
    ):
        async with producing(cluster, delivery_timeout_s=9.0) as (_client, producer):
            await send_all(producer, numbered(0, 0, 3))
            await producer.flush()
            del cluster.topics["a"]
            cluster.one.script(PRODUCE, refusing(ErrorCode.UNKNOWN_TOPIC_ID))
            await send_all(producer, numbered(0, 3, 6))


async def test_the_producer_waits_for_an_absent_node(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await send_all(producer, numbered(0, 0, 30))
        cluster.down.add(1)
        cluster.one.hang_up_all()
        await send_all(producer, numbered(0, 30, 60))
        await trio.sleep(20)
        cluster.down.clear()
    assert values_of(cluster, A0) == numbers(60)


async def test_a_duplicate_is_an_acknowledgement_only_after_doubt(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, Hang(after=True), refusing(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    async with producing(cluster) as (_, producer):
        await send_all(producer, numbered(0, 0, 6))
    assert values_of(cluster, A0) == numbers(6)
    cluster.one.script(PRODUCE, refusing(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    with pytest.raises(ClientError, match="a-0: duplicate sequence number"):
        async with producing(cluster) as (_, producer):
            await send_all(producer, numbered(0, 0, 6))


FATAL = [
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "does not continue producer id 1001 at sequence 0: it lost acknowledged",
    ),
    (ErrorCode.UNKNOWN_PRODUCER_ID, "does not continue producer id"),
    (ErrorCode.INVALID_PRODUCER_EPOCH, "a-0: invalid producer epoch"),
    (ErrorCode.INVALID_RECORD, "a-0: invalid record"),
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "a-0: Topic authorization failed."),
]


@pytest.mark.parametrize(("code", "words"), FATAL)
async def test_a_failure_fails_the_whole_producer(
    nursery: trio.Nursery, code: ErrorCode, words: str
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 2)
    cluster.one.script(PRODUCE, refusing(code))
    with pytest.raises(ClientError, match=words):
        async with producing(cluster) as (_, producer):
            await send_all(producer, numbered(0, 0, 30))
            for _ in range(2):
                with pytest.raises(ClientError, match=words) as info:
                    await producer.flush()
                assert info.value.code is code
                with pytest.raises(ClientError, match=words):
                    await producer.send("a", Built(1, b"x"))
    assert values_of(cluster, A0) == values_of(cluster, TopicPartition("a", 1)) == []


async def test_a_batch_that_is_too_large_is_named(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 2)
    cluster.one.script(PRODUCE, refusing(ErrorCode.MESSAGE_TOO_LARGE, "max is 10"))
    with pytest.raises(
        ClientError,
        match=r"topic 'a' refused a batch of \d+ bytes for partition 1: "
        r"it is larger than max.message.bytes",
    ) as info:
        async with producing(cluster) as (_, producer):
            await producer.send("a", Built(1, b"x"))
    assert "'kafka.batch.size' of the Spark sink" in info.value.remedy


async def test_a_broker_that_stores_out_of_order_is_detected(nursery: trio.Nursery) -> None:
    """A broker that has lost the producer's state accepts any sequence: the refused batch can no
    longer come first.

    The responses to sequences 6 and 9 arrive together, and Trio decides which is processed first.
    """
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")

    refuse, all_sent = refusing(ErrorCode.NOT_ENOUGH_REPLICAS), trio.Event()

    async def forgetful(request: Any) -> Any:
        if not all_sent.is_set():
            await all_sent.wait()
            return refuse(cluster.one, request)
        row = {"index": 0, "error_code": 0, "base_offset": 0}
        return {
            "responses": [
                {"topic_id": request.topic_data[0].topic_id, "partition_responses": [row]}
            ]
        }

    with pytest.raises(
        ClientError,
        match=r"stored sequence [69] of producer id 1001 although it had refused 3 before it",
    ):
        async with producing(cluster) as (_, producer):
            await send_all(producer, numbered(0, 0, 3))
            await producer.flush()
            cluster.one._on_0 = forgetful  # type: ignore[method-assign]  # replaced by the test
            await send_all(producer, numbered(0, 3, 12))
            await trio.testing.wait_all_tasks_blocked()
            all_sent.set()


async def test_send_waits_only_for_room(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, Hang(after=True))
    size = len(Built(0, b"x" * 1000).data)
    async with producing(cluster, buffer_bytes_max=3 * size) as (_, producer):
        for _ in range(3):
            await producer.send("a", Built(0, b"x" * 1000))
        with trio.move_on_after(0.05) as scope:
            await producer.send("a", Built(0, b"x" * 1000))
        assert scope.cancelled_caught
        cluster.one.hang_up_all()
        await producer.send("a", Built(0, b"y" * 1000))
        await producer.send("a", Built(0, b"z" * 10_000))  # larger than the buffer: alone
    assert [bytes(value or b"")[:1] for value in values_of(cluster, A0)] == [
        b"x",
        b"x",
        b"x",
        b"y",
        b"z",
    ]


async def test_batches_without_acknowledgement_fail_in_time(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, *[refusing(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
    began = trio.current_time()
    with pytest.raises(
        DeadlineExceeded,
        match="a-0: a batch was not acknowledged within 9 s; last: a-0: not enough replicas",
    ):
        async with producing(cluster, delivery_timeout_s=9.0) as (_, producer):
            await send_all(producer, numbered(0, 0, 30))
    assert 8 < trio.current_time() - began < 11


async def test_a_partition_without_a_leader_is_named(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a", 2)
    with pytest.raises(
        DeadlineExceeded,
        match="not acknowledged within 9 s; last: a-1: the partition has no leader",
    ):
        async with producing(cluster, delivery_timeout_s=9.0) as (client, producer):
            await producer.send("a", Built(0, b"x"))
            cluster.topics["a"][1].leader = -1
            await client.refresh(["a"])
            await producer.send("a", Built(1, b"y"))


async def test_unknown_topics_and_partitions_are_refused(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 2)
    async with producing(cluster) as (_, producer):
        with pytest.raises(ValueError, match="partition of the destination is -1: give"):
            await producer.send("a", Built(-1, b"x"))
        with pytest.raises(ClientError, match="partition 2 of 'a' does not exist: the topic has"):
            await producer.send("a", Built(2, b"x"))
        with pytest.raises(ClientError, match="Topic 'b' does not exist"):
            await producer.send("b", Built(0, b"x"))
        cluster.topics["a"].append(type(cluster.partition(A0))())
        await producer.send("a", Built(2, b"x"))  # a new partition is found
    assert values_of(cluster, TopicPartition("a", 2)) == [b"x"]


async def test_a_recreated_topic_is_not_written_to(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    with pytest.raises(ClientError, match="topic 'a' was deleted and created again"):
        async with producing(cluster) as (_, producer):
            await send_all(producer, numbered(0, 0, 30))
            await producer.flush()
            cluster.add_topic("a")
            cluster.one.script(PRODUCE, *[refusing(ErrorCode.UNKNOWN_TOPIC_ID)] * 10)
            await send_all(producer, numbered(0, 30, 60))
    assert values_of(cluster, A0) == []


async def test_an_exception_drops_unsent_batches_and_a_normal_end_flushes(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, Hang())
    with pytest.raises(KeyError):
        async with producing(cluster) as (_, producer):
            await send_all(producer, numbered(0, 0, 30))
            await wait_all_tasks_blocked()
            raise KeyError
    assert values_of(cluster, A0) == []
    with pytest.raises(ProducerClosed):
        await producer.send("a", Built(0, b"x"))
    async with producing(cluster) as (_, producer):
        await send_all(producer, numbered(0, 0, 30))
    assert values_of(cluster, A0) == numbers(30)


async def test_later_requests_to_a_busy_broker_carry_more_batches(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 20)
    async with producing(cluster) as (_, producer):
        await send_all(producer, [Built(partition, b"0") for partition in range(20)])
        await producer.flush()
        before = produces(cluster)
        cluster.one.script(PRODUCE, *[Hang(after=True)] * 5)
        for partition in range(20):
            await producer.send("a", Built(partition, b"1"))
            await wait_all_tasks_blocked()
        assert produces(cluster) - before == 5
        assert producer._queue.in_flight == 5
        cluster.one.hang_up_all()
        await producer.flush()
        assert produces(cluster) - before < 20
    for partition in range(20):
        assert values_of(cluster, TopicPartition("a", partition)) == [b"0", b"1"]
