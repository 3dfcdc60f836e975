"""Where a consumer may begin: beginning, end, offset, timestamp; watermarks; the end of a
partition; reset policies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from .clients import FETCH_WAIT_MS, TIMEOUT_S, Confluent, Message, confluent_consumer
from .conftest import Broker
from .test_wire_offsets import delete_records
from .wire import Wire, create_topic

FIRST_MS = 1_700_000_000_000
COUNT = 30
FIRST_OFFSET = 5


@pytest.fixture
def filled(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> str:
    """Thirty records, a second apart, in batches of ten; the first five are deleted."""
    topic = create_topic(wire, new_name())
    for start in range(0, COUNT, 10):
        rows = [
            Message(str(i).encode(), timestamp_ms=FIRST_MS + i * 1000)
            for i in range(start, start + 10)
        ]
        Confluent().produce(broker.address, topic, rows)
    assert delete_records(wire, topic, FIRST_OFFSET) == (0, FIRST_OFFSET)
    return topic


# -- confluent-kafka


def first_offset(consumer: confluent_kafka.Consumer) -> int | None:
    """Offset of the next message; None at the end of the partition."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            return message.offset()
        if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            return None
        raise confluent_kafka.KafkaException(error)
    raise AssertionError("nothing came")


@pytest.fixture
def confluent(broker: Broker) -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_consumer(broker.address, enable_partition_eof=True)
    yield consumer
    consumer.close()


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (confluent_kafka.OFFSET_BEGINNING, FIRST_OFFSET),
        (confluent_kafka.OFFSET_END, None),
        (17, 17),
        (COUNT, None),
        (FIRST_OFFSET, FIRST_OFFSET),
    ],
)
def test_confluent_begins(
    confluent: confluent_kafka.Consumer, filled: str, position: int, expected: int | None
) -> None:
    confluent.assign([confluent_kafka.TopicPartition(filled, 0, position)])
    assert first_offset(confluent) == expected


@pytest.mark.parametrize("position", [2, COUNT + 1])
def test_confluent_out_of_range(
    confluent: confluent_kafka.Consumer, filled: str, position: int
) -> None:
    confluent.assign([confluent_kafka.TopicPartition(filled, 0, position)])
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first_offset(confluent)
    assert caught.value.args[0].code() in (
        confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
        confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
    )


@pytest.mark.parametrize(("policy", "expected"), [("earliest", FIRST_OFFSET), ("latest", None)])
def test_confluent_reset(broker: Broker, filled: str, policy: str, expected: int | None) -> None:
    consumer = confluent_consumer(
        broker.address, auto_offset_reset=policy, enable_partition_eof=True
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(filled, 0, 2)])
        assert first_offset(consumer) == expected
    finally:
        consumer.close()


def test_confluent_watermarks_and_times(confluent: confluent_kafka.Consumer, filled: str) -> None:
    assert confluent.get_watermark_offsets(
        confluent_kafka.TopicPartition(filled, 0), TIMEOUT_S
    ) == (FIRST_OFFSET, COUNT)
    stamps = {
        FIRST_MS: FIRST_OFFSET,
        FIRST_MS + 12_000: 12,
        FIRST_MS + 12_001: 13,
        FIRST_MS + 29_000: 29,
        FIRST_MS + 29_001: -1,
    }
    for stamp, expected in stamps.items():
        (row,) = confluent.offsets_for_times(
            [confluent_kafka.TopicPartition(filled, 0, stamp)], TIMEOUT_S
        )
        assert (row.error, row.offset) == (None, expected), stamp


def test_confluent_end_of_an_empty_partition(
    confluent: confluent_kafka.Consumer, topic: str
) -> None:
    confluent.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert first_offset(confluent) is None


def test_confluent_seek_back_and_forth(confluent: confluent_kafka.Consumer, filled: str) -> None:
    confluent.assign([confluent_kafka.TopicPartition(filled, 0, 20)])
    assert first_offset(confluent) == 20
    for offset in (7, 29, 12):
        confluent.seek(confluent_kafka.TopicPartition(filled, 0, offset))
        assert first_offset(confluent) == offset


# -- kafka-python


@pytest.fixture
def kafka_python(broker: Broker) -> Iterator[kafka.KafkaConsumer]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.address,
        group_id=None,
        auto_offset_reset="none",
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )
    yield consumer
    consumer.close()


def next_offset(consumer: kafka.KafkaConsumer, partition: kafka.TopicPartition) -> int:
    """Offset of the next record."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for record in consumer.poll(200, max_records=1).get(partition, []):
            return int(record.offset)
    raise AssertionError("nothing came")


def test_kafka_python_positions(kafka_python: kafka.KafkaConsumer, filled: str) -> None:
    partition = kafka.TopicPartition(filled, 0)
    kafka_python.assign([partition])
    assert kafka_python.beginning_offsets([partition]) == {partition: FIRST_OFFSET}
    assert kafka_python.end_offsets([partition]) == {partition: COUNT}
    kafka_python.seek_to_beginning(partition)
    assert next_offset(kafka_python, partition) == FIRST_OFFSET
    kafka_python.seek(partition, 17)
    assert next_offset(kafka_python, partition) == 17
    kafka_python.seek_to_end(partition)
    assert kafka_python.position(partition) == COUNT
    found = kafka_python.offsets_for_times({partition: FIRST_MS + 11_500})[partition]
    assert (found.offset, found.timestamp) == (12, FIRST_MS + 12_000)
    assert kafka_python.offsets_for_times({partition: FIRST_MS + 60_000}) == {partition: None}


def test_kafka_python_out_of_range(kafka_python: kafka.KafkaConsumer, filled: str) -> None:
    partition = kafka.TopicPartition(filled, 0)
    kafka_python.assign([partition])
    kafka_python.seek(partition, 2)
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        next_offset(kafka_python, partition)


# -- aiokafka


def test_aiokafka_positions(broker: Broker, filled: str) -> None:
    partition = aiokafka.TopicPartition(filled, 0)

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.address,
            group_id=None,
            auto_offset_reset="none",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        await consumer.start()
        try:
            consumer.assign([partition])
            assert await consumer.beginning_offsets([partition]) == {partition: FIRST_OFFSET}
            assert await consumer.end_offsets([partition]) == {partition: COUNT}
            await consumer.seek_to_beginning(partition)
            assert (
                await asyncio.wait_for(consumer.getone(partition), TIMEOUT_S)
            ).offset == FIRST_OFFSET
            consumer.seek(partition, 17)
            assert (await asyncio.wait_for(consumer.getone(partition), TIMEOUT_S)).offset == 17
            await consumer.seek_to_end(partition)
            assert await consumer.position(partition) == COUNT
            found = (await consumer.offsets_for_times({partition: FIRST_MS + 11_500}))[partition]
            assert (found.offset, found.timestamp) == (12, FIRST_MS + 12_000)
            assert await consumer.offsets_for_times({partition: FIRST_MS + 60_000}) == {
                partition: None
            }
            consumer.seek(partition, 2)
            with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
                await asyncio.wait_for(consumer.getone(partition), TIMEOUT_S)
        finally:
            await consumer.stop()

    asyncio.run(run())
