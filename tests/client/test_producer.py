from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError, DeadlineExceeded, ProducerClosed
from mqd.client.partitioner import RoundRobinPartitioner, partition_for_key
from mqd.client.peer import PeerConnection
from mqd.client.producer import Producer, open_producer
from mqd.client.transactional import open_transactional_producer
from mqd.errors import ErrorCode
from mqd.protocol.batch import parse_header
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import iterate_records
from mqd.types import TopicPartition
from tests.client.fake import (
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    FakeBroker,
    FakeCluster,
    Hang,
    HangUp,
)
from tests.seeds import seeds


@asynccontextmanager
async def producing(
    cluster: FakeCluster, **options: Any
) -> AsyncIterator[tuple[ClusterClient, Producer]]:
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=2.0) as client,
        open_producer(client, **options) as producer,
    ):
        yield client, producer


def refusing(code: ErrorCode, message: str | None = None) -> Any:
    """An action: every partition of the request is refused with a code."""

    def act(broker: FakeBroker, request: Any) -> dict[str, Any]:
        return {
            "responses": [
                {
                    "name": topic.name,
                    "topic_id": topic.topic_id,
                    "partition_responses": [
                        {
                            "index": row.index,
                            "error_code": code,
                            "error_message": message,
                            "base_offset": -1,
                        }
                        for row in topic.partition_data
                    ],
                }
                for topic in request.topic_data
            ]
        }

    return act


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_record_arrives_complete(nursery: trio.Nursery, codec: Codec) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster, codec=codec) as (_, producer):
        placed = await producer.send(
            "a", b"value", key=b"key", headers=[("h", b"x"), ("n", None)], timestamp=1234
        )
    assert placed == ("a", 0, 0, 1234)
    (record,) = iterate_records(partition.batches[0])
    assert record[1:] == (1234, b"key", b"value", (("h", b"x"), ("n", None)))
    assert parse_header(partition.batches[0]).codec == codec


async def test_keys_choose_partitions_like_java_and_partitions_can_be_named(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a", 5)
    async with producing(cluster) as (_, producer):
        for key in (b"one", b"two", b"three"):
            assert (await producer.send("a", b"", key=key)).partition == partition_for_key(key, 5)
        assert (await producer.send("a", b"", key=b"one", partition=4)).partition == 4
        with pytest.raises(ClientError, match="partitions 0 to 4"):
            await producer.send("a", b"", partition=5)


async def test_records_accumulate_behind_a_batch_in_flight_in_order(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        deliveries = [await producer.enqueue("a", b"%d" % number) for number in range(500)]
        await producer.flush()
        assert [(await delivery.wait()).offset for delivery in deliveries] == list(range(500))
        assert all(delivery.is_done() for delivery in deliveries)
    assert partition.values() == [b"%d" % number for number in range(500)]
    assert len(partition.batches) < 20


async def test_linger_waits_for_more_records(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster, linger_ms=100) as (_, producer):
        began = trio.current_time()
        async with trio.open_nursery() as senders:
            for _ in range(5):
                senders.start_soon(producer.send, "a", b"x")
                await trio.sleep(0.01)
        assert trio.current_time() - began == pytest.approx(0.1, abs=0.03)
    assert len(partition.batches) == 1


@pytest.mark.parametrize("after", [False, True])
async def test_a_broken_connection_loses_and_doubles_nothing(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, after: bool
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    cluster.one.script(PRODUCE, HangUp(after=after), HangUp(after=after))
    async with producing(cluster) as (_, producer):
        placed = [await producer.send("a", b"%d" % number) for number in range(3)]
    assert [each.offset for each in placed] == [0, 1, 2]
    assert partition.values() == [b"0", b"1", b"2"]


async def test_a_produce_without_response_is_sent_again_with_the_same_sequence(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    cluster.one.script(PRODUCE, Hang())
    async with producing(cluster) as (_, producer):
        assert (await producer.send("a", b"x")).offset == 0
    assert partition.values() == [b"x"]
    assert parse_header(partition.batches[0]).base_sequence == 0


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
async def test_retriable_refusals_are_retried_in_order(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, code: ErrorCode
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    cluster.one.script(PRODUCE, refusing(code), refusing(code), refusing(code))
    async with producing(cluster) as (_, producer):
        deliveries = [await producer.enqueue("a", b"%d" % number) for number in range(10)]
        assert [(await delivery.wait()).offset for delivery in deliveries] == list(range(10))
    assert partition.values() == [b"%d" % number for number in range(10)]


async def test_a_moved_leader_is_found(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await producer.send("a", b"0")
        partition.leader, partition.leader_epoch = 2, 1
        assert (await producer.send("a", b"1")).offset == 1
        assert (PRODUCE, 13) in cluster.brokers[2].requests


async def test_a_final_error_reaches_the_sender_and_the_sequence_continues(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await producer.send("a", b"0")
        cluster.one.script(PRODUCE, refusing(ErrorCode.INVALID_RECORD, "a key is missing"))
        with pytest.raises(ClientError, match="a-0: a key is missing") as caught:
            await producer.send("a", b"bad")
        assert caught.value.code is ErrorCode.INVALID_RECORD and caught.value.remedy
        await producer.send("a", b"1")
    assert partition.values() == [b"0", b"1"]
    assert [key for key, _ in cluster.one.requests].count(INIT_PRODUCER_ID) == 1


async def test_a_batch_too_large_is_split_until_it_fits(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")

    def picky(broker: FakeBroker, request: Any) -> Any:
        broker.script(PRODUCE, picky)
        records = parse_header(request.topic_data[0].partition_data[0].records).records_count
        return refusing(ErrorCode.MESSAGE_TOO_LARGE)(broker, request) if records > 3 else None

    cluster.one.script(PRODUCE, picky)
    async with producing(cluster, linger_ms=1) as (_, producer):
        deliveries = [await producer.enqueue("a", b"%d" % number) for number in range(20)]
        assert [(await delivery.wait()).offset for delivery in deliveries] == list(range(20))
    assert partition.values() == [b"%d" % number for number in range(20)]


async def test_one_record_too_large_is_an_error(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, refusing(ErrorCode.MESSAGE_TOO_LARGE))
    async with producing(cluster) as (_, producer):
        with pytest.raises(ClientError) as caught:
            await producer.send("a", b"x")
        assert "max.message.bytes" in caught.value.remedy


async def test_lost_producer_state_takes_a_new_id_and_continues(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await producer.send("a", b"0")
        partition.producers.clear()
        assert (await producer.send("a", b"1")).offset == 1
        assert (await producer.send("a", b"2")).offset == 2
    assert partition.values() == [b"0", b"1", b"2"]
    assert [key for key, _ in cluster.one.requests].count(INIT_PRODUCER_ID) == 2


async def test_a_doubtful_batch_is_resolved_before_a_new_id_is_taken(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    first, second = cluster.add_topic("a", 2)
    async with producing(cluster) as (_, producer):
        for partition in (0, 1):
            await producer.send("a", b"0", partition=partition)
        first.producers.clear()  # partition 0 will want a new id, while partition 1 is in doubt
        cluster.one.script(PRODUCE, HangUp(after=True))
        left = await producer.enqueue("a", b"1", partition=1)
        await wait_all_tasks_blocked()
        right = await producer.enqueue("a", b"1", partition=0)
        assert (await left.wait()).offset == 1
        assert (await right.wait()).offset == 1
        await producer.send("a", b"2", partition=1)
    assert first.values() == [b"0", b"1"] and second.values() == [b"0", b"1", b"2"]


async def test_delivery_timeout_is_kept(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, *[refusing(ErrorCode.NOT_ENOUGH_REPLICAS) for _ in range(1000)])
    async with producing(cluster, delivery_timeout_s=10) as (_, producer):
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="not acknowledged within 10 s") as caught:
            await producer.send("a", b"x")
        assert 9.9 <= trio.current_time() - began <= 12
        assert (
            isinstance(caught.value.cause, ClientError)
            and caught.value.cause.code is ErrorCode.NOT_ENOUGH_REPLICAS
        )
        assert "min.insync.replicas" in caught.value.remedy


async def test_an_attempt_takes_no_longer_than_its_records_have(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, *[Hang()] * 10)
    async with (
        connect([("fake", 9001)], network=cluster, request_timeout_s=60) as client,
        open_producer(client, delivery_timeout_s=20) as producer,
    ):
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await producer.send("a", b"x")
        assert 20 <= trio.current_time() - began <= 22


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ],
)
async def test_a_sequence_refused_after_its_storage_is_not_reused(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, code: ErrorCode
) -> None:
    """A record with that sequence would count as the stored one, and be acknowledged at its offset
    without being stored.
    """
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    refused = refusing(code)

    def stored_all_the_same(broker: FakeBroker, request: Any) -> dict[str, Any]:
        partition.append(request.topic_data[0].partition_data[0].records)
        response: dict[str, Any] = refused(broker, request)
        return response

    async with producing(cluster, delivery_timeout_s=5) as (_, producer):
        await producer.send("a", b"0")
        cluster.one.script(
            PRODUCE,
            stored_all_the_same,
            *[refusing(ErrorCode.NOT_ENOUGH_REPLICAS) for _ in range(1000)],
        )
        with pytest.raises(DeadlineExceeded):
            await producer.send("a", b"1")
        cluster.one.actions[PRODUCE].clear()
        assert (await producer.send("a", b"2")).offset == 2
    assert partition.values() == [b"0", b"1", b"2"]


async def test_acks_0_has_no_response_and_no_offset(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster, acks=0) as (client, producer):
        assert (await producer.send("a", b"x")).offset == -1
        await client.refresh([])
    assert partition.values() == [b"x"]
    assert INIT_PRODUCER_ID not in [key for key, _ in cluster.one.requests]


async def test_acks_0_does_not_wait_forever_for_a_peer_that_reads_nothing(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(connection: Any, taken: Any) -> None:
        await trio.sleep_forever()

    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster, acks=0, delivery_timeout_s=5.0) as (_, producer):
        await producer.send("a", b"x")
        monkeypatch.setattr(PeerConnection, "_send_gathered", stuck)
        with trio.fail_after(60), pytest.raises(DeadlineExceeded):
            await producer.send("a", b"y")


async def test_idempotence_needs_all_acks(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    with pytest.raises(ClientError, match="use acks='all', or idempotent=False"):
        async with producing(cluster, acks=1, idempotent=True):
            pass


async def test_a_missing_topic_is_an_error_after_a_grace_period(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    async with producing(cluster, unknown_topic_grace_s=3) as (_, producer):
        began = trio.current_time()
        with pytest.raises(ClientError, match="Topic 'a' does not exist"):
            await producer.send("a", b"x")
        assert 2.5 <= trio.current_time() - began <= 6


async def test_a_topic_is_created_by_the_broker(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.auto_create = True
    async with producing(cluster) as (_, producer):
        assert (await producer.send("a", b"x")).offset == 0


async def test_a_full_buffer_makes_senders_wait(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster, buffer_bytes_max=0, batch_bytes=1_000_000) as (_, producer):
        producer._queue._buffer_bytes_max = 10_000
        cluster.one.script(PRODUCE, Hang())  # two seconds without a response
        began = trio.current_time()
        for _ in range(5):
            await producer.enqueue("a", bytes(4000))
        assert trio.current_time() - began > 1.9
        await producer.flush()


async def test_leaving_with_an_error_drops_unsent_records(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, Hang())
    with pytest.raises(KeyError):
        async with producing(cluster) as (_, producer):
            delivery = await producer.enqueue("a", b"x")
            raise KeyError
    with pytest.raises(ProducerClosed):
        await delivery.wait()
    with pytest.raises(ProducerClosed):
        await producer.send("a", b"y")


async def test_old_brokers_get_old_versions_by_name(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    cluster.one.versions |= {METADATA: (0, 8), PRODUCE: (3, 7)}
    async with producing(cluster, codec=Codec.ZSTD) as (_, producer):
        await producer.send("a", b"x")
    assert partition.values() == [b"x"] and (PRODUCE, 7) in cluster.one.requests
    cluster.one.versions[PRODUCE] = (3, 6)
    async with producing(cluster, codec=Codec.ZSTD) as (_, producer):
        with pytest.raises(ClientError, match="too old for zstd"):
            await producer.send("a", b"x")


async def test_a_refused_producer_id_fails_waiting_records(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(
        INIT_PRODUCER_ID, {"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}
    )
    async with producing(cluster) as (_, producer):
        with pytest.raises(ClientError, match="producer id"):
            await producer.send("a", b"x")
        assert (await producer.send("a", b"x")).offset == 0


async def test_a_cancelled_send_may_arrive_and_affects_no_other(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    partition = cluster.add_topic("a")[0]
    async with producing(cluster) as (_, producer):
        with trio.move_on_after(0) as scope:
            await producer.send("a", b"0")
        assert scope.cancelled_caught
        await producer.send("a", b"1")
    assert partition.values() in ([b"1"], [b"0", b"1"])
    assert cluster.partition(TopicPartition("a", 0)) is partition


@pytest.mark.parametrize("seed", seeds(6, range(20)))
async def test_each_record_is_stored_once_and_in_order_despite_failures(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, seed: int
) -> None:
    random = Random(seed)
    cluster = FakeCluster(nursery, nodes=2)
    partitions = cluster.add_topic("a", 3)
    faults: list[Any] = [
        HangUp(),
        HangUp(after=True),
        Hang(),
        refusing(ErrorCode.NOT_ENOUGH_REPLICAS),
    ]
    faults += [refusing(ErrorCode.KAFKA_STORAGE_ERROR), None, None, None]
    for broker in cluster.brokers.values():
        broker.script(PRODUCE, *random.choices(faults, k=30))
        broker.script(INIT_PRODUCER_ID, *random.choices([HangUp(), None], k=3))
    async with producing(cluster, delivery_timeout_s=600.0, linger_ms=random.choice([0, 5])) as (
        _,
        producer,
    ):
        deliveries = []
        for number in range(120):
            deliveries.append(await producer.enqueue("a", b"%d" % number, partition=number % 3))
            await trio.sleep(random.choice([0, 0, 0.01, 0.5]))
            if random.random() < 0.05:
                moved = random.choice(partitions)
                moved.leader, moved.leader_epoch = 3 - moved.leader, moved.leader_epoch + 1
        placed = [await delivery.wait() for delivery in deliveries]
    for index, partition in enumerate(partitions):
        assert partition.values() == [b"%d" % number for number in range(index, 120, 3)]
        assert [each.offset for each in placed if each.partition == index] == list(range(40))


async def test_a_doubtful_record_is_not_stored_twice_after_state_loss(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")

    def forget(broker: FakeBroker, request: Any) -> None:
        partition.producers.clear()

    async with producing(cluster) as (_, producer):
        await producer.send("a", b"0")
        cluster.one.script(PRODUCE, HangUp(after=True), forget)
        with pytest.raises(ClientError) as caught:
            await producer.send("a", b"1")
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await producer.send("a", b"2")).offset == 2
    assert partition.values() == [b"0", b"1", b"2"]


async def test_a_response_after_the_close_changes_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, Hang())

    async def send(producer: Producer) -> None:
        with pytest.raises(ProducerClosed):
            await producer.send("a", b"x")

    async with producing(cluster) as (_, producer), trio.open_nursery() as senders:
        senders.start_soon(send, producer)
        await trio.sleep(0.5)
        assert producer._queue.in_flight
        producer.close("on purpose")
        await trio.sleep(10)  # the request times out meanwhile


async def test_a_flush_ends_while_other_tasks_continue_sending(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    here, there = cluster.add_topic("a", 2)
    there.leader = 2
    cluster.one.script(PRODUCE, HangUp(), HangUp(), HangUp())
    cluster.brokers[2].script(PRODUCE, *[Hang()] * 99)
    async with producing(cluster) as (_, producer):
        mine = await producer.enqueue("a", b"mine", partition=0)
        flushed = trio.Event()

        async def flush() -> None:
            await producer.flush()
            flushed.set()

        nursery.start_soon(flush)
        await wait_all_tasks_blocked()
        assert not flushed.is_set()
        late = await producer.enqueue("a", b"late", partition=1)
        with trio.fail_after(10):
            await flushed.wait()
        assert mine.is_done() and not late.is_done() and here.end == 1
        cluster.brokers[2].actions.clear()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"value": "text"}, "the value of a record is str, not bytes"),
        ({"value": b"x", "key": 7}, "the key of a record is int"),
        ({"value": b"x", "headers": [("a", "b")]}, "a header of a record is"),
        ({"value": b"x", "headers": {"name": b"b"}}, "a header of a record is 'name'"),
        ({"value": b"x", "timestamp": 1.5}, "the timestamp of a record is 1.5"),
        ({"value": b"x", "timestamp": -1}, "the timestamp of a record is -1"),
        ({"value": b"x", "timestamp": 2**63}, "the timestamp of a record is"),
        ({"value": b"x", "partition": "0"}, "the partition of a record is '0'"),
        ({"value": b"x", "topic": 7}, "topic is 7: give a str"),
        ({"value": b"x", "topic": ["a"]}, r"topic is \['a'\]: give a str"),
        ({"value": b"x", "topic": ""}, "Topic name is invalid: the empty string"),
        ({"value": b"x", "topic": "\ud800"}, "Topic name is invalid: .*: give a name of 1 to 249"),
        ({"value": b"x", "topic": "x" * 40_000}, "than the max allowed length 249: give a name of"),
    ],
)
async def test_an_invalid_record_is_refused_before_it_affects_others(
    nursery: trio.Nursery, record: dict[str, Any], words: str
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        good = await producer.enqueue("a", b"good", headers=((name, b"1") for name in ("h",)))  # type: ignore[arg-type]  # accepted at run time
        with pytest.raises(ClientError, match=words) as caught:
            await producer.enqueue(**{"topic": "a", **record})
        assert caught.value.remedy and (await good.wait()).offset == 0
        assert (await producer.send("a", b"another")).offset == 1


async def test_a_partition_that_the_topic_lacks(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        with pytest.raises(ClientError, match="partition 9 of 'a' does not exist") as caught:
            await producer.send("a", b"x", partition=9)
    assert caught.value.remedy == (
        "choose one of these partitions, or add one with `mqctl topic add-partitions`"
    )


async def test_a_failed_record_raises_only_from_its_delivery(nursery: trio.Nursery) -> None:
    """As in Kafka's clients: `flush` and the end of the block return when each record has an
    outcome, whatever it is."""
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    cluster.one.script(PRODUCE, refusing(ErrorCode.MESSAGE_TOO_LARGE))
    async with producing(cluster) as (_, producer):
        large = await producer.enqueue("a", b"x" * 2000)
        await producer.flush()
        small = await producer.enqueue("a", b"small")
    with pytest.raises(ClientError) as caught:
        await large
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert await small == await small.wait() and (await small).offset == 0


async def test_a_name_without_utf8_is_refused_alone(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        await producer.enqueue("a", b"before")
        with pytest.raises(ClientError, match="not valid UTF-8"):
            await producer.enqueue("a", b"x", headers=[("\ud800", b"")])
        await producer.enqueue("a", b"after")
    assert partition.values() == [b"before", b"after"]


async def test_a_buffer_may_be_reused_once_its_record_is_queued(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    buffer = bytearray(b"1111")
    async with producing(cluster) as (_, producer):
        first = await producer.enqueue("a", memoryview(buffer), key=bytearray(b"k"))  # type: ignore[arg-type]  # accepted at run time
        buffer[:] = b"2222"
        await producer.enqueue("a", buffer)  # type: ignore[arg-type]  # accepted at run time
        await producer.enqueue("a", memoryview(array("H", [1, 1])))  # type: ignore[arg-type]  # accepted at run time
        assert (await first.wait()).offset == 0
    assert partition.values() == [b"1111", b"2222", array("H", [1, 1]).tobytes()]


async def test_other_tasks_run_while_one_queues_records(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with producing(cluster) as (_, producer), trio.open_nursery() as others:
        await producer.send("a", b"")
        others.start_soon(count)
        for _ in range(4096):
            await producer.enqueue("a", b"x", partition=0)
        assert turns >= 8
        others.cancel_scope.cancel()


async def test_sent_records_are_not_kept_in_memory(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with producing(cluster) as (_, producer):
        deliveries = [await producer.enqueue("a", bytes(1000)) for _ in range(10)]
        await producer.flush()
        assert all(
            len(each._batch.writer._body) == 0 and each._batch.encoded is None
            for each in deliveries
        )
        assert [(await each.wait()).offset for each in deliveries] == list(range(10))


async def test_a_round_robin_partitioner_spreads_records_with_one_key(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 3)
    async with producing(cluster, partitioner=RoundRobinPartitioner()) as (_, producer):
        went = [(await producer.send("a", b"x", key=b"k")).partition for _ in range(6)]
        assert (await producer.send("a", b"x", partition=2)).partition == 2, (
            "an explicit partition wins"
        )
    assert went == [0, 1, 2, 0, 1, 2]


async def test_any_callable_is_a_partitioner_and_is_called_once_a_record(
    nursery: trio.Nursery,
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 4)
    calls: list[tuple[str, bytes | None, list[int], list[int]]] = []

    def by_first_byte(
        topic: str, key: bytes | None, partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        calls.append((topic, key, list(partitions), list(available)))
        return 0 if key is None else key[0] % len(partitions)

    async with producing(cluster, partitioner=by_first_byte) as (_, producer):
        for key in (b"\x07", None, b"\x02"):
            await producer.enqueue("a", b"x", key=key)
        assert (await producer.send("a", b"x", key=b"\x01")).partition == 1
    assert [(key, len(partitions)) for _, key, partitions, _ in calls] == [
        (b"\x07", 4),
        (None, 4),
        (b"\x02", 4),
        (b"\x01", 4),
    ]
    assert [partition.end for partition in cluster.topics["a"]] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("returned", "kind"),
    [(4, ValueError), (-1, ValueError), (None, TypeError), (True, TypeError), ("0", TypeError)],
)
async def test_invalid_results_of_a_partitioner_are_refused(
    nursery: trio.Nursery, returned: Any, kind: type[Exception]
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 4)
    async with producing(cluster, partitioner=lambda *_: returned) as (_, producer):
        for _ in range(2):  # before the topic is known, and after
            with pytest.raises(kind, match="for topic 'a': return a partition from 0 to 3"):
                await producer.enqueue("a", b"x")


async def test_an_exception_of_a_partitioner_reaches_the_caller(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")

    def broken(*_: object) -> int:
        raise LookupError("no such customer")

    async with producing(cluster, partitioner=broken) as (_, producer):
        for _ in range(2):
            with pytest.raises(LookupError, match="no such customer"):
                await producer.send("a", b"x")
        assert (await producer.send("a", b"x", partition=0)).offset == 0


@pytest.mark.parametrize(
    ("kind", "sentence", "options"),
    [
        (
            ValueError,
            "codec is 'brotli': choose one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'",
            {"codec": "brotli"},
        ),
        (TypeError, "codec is 3: choose one of", {"codec": 3}),
        (ValueError, "linger_ms is -5: give a number of at least 0", {"linger_ms": -5}),
        (TypeError, "linger_ms is '5': give a number", {"linger_ms": "5"}),
        (ValueError, "acks is 2: choose one of 'all', -1, 1, 0", {"acks": 2}),
        (ValueError, "acks is 'most': choose one of", {"acks": "most"}),
        (TypeError, "acks is None: choose one of", {"acks": None}),
        (ValueError, "use acks='all', or idempotent=False", {"acks": 1, "idempotent": True}),
        (TypeError, "idempotent is 1: give True or False", {"idempotent": 1}),
        (ValueError, "batch_bytes is 0: give a whole number from 1", {"batch_bytes": 0}),
        (TypeError, "partitioner is 'random': give a function", {"partitioner": "random"}),
        (
            TypeError,
            r"partitioner is a class: give an object: RoundRobinPartitioner\(\)",
            {"partitioner": RoundRobinPartitioner},
        ),
        (
            TypeError,
            r"partitioner cannot be called with 4 arguments: give a function of \(topic, key, "
            r"partitions, available\)",
            {"partitioner": lambda topic: 0},
        ),
        (ValueError, "delivery_timeout_s is 0: give a number above 0", {"delivery_timeout_s": 0}),
        (ValueError, "unknown_topic_grace_s is nan", {"unknown_topic_grace_s": float("nan")}),
        (TypeError, "'compression' is not an option of open_", {"compression": "zstd"}),
    ],
)
async def test_an_error_for_a_wrong_option_lists_allowed_values(
    nursery: trio.Nursery, kind: type[Exception], sentence: str, options: dict[str, Any]
) -> None:
    cluster = FakeCluster(nursery)
    async with connect([("fake", 9001)], network=cluster) as client:
        with pytest.raises(kind, match=sentence):
            open_producer(client, **options)
        if not {"acks", "idempotent"} & set(options):
            with pytest.raises(kind, match=sentence):
                open_transactional_producer(client, "t", **options)


async def test_a_codec_may_be_named(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    (partition,) = cluster.add_topic("a")
    async with producing(cluster, codec="gzip") as (_, producer):
        await producer.send("a", bytes(1000))
    assert parse_header(partition.batches[0]).codec == Codec.GZIP
