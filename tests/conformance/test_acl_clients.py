"""Stock clients of users with few permissions: what they may do works, and what they may not do
fails with Kafka's error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from .acl_kafka import PASSWORD, free_ports, kafka
from .test_acl_matrix import mqd
from .wire import until

TIMEOUT_S = 30.0
EFFECT_S = 5.0
"""How soon a revoked ACL has its effect."""


def config(port: int, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        **more,
    }


def binding(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    """Allows something to alice."""
    return AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


@pytest.fixture(scope="module")
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A broker where alice may read and write `allowed`, with the group `hers`."""
    users = ["alice"]
    folder: Path = tmp_path_factory.mktemp("acl")
    is_kafka = request.config.getoption("--kind") == "kafka"
    with kafka(users, free_ports()) if is_kafka else mqd(users, folder) as found:
        admin = AdminClient(config(found, "admin"))
        topics = [NewTopic(name, 1, 1) for name in ("allowed", "denied")]
        for made in admin.create_topics(topics).values():
            made.result(TIMEOUT_S)
        rules = [
            binding(kind, name, operation)
            for kind, name, operation in (
                (ResourceType.TOPIC, "allowed", AclOperation.READ),
                (ResourceType.TOPIC, "allowed", AclOperation.WRITE),
                (ResourceType.GROUP, "hers", AclOperation.READ),
            )
        ]
        for done in admin.create_acls(rules).values():
            done.result(TIMEOUT_S)
        alice = AdminClient(config(found, "alice"))
        until(
            lambda: "allowed" in alice.list_topics(timeout=TIMEOUT_S).topics,
            "the broker applies the ACLs",
        )
        yield found


def produced(port: int, topic: str) -> KafkaError | None:
    """The error of one record that alice sends."""
    found: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        found.append(error)

    producer = Producer(config(port, "alice"))
    producer.produce(topic, b"value", on_delivery=delivered)
    producer.flush(TIMEOUT_S)
    return found[0]


def consumed(port: int, topic: str, group: str) -> bytes | KafkaError:
    """The first record, or the first error, of a consumer of alice."""
    consumer = Consumer(
        config(port, "alice", **{"group.id": group, "auto.offset.reset": "earliest"})
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "neither a record nor an error"
        error = message.error()
        return message.value() or b"" if error is None else error
    finally:
        consumer.close()


def test_a_user_uses_its_topic_and_group_only(port: int) -> None:
    assert produced(port, "allowed") is None
    denied = produced(port, "denied")
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(port, "allowed", "hers") == b"value"
    for topic, group, code in (
        ("denied", "hers", KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ("allowed", "others", KafkaError.GROUP_AUTHORIZATION_FAILED),
    ):
        error = consumed(port, topic, group)
        assert isinstance(error, KafkaError)
        assert error.code() == code


def test_an_open_consumer_loses_a_topic_within_seconds(port: int) -> None:
    admin = AdminClient(config(port, "admin"))
    (made,) = admin.create_topics([NewTopic("revoked", 1, 1)]).values()
    made.result(TIMEOUT_S)
    rules = [
        binding(ResourceType.TOPIC, "revoked", operation)
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    for done in admin.create_acls(rules).values():
        done.result(TIMEOUT_S)
    until(lambda: produced(port, "revoked") is None, "the broker applies the ACLs")
    consumer = Consumer(
        config(port, "alice", **{"group.id": "hers", "auto.offset.reset": "earliest"})
    )
    try:
        consumer.subscribe(["revoked"])
        first = consumer.poll(TIMEOUT_S)
        assert first is not None
        assert first.value() == b"value"
        wanted = AclBindingFilter(
            ResourceType.TOPIC,
            "revoked",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        (deletion,) = admin.delete_acls([wanted]).values()
        deletion.result(TIMEOUT_S)
        revoked_at = time.monotonic()
        while True:
            message = consumer.poll(EFFECT_S)
            error = None if message is None else message.error()
            if error is not None:
                break
            assert time.monotonic() - revoked_at < EFFECT_S, "the consumer still reads"
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert time.monotonic() - revoked_at < EFFECT_S
    finally:
        consumer.close()


def test_a_user_sees_and_changes_only_what_it_may(port: int) -> None:
    admin = AdminClient(config(port, "alice"))
    assert set(admin.list_topics(timeout=TIMEOUT_S).topics) <= {"allowed", "revoked"}
    (creation,) = admin.create_topics([NewTopic("new", 1, 1)]).values()
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        creation.result(TIMEOUT_S)
    (deletion,) = admin.delete_topics(["allowed"]).values()
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        deletion.result(TIMEOUT_S)
    (rule,) = admin.create_acls([binding(ResourceType.TOPIC, "denied", AclOperation.READ)]).values()
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        rule.result(TIMEOUT_S)
