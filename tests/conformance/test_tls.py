"""Listeners with TLS: stock clients produce and consume, and each wrong set-up fails in the way
that clients expect, against mqd and against Apache Kafka (`--kind kafka`).

One broker has a listener for each case. A foreign broker (`--broker`) has other certificates, so
these tests skip it.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos.node import KafkaNode, Node, free_ports
from tests.tls_files import write_texts

from .broker_log import KAFKA_LOGS_FAILURES, log_has
from .clients import kcat
from .conftest import GROUP_OPTIONS
from .java_tools import QUICK, JavaClient, trust_properties
from .test_kafka_tools import TOOL_SECONDS, have_tools

LISTENERS = ("PLAINTEXT", "SSL", "MUTUAL", "EXPIRED", "ELSEWHERE", "OLD")
RULE = "RULE:^CN=(.*?),.*$/$1/L,DEFAULT"


@dataclass(frozen=True)
class Secured:
    """A broker with these listeners."""

    ports: dict[str, int]
    files: dict[str, Path]
    node: Node | None
    """None: Apache Kafka."""
    kafka_home: Path | None = None

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def log_has(self, *words: str) -> bool:
        """Whether the broker logs a line with these words, soon."""
        return log_has(self.node, self.kafka_home, *words)


def options_of(files: dict[str, Path], ports: dict[str, int], extra: str = "") -> list[str]:
    return [
        "listeners=" + ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in LISTENERS) + extra,
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,MUTUAL:SSL,"
        "EXPIRED:SSL,ELSEWHERE:SSL,OLD:SSL",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files['node']}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={files['ca']}",
        f"ssl.principal.mapping.rules={RULE}",
        "listener.name.mutual.ssl.client.auth=required",
        f"listener.name.expired.ssl.keystore.location={files['expired']}",
        f"listener.name.elsewhere.ssl.keystore.location={files['elsewhere']}",
        "listener.name.old.ssl.enabled.protocols=TLSv1.2",
        "auto.create.topics.enable=true",
        *GROUP_OPTIONS,
    ]


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    if request.config.getoption("--broker") is not None:
        pytest.skip("a foreign broker has other certificates")
    directory = tmp_path_factory.mktemp("tls")
    files = write_texts(directory)
    first, controller, *others = free_ports(len(LISTENERS) + 1)
    ports = dict(zip(LISTENERS, (first, *others), strict=True))
    if request.config.getoption("--kind") == "kafka":
        home = directory / "kafka"
        options = options_of(files, ports, f",CONTROLLER://127.0.0.1:{controller}")
        options.append(
            "advertised.listeners=" + options[0].removeprefix("listeners=").split(",C")[0]
        )
        script = str(KafkaNode.SCRIPT)
        subprocess.run(
            [script, "start", "1", str(first), str(home), *options],
            check=True,
            env={**os.environ, "JAVA_TOOL_OPTIONS": KAFKA_LOGS_FAILURES},
        )
        try:
            yield Secured(ports, files, None, home)
        finally:
            subprocess.run([script, "stop", str(home)], check=True)
        return
    node = Node(directory / "mqd", tuple(options_of(files, ports)), port=first)
    node.start()
    try:
        yield Secured(ports, files, node)
    finally:
        if node.running:
            node.stop()


def confluent(secured: Secured, listener: str, **options: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.address(listener),
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.files["ca"]),
        **{key.replace("_", "."): value for key, value in options.items()},
    }


def with_certificate(secured: Secured) -> dict[str, str]:
    client = str(secured.files["client"])
    return {"ssl_certificate_location": client, "ssl_key_location": client}


@pytest.mark.parametrize("listener", ["SSL", "MUTUAL", "OLD"])
def test_confluent_kafka_produces_and_consumes(
    secured: Secured, new_name: Callable[[], str], listener: str
) -> None:
    from confluent_kafka import Consumer, Producer

    topic = new_name()
    options = confluent(secured, listener, **with_certificate(secured))
    producer = Producer(options)
    values = [bytes([n % 256]) * size for n, size in enumerate((1, 1_000, 20_000, 300_000) * 5)]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        found: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(found) < len(values) and time.monotonic() < deadline:
            found += [message.value() for message in consumer.consume(10, 0.5)]
        assert found == values
        (broker,) = consumer.list_topics(topic, timeout=5).brokers.values()
        assert (broker.host, broker.port) == ("127.0.0.1", secured.ports[listener])
    finally:
        consumer.close()


def test_kafka_python_produces_and_consumes(secured: Secured, new_name: Callable[[], str]) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    options = {
        "bootstrap_servers": secured.address("MUTUAL"),
        "security_protocol": "SSL",
        "ssl_cafile": str(secured.files["ca"]),
        "ssl_certfile": str(secured.files["client"]),
        "ssl_keyfile": str(secured.files["client"]),
    }
    topic = new_name()
    producer = KafkaProducer(**options)
    for n in range(20):
        producer.send(topic, b"%d" % n)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **options
    )
    assert [next(consumer).value for _ in range(20)] == [b"%d" % n for n in range(20)]
    consumer.close()


@pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt install kcat)"
)
@pytest.mark.parametrize("listener", ["SSL", "MUTUAL"])
def test_kcat_produces_and_consumes(
    secured: Secured, new_name: Callable[[], str], listener: str
) -> None:
    topic, address = new_name(), secured.address(listener)
    options = confluent(secured, listener, **with_certificate(secured))
    given = [text for key, value in options.items() for text in ("-X", f"{key}={value}")]
    kcat(address, *given, "-P", "-t", topic, "-p", "0", stdin=b"one\ntwo\n")
    read = ("-C", "-t", topic, "-o", "beginning", "-e", "-q")
    assert kcat(address, *given, *read) == b"one\ntwo\n"


WRONG = {
    "wrong CA": (
        "SSL",
        {"ssl_ca_location": "other_ca"},
        "certificate verify failed",
        "the client ended the TLS handshake: it does not trust the CA",
        "SSL handshake failed",
    ),
    "expired certificate": (
        "EXPIRED",
        {},
        "certificate verify failed",
        "the client ended the TLS handshake: the certificate is expired",
        "SSL handshake failed",
    ),
    "host name mismatch": (
        "ELSEWHERE",
        {},
        "certificate verify failed",
        "the client ended the TLS handshake: it does not accept the certificate",
        "SSL handshake failed",
    ),
    "no certificate": (
        "MUTUAL",
        {},
        "SSL alert number",  # 116, certificate_required; Java sends 42, bad_certificate
        "the client has no certificate, and ssl.client.auth=required",
        "SSL handshake failed",
    ),
    "plaintext to TLS": (
        "SSL",
        {"security_protocol": "PLAINTEXT"},
        "Disconnected",
        "plaintext on a TLS listener",
        "SSL handshake failed",
    ),
    "TLS to plaintext": (
        "PLAINTEXT",
        {},
        "SSL handshake failed",
        "a TLS handshake: this port speaks the Kafka protocol without TLS",
        "InvalidReceiveException",
    ),
}
"""What is wrong -> listener, client options, what the client reports, what mqd and what Apache
Kafka log. docs/SECURITY.md has this table.
"""


JAVA_REPORTS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "wrong CA": ("SSL", {"ssl_truststore_location": "other_ca"}, ("PKIX path",)),
    "expired certificate": ("EXPIRED", {}, ("PKIX path validation failed",)),
    "host name mismatch": ("ELSEWHERE", {}, ("No subject alternative names",)),
    "no certificate": (
        "MUTUAL",
        {},
        ("Received fatal alert: certificate_required", "Received fatal alert: bad_certificate"),
    ),
    "plaintext to TLS": ("SSL", {"security_protocol": "PLAINTEXT"}, ("Timed out",)),
    "TLS to plaintext": ("PLAINTEXT", {}, ("SSL handshake failed", "Timed out")),
}
"""What is wrong -> listener, properties, and what kafka-topics.sh prints: one of these."""


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_set_up_fails_and_both_sides_say_why(secured: Secured, what: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    listener, options, reported, logged, logged_by_kafka = WRONG[what]
    options = {key: str(secured.files.get(text, text)) for key, text in options.items()}
    if what == "plaintext to TLS":
        options["ssl_ca_location"] = ""
    lines: list[str] = []
    client = AdminClient(
        {
            **confluent(secured, listener, **options),
            "log_level": 7,
            "reconnect.backoff.ms": "1000",
            "reconnect.backoff.max.ms": "1000",
        },
        logger=_Collector(lines),
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1.5)
    client.poll(0)
    assert any(reported in line for line in lines), lines
    assert secured.log_has(logged if secured.node is not None else logged_by_kafka)


class _Collector:
    """A logger for confluent_kafka."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def log(self, _level: int, text: str, *values: object) -> None:
        self._lines.append(text % values if values else text)


