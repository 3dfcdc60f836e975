"""The admin clients of confluent-kafka, kafka-python and aiokafka: topics, partitions,
configs, records, offsets, cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka
import kafka.admin
import kafka.errors
import pytest

from .clients import TIMEOUT_S, Confluent, KafkaPython, Message
from .conftest import Broker, known_everywhere
from .test_wire_produce import Producer
from .wire import Wire, list_offsets, metadata, until

FIRST_MS = 1_700_000_000_000


def gone(wire: Wire, topic: str) -> None:
    """Wait until metadata no longer has the topic."""
    until(lambda: metadata(wire, [topic]).topics[0].error_code == 3, "the topic to go")


def only(futures: dict[Any, Any]) -> Any:
    """The result of the only future in confluent's response."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


# -- confluent-kafka


@pytest.fixture
def confluent(broker: Broker) -> confluent_admin.AdminClient:
    return confluent_admin.AdminClient({"bootstrap.servers": broker.address})


def test_confluent_topic_lifecycle(
    confluent: Any, broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    name = new_name()
    wanted = confluent_admin.NewTopic(name, 2, 1, config={"retention.ms": "-1"})
    only(confluent.create_topics([wanted], validate_only=True))
    assert metadata(wire, [name]).topics[0].error_code == 3
    only(confluent.create_topics([wanted]))
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        only(confluent.create_topics([wanted]))
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    known_everywhere(broker, name, 2)
    only(confluent.create_partitions([confluent_admin.NewPartitions(name, 4)]))
    known_everywhere(broker, name, 4)
    listed = confluent.list_topics(name, TIMEOUT_S)
    assert set(listed.topics[name].partitions) == {0, 1, 2, 3}
    described = only(confluent.describe_topics(confluent_kafka.TopicCollection([name])))
    assert [row.id for row in described.partitions] == [0, 1, 2, 3]
    assert not described.is_internal
    only(confluent.delete_topics([name]))
    gone(wire, name)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        only(confluent.delete_topics([name]))
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_clients_accept_a_message_without_an_error(
    confluent: Any, broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    """mqd returns keys without effect together with the code of a success."""
    name, other = new_name(), new_name()
    only(
        confluent.create_topics(
            [confluent_admin.NewTopic(name, 1, 1, config={"preallocate": "true"})]
        )
    )
    entry = confluent_admin.ConfigEntry(
        "preallocate", "true", incremental_operation=confluent_admin.AlterConfigOpType.SET
    )
    only(
        confluent.incremental_alter_configs(
            [confluent_admin.ConfigResource("topic", name, incremental_configs=[entry])]
        )
    )
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        admin.create_topics(
            [kafka.admin.NewTopic(other, 1, 1, topic_configs={"preallocate": "true"})]
        )
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, other, configs={"preallocate": "true"}
        )
        admin.alter_configs([resource])
    finally:
        admin.close()
    for topic in (name, other):
        until(lambda: metadata(wire, [topic]).topics[0].error_code == 0, "the topic")  # noqa: B023


def test_confluent_lists_all_topics(confluent: Any, topic: str) -> None:
    """librdkafka adds three bytes too many to this one request."""
    assert topic in confluent.list_topics(timeout=TIMEOUT_S).topics


def test_confluent_configs(confluent: Any, topic: str) -> None:
    def resource(**changes: Any) -> Any:
        entries = [
            confluent_admin.ConfigEntry(
                key.replace("_", "."), value, incremental_operation=operation
            )
            for key, (operation, value) in changes.items()
        ]
        return confluent_admin.ConfigResource(
            confluent_admin.ResourceType.TOPIC, topic, incremental_configs=entries or None
        )

    operation = confluent_admin.AlterConfigOpType
    before = only(confluent.describe_configs([resource()]))
    assert before["max.message.bytes"].value == "1048588"
    assert before["max.message.bytes"].is_default
    only(
        confluent.incremental_alter_configs(
            [
                resource(
                    max_message_bytes=(operation.SET, "777"),
                    cleanup_policy=(operation.APPEND, "compact"),
                )
            ]
        )
    )
    until(
        lambda: only(confluent.describe_configs([resource()]))["max.message.bytes"].value == "777",
        "the change",
    )
    after = only(confluent.describe_configs([resource()]))
    assert not after["max.message.bytes"].is_default
    assert set(after["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    only(
        confluent.incremental_alter_configs([resource(max_message_bytes=(operation.DELETE, None))])
    )
    until(
        lambda: only(confluent.describe_configs([resource()]))["max.message.bytes"].is_default,
        "the default",
    )
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        only(
            confluent.incremental_alter_configs(
                [resource(max_message_bytes=(operation.SET, "many"))]
            )
        )
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG


def test_confluent_delete_records_and_list_offsets(
    confluent: Any, broker: Broker, topic: str
) -> None:
    Confluent().produce(
        broker.address, topic, [Message(b"v", timestamp_ms=FIRST_MS + i) for i in (0, 9, 3)]
    )
    partition = confluent_kafka.TopicPartition(topic, 0)

    def offset(spec: Any) -> int:
        return int(only(confluent.list_offsets({partition: spec})).offset)

    spec = confluent_admin.OffsetSpec
    assert offset(spec.earliest()) == 0
    assert offset(spec.latest()) == 3
    assert offset(spec.max_timestamp()) == 1
    assert offset(spec.for_timestamp(FIRST_MS + 1)) == 1
    deleted = only(confluent.delete_records([confluent_kafka.TopicPartition(topic, 0, 2)]))
    assert deleted.low_watermark == 2
    assert offset(spec.earliest()) == 2
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        only(confluent.delete_records([confluent_kafka.TopicPartition(topic, 0, 50)]))
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE


def test_confluent_cluster(confluent: Any, broker: Broker, wire: Wire) -> None:
    described = confluent.describe_cluster().result(TIMEOUT_S)
    assert described.cluster_id == metadata(wire, []).cluster_id
    assert sorted((node.host, node.port) for node in described.nodes) == broker.addresses
    assert described.controller.id in {node.id for node in described.nodes}


def test_confluent_creates_topics_by_producing(broker: Broker, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert Confluent().produce(broker.address, name, [Message(b"first")]) == [0]
    assert [message.value for message in Confluent().consume(broker.address, name, 1)] == [b"first"]


# -- kafka-python


@pytest.fixture
def kafka_python(broker: Broker) -> Iterator[kafka.admin.KafkaAdminClient]:
    client = kafka.admin.KafkaAdminClient(
        bootstrap_servers=broker.address, request_timeout_ms=int(TIMEOUT_S * 1000)
    )
    yield client
    client.close()


def test_kafka_python_topic_lifecycle(
    kafka_python: Any, broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    name = new_name()
    wanted = kafka.admin.NewTopic(name, num_partitions=2, replication_factor=1)
    kafka_python.create_topics([wanted])
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        kafka_python.create_topics([wanted])
    known_everywhere(broker, name, 2)
    assert name in kafka_python.list_topics()
    kafka_python.create_partitions({name: kafka.admin.NewPartitions(3)})
    known_everywhere(broker, name, 3)
    (row,) = kafka_python.describe_topics([name])
    assert (row["name"], len(row["partitions"])) == (name, 3)
    kafka_python.delete_topics([name])
    gone(wire, name)


def test_kafka_python_configs(kafka_python: Any, topic: str) -> None:
    def value() -> Any:
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, topic, ["max.message.bytes"]
        )
        return kafka_python.describe_configs([resource], config_filter="all")["topic"][topic][
            "max.message.bytes"
        ]["value"]

    assert int(value()) == 1048588
    resource = kafka.admin.ConfigResource(
        kafka.admin.ConfigResourceType.TOPIC, topic, {"max.message.bytes": "888"}
    )
    kafka_python.alter_configs([resource])
    until(lambda: int(value()) == 888, "the change")


def test_kafka_python_records_and_offsets(kafka_python: Any, broker: Broker, topic: str) -> None:
    KafkaPython().produce(
        broker.address, topic, [Message(b"v", timestamp_ms=FIRST_MS + i) for i in (0, 9, 3)]
    )
    partition = kafka.TopicPartition(topic, 0)

    def offset(spec: Any) -> int:
        return int(kafka_python.list_partition_offsets({partition: spec})[partition].offset)

    spec = kafka.admin.OffsetSpec
    assert offset(spec.EARLIEST) == 0
    assert offset(spec.LATEST) == 3
    assert offset(spec.MAX_TIMESTAMP) == 1
    assert offset(spec.EARLIEST_LOCAL) == 0
    kafka_python.delete_records({partition: 2})
    assert offset(spec.EARLIEST) == 2


def test_kafka_python_cluster_and_directories(
    kafka_python: Any, broker: Broker, wire: Wire, topic: str
) -> None:
    described = kafka_python.describe_cluster()
    assert described["cluster_id"] == metadata(wire, []).cluster_id
    assert sorted((node["host"], node["port"]) for node in described["brokers"]) == broker.addresses
    assert topic in repr(kafka_python.describe_log_dirs())


def test_kafka_python_producers(kafka_python: Any, wire: Wire, topic: str) -> None:
    producer = Producer(wire, topic)
    producer.send(0, 4)
    partition = kafka.TopicPartition(topic, 0)
    described = repr(kafka_python.describe_producers([partition]))
    assert str(producer.id) in described


def test_kafka_python_detects_the_broker_as_kafka_4_3(kafka_python: Any) -> None:
    """It infers a release from the newest advertised versions; the inferred release decides which
    features it uses.
    """
    assert kafka_python.api_versions()
    version = kafka_python.get_broker_version_data(
        next(iter(kafka_python.describe_cluster()["brokers"]))["broker_id"]
    ).broker_version
    assert version >= (4, 0)


# -- aiokafka


def with_aiokafka(broker: Broker, run: Callable[[Any], Awaitable[None]]) -> None:
    """Run a coroutine with aiokafka's admin client."""

    async def main() -> None:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await client.start()
        try:
            await asyncio.wait_for(run(client), TIMEOUT_S)
        finally:
            await client.close()

    asyncio.run(main())


def test_aiokafka_topic_lifecycle(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()

    async def create(client: Any) -> None:
        answer = await client.create_topics([aiokafka.admin.NewTopic(name, 2, 1)])
        assert [row[1] for row in answer.topic_errors] == [0]
        answer = await client.create_topics([aiokafka.admin.NewTopic(name, 2, 1)])
        assert [row[1] for row in answer.topic_errors] == [36]

    async def use(client: Any) -> None:
        assert name in await client.list_topics()
        (row,) = await client.describe_topics([name])
        assert len(row["partitions"]) == 2
        await client.create_partitions({name: aiokafka.admin.NewPartitions(3)})

    async def delete(client: Any) -> None:
        await client.delete_topics([name])

    with_aiokafka(broker, create)
    known_everywhere(broker, name, 2)
    with_aiokafka(broker, use)
    known_everywhere(broker, name, 3)
    with_aiokafka(broker, delete)
    gone(wire, name)


def test_aiokafka_configs_records_cluster(broker: Broker, wire: Wire, topic: str) -> None:
    Confluent().produce(broker.address, topic, [Message(b"v")] * 3)

    async def run(client: Any) -> None:
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic
        )
        (answer,) = await client.describe_configs([resource])
        rows = {row[0]: row[1] for row in answer.resources[0][4]}
        assert rows["max.message.bytes"] == "1048588"
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC,
            topic,
            {"max.message.bytes": "999"},
        )
        await client.alter_configs([resource])
        assert await client.delete_records(
            {aiokafka.TopicPartition(topic, 0): aiokafka.admin.RecordsToDelete(before_offset=2)}
        ) == {aiokafka.TopicPartition(topic, 0): 2}
        described = await client.describe_cluster()
        assert (
            sorted((node["host"], node["port"]) for node in described["brokers"])
            == broker.addresses
        )

    with_aiokafka(broker, run)
    assert list_offsets(wire, topic, -2).offset == 2
