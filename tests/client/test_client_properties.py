"""Kafka's client properties as `Security`, and where tokens come from."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from mqd.client.client_properties import security_of
from mqd.client.errors import AuthenticationFailed, InvalidValue
from mqd.client.secure_network import secured
from mqd.client.security import Security
from mqd.client.token_sources import ClientCredentials
from mqd.io.certificates import Authority
from mqd.io.https import get_document
from mqd.io.net import OsNetwork
from mqd.io.tls_errors import client_reason
from mqd.io.tls_stream import TlsNetwork

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'


def test_names_of_kafka_and_of_librdkafka() -> None:
    java = security_of(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": JAAS,
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.certificate.chain": "CERTIFICATE",
            "ssl.keystore.key": "KEY",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.3",
            "sasl.login.refresh.window.factor": "0.8",
            "bootstrap.servers": "a:1",
            "linger.ms": "5",
        }
    )
    assert (java.protocol, java.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (java.username, java.password) == ("u", "p")
    assert (java.ca, java.certificate, java.key) == (Path("/ca.pem"), "CERTIFICATE", "KEY")
    assert (java.check_host_name, java.protocols) == (False, ("TLSv1.3",))
    ours = security_of(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/c.pem",
            "ssl.key.location": "/k.pem",
        }
    )
    assert (ours.mechanism, ours.certificate, ours.key) == ("PLAIN", Path("/c.pem"), Path("/k.pem"))
    assert security_of({}).protocol == "PLAINTEXT"


KAFKAS_KEYS = """
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class
sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url security.protocol
security.providers ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol
ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""
"""Keys of Kafka 4.3.1: SaslConfigs, SslConfigs, and security.* of CommonClientConfigs."""


def test_every_key_of_kafkas_clients_is_known() -> None:
    base = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.keystore.certificate.chain": "CERTIFICATE",
    }
    values = {
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
    }
    for key in KAFKAS_KEYS.split():
        properties = {**base, key: base.get(key) or values.get(key, "1")}
        if key == "ssl.keystore.location":
            del properties["ssl.keystore.certificate.chain"]
        security_of(properties)


def test_values_are_trimmed_as_in_kafka() -> None:
    found = security_of(
        {
            "security.protocol": "SASL_SSL \t",
            "ssl.truststore.location": " /ca.p12 ",
            "ssl.truststore.type": "PKCS12 ",
            "ssl.truststore.password": "changeit  ",
            "ssl.enabled.protocols": "TLSv1.2, TLSv1.3",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "with a blank ",
        }
    )
    assert (found.protocol, found.ca, found.ca_password) == (
        "SASL_SSL",
        Path("/ca.p12"),
        "changeit",
    )
    assert found.protocols == ("TLSv1.2", "TLSv1.3")
    assert found.password == "with a blank "


def test_a_file_and_its_content_are_not_set_at_once() -> None:
    with pytest.raises(InvalidValue, match="both set: remove one of them"):
        security_of(
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "/ca.pem",
                "ssl.truststore.certificates": "CERTIFICATE",
            }
        )


def test_invalid_properties() -> None:
    for properties, reason in (
        ({"security.protocol": "TLS"}, "unknown security.protocol 'TLS': use one of PLAINTEXT"),
        (
            {"security.protocol": "SASL_TLS"},
            r"unknown security.protocol 'SASL_TLS': did you mean 'SASL_SSL'\? Use one of PLAINTEXT",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-256"},
            r"unknown sasl.mechanism 'SCRAM-256': did you mean 'SCRAM-SHA-256'\? Use one of PLAIN",
        ),
        (
            {"sasl.user": "u"},
            r"unknown client property 'sasl.user': did you mean 'sasl.username'\?",
        ),
        ({"security.protocol": "SASL_SSL"}, "mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"sasl.jaas.config": 'x required password="hush"'}, "does not end"),
        ({"ssl.keystore.type": "JKS"}, "needs Java"),
        ({"ssl.xyz.abc": "hush"}, "unknown client property 'ssl.xyz.abc': remove it"),
        ({"enable.ssl.certificate.verification": "false"}, "anyone could pretend"),
        ({"ssl.curves.list": "X25519"}, "'ssl.curves.list' is not supported: .*OPENSSL_CONF"),
        ({"ssl.engine.location": "e.so"}, "not supported: .*ssl.key.location"),
        ({"sasl.mechanism": "PLAIN"}, "protocol is PLAINTEXT, without SASL: use the protocol SASL"),
    ):
        with pytest.raises(InvalidValue, match=reason) as caught:
            security_of(properties)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_properties_of_sasl_have_no_effect_without_sasl(protocol: str) -> None:
    """As in Apache Kafka's clients and in librdkafka."""
    properties = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "hush"}
    found = security_of({"security.protocol": protocol, **properties})
    assert found == Security(protocol=protocol)


