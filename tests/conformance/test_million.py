"""A million records written and read, each one checked: content, order within its partition, dense
offsets, no duplicates.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import confluent_kafka
import pytest

from .clients import confluent_consumer
from .conftest import Broker
from .wire import Wire, create_topic

COUNT = 1_000_000
PARTITIONS = 6
NUMBER = struct.Struct(">q")
SIZES = (16, 24, 64, 100, 130)
READ_TIMEOUT_S = 60.0


def value_of(number: int) -> bytes:
    """A record's number and a keyed stream that only this number has; sizes differ."""
    head = NUMBER.pack(number)
    return head + (blake2b(head, digest_size=32).digest() * 4)[: SIZES[number % len(SIZES)]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("codec", ["lz4"])
def test_a_million_records(
    broker: Broker, wire: Wire, new_name: Callable[[], str], codec: str
) -> None:
    topic = create_topic(wire, new_name(), partitions=PARTITIONS)
    acked = array("q", [-1]) * COUNT
    errors: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)
            return
        (number,) = NUMBER.unpack_from(message.value())
        acked[number] = message.offset()

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number in range(COUNT):
        value = value_of(number)
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors, errors[:3]

    consumer = confluent_consumer(broker.address)
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        )
        next_number = list(range(PARTITIONS))
        next_offset = [0] * PARTITIONS
        left = COUNT
        deadline = time.monotonic() + READ_TIMEOUT_S
        while left:
            assert time.monotonic() < deadline, f"{left} records left"
            for message in consumer.consume(10_000, 1.0):
                assert message.error() is None, message.error()
                partition, offset, found = message.partition(), message.offset(), message.value()
                assert partition is not None
                number = next_number[partition]
                assert found == value_of(number), (
                    f"partition {partition} at offset {offset}: not record {number}"
                )
                assert offset == next_offset[partition] == acked[number]
                next_number[partition] += PARTITIONS
                next_offset[partition] += 1
                left -= 1
        for partition in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic, partition), 10
            )
            assert (low, high) == (0, next_offset[partition]), "and no further record"
    finally:
        consumer.close()