needs_java = pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`")
slow_tools = pytest.mark.timeout(5 * TOOL_SECONDS)


def java_client(secured: Secured, directory: Path, listener: str, **changes: str) -> JavaClient:
    properties = {"security.protocol": "SSL", **trust_properties(secured.files["ca"])}
    if listener == "MUTUAL" and not changes:
        client = str(secured.files["client"])
        properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": client}
    changed = {key.replace("_", "."): text for key, text in changes.items()}
    return JavaClient(directory, secured.address(listener), {**properties, **changed})


@needs_java
@slow_tools
@pytest.mark.slow
@pytest.mark.parametrize("listener", ["SSL", "MUTUAL", "OLD"])
def test_java_produces_and_consumes(
    secured: Secured, new_name: Callable[[], str], tmp_path: Path, listener: str
) -> None:
    java_client(secured, tmp_path, listener).round_trip(new_name(), ["one", "two"])


@needs_java
@slow_tools
@pytest.mark.slow
@pytest.mark.parametrize("what", JAVA_REPORTS)
def test_java_reports_a_wrong_set_up(secured: Secured, tmp_path: Path, what: str) -> None:
    listener, changes, reported = JAVA_REPORTS[what]
    changes = {key: str(secured.files.get(text, text)) for key, text in changes.items()}
    quick = {key.replace(".", "_"): value for key, value in QUICK.items()}
    printed = java_client(secured, tmp_path, listener, **{**quick, **changes}).failure()
    assert any(words in printed for words in reported), printed


@pytest.mark.parametrize("what", ["wrong CA", "plaintext to TLS"])
def test_kafka_python_fails_too(secured: Secured, what: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    is_plain = what == "plaintext to TLS"
    with pytest.raises(KafkaError):
        KafkaAdminClient(
            bootstrap_servers=secured.address("SSL"),
            security_protocol="PLAINTEXT" if is_plain else "SSL",
            ssl_cafile=str(secured.files["other_ca"]),
            api_version_auto_timeout_ms=1500,
            bootstrap_timeout_ms=1500,
        )


def test_tls_1_3_is_used_and_earlier_versions_are_refused(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.files["ca"]))
    address = ("127.0.0.1", secured.ports["SSL"])
    with (
        socket.create_connection(address) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.version() == "TLSv1.3"
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with (
        socket.create_connection(("127.0.0.1", secured.ports["OLD"])) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
