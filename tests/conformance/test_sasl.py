"""Listeners with SASL: stock clients log in with each mechanism, wrong logins fail as in Apache
Kafka, and the bytes of each exchange are those of Apache Kafka (`--kind kafka` runs the same tests
against it).

A foreign broker (`--broker`) has other users, so these tests skip it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from chaos.node import KafkaNode, Node, free_ports
from tests.tls_files import write_texts

from .broker_log import KAFKA_LOGS_FAILURES, log_has
from .clients import kcat, kcat_knows_scram
from .conftest import GROUP_OPTIONS
from .java_tools import QUICK, JavaClient, login_properties, token_properties, trust_properties
from .test_kafka_tools import ACLS, CONFIGS, TOOL_SECONDS, have_tools
from .wire import until

LISTENERS = ("PLAINTEXT", "SASL", "SHORT", "TLS", "UNSIGNED", "FILE")
"""TLS is SASL_SSL. SHORT ends sessions after REAUTH_MS, and enables PLAIN only. UNSIGNED
accepts tokens without a signature. FILE has users of PLAIN in a file."""
REAUTH_MS = 2_000
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER, PASSWORD = "alice", 'al"ice, s3cret='
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(frozen=True)
class Secured:
    """A broker with these listeners."""

    ports: dict[str, int]
    files: dict[str, Path]
    node: Node | None
    """None: Apache Kafka."""
    kafka_home: Path | None = None

    def address(self, listener: str = "SASL") -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def log_has(self, *words: str) -> bool:
        """Whether the broker logs a line with these words, soon."""
        return log_has(self.node, self.kafka_home, *words)


def options_of(
    key_set: Path, files: dict[str, Path], ports: dict[str, int], extra: str = ""
) -> list[str]:
    security = "org.apache.kafka.common.security"
    password = PASSWORD.replace('"', '\\"')
    users = f'user_{USER}="{password}" user_bob="bob-s3cret"'
    lines = [
        "listeners=" + ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in LISTENERS) + extra,
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT,TLS:SASL_SSL,UNSIGNED:SASL_PLAINTEXT,"
        "FILE:SASL_PLAINTEXT",
        "listener.name.file.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.file.plain.sasl.jaas.config={security}.plain.PlainLoginModule required "
        f'users_file="{key_set.parent / "users"}";',
        "listener.name.unsigned.sasl.enabled.mechanisms=OAUTHBEARER",
        f"listener.name.unsigned.oauthbearer.sasl.jaas.config={security}.oauthbearer."
        "OAuthBearerLoginModule required;",
        "listener.name.unsigned.oauthbearer.sasl.oauthbearer.allow.unsigned.tokens=true",
        "listener.name.tls.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        "listener.name.tls.ssl.keystore.type=PEM",
        f"listener.name.tls.ssl.keystore.location={files['node']}",
        f"listener.name.sasl.sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        "listener.name.short.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.short.connections.max.reauth.ms={REAUTH_MS}",
        f"listener.name.sasl.oauthbearer.sasl.jaas.config={security}.oauthbearer."
        "OAuthBearerLoginModule required;",
        f"listener.name.sasl.oauthbearer.sasl.server.callback.handler.class={security}.oauthbearer."
        "OAuthBearerValidatorCallbackHandler",
        "listener.name.sasl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=" + key_set.as_uri(),
        "listener.name.sasl.oauthbearer.sasl.oauthbearer.expected.audience=mqd",
        "auto.create.topics.enable=true",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        f"super.users=User:ANONYMOUS;User:{USER}",
        "allow.everyone.if.no.acl.found=true",
        *GROUP_OPTIONS,
    ]
    for listener in ("sasl", "short", "tls"):
        module = f"{security}.plain.PlainLoginModule required {users};"
        lines.append(f"listener.name.{listener}.plain.sasl.jaas.config={module}")
    for place in ("sasl.scram-sha-256", "sasl.scram-sha-512", "tls.scram-sha-512"):
        module = f"{security}.scram.ScramLoginModule required;"
        lines.append(f"listener.name.{place}.sasl.jaas.config={module}")
    return lines


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    if request.config.getoption("--broker") is not None:
        pytest.skip("a foreign broker has other users")
    directory = tmp_path_factory.mktemp("sasl")
    key_set = directory / "keys.json"
    row = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    key_set.write_text(json.dumps({"keys": [{**row, "kid": "k1", "use": "sig", "alg": "RS256"}]}))
    files = write_texts(directory)
    hash_password(directory / "users", USER, PASSWORD)
    first, controller, *others = free_ports(len(LISTENERS) + 1)
    ports = dict(zip(LISTENERS, (first, *others), strict=True))
    if request.config.getoption("--kind") == "kafka":
        home = directory / "kafka"
        options = options_of(key_set, files, ports, f",CONTROLLER://127.0.0.1:{controller}")
        advertised = options[0].removeprefix("listeners=").split(",C")[0]
        options += [f"advertised.listeners={advertised}", "inter.broker.listener.name=PLAINTEXT"]
        options = [each.replace("\\", "\\\\") for each in options]  # a properties file
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={key_set.as_uri()}"
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"{allowed} {KAFKA_LOGS_FAILURES}"}
        script = str(KafkaNode.SCRIPT)
        command = [script, "start", "1", str(first), str(home), *options]
        subprocess.run(command, check=True, env=environment)
        try:
            made = Secured(ports, files, None, home)
            _create_users(made)
            yield made
        finally:
            subprocess.run([script, "stop", str(home)], check=True)
        return
    node = Node(directory / "mqd", tuple(options_of(key_set, files, ports)), port=first)
    node.start()
    try:
        made = Secured(ports, files, node)
        _create_users(made)
        yield made
    finally:
        if node.running:
            node.stop()


def hash_password(file: Path, user: str, password: str) -> None:
    """Write a user of PLAIN, with the command of mqd."""
    subprocess.run(
        [sys.executable, "-m", "mqd", "storage", "hash-password", user, "--file", str(file)],
        check=True,
        env={**os.environ, "MQD_USER_PASSWORD": password},
    )


def _create_users(secured: Secured) -> None:
    for mechanism in ("SCRAM_SHA_256", "SCRAM_SHA_512"):
        _create_user(secured, mechanism, USER, 4096)


def _create_user(secured: Secured, mechanism: str, user: str, iterations: int) -> str:
    """A SCRAM credential, by librdkafka's admin client. Returns the user."""
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": secured.address("PLAINTEXT")})
    info = ScramCredentialInfo(ScramMechanism[mechanism], iterations)
    upsertion = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(20)
    return user


