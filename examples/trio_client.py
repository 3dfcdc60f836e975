"""The client in a Trio program: a producer with its own partitioner, a consumer, and errors.

python examples/trio_client.py [HOST:PORT]
"""

import sys
from collections.abc import Sequence
from secrets import token_hex

import trio

from mqd.client import (
    Admin,
    ClientError,
    NewTopic,
    OffsetSpec,
    RoundRobinPartitioner,
    TopicPartition,
    connect,
    open_consumer,
    open_producer,
)

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"example-trio-{token_hex(3)}"  # a separate name for each run


def by_country(
    topic: str, key: bytes | None, partitions: Sequence[int], available: Sequence[int]
) -> int:
    """Norway has a partition of its own: 0."""
    return 0 if key == b"no" else 1 + len(key or b"") % (len(partitions) - 1)


async def main() -> None:
    async with connect(BOOTSTRAP) as client:
        await Admin(client).create_topics([NewTopic(TOPIC, partitions=3)])
        async with open_producer(client, partitioner=by_country, codec="gzip") as producer:
            stored = [await producer.send(TOPIC, b"order", key=key) for key in (b"no", b"fr")]
        print("Norway and France:", [record.partition for record in stored])
        async with open_producer(client, partitioner=RoundRobinPartitioner()) as producer:
            stored = [await producer.send(TOPIC, b"order", key=b"no") for _ in range(3)]
        print("in turn:", [record.partition for record in stored])

        start: dict[TopicPartition, OffsetSpec] = {
            TopicPartition(TOPIC, number): "beginning" for number in range(3)
        }
        async with open_consumer(client, start, end="end") as consumer:
            count = 0
            async for batch in consumer:
                count += len(batch.records)
        print("records:", count)
        assert count == 5

        try:
            open_producer(client, linger_ms=-5)
        except ValueError as error:
            print("wrong argument:", error)
        try:
            async with open_producer(client, unknown_topic_grace_s=0) as producer:
                await producer.send("no/such/topic", b"x")
        except ClientError as error:
            print("refused:", error.code.name)


trio.run(main)
