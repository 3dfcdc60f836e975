"""One client as a producer or consumer, in its own process. `bench/client.py` starts them.

    python -m bench.client_roles CLIENT ROLE HOST:PORT TOPIC RECORDS VALUE_BYTES KEY_BYTES SPREAD

Every producer has the same settings: acks=all, idempotence, batches of 256 KiB, 5 ms of linger, no
compression, partition 0. It has 32 MiB of buffer if the client has this option. Every consumer
reads partition 0 from its beginning without a group, with at most 4 MiB in one response. It
accesses the key and the value of each record. Producers send record by record and flush at the end.
Consumers use the fastest documented API. The time of a producer is from the first record to the
last acknowledgement. The time of a consumer is from the first fetch to the last record. Imports and
connecting are not measured. Prints one line of JSON: records, wall seconds, CPU seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

BATCH_BYTES = 256 * 1024
LINGER_MS = 5
FETCH_BYTES = 4 * 1024 * 1024
FETCH_ALL_BYTES = 16 * 1024 * 1024
BUFFER_BYTES = 32 * 1024 * 1024
POLL_RECORDS = 10_000
WAIT_SECONDS = 60
ARROW_ROWS = 65_536
DIFFERENT_VALUES = 1_000


@dataclass
class Job:
    """The load of this process, and its clocks."""

    address: str
    topic: str
    records: int
    value_bytes: int
    key_bytes: int
    spread: int
    """The size of each value differs from `value_bytes` by up to this; the mean is `value_bytes`.
    """
    touched: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    _started: tuple[float, float] = field(default=(0.0, 0.0))

    def start(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.wall = time.perf_counter() - self._started[0]
        self.cpu = time.process_time() - self._started[1]

    def pool(self) -> list[tuple[bytes | None, bytes]]:
        """Keys and values of the first records; later records repeat them."""
        longest = self.value_bytes + self.spread
        alphabet = bytes(ord("a") + i % 26 for i in range(longest + DIFFERENT_VALUES))
        made: list[tuple[bytes | None, bytes]] = []
        for i in range(DIFFERENT_VALUES):
            size = self.value_bytes + (i * 7919 % (2 * self.spread + 1)) - self.spread
            key = str(i).zfill(self.key_bytes).encode() if self.key_bytes else None
            made.append((key, alphabet[i : i + size]))
        return made

    def pairs(self) -> Iterator[tuple[bytes | None, bytes]]:
        pool, left = self.pool(), self.records
        while left:
            yield from pool[:left]
            left -= min(left, len(pool))

    def expected(self) -> int:
        """Bytes of all keys and values."""
        sizes = [len(key or b"") + len(value) for key, value in self.pool()]
        whole, rest = divmod(self.records, len(sizes))
        return whole * sum(sizes) + sum(sizes[:rest])


# -- mqd


def mqd_produce(job: Job) -> None:
    import trio

    from mqd.client.cluster import connect
    from mqd.client.producer import open_producer

    async def main() -> None:
        async with (
            connect(job.address) as client,
            open_producer(
                client, linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES, buffer_bytes_max=BUFFER_BYTES
            ) as producer,
        ):
            await producer.send(job.topic, b"", partition=0)
            topic, enqueue = job.topic, producer.enqueue
            job.start()
            for key, value in job.pairs():
                await enqueue(topic, value, key, partition=0)
            await producer.flush()
            job.stop()

    trio.run(main)


def mqd_consume(job: Job) -> None:
    import trio

    from mqd.client.cluster import connect
    from mqd.client.consumer import open_consumer
    from mqd.types import TopicPartition

    async def main() -> None:
        partition = TopicPartition(job.topic, 0)
        async with connect(job.address) as client:
            await client.topic(job.topic, deadline=trio.current_time() + WAIT_SECONDS)
            job.start()
            async with open_consumer(
                client, {partition: "beginning"}, partition_max_bytes=FETCH_BYTES
            ) as consumer:
                seen = touched = 0
                while seen <= job.records:
                    batch = await consumer.next()
                    assert batch is not None
                    for record in batch.records:
                        touched += len(record.value or b"") + len(record.key or b"")
                    seen += len(batch.records)
                job.stop()
            job.touched = touched

    trio.run(main)


# -- mqd, with Arrow


def mqd_arrow_produce(job: Job) -> None:
    import pyarrow as pa
    import trio

    from mqd.client.arrow import open_arrow_producer
    from mqd.client.cluster import connect

    keys, values = zip(*islice(job.pairs(), ARROW_ROWS))
    rows = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([0] * len(keys), pa.int32()),
    ]
    table = pa.RecordBatch.from_arrays(rows, names=["key", "value", "partition"])

    async def main() -> None:
        async with (
            connect(job.address) as client,
            open_arrow_producer(
                client, batch_bytes=BATCH_BYTES, buffer_bytes_max=BUFFER_BYTES
            ) as producer,
        ):
            await producer.send(
                job.topic,
                pa.RecordBatch.from_pydict(
                    {"value": [b""], "partition": pa.array([0], pa.int32())}
                ),
            )
            await producer.flush()
            job.start()
            left = job.records
            while left:
                left -= await producer.send(job.topic, table[:left])
            await producer.flush()
            job.stop()

    trio.run(main)


def mqd_arrow_consume(job: Job) -> None:
    import pyarrow.compute as pc
    import trio

    import mqd.client.arrow  # noqa: F401
    from mqd.client.cluster import connect
    from mqd.client.columns_starts import forth_machine
    from mqd.client.consumer import open_consumer
    from mqd.types import TopicPartition

    async def main() -> None:
        partition = TopicPartition(job.topic, 0)
        forth_machine()  # an import, too
        async with connect(job.address) as client:
            await client.topic(job.topic, deadline=trio.current_time() + WAIT_SECONDS)
            job.start()
            async with open_consumer(
                client, {partition: "beginning"}, partition_max_bytes=FETCH_BYTES
            ) as consumer:
                seen = touched = 0
                async for batch in consumer.arrow_batches(["key", "value"]):
                    for column in batch.columns:
                        touched += pc.sum(pc.binary_length(column)).as_py() or 0
                    seen += batch.num_rows
                    if seen > job.records:
                        break
                job.stop()
            job.touched = touched

    trio.run(main)


# -- aiokafka


def aiokafka_produce(job: Job) -> None:
    from aiokafka import AIOKafkaProducer

    async def main() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=job.address,
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            max_request_size=4 * 1024 * 1024,
        )
        await producer.start()
        try:
            await producer.send_and_wait(job.topic, b"", partition=0)
            topic, send = job.topic, producer.send
            job.start()
            for key, value in job.pairs():
                await send(topic, value, key, 0)
            await producer.flush()
            job.stop()
        finally:
            await producer.stop()

    asyncio.run(main())


def aiokafka_consume(job: Job) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=job.address,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=FETCH_ALL_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        await consumer.start()
        try:
            partition = TopicPartition(job.topic, 0)
            consumer.assign([partition])
            job.start()
            await consumer.seek_to_beginning(partition)
            seen = touched = 0
            while seen <= job.records:
                for records in (
                    await consumer.getmany(timeout_ms=WAIT_SECONDS * 1000, max_records=POLL_RECORDS)
                ).values():
                    for record in records:
                        touched += len(record.value or b"") + len(record.key or b"")
                    seen += len(records)
            job.stop()
            job.touched = touched
        finally:
            await consumer.stop()

    asyncio.run(main())


# -- kafka-python


def kafka_python_produce(job: Job) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )
    producer.send(job.topic, b"", partition=0).get(WAIT_SECONDS)
    topic, send = job.topic, producer.send
    job.start()
    for key, value in job.pairs():
        send(topic, value, key, partition=0)
    producer.flush(10 * WAIT_SECONDS)
    job.stop()
    producer.close()


def kafka_python_consume(job: Job) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=job.address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_ALL_BYTES,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    partition = TopicPartition(job.topic, 0)
    consumer.assign([partition])
    job.start()
    consumer.seek_to_beginning(partition)
    seen = touched = 0
    while seen <= job.records:
        for records in consumer.poll(
            timeout_ms=WAIT_SECONDS * 1000, max_records=POLL_RECORDS
        ).values():
            for record in records:
                touched += len(record.value or b"") + len(record.key or b"")
            seen += len(records)
    job.stop()
    job.touched = touched
    consumer.close()


# -- confluent-kafka


def confluent_produce(job: Job) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": job.address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.produce(job.topic, b"", partition=0)
    producer.flush(WAIT_SECONDS)
    topic, produce = job.topic, producer.produce
    job.start()
    for key, value in job.pairs():
        while True:
            try:
                produce(topic, value, key, 0)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(10 * WAIT_SECONDS)
    job.stop()
    assert not left, left


def confluent_consume(job: Job) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_ALL_BYTES,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "queued.max.messages.kbytes": BUFFER_BYTES // 1024,
        }
    )
    job.start()
    consumer.assign([TopicPartition(job.topic, 0, 0)])
    seen = touched = 0
    while seen <= job.records:
        messages = consumer.consume(min(POLL_RECORDS, job.records + 1 - seen), WAIT_SECONDS)
        for message in messages:
            touched += len(message.value() or b"") + len(message.key() or b"")
        seen += len(messages)
    job.stop()
    job.touched = touched
    consumer.close()


ROLES: dict[tuple[str, str], Callable[[Job], None]] = {
    ("mqd", "produce"): mqd_produce,
    ("mqd", "consume"): mqd_consume,
    ("mqd-arrow", "produce"): mqd_arrow_produce,
    ("mqd-arrow", "consume"): mqd_arrow_consume,
    ("aiokafka", "produce"): aiokafka_produce,
    ("aiokafka", "consume"): aiokafka_consume,
    ("kafka-python", "produce"): kafka_python_produce,
    ("kafka-python", "consume"): kafka_python_consume,
    ("confluent-kafka", "produce"): confluent_produce,
    ("confluent-kafka", "consume"): confluent_consume,
}


def main() -> None:
    client, role, address, topic, *numbers = sys.argv[1:]
    records, value_bytes, key_bytes, spread = map(int, numbers)
    job = Job(address, topic, records, value_bytes, key_bytes, spread)
    ROLES[client, role](job)
    if role == "consume" and job.touched != job.expected():
        raise SystemExit(f"{client} touched {job.touched} bytes; the topic has {job.expected()}")
    print(json.dumps({"records": records, "wall": job.wall, "cpu": job.cpu}))


if __name__ == "__main__":
    main()