def token(*, seconds: int = 300, audience: str = "mqd", user: str = USER) -> str:
    now = int(time.time())
    claims = {"sub": user, "iat": now - 1_000, "exp": now + seconds, "aud": audience}
    pem = KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return jwt.encode(claims, pem, algorithm="RS256", headers={"kid": "k1"})


def confluent(
    address: str, mechanism: str, *, user: str = USER, password: str = PASSWORD, jwt_: str = ""
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        # the time only decides when librdkafka asks again
        return {**options, "oauth_cb": lambda _: (jwt_ or token(), time.time() + 300)}
    return {**options, "sasl.username": user, "sasl.password": password}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_produces_and_consumes(
    secured: Secured, new_name: Callable[[], str], mechanism: str
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic, options = new_name(), confluent(secured.address(), mechanism)
    producer = Producer(options)
    values = [b"%d" % number for number in range(20)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(found) < len(values) and time.monotonic() < deadline:
            found += [message.value() for message in consumer.consume(20, 0.5)]
        assert found == values
    finally:
        consumer.close()


def test_confluent_kafka_logs_in_again(secured: Secured, new_name: Callable[[], str]) -> None:
    from confluent_kafka import Producer

    errors: list[object] = []
    options = confluent(secured.address("SHORT"), "PLAIN")
    producer = Producer({**options, "error_cb": errors.append, "linger.ms": 0})
    topic = new_name()
    ends_at = time.monotonic() + 2.5 * REAUTH_MS / 1000
    while time.monotonic() < ends_at:
        producer.produce(topic, b"x")
        assert producer.flush(10) == 0
        time.sleep(0.1)
    assert errors == []


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_kafka_python_logs_in(
    secured: Secured, new_name: Callable[[], str], mechanism: str
) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=secured.address(),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    )
    assert producer.send(new_name(), b"x").get(20).offset == 0
    producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_aiokafka_logs_in(secured: Secured, new_name: Callable[[], str], mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def main() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=secured.address(),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=USER,
            sasl_plain_password=PASSWORD,
        ) as producer:
            assert (await producer.send_and_wait(new_name(), b"x")).offset == 0

    asyncio.run(main())


needs_kcat = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt install kcat)"
)