def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    """`ssl.crl.location`. As with librdkafka, only the certificate of the broker is checked."""
    now = datetime.now(UTC)
    authority = Authority.create("test", now=now)
    node = authority.issue("node-1", organization="cluster", hosts=("localhost",), now=now)
    certificate = x509.load_pem_x509_certificate(node)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "node.pem").write_bytes(node)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "node.pem")
    for serial, reason in ((certificate.serial_number, "is revoked"), (1, None)):
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.certificate.subject)
            .last_update(now - timedelta(days=1))
            .next_update(now + timedelta(days=1))
            .add_revoked_certificate(revoked.build())
        )
        crl = builder.sign(authority._key, hashes.SHA256())
        (tmp_path / "crl.pem").write_bytes(crl.public_bytes(serialization.Encoding.PEM))
        assert handshake_error(client_network(tmp_path, "crl.pem").context, server) == reason
    (tmp_path / "crl.pem").write_bytes(authority.pem)
    context = client_network(tmp_path, "crl.pem").context
    assert handshake_error(context, server) == "has no list of the CA"
    with pytest.raises(InvalidValue, match=r"ssl\.crl\.location: .*missing\.pem cannot be read"):
        client_network(tmp_path, "missing.pem")


def client_network(directory: Path, crl: str) -> TlsNetwork:
    properties = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(directory / "ca.pem"),
        "ssl.crl.location": str(directory / crl),
    }
    found = secured(OsNetwork(), security_of(properties))
    assert isinstance(found, TlsNetwork)
    return found


def handshake_error(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """The part of the reason that the client reports; None if the handshake succeeds."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                message, _ = client_reason(error, "localhost:9093")
                known = ("is revoked", "has no list of the CA")
                return next((part for part in known if part in message), message)
    return None


class Provider(BaseHTTPRequestHandler):
    """A token endpoint."""

    requests: ClassVar[list[tuple[str, str | None]]] = []
    answer: tuple[int, bytes] = (200, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.requests.append((body, self.headers["Authorization"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(self.answer[0])
        self.end_headers()
        self.wfile.write(self.answer[1])

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def provider() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_tokens_of_a_provider(provider: str) -> None:
    security = security_of(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"{provider}/token",
            "sasl.jaas.config": 'x required clientId="me" clientSecret="hu:sh" scope="a b";',
        }
    )
    source = security.token
    assert isinstance(source, ClientCredentials) and "sh" not in repr(source)
    Provider.answer = (200, json.dumps({"access_token": "t1", "expires_in": 60}).encode())
    assert [await source(), await source()] == ["t1", "t1"]
    assert Provider.requests == [
        ("grant_type=client_credentials&scope=a+b", f"Basic {b64encode(b'me:hu:sh').decode()}")
    ], "the second one is kept"
    source._valid_until = 0.0
    for answer, error in (((401, b""), OSError), ((200, b"{}"), AuthenticationFailed)):
        Provider.answer = answer
        with pytest.raises(error):
            await source()


async def test_how_tokens_are_requested(provider: str) -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{provider}/token",
        "sasl.oauthbearer.header.urlencode": "true",
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "hu:sh",
        "sasl.login.connect.timeout.ms": "1500",
        "sasl.jaas.config": 'x required ssl.truststore.location="/ca.pem";',
    }
    source = security_of(properties).token
    assert isinstance(source, ClientCredentials)
    assert source.timeout_seconds == 1.5
    assert source.tls is not None and source.tls.settings.files == ("/ca.pem",)
    Provider.answer = (200, json.dumps({"access_token": "t1"}).encode())
    assert await source() == "t1"
    assert Provider.requests[-1][1] == f"Basic {b64encode(b'me:hu%3Ash').decode()}"
    secure = replace(source, url="https://127.0.0.1:1/token")
    with pytest.raises(OSError, match=r"sasl.jaas.config: .*'/ca.pem' cannot be read"):
        await secure()
    for key, value, reason in (
        ("sasl.login.read.timeout.ms", "soon", "'soon' is not a number of milliseconds"),
        ("sasl.oauthbearer.jwt.retriever.class", "a.JwtBearerJwtRetriever", "not supported"),
        (
            "sasl.jaas.config",
            'x required ssl.truststore.type="Q" ssl.truststore.location=a;',
            "'Q'",
        ),
    ):
        with pytest.raises(InvalidValue, match=reason):
            security_of({**properties, key: value})


def test_documents_over_http(provider: str, tmp_path: Path) -> None:
    Provider.answer = (200, b"x" * 100)
    limits: dict[str, Any] = {"timeout_seconds": 5.0, "bytes_max": 100}
    assert get_document(f"{provider}/keys?a=b", **limits) == b"x" * 100
    with pytest.raises(OSError, match="larger than 99"):
        get_document(provider, timeout_seconds=5.0, bytes_max=99)
    for url in ("http://10.0.0.1/keys", "ftp://127.0.0.1/", "https:///x"):
        with pytest.raises(OSError, match="not an https"):
            get_document(url, **limits)
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    source = security_of(properties).token
    assert callable(source) and source() == "from-a-file"
