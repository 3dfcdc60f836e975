"""Every stock client reads what one stock client writes: codecs, acks, keys, headers, timestamps,
sizes, positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from .batches import LOG_APPEND_TIME, parse
from .clients import CLIENTS, CODECS, Client, Message
from .conftest import Broker
from .wire import Wire, create_topic, fetch_one, list_offsets, until

each_client = pytest.mark.parametrize("client", CLIENTS, ids=repr)
each_codec = pytest.mark.parametrize("codec", CODECS)

FIRST_MS = 1_700_000_000_000


def need(client: Client, codec: str) -> None:
    """Skip, with the remedy, where this Python lacks a codec for this client."""
    if module := client.missing_for(codec):
        pytest.skip(f"{client.name} needs the module {module} for {codec}; install the extra `dev`")


def some(count: int, *, size: int = 100) -> list[Message]:
    """Compressible messages, each different, with every field set."""
    return [
        Message(
            value=f"{i:08d}".encode().ljust(size, b"v"),
            key=None if i % 3 == 0 else f"key-{i}".encode(),
            headers=(("n", str(i).encode()),) if i % 2 else (),
            timestamp_ms=FIRST_MS + i,
        )
        for i in range(count)
    ]


def stored(messages: list[Message], first_offset: int = 0) -> list[Message]:
    """The same messages with their expected offsets."""
    return [message.at(first_offset + i) for i, message in enumerate(messages)]


@each_codec
@each_client
def test_every_client_reads_what_one_client_wrote(
    client: Client, codec: str, broker: Broker, wire: Wire, topic: str
) -> None:
    need(client, codec)
    messages = some(200)
    assert client.produce(broker.address, topic, messages, codec=codec) == list(range(200))
    on_disk = parse(fetch_one(wire, topic, 0).records)
    assert {batch.attributes & 7 for batch in on_disk} == {CODECS.index(codec)}, (
        "a batch is stored with its own codec"
    )
    for reader in CLIENTS:
        if reader.missing_for(codec) is None:
            assert reader.consume(broker.address, topic, 200) == stored(messages), reader


@pytest.mark.parametrize("acks", [0, 1, -1])
@each_client
def test_acks(client: Client, acks: int, broker: Broker, wire: Wire, topic: str) -> None:
    messages = some(50)
    offsets = client.produce(broker.address, topic, messages, acks=acks)
    if acks == 0:
        assert len(offsets) == 50
        until(lambda: list_offsets(wire, topic, -1).offset == 50, "50 unacknowledged messages")
    else:
        assert offsets == list(range(50))
    assert client.consume(broker.address, topic, 50) == stored(messages)


@each_client
def test_idempotent_producer(client: Client, broker: Broker, wire: Wire, topic: str) -> None:
    messages = some(100)
    assert client.produce(broker.address, topic, messages, idempotent=True) == list(range(100))
    assert client.produce(broker.address, topic, messages, idempotent=True) == list(
        range(100, 200)
    ), "a new producer id, not a retry"
    batches = parse(fetch_one(wire, topic, 0).records)
    assert len({batch.producer_id for batch in batches}) == 2
    assert all(batch.producer_id >= 0 and batch.producer_epoch == 0 for batch in batches)
    assert client.consume(broker.address, topic, 200) == stored(messages) + stored(messages, 100)


@each_client
def test_null_and_empty_keys_values_and_headers(client: Client, broker: Broker, topic: str) -> None:
    messages = [
        Message(None, b"tombstone", timestamp_ms=FIRST_MS),
        Message(b"", b"", timestamp_ms=FIRST_MS),
        Message(None, None, timestamp_ms=FIRST_MS),
        Message(
            b"value",
            None,
            (
                ("a", None),
                ("a", b""),
                ("a", b"1"),
                ("", b"empty key"),
                ("ключ", "значение".encode()),
            ),
            FIRST_MS,
        ),
        Message(bytes(range(256)), b"\0\xff", (("binary", bytes(range(256))),), FIRST_MS),
    ]
    if client.name == "kafka-python":  # it refuses a null header value before it sends anything
        messages[3] = Message(b"value", None, messages[3].headers[1:], FIRST_MS)
    # nor do these two accept a message with neither key nor value
    if client.name != "confluent":
        del messages[2]
    client.produce(broker.address, topic, messages)
    for reader in CLIENTS:
        assert reader.consume(broker.address, topic, len(messages)) == stored(messages), reader


@each_client
def test_an_append_time_topic_stamps_with_the_broker_s_clock(
    client: Client, broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = create_topic(wire, new_name(), configs={"message.timestamp.type": "LogAppendTime"})
    client.produce(broker.address, topic, some(10))
    got = client.consume(broker.address, topic, 10)
    assert [message.value for message in got] == [message.value for message in some(10)]
    assert all(
        batch.attributes & LOG_APPEND_TIME for batch in parse(fetch_one(wire, topic, 0).records)
    )
    assert all(
        message.timestamp_ms is not None and abs(message.timestamp_ms / 1000 - time.time()) < 60
        for message in got
    )


@each_codec
def test_consume_from_inside_a_batch(codec: str, broker: Broker, wire: Wire, topic: str) -> None:
    messages = some(100)
    CLIENTS[0].produce(broker.address, topic, messages, codec=codec)
    for reader in CLIENTS:
        if reader.missing_for(codec) is None:
            for offset in (0, 37, 99):
                assert (
                    reader.consume(broker.address, topic, 100 - offset, offset=offset)
                    == stored(messages)[offset:]
                ), reader


@each_client
def test_large_messages(client: Client, broker: Broker, topic: str) -> None:
    messages = [Message(bytes([i]) * 1_048_000, timestamp_ms=FIRST_MS) for i in range(3)]
    assert client.produce(broker.address, topic, messages) == [0, 1, 2]
    assert client.consume(broker.address, topic, 3) == stored(messages)


@each_client
def test_an_oversized_message_is_refused_without_other_effect(
    client: Client, broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = create_topic(wire, new_name(), configs={"max.message.bytes": "2000"})
    with pytest.raises(
        (
            confluent_kafka.KafkaException,
            kafka.errors.MessageSizeTooLargeError,
            aiokafka.errors.MessageSizeTooLargeError,
        )
    ) as caught:
        client.produce(broker.address, topic, [Message(b"x" * 5000)])
    if client.name == "confluent":
        assert caught.value.args[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    assert client.produce(broker.address, topic, [Message(b"y" * 1000)]) == [0]


@each_client
def test_several_partitions_are_separate(
    client: Client, broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = create_topic(wire, new_name(), partitions=3)
    for partition in range(3):
        messages = [Message(f"{partition}-{i}".encode(), timestamp_ms=FIRST_MS) for i in range(10)]
        assert client.produce(broker.address, topic, messages, partition=partition) == list(
            range(10)
        )
    for partition in range(3):
        got = client.consume(broker.address, topic, 10, partition=partition)
        assert [message.value for message in got] == [
            f"{partition}-{i}".encode() for i in range(10)
        ]
