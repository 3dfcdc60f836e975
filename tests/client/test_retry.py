"""Failed records that a consumer sends to a retry topic, on a whole cluster in virtual time."""

from __future__ import annotations

import pytest
import trio

from mqd.client import (
    ClientError,
    ClusterClient,
    ErrorCode,
    InvalidType,
    InvalidValue,
    Record,
    TopicPartition,
    attempts_of,
    open_consumer,
    open_group_consumer,
    open_producer,
    open_transactional_producer,
)
from mqd.client.admin import Admin
from mqd.testing import Cluster, simulated

DEAD = TopicPartition("orders.dlq", 0)
RETRIES = {
    "mqd.delay.target": "orders",
    "mqd.dlq.topic": "orders.dlq",
    "mqd.retry.backoff": "1s,5s",
    "message.timestamp.type": "LogAppendTime",
}


async def make_topics(client: ClusterClient) -> None:
    admin = Admin(client)
    await admin.create_topic("orders", 1)
    await admin.create_topic("orders.dlq", 1)
    await admin.create_topic("orders.retry", 1, 1, RETRIES)
    await trio.sleep(1)


async def dead_letter(client: ClusterClient) -> Record:
    async with open_consumer(client, {DEAD: "beginning"}, read_committed=True) as consumer:
        batch = await consumer.next()
        assert batch is not None
        return batch.records[0]


@simulated(seed=11)
async def test_a_failed_record_returns_until_it_is_a_dead_letter() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client)
        headers = [("trace", b"7"), ("trace", None)]
        seen: list[tuple[int, float]] = []
        async with (
            open_producer(client) as producer,
            open_group_consumer(
                client, "billing", ["orders"], reset="beginning", read_committed=True
            ) as consumer,
        ):
            await producer.send("orders", b"v", key=b"k", headers=headers)
            with trio.fail_after(60):
                while len(seen) < 3:
                    for record in (await consumer.next()).records:
                        assert (record.key, record.value) == (b"k", b"v")
                        assert [one for one in record.headers if one[0] == "trace"] == headers
                        seen.append((attempts_of(record), trio.current_time()))
                        place = await producer.retry("orders.retry", record)
                        assert place.topic == "orders.retry"
                dead = await dead_letter(client)
        assert [attempts for attempts, _ in seen] == [0, 1, 2]
        assert seen[1][1] - seen[0][1] >= 1 and seen[2][1] - seen[1][1] >= 5
        assert (dead.key, dead.value, attempts_of(dead)) == (b"k", b"v", 2)


@simulated(seed=14)
async def test_records_whose_handler_raises_are_retried_and_name_their_origin() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client)
        seen: list[tuple[bytes | None, int]] = []

        async def handle(record: Record) -> None:
            seen.append((record.value, attempts_of(record)))
            if record.value == b"bad":
                raise ValueError("no stock")

        async with open_producer(client) as producer:
            await producer.send("orders", b"good")
            first = await producer.send(
                "orders", b"bad", headers=[("trace", b"7")], timestamp=10**12
            )
            async with open_group_consumer(
                client,
                "billing",
                ["orders"],
                reset="beginning",
                read_committed=True,
                auto_commit=False,
            ) as consumer:
                with trio.fail_after(60):
                    await consumer.consume_with_retry(producer, handle, idle_s=15)
                ends = (await consumer.committed([TopicPartition("orders", 0)])).values()
                dead = await dead_letter(client)
        assert seen == [(b"good", 0), (b"bad", 0), (b"bad", 1), (b"bad", 2)]
        [end] = ends
        assert end is not None and end.offset >= 4
        expected = {
            "trace": b"7",
            "__dlq.errors.topic": b"orders",
            "__dlq.errors.partition": b"0",
            "__dlq.errors.offset": b"%d" % first.offset,
            "__dlq.errors.timestamp": b"%d" % 10**12,
            "__dlq.errors.group": b"billing",
            "__dlq.errors.delivery.count": b"3",
        }
        assert expected.items() <= dict(dead.headers).items()


@simulated(seed=12)
async def test_a_transaction_retries_records_with_the_offsets_of_the_group() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client)
        async with (
            open_transactional_producer(client, "biller") as producer,
            open_group_consumer(
                client,
                "billing",
                ["orders"],
                reset="beginning",
                read_committed=True,
                auto_commit=False,
            ) as consumer,
        ):
            async with producer.transaction():
                await producer.send("orders", b"v")
            with trio.fail_after(60):
                for attempts in (0, 1):
                    async with producer.transaction():
                        [record] = (await consumer.next()).records
                        assert attempts_of(record) == attempts
                        await producer.retry("orders.retry", record)
                        await producer.send_offsets(consumer.positions(), consumer.group_metadata())


@simulated(seed=13)
async def test_a_record_is_not_sent_to_a_topic_that_would_keep_it() -> None:
    record = Record(0, 0, b"k", b"v")
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client)
        admin = Admin(client)
        await admin.create_topic("later", 1, 1, {"mqd.delay.target": "orders"})
        async with open_producer(client, delivery_timeout_s=10) as producer:
            for topic in ("orders", "later"):
                with pytest.raises(ClientError, match=f"'{topic}' is no retry topic") as caught:
                    await producer.retry(topic, record)
                assert caught.value.code is ErrorCode.INVALID_CONFIG
                assert "mqctl retry setup" in caught.value.remedy
            with pytest.raises(ClientError) as caught:
                await producer.retry("missing", record)
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert "mqctl retry setup" in caught.value.remedy
        assert "missing" not in {topic.name for topic in await admin.list_topics()}
        async with open_producer(client, acks=1) as producer:
            with pytest.raises(InvalidValue, match="acks='all'"):
                await producer.retry("orders.retry", record)


@pytest.mark.parametrize(
    ("headers", "attempts"),
    [
        ((), 0),
        ([("mqd-attempts", b"3")], 3),
        ([("mqd-attempts", b"3"), ("mqd-attempts", b"4")], 4),
        ([("mqd-attempts", None)], 0),
        ([("mqd-attempts", b"1.5")], 0),
        ([("mqd-attempts", b"9" * 5000)], 0),
    ],
)
def test_attempts(headers: list[tuple[str, bytes | None]], attempts: int) -> None:
    assert attempts_of(Record(0, 0, None, b"v", headers)) == attempts


def test_attempts_of_something_else() -> None:
    with pytest.raises(InvalidType, match="record is 5: give a Record of a consumer"):
        attempts_of(5)  # type: ignore[arg-type]
