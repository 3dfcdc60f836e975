"""A run with TLS and SASL: certificates, the user of the clients, the options of the nodes, and the
client properties. For mqd and for Apache Kafka.

Each node keeps its PLAINTEXT listener beside the secured one: over it the run looks at each node's
metadata (chaos/ensemble.py) and creates SCRAM users. Clients use only the secured listener. Nodes
of mqd use mutual TLS between them if the clients use TLS.
"""

from __future__ import annotations

import argparse
import json
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mqd.client.security import Security
from mqd.io.certificates import CA_CERTIFICATE, Authority, issue_node, node_file, write_private

from .client_security import load

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
USER = "chaos"
ITERATIONS = 4096
TOKEN_DAYS = 1
HOST = "127.0.0.1"
_MODULES = "org.apache.kafka.common.security"
_SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
_USERS_TIMEOUT_S = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options `--security` and `--sasl-mechanism`."""
    parser.add_argument(
        "--security",
        choices=[each.lower() for each in PROTOCOLS],
        default="plaintext",
        help="security.protocol of the clients (plaintext)",
    )
    parser.add_argument(
        "--sasl-mechanism",
        choices=MECHANISMS,
        default="SCRAM-SHA-256",
        help="with SASL: sasl.mechanism of the clients (SCRAM-SHA-256)",
    )


def from_arguments(arguments: argparse.Namespace, directory: Path) -> ClusterSecurity | None:
    """The security that the command line names, with its files in `directory`. None: PLAINTEXT."""
    if arguments.security == "plaintext":
        return None
    return ClusterSecurity.create(directory, arguments.security.upper(), arguments.sasl_mechanism)


def shown(arguments: argparse.Namespace) -> str:
    """These options again, for the command that repeats a run. Empty for PLAINTEXT."""
    if arguments.security == "plaintext":
        return ""
    text = f" --security {arguments.security}"
    if arguments.security.startswith("sasl_"):
        text += f" --sasl-mechanism {arguments.sasl_mechanism}"
    return text


@dataclass(frozen=True)
class ClusterSecurity:
    """The security of one cluster, with its files in `directory`."""

    directory: Path
    protocol: str
    """SSL, SASL_PLAINTEXT or SASL_SSL."""
    mechanism: str
    password: str

    @classmethod
    def create(cls, directory: Path, protocol: str, mechanism: str) -> ClusterSecurity:
        """Write an authority, keys and client properties. Raises OSError."""
        directory = directory.absolute()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = cls(directory, protocol, mechanism, secrets.token_urlsafe(24))
        if made.has_tls:
            create_authority(directory)
        if made.has_sasl and mechanism == OAUTHBEARER:
            _write_token(directory)
        text = "".join(f"{key}={value}\n" for key, value in made.client_properties().items())
        write_private(made.command_config, text.encode(), replace=True)
        return made

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def command_config(self) -> Path:
        """The file of the client properties."""
        return self.directory / "client.properties"

    def client(self) -> Security:
        """The security of the clients."""
        return load(self.command_config)

    def client_properties(self) -> dict[str, str]:
        """Kafka's client properties."""
        properties = {"security.protocol": self.protocol}
        if self.has_tls:
            properties |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.directory / CA_CERTIFICATE),
            }
        if not self.has_sasl:
            return properties
        properties["sasl.mechanism"] = self.mechanism
        if self.mechanism == OAUTHBEARER:
            return properties | {
                "sasl.oauthbearer.token.endpoint.url": (self.directory / "token").as_uri()
            }
        module = "plain.Plain" if self.mechanism == PLAIN else "scram.Scram"
        properties["sasl.jaas.config"] = (
            f'{_MODULES}.{module}LoginModule required username="{USER}" password="{self.password}";'
        )
        return properties

    # -- nodes

    def node_options(
        self, kind: str, node_id: int, cluster_id: str, plain_port: int, port: int
    ) -> tuple[str, ...]:
        """The options of a node that listens on `port` with this security, and on `plain_port`
        without. Apache Kafka's controller listens on the port after `plain_port`.
        """
        name = self.protocol
        clients = f"PLAINTEXT://{HOST}:{plain_port},{name}://{HOST}:{port}"
        options: tuple[str, ...]
        if kind == "kafka":
            options = (
                f"listeners={clients},CONTROLLER://{HOST}:{plain_port + 1}",
                f"advertised.listeners={clients}",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                f"{name}:{name}",
                "inter.broker.listener.name=PLAINTEXT",
            )
        else:
            options = (f"listeners={clients}",)
        if self.has_tls:
            options += certificate_options(self.directory, cluster_id, node_id)
            options += ("peer.ssl=required",) if kind == "mqd" else ()
        return options + (self._login_options() if self.has_sasl else ())

    def _login_options(self) -> tuple[str, ...]:
        place = f"listener.name.{self.protocol.lower()}.{self.mechanism.lower()}"
        options = (f"sasl.enabled.mechanisms={self.mechanism}",)
        if self.mechanism == PLAIN:
            module = f'plain.PlainLoginModule required user_{USER}="{self.password}";'
            return (*options, f"{place}.sasl.jaas.config={_MODULES}.{module}")
        if self.mechanism == OAUTHBEARER:
            package = f"{_MODULES}.oauthbearer.OAuthBearer"
            return (
                *options,
                f"{place}.sasl.jaas.config={package}LoginModule required;",
                f"{place}.sasl.server.callback.handler.class={package}ValidatorCallbackHandler",
                f"{place}.sasl.oauthbearer.jwks.endpoint.url={self._key_set.as_uri()}",
                f"{place}.sasl.oauthbearer.expected.audience={USER}",
            )
        module = "scram.ScramLoginModule required;"
        return (*options, f"{place}.sasl.jaas.config={_MODULES}.{module}")

    @property
    def _key_set(self) -> Path:
        return self.directory / "keys.json"

    @property
    def java_options(self) -> str:
        """Options of the JVM of a node of Apache Kafka."""
        if not self.has_sasl or self.mechanism != OAUTHBEARER:
            return ""
        return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._key_set.as_uri()}"

    def create_users(self, bootstrap: str) -> None:
        """Create the SCRAM user over the PLAINTEXT listeners. Other mechanisms need nothing.

        Raises RuntimeError.
        """
        if not self.has_sasl or self.mechanism not in _SCRAM:
            return
        info = ScramCredentialInfo(_SCRAM[self.mechanism], ITERATIONS)
        upsertion = UserScramCredentialUpsertion(USER, info, self.password.encode())
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        try:
            for future in admin.alter_user_scram_credentials([upsertion]).values():
                future.result(_USERS_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise RuntimeError(f"cannot create user {USER!r}: {error!r}") from None


def create_authority(directory: Path) -> None:
    """A new authority in `directory`, as of `mqctl cert init`."""
    Authority.create("chaos", now=datetime.now(UTC)).save(directory)


def certificate_options(directory: Path, cluster_id: str, node_id: int) -> tuple[str, ...]:
    """The options for the certificate of a node on loopback. Issues it if it is missing."""
    path = directory / node_file(node_id)
    if not path.exists():
        now = datetime.now(UTC)
        pem = issue_node(Authority.load(directory), cluster_id, node_id, [HOST], now=now)
        write_private(path, pem, replace=False)
    return (
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={path}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={directory / CA_CERTIFICATE}",
    )


def _write_token(directory: Path) -> None:
    """A key set with one key, and a token of USER that it signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    numbers = key.public_key().public_numbers()
    row = {
        "kty": "EC",
        "crv": "P-256",
        "x": _base64url(numbers.x),
        "y": _base64url(numbers.y),
        "kid": "chaos",
        "use": "sig",
        "alg": "ES256",
    }
    (directory / "keys.json").write_text(json.dumps({"keys": [row]}))
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    now = datetime.now(UTC)
    claims = {"sub": USER, "aud": USER, "iat": now, "exp": now + timedelta(days=TOKEN_DAYS)}
    token = jwt.encode(claims, pem, algorithm="ES256", headers={"kid": "chaos"})
    write_private(directory / "token", token.encode(), replace=True)


def _base64url(number: int) -> str:
    return urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()
