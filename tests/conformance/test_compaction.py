"""A compacted topic shrinks to the contents of a dictionary, with transactions, while clients write
and read it. The same holds for Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from .clients import confluent_consumer
from .conftest import Broker
from .wire import Wire, create_topic

UPDATES = 24_000
KEYS = 100
CLEAN_S = 120.0
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "1000",
}
Held = dict[bytes, tuple[int, bytes]]
"""Key -> offset and value of its newest record."""


@contextmanager
def cleaned_often(broker: Broker) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": broker.address})

    def alter(operation: AlterConfigOpType) -> None:
        for node_id in admin.list_topics(timeout=30).brokers:
            entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=operation)
            node = ConfigResource(ResourceType.BROKER, str(node_id), incremental_configs=[entry])
            admin.incremental_alter_configs([node])[node].result(30)

    alter(AlterConfigOpType.SET)
    yield
    alter(AlterConfigOpType.DELETE)


def read(broker: Broker, topic: str, last_offset: int) -> tuple[int, Held]:
    """The number of committed records from the beginning to the end, and the newest of each key.

    The end is after `last_offset`, the offset of the last record: Apache Kafka responds to the end
    of a transaction before its markers are written, so that readers of committed records may still
    stop before it.
    """
    consumer = confluent_consumer(
        broker.address, isolation_level="read_committed", enable_partition_eof=True
    )
    count, held = 0, Held()
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        offset = -1
        while True:
            for message in consumer.consume(5000, 1.0):
                error, following, key, value = (
                    message.error(),
                    message.offset(),
                    message.key(),
                    message.value(),
                )
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    assert following is not None
                    if following > last_offset:
                        return count, held
                    continue
                assert isinstance(key, bytes) and following is not None and following > offset
                offset = following
                count += 1
                held.pop(key, None)
                if isinstance(value, bytes):
                    held[key] = offset, value
    finally:
        consumer.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transactional", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_compacted_topic_equals_a_dictionary(
    broker: Broker, wire: Wire, new_name: Callable[[], str], transactional: bool
) -> None:
    topic = create_topic(wire, new_name(), configs=CONFIGS)
    options: dict[str, Any] = {
        "bootstrap.servers": broker.address,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 5,
    }
    producer = confluent_kafka.Producer(
        options | ({"transactional.id": new_name()} if transactional else {})
    )
    dictionary: Held = {}
    pending: Held = {}
    removed: set[bytes] = set()

    last_offset = -1

    def delivered(error: Any, message: Any) -> None:
        nonlocal last_offset
        assert error is None, error
        last_offset = message.offset()
        assert isinstance(message.key(), bytes)
        if message.value() is None:
            pending.pop(message.key(), None)
            removed.add(message.key())
        else:
            pending[message.key()] = message.offset(), message.value()
            removed.discard(message.key())

    def wait_cleaned(committed: bool) -> None:
        if committed:
            for key in removed:
                dictionary.pop(key, None)
            dictionary.update(pending)
        pending.clear()
        removed.clear()

    with cleaned_often(broker):
        if transactional:
            producer.init_transactions(30)
        rounds = 24
        for part in range(rounds):
            if transactional:
                producer.begin_transaction()
            for number in range(part * UPDATES // rounds, (part + 1) * UPDATES // rounds):
                value = None if number % 11 == 5 else (b"%d " % number) * 20
                producer.produce(topic, value, b"k%d" % (number * 31 % KEYS), on_delivery=delivered)
            assert producer.flush(60) == 0
            committed = not transactional or part % 3 != 1
            if transactional:
                (producer.commit_transaction if committed else producer.abort_transaction)(30)
            wait_cleaned(committed)
            if part % 8 == 0:
                assert read(broker, topic, last_offset)[1] == dictionary, "while it is cleaned"
        deadline = time.monotonic() + CLEAN_S
        paced = 0
        while True:  # the last segment is not cleaned: more records are produced, and others begin
            time.sleep(1.1)
            paced += 1
            if transactional:
                producer.begin_transaction()
            producer.produce(topic, b"%d" % paced, b"paced", on_delivery=delivered)
            assert producer.flush(30) == 0
            if transactional:
                producer.commit_transaction(30)
            wait_cleaned(True)
            count, held = read(broker, topic, last_offset)
            assert held == dictionary
            if count <= KEYS + 1 + 2 * paced:
                break
            assert time.monotonic() < deadline, f"{count} records are left of {UPDATES}"