def kcat_options(
    mechanism: str, ca: Path | None = None, *, user: str = USER, password: str = PASSWORD
) -> list[str]:
    """With TLS, if there is an authority."""
    options = {
        "security.protocol": "SASL_SSL" if ca is not None else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":  # the only token that kcat makes has no signature
        options["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
        options["sasl.oauthbearer.config"] = f"principal={user}"
    else:
        options |= {"sasl.username": user, "sasl.password": password}
    if ca is not None:
        options["ssl.ca.location"] = str(ca)
    return [text for key, value in options.items() for text in ("-X", f"{key}={value}")]


@needs_kcat
@pytest.mark.parametrize(
    "listener, mechanism",
    [
        ("SASL", "PLAIN"),
        ("SASL", "SCRAM-SHA-256"),
        ("SASL", "SCRAM-SHA-512"),
        ("UNSIGNED", "OAUTHBEARER"),
        ("TLS", "PLAIN"),
        ("TLS", "SCRAM-SHA-512"),
    ],
)
def test_kcat_produces_and_consumes(
    secured: Secured, new_name: Callable[[], str], listener: str, mechanism: str
) -> None:
    topic, address = new_name(), secured.address(listener)
    options = kcat_options(mechanism, secured.files["ca"] if listener == "TLS" else None)
    if "SCRAM" in mechanism and not kcat_knows_scram():
        with pytest.raises(AssertionError, match=DURING):
            kcat(address, *options, "-L", "-m", "2")
        return
    kcat(address, *options, "-P", "-t", topic, "-p", "0", stdin=b"one\ntwo\n")
    read = ("-C", "-t", topic, "-o", "beginning", "-e", "-q")
    assert kcat(address, *options, *read) == b"one\ntwo\n"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_stock_clients_log_in_over_tls(
    secured: Secured, new_name: Callable[[], str], mechanism: str
) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.helpers import create_ssl_context
    from confluent_kafka import Producer
    from kafka import KafkaProducer

    topic, ca = new_name(), str(secured.files["ca"])
    options = confluent(secured.address("TLS"), mechanism)
    options |= {"security.protocol": "SASL_SSL", "ssl.ca.location": ca}
    delivered: list[object] = []
    producer = Producer(options)
    producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(20) == 0 and delivered == [None]
    other = KafkaProducer(
        bootstrap_servers=secured.address("TLS"),
        security_protocol="SASL_SSL",
        ssl_cafile=ca,
        sasl_mechanism=mechanism,
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    )
    assert other.send(topic, b"y").get(20).offset == 1
    other.close()

    async def main() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=secured.address("TLS"),
            security_protocol="SASL_SSL",
            ssl_context=create_ssl_context(cafile=ca),
            sasl_mechanism=mechanism,
            sasl_plain_username=USER,
            sasl_plain_password=PASSWORD,
        ) as third:
            assert (await third.send_and_wait(topic, b"z")).offset == 2

    asyncio.run(main())


# -- Apache Kafka's own clients

needs_java = pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`")
slow_tools = pytest.mark.timeout(5 * TOOL_SECONDS)


def java_client(
    secured: Secured, directory: Path, listener: str, mechanism: str, **changes: Any
) -> JavaClient:
    """`changes`: `user`, `password` or `jwt_`."""
    token_file = directory / "token"
    if mechanism == "OAUTHBEARER":
        token_file.write_text(changes.get("jwt_") or token())
        properties = token_properties(token_file)
    else:
        login = {"user": USER, "password": PASSWORD, **changes}
        properties = login_properties(mechanism, login["user"], login["password"])
    properties["security.protocol"] = "SASL_SSL" if listener == "TLS" else "SASL_PLAINTEXT"
    if listener == "TLS":
        properties |= trust_properties(secured.files["ca"])
    if changes:
        properties |= QUICK
    return JavaClient(directory, secured.address(listener), properties, token=token_file)


@needs_java
@slow_tools
@pytest.mark.slow
@pytest.mark.parametrize(
    "listener, mechanism",
    [
        *(("SASL", mechanism) for mechanism in MECHANISMS),
        *(("TLS", mechanism) for mechanism in ("PLAIN", "SCRAM-SHA-512")),
    ],
)
def test_java_produces_and_consumes(
    secured: Secured, new_name: Callable[[], str], tmp_path: Path, listener: str, mechanism: str
) -> None:
    client = java_client(secured, tmp_path, listener, mechanism)
    client.round_trip(new_name(), ["one", "two"])


@needs_java
@slow_tools
@pytest.mark.slow
def test_kafkas_tools_over_tls_with_a_login(
    secured: Secured, new_name: Callable[[], str], tmp_path: Path
) -> None:
    """kafka-acls.sh and kafka-configs.sh."""
    name = new_name()
    client = java_client(secured, tmp_path, "TLS", "SCRAM-SHA-512")
    allow = ("--allow-principal", f"User:{name}", "--operation", "Read", "--topic", name)
    entry = f"(principal=User:{name}, host=*, operation=READ, permissionType=ALLOW)"
    assert entry in client.output(ACLS, "--add", *allow)
    until(lambda: entry in client.output(ACLS, "--list", "--topic", name), "the ACL")
    client.output(ACLS, "--remove", "--force", *allow)
    of_user = ("--entity-type", "users", "--entity-name", name)
    for change in ("SCRAM-SHA-256=[iterations=8192,password=sesame]", "producer_byte_rate=1024"):
        client.output(CONFIGS, "--alter", "--add-config", change, *of_user)
    described = client.output(CONFIGS, "--describe", *of_user)
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "producer_byte_rate=1024.0" in described
    client.output(CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-256", *of_user)
    client.output(CONFIGS, "--alter", "--delete-config", "producer_byte_rate", *of_user)


@needs_java
@slow_tools
@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        *("wrong password", "unknown user", "wrong SCRAM password", "unknown SCRAM user"),
        *("expired token", "token for others"),
    ],
)
def test_java_reports_a_failed_login(secured: Secured, tmp_path: Path, what: str) -> None:
    mechanism, options, reported, _, _ = WRONG[what]
    options = {name: made() if callable(made) else made for name, made in options.items()}
    printed = java_client(secured, tmp_path, "SASL", mechanism, **options).failure()
    assert f"SaslAuthenticationException: {reported}" in printed


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_mqd_logs_in_and_again(secured: Secured, mechanism: str) -> None:
    from mqd.client import sync
    from mqd.client.client_properties import security_of

    password = PASSWORD.replace('"', '\\"')
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    jaas = f'x.LoginModule required username="{USER}" password="{password}";'
    security = (
        security_of({**options, "sasl.jaas.config": jaas})
        if "OAUTH" not in mechanism
        else (_with_token(token))
    )
    with sync.connect(secured.address(), security=security) as client:
        client.admin.describe_cluster()
    if mechanism == "PLAIN":
        with sync.connect(secured.address("SHORT"), security=security) as client:
            for _ in range(6):
                client.admin.describe_cluster()
                time.sleep(0.5)


def _with_token(source: Callable[[], str]) -> Any:
    from mqd.client.security import Security

    return Security(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token=source)


INVALID = "Authentication failed: Invalid username or password"
DURING = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism"
)
WRONG: dict[str, tuple[str, dict[str, Any], str, str, str]] = {
    "wrong password": (
        "PLAIN",
        {"password": "x"},
        INVALID,
        "user='alice' MORE mechanism=PLAIN reason='unknown user or wrong password'",
        f"Failed authentication with /127.0.0.1 MORE ({INVALID})",
    ),
    "unknown user": (
        "PLAIN",
        {"user": "nobody"},
        INVALID,
        "user='nobody' MORE mechanism=PLAIN reason='unknown user or wrong password'",
        f"Failed authentication with /127.0.0.1 MORE ({INVALID})",
    ),
    "wrong SCRAM password": (
        "SCRAM-SHA-256",
        {"password": "x"},
        DURING,
        "user='alice' MORE mechanism=SCRAM-SHA-256 reason='unknown user or wrong password'",
        f"Failed authentication with /127.0.0.1 MORE ({DURING} SCRAM-SHA-256)",
    ),
    "unknown SCRAM user": (
        "SCRAM-SHA-512",
        {"user": "nobody"},
        DURING,
        "user='nobody' MORE mechanism=SCRAM-SHA-512 reason='unknown user or wrong password'",
        f"Failed authentication with /127.0.0.1 MORE ({DURING} SCRAM-SHA-512)",
    ),
    "expired token": (
        "OAUTHBEARER",
        {"jwt_": lambda: token(seconds=-100)},
        '{"status":"invalid_token"}',
        "mechanism=OAUTHBEARER reason='the token expired",
        'Failed authentication with /127.0.0.1 MORE ({"status":"invalid_token"})',
    ),
    "token for others": (
        "OAUTHBEARER",
        {"jwt_": lambda: token(audience="x")},
        '{"status":"invalid_token"}',
        "mechanism=OAUTHBEARER reason='the audience of the token",
        'Failed authentication with /127.0.0.1 MORE ({"status":"invalid_token"})',
    ),
}
"""What is wrong -> mechanism, its options, what the client reports, what mqd and what Apache Kafka
log. MORE stands for any text. Tokens are made when a test needs them: a long run of all tests would
let them expire. docs/SECURITY.md has this table."""


@pytest.mark.parametrize("what", WRONG)
def test_a_failed_login(secured: Secured, what: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    mechanism, options, reported, logged, logged_by_kafka = WRONG[what]
    options = {name: made() if callable(made) else made for name, made in options.items()}
    errors: list[str] = []
    settings = confluent(secured.address(), mechanism, **options)
    settings["error_cb"] = lambda error: errors.append(error.str())
    client = AdminClient({**settings, "reconnect.backoff.ms": 9000})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1.2)
    client.poll(0)
    assert any(reported in error for error in errors), errors
    line = logged if secured.node is not None else logged_by_kafka
    start = "authentication failed" if secured.node is not None else "[SocketServer"
    assert secured.log_has(start, *line.split(" MORE "))


@needs_kcat
@pytest.mark.parametrize("what", ["wrong password", "unknown SCRAM user"])
def test_kcat_reports_a_failed_login(secured: Secured, what: str) -> None:
    mechanism, options, reported, _, _ = WRONG[what]
    with pytest.raises(AssertionError, match=reported.split(":")[0]):
        kcat(secured.address(), *kcat_options(mechanism, **options), "-L", "-m", "2")


def test_a_mechanism_that_is_disabled(secured: Secured) -> None:
    from mqd.client import AuthenticationFailed, sync
    from mqd.client.security import Security

    security = Security(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username=USER, password=PASSWORD
    )
    with (
        pytest.raises(AuthenticationFailed, match="does not enable"),
        sync.connect(secured.address("SHORT"), security=security),
    ):
        pass


# -- bytes


def header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 1) + b"c"


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    return header(17, version) + struct.pack(">h", len(mechanism)) + mechanism.encode()


def authenticate(token_: bytes, version: int = 1) -> bytes:
    if version < 2:
        return header(36, version) + struct.pack(">i", len(token_)) + token_
    assert len(token_) < 127
    return header(36, 2) + b"\0" + bytes([len(token_) + 1]) + token_ + b"\0"


def refused(message: str, version: int = 1) -> bytes:
    """The response to SaslAuthenticate after a failed login."""
    text = message.encode()
    if version < 2:
        lifetime = b"\0" * 8 if version else b""
        return struct.pack(">ihh", 7, 58, len(text)) + text + b"\0" * 4 + lifetime
    return (
        struct.pack(">i", 7)
        + b"\0"
        + struct.pack(">hB", 58, len(text) + 1)
        + text
        + (b"\1" + b"\0" * 9)
    )


def logged_in(version: int = 1, lifetime_ms: int = 0) -> bytes:
    lifetime = struct.pack(">q", lifetime_ms)
    if version < 2:
        return struct.pack(">ihhi", 7, 0, 0, 0) + (lifetime if version else b"")
    return struct.pack(">i", 7) + b"\0" + b"\0\0\1\1" + lifetime + b"\0"


GOOD = f"\0{USER}\0{PASSWORD}".encode()
BAD = b"\0alice\0wrong"
METADATA = header(3, 1) + struct.pack(">i", 0)
VERSIONS = header(18, 0)
UNKNOWN = header(18, 99) + b"\0"
CLOSED = None
ANY = b"*"
"""A response whose bytes are not compared."""
HANDSHAKE_ENDS = b"\0\x22" + b"\0" * 4
"""ILLEGAL_SASL_STATE without mechanisms."""

EXCHANGES: dict[str, tuple[str, list[tuple[bytes, bytes | None]]]] = {
    "v1": ("SASL", [(handshake(), ANY), (authenticate(GOOD), logged_in()), (METADATA, ANY)]),
    "v0 of SaslAuthenticate": (
        "SASL",
        [(handshake(), ANY), (authenticate(GOOD, 0), logged_in(0)), (METADATA, ANY)],
    ),
    "v2 after ApiVersions": (
        "SASL",
        [
            (VERSIONS, ANY),
            (handshake(), ANY),
            (authenticate(GOOD, 2), logged_in(2)),
            (METADATA, ANY),
        ],
    ),
    "bare tokens": ("SASL", [(handshake(version=0), ANY), (GOOD, b""), (METADATA, ANY)]),
    "bare tokens, wrong": ("SASL", [(handshake(version=0), ANY), (BAD, CLOSED)]),
    "wrong password": ("SASL", [(handshake(), ANY), (authenticate(BAD), refused(INVALID))]),
    "wrong password, v2": (
        "SASL",
        [(handshake(), ANY), (authenticate(BAD, 2), refused(INVALID, 2))],
    ),
    "unknown user": (
        "SASL",
        [(handshake(), ANY), (authenticate(b"\0nobody\0x"), refused(INVALID))],
    ),
    "another authorization id": (
        "SASL",
        [
            (handshake(), ANY),
            (
                authenticate(b"bob" + GOOD),
                refused(
                    "Authentication failed: Client requested an authorization id that is different "
                    "from username"
                ),
            ),
        ],
    ),
    "no token": (
        "SASL",
        [
            (handshake(), ANY),
            (authenticate(b""), refused("Invalid SASL/PLAIN response: expected 3 tokens, got 1")),
        ],
    ),
    "an invalid SCRAM message": (
        "SASL",
        [
            (handshake("SCRAM-SHA-256"), ANY),
            (authenticate(b"garbage"), refused(f"{DURING} SCRAM-SHA-256")),
        ],
    ),
    "an invalid token": (
        "SASL",
        [
            (handshake("OAUTHBEARER"), ANY),
            (
                authenticate(b"n,,\1auth=Bearer a.b.c\1\1"),
                struct.pack(">ihhi", 7, 0, 0, 26) + b'{"status":"invalid_token"}' + b"\0" * 8,
            ),
            (authenticate(b"\1"), refused('{"status":"invalid_token"}')),
        ],
    ),
    "a mechanism that is disabled": (
        "SHORT",
        [(handshake("GSSAPI"), struct.pack(">ihih", 7, 33, 1, 5) + b"PLAIN")],
    ),
    "Metadata first": ("SASL", [(METADATA, CLOSED)]),
    "Metadata after ApiVersions": ("SASL", [(VERSIONS, ANY), (METADATA, CLOSED)]),
    "ApiVersions twice": ("SASL", [(VERSIONS, ANY), (VERSIONS, CLOSED)]),
    "an unknown version of ApiVersions": (
        "SASL",
        [(UNKNOWN, ANY), (UNKNOWN, ANY), (handshake(), ANY)],
    ),
    "SaslAuthenticate first": ("SASL", [(authenticate(GOOD), CLOSED)]),
    "SaslHandshake twice": (
        "SASL",
        [(handshake(), ANY), (handshake(), b"\0\0\0\7" + HANDSHAKE_ENDS)],
    ),
    "ApiVersions after SaslHandshake": (
        "SASL",
        [(handshake(), ANY), (VERSIONS, b"\0\0\0\7" + HANDSHAKE_ENDS)],
    ),
    "Metadata after SaslHandshake": ("SASL", [(handshake(), ANY), (METADATA, ANY)]),
    "an unknown version of SaslHandshake": ("SASL", [(handshake(version=2), CLOSED)]),
    "an unknown version of SaslAuthenticate": (
        "SASL",
        [(handshake(), ANY), (header(36, 3) + b"\0\1\0", CLOSED)],
    ),
    "garbage": ("SASL", [(b"\xff" * 12, CLOSED)]),
    "a short frame": ("SASL", [(b"\0\x12", CLOSED)]),
    "SaslAuthenticate after the login": (
        "SASL",
        [
            (handshake(), ANY),
            (authenticate(GOOD), logged_in()),
            (
                authenticate(GOOD, 0),
                struct.pack(">ihh", 7, 34, 65)
                + b"SaslAuthenticate request received after successful authentication"
                + b"\0" * 4,
            ),
            (METADATA, ANY),
        ],
    ),
    "SaslHandshake after the login": (
        "SASL",
        [
            (handshake(), ANY),
            (authenticate(GOOD), logged_in()),
            (handshake(), b"\0\0\0\7" + HANDSHAKE_ENDS),
            (METADATA, ANY),
        ],
    ),
    "a listener without SASL": ("PLAINTEXT", [(handshake(), b"\0\0\0\7" + HANDSHAKE_ENDS)]),
    "re-authentication": (
        "SHORT",
        [
            (handshake(), ANY),
            (authenticate(GOOD), logged_in(lifetime_ms=REAUTH_MS)),
            (METADATA, ANY),
            (handshake(), ANY),
            (authenticate(GOOD), logged_in(lifetime_ms=REAUTH_MS)),
            (handshake(), b"\0\0\0\7" + HANDSHAKE_ENDS),  # within a second
            (METADATA, ANY),
        ],
    ),
    "re-authentication as another user": (
        "SHORT",
        [
            (handshake(), ANY),
            (authenticate(GOOD), ANY),
            (handshake(), ANY),
            (
                authenticate(b"\0bob\0bob-s3cret"),
                refused(
                    "Cannot change principals during re-authentication from User.alice: User.bob"
                ),
            ),
        ],
    ),
}


@pytest.mark.parametrize("what", EXCHANGES)
def test_bytes(secured: Secured, what: str) -> None:
    listener, exchange = EXCHANGES[what]
    with socket.create_connection(("127.0.0.1", secured.ports[listener]), 10) as sock:
        for request, response in exchange:
            sock.sendall(struct.pack(">i", len(request)) + request)
            assert (found := _frame(sock)) == response or (found is not None and response == ANY)
        if what.startswith("re-authentication as") or (response or b"")[5:6] == b"\x3a":
            assert _frame(sock) is CLOSED, "a failed login ends the connection"


@pytest.mark.mqd_only  # Apache Kafka needs a callback handler in Java for a file
def test_users_in_a_file(secured: Secured) -> None:
    """Stock clients log in. A changed password, and a new user, take effect within seconds."""
    from kafka import KafkaAdminClient

    def code(user: str, password: str) -> int:
        with socket.create_connection(("127.0.0.1", secured.ports["FILE"]), 10) as sock:
            for request in (handshake(), authenticate(f"\0{user}\0{password}".encode())):
                sock.sendall(struct.pack(">i", len(request)) + request)
                found = _frame(sock) or b""
            return int.from_bytes(found[4:6], "big")

    KafkaAdminClient(
        bootstrap_servers=secured.address("FILE"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    ).close()
    assert [code(USER, PASSWORD), code(USER, "wrong"), code("nobody", PASSWORD)] == [0, 58, 58]
    file = secured.files["ca"].parent / "users"
    hash_password(file, USER, "new")
    hash_password(file, "carol", "hers")
    until(lambda: code("carol", "hers") == 0, "the new user")
    assert [code(USER, PASSWORD), code(USER, "new")] == [58, 0]
    assert secured.log_has("users loaded listener=FILE users=2")
    hash_password(file, USER, PASSWORD)
    assert secured.node is not None
    os.kill(secured.node.pid, signal.SIGHUP)
    until(lambda: code(USER, PASSWORD) == 0, "the old password")


def test_an_unknown_scram_user(secured: Secured) -> None:
    """Apache Kafka refuses an unknown user at once. mqd continues as with a wrong password, with
    iterations that existing users have.
    """

    def answer(user: str, mechanism: str) -> bytes | None:
        with socket.create_connection(("127.0.0.1", secured.ports["SASL"]), 10) as sock:
            found = None
            for request in (handshake(mechanism), authenticate(f"n,,n={user},r=abc".encode())):
                sock.sendall(struct.pack(">i", len(request)) + request)
                found = _frame(sock)
            return found

    other = _create_user(secured, "SCRAM_SHA_512", "many", 8_192)
    assert b",i=8192" in (answer(other, "SCRAM-SHA-512") or b"")
    answers = [answer(f"nobody-{number}", "SCRAM-SHA-512") or b"" for number in range(30)]
    if secured.node is None:
        assert set(answers) == {refused(f"{DURING} SCRAM-SHA-512")}
    else:
        assert {each[4:6] for each in answers} == {b"\0\0"}, "no error"
        found = {each.rpartition(b",i=")[2][:4] for each in answers}
        assert found == {b"4096", b"8192"}, "of alice and of the other user"


def test_a_large_frame_before_the_login(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.ports["SASL"]), 10) as sock:
        sock.sendall(struct.pack(">i", 512 * 1024 + 1))
        assert _frame(sock) is CLOSED


def test_a_session_ends(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.ports["SHORT"]), 10) as sock:
        for request in (handshake(), authenticate(GOOD), METADATA):
            sock.sendall(struct.pack(">i", len(request)) + request)
            assert _frame(sock) is not CLOSED
        time.sleep(REAUTH_MS / 1000 + 0.2)
        sock.sendall(struct.pack(">i", len(METADATA)) + METADATA)
        assert _frame(sock) is CLOSED


def _frame(sock: socket.socket) -> bytes | None:
    """The next response without its length. None: the broker closed the connection."""

    def receive(size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                part = sock.recv(size - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return data

    size = receive(4)
    return None if size is None else receive(struct.unpack(">i", size)[0])
