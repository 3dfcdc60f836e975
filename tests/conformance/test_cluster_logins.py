"""Every client library with every protocol and mechanism on three nodes, which it all uses: each
leads one partition. With `--kind kafka` on Apache Kafka.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from .acl_kafka import PASSWORD
from .clients import TIMEOUT_S, kcat, kcat_knows_scram
from .secured_cluster import MECHANISMS, USER, SecuredCluster, token
from .test_kafka_tools import SCRIPT, TOOL_SECONDS, have_tools

QUICK = [("SSL", None), ("SASL", "PLAIN"), ("TLS", "SCRAM-SHA-256")]
"""Listener and mechanism. These also run where there is little time; the others are slow tests."""
CASES = [
    *QUICK,
    *(
        pytest.param(listener, mechanism, marks=pytest.mark.slow)
        for listener in ("SASL", "TLS")
        for mechanism in MECHANISMS
        if (listener, mechanism) not in QUICK
    ),
]
VALUES = [b"zero", b"one", b"two"]
"""One for each partition."""

each_case = pytest.mark.parametrize("listener, mechanism", CASES)


@pytest.fixture
def topic(secured_nodes: SecuredCluster, new_name: Callable[[], str]) -> str:
    """A topic with a partition on each node, which alice may read and write."""
    name = new_name()
    assignment = {number: (number + 1,) for number in range(3)}
    secured_nodes.nodes.create_topic(name, assignment=assignment)
    rules = [(2, name, 3), (2, name, 4), (3, name, 3)]
    creations = [
        {
            "resource_type": resource_type,
            "resource_name": resource_name,
            "resource_pattern_type": 3,
            "principal": f"User:{USER}",
            "host": "*",
            "operation": operation,
            "permission_type": 3,
        }
        for resource_type, resource_name, operation in rules
    ]
    response = secured_nodes.nodes.request(1, "create_acls", 3, {"creations": creations})
    assert [row.error_code for row in response.results] == [0, 0, 0]
    for node_id in secured_nodes.ports:
        _until_visible(secured_nodes, node_id, name)
    return name


def _until_visible(cluster: SecuredCluster, node_id: int, topic: str) -> None:
    """Wait until the ACLs of the topic have their effect on this node."""
    request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    deadline = time.monotonic() + TIMEOUT_S
    with cluster.connection(node_id, USER) as connection:
        while True:
            response = asyncio.run(_ask(connection, "Metadata", 9, request))
            if response["topics"][0]["error_code"] == 0:
                return
            assert time.monotonic() < deadline, response
            time.sleep(0.05)


async def _ask(connection: Any, name: str, version: int, request: dict[str, Any]) -> Any:
    return await connection(name, version, request)


def librdkafka(cluster: SecuredCluster, listener: str, mechanism: str | None) -> dict[str, str]:
    """Options without those of a token."""
    options = {"bootstrap.servers": cluster.address(listener)}
    if listener in ("TLS", "SSL"):
        options["ssl.ca.location"] = str(cluster.files["ca"])
    if mechanism is None:
        client = str(cluster.files["client"])
        return {
            **options,
            "security.protocol": "SSL",
            "ssl.certificate.location": client,
            "ssl.key.location": client,
        }
    protocol = "SASL_SSL" if listener == "TLS" else "SASL_PLAINTEXT"
    options |= {"security.protocol": protocol, "sasl.mechanism": mechanism}
    if mechanism != "OAUTHBEARER":
        options |= {"sasl.username": USER, "sasl.password": PASSWORD}
    return options


@each_case
def test_confluent_kafka(
    secured_nodes: SecuredCluster, topic: str, listener: str, mechanism: str | None
) -> None:
    from confluent_kafka import Consumer, Producer

    options: dict[str, Any] = {**librdkafka(secured_nodes, listener, mechanism)}
    if mechanism == "OAUTHBEARER":
        options["oauth_cb"] = lambda _: (token(), time.time() + 300)
    producer = Producer(options)
    for partition, value in enumerate(VALUES):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        found: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            found += [message.value() for message in consumer.consume(3, 0.5)]
        assert sorted(filter(None, found)) == sorted(VALUES)
    finally:
        consumer.close()


def python_options(cluster: SecuredCluster, listener: str, mechanism: str | None) -> dict[str, Any]:
    """Options of kafka-python and aiokafka, without those for TLS and tokens."""
    options: dict[str, Any] = {"bootstrap_servers": cluster.address(listener).split(",")}
    if mechanism is None:
        return {**options, "security_protocol": "SSL"}
    options |= {
        "security_protocol": "SASL_SSL" if listener == "TLS" else "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism != "OAUTHBEARER":
        options |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return options


@each_case
def test_kafka_python(
    secured_nodes: SecuredCluster, topic: str, listener: str, mechanism: str | None
) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        def token(self) -> str:
            return token()

    options = python_options(secured_nodes, listener, mechanism)
    files = secured_nodes.files
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Tokens()
    if listener in ("TLS", "SSL"):
        options["ssl_cafile"] = str(files["ca"])
    if mechanism is None:
        options |= {"ssl_certfile": str(files["client"]), "ssl_keyfile": str(files["client"])}
    producer = KafkaProducer(**options)
    for partition, value in enumerate(VALUES):
        producer.send(topic, value, partition=partition).get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1_000),
        **options,
    )
    try:
        assert sorted(next(consumer).value for _ in VALUES) == sorted(VALUES)
    finally:
        consumer.close()


@each_case
def test_aiokafka(
    secured_nodes: SecuredCluster, topic: str, listener: str, mechanism: str | None
) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.helpers import create_ssl_context

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
        async def token(self) -> str:
            return token()

    options = python_options(secured_nodes, listener, mechanism)
    files = secured_nodes.files
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Tokens()
    if listener in ("TLS", "SSL"):
        client = str(files["client"]) if mechanism is None else None
        options["ssl_context"] = create_ssl_context(
            cafile=str(files["ca"]), certfile=client, keyfile=client
        )

    async def main() -> None:
        async with AIOKafkaProducer(**options) as producer:
            for partition, value in enumerate(VALUES):
                await producer.send_and_wait(topic, value, partition=partition)
        consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **options)
        async with consumer:
            found = [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in VALUES]
            assert sorted(found) == sorted(VALUES)

    asyncio.run(main())


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@each_case
def test_kcat(
    secured_nodes: SecuredCluster, topic: str, listener: str, mechanism: str | None
) -> None:
    if mechanism == "OAUTHBEARER" and listener == "TLS":
        pytest.skip("kcat can only make tokens without a signature")
    options = librdkafka(secured_nodes, listener, mechanism)
    address = options.pop("bootstrap.servers")
    if mechanism == "OAUTHBEARER":
        address = secured_nodes.address("UNSIGNED")
        options |= {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={USER}",
        }
    given = [text for key, value in options.items() for text in ("-X", f"{key}={value}")]
    if mechanism is not None and "SCRAM" in mechanism and not kcat_knows_scram():
        with pytest.raises(AssertionError, match="due to invalid credentials"):
            kcat(address, *given, "-L", "-m", "2")
        return
    for partition, value in enumerate(VALUES):
        kcat(address, *given, "-P", "-t", topic, "-p", str(partition), stdin=value)
    found = kcat(address, *given, "-C", "-t", topic, "-o", "beginning", "-e", "-q").splitlines()
    assert sorted(found) == sorted(VALUES)
    listed = json.loads(kcat(address, *given, "-L", "-J", "-t", topic))
    assert sorted(row["name"] for row in listed["brokers"]) == sorted(address.split(","))


@pytest.mark.slow
@pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`")
@each_case
def test_java(
    secured_nodes: SecuredCluster,
    topic: str,
    tmp_path: Path,
    listener: str,
    mechanism: str | None,
) -> None:
    """Apache's own clients, as kafka-console-producer.sh, kafka-console-consumer.sh and
    kafka-consumer-groups.sh.
    """
    properties = tmp_path / "client.properties"
    lines = java_options(secured_nodes, listener, mechanism)
    properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    server = ("--bootstrap-server", secured_nodes.address(listener))
    files = secured_nodes.files
    producer = ("--topic", topic, *server, "--command-config", str(properties))
    java(files, "ConsoleProducer", *producer, stdin=b"\n".join(VALUES) + b"\n")
    limits = ("--max-messages", "3", "--timeout-ms", "30000", "--from-beginning")
    consumer = ("--topic", topic, "--group", topic, *server, "--command-config", str(properties))
    found = java(files, "consumer.ConsoleConsumer", *consumer, *limits)
    assert sorted(found.splitlines()) == sorted(VALUES)
    describe = ("--describe", "--group", topic, *server, "--command-config", str(properties))
    rows = java(files, "consumer.group.ConsumerGroupCommand", *describe).decode().splitlines()
    committed = [row.split()[3] for row in rows if row.startswith(topic)]
    # a partition without a record may have no offset yet
    assert sum(int(offset) for offset in committed if offset != "-") == len(VALUES), rows


def java_options(cluster: SecuredCluster, listener: str, mechanism: str | None) -> dict[str, str]:
    files = cluster.files
    options: dict[str, str] = {}
    if listener in ("TLS", "SSL"):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(files["ca"])}
    if mechanism is None:
        client = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(files["client"])}
        return {**options, **client, "security.protocol": "SSL"}
    security = "org.apache.kafka.common.security"
    kind = "scram.Scram" if "SCRAM" in mechanism else "plain.Plain"
    login = f'{security}.{kind}LoginModule required username="{USER}" password="{PASSWORD}";'
    if mechanism == "OAUTHBEARER":
        login = f"{security}.oauthbearer.OAuthBearerLoginModule required;"
        handler = f"{security}.oauthbearer.OAuthBearerLoginCallbackHandler"
        options |= {
            "sasl.login.callback.handler.class": handler,
            "sasl.oauthbearer.token.endpoint.url": files["token"].as_uri(),
        }
    return {
        **options,
        "security.protocol": "SASL_SSL" if listener == "TLS" else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": login,
    }


def java(
    files: Mapping[str, Path], tool: str, *arguments: str, stdin: bytes | None = None
) -> bytes:
    """Run a tool of Apache Kafka; returns its standard output."""
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    environment = {
        "JAVA_TOOL_OPTIONS": " ".join(
            (f"{allowed}.urls={files['token'].as_uri()}", f"{allowed}.files={files['token']}")
        )
    }
    done = subprocess.run(
        [str(SCRIPT), "tool", f"org.apache.kafka.tools.{tool}", *arguments],
        input=stdin,
        capture_output=True,
        timeout=TOOL_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout
