"""Three nodes, of mqd or of Apache Kafka, with a listener for each security protocol, an
authorizer, and users of every mechanism.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from chaos.ensemble import Ensemble, ensemble
from chaos.node import Node, free_ports
from tests.tls_files import write_texts

from .acl_kafka import PASSWORD, SaslConnection

PROTOCOLS = {
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SASL_SSL",
    "SSL": "SSL",
    "UNSIGNED": "SASL_PLAINTEXT",
}
"""Listeners besides PLAINTEXT. UNSIGNED accepts tokens without a signature, which kcat makes."""
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")
USER = "alice"
_SECURITY = "org.apache.kafka.common.security"
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def matrix_users() -> list[str]:
    """The users of the ACL matrix."""
    from tests.server.acl_matrix import cases

    return [case.user for case in cases()]


def token(user: str = USER, *, seconds: int = 300) -> str:
    """A signed token that is valid for this time."""
    now = int(time.time())
    claims = {"sub": user, "iat": now - 10, "exp": now + seconds, "aud": "mqd"}
    pem = _KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return jwt.encode(claims, pem, algorithm="RS256", headers={"kid": "k1"})


@dataclass(frozen=True)
class SecuredCluster:
    nodes: Ensemble
    ports: Mapping[int, Mapping[str, int]]
    """Node id -> listener -> port."""
    files: Mapping[str, Path]

    def address(self, listener: str, *node_ids: int) -> str:
        """The bootstrap servers of all nodes, or of the given ones."""
        ids = node_ids or tuple(self.ports)
        return ",".join(f"127.0.0.1:{self.ports[node_id][listener]}" for node_id in ids)

    def connection(self, node_id: int, user: str = "admin") -> SaslConnection:
        """A connection to one node that has logged in with PLAIN."""
        return SaslConnection(self.ports[node_id]["SASL"], user)


def _listener_options(files: Mapping[str, Path], users: list[str]) -> list[str]:
    passwords = " ".join(f'user_{user}="{PASSWORD}"' for user in ("admin", USER, *users))
    plain = f"{_SECURITY}.plain.PlainLoginModule required {passwords};"
    scram = f"{_SECURITY}.scram.ScramLoginModule required;"
    bearer = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;"
    handler = f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    lines = [
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files['node']}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={files['ca']}",
        "listener.name.ssl.ssl.client.auth=required",
        "ssl.principal.mapping.rules=RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
        "listener.name.unsigned.oauthbearer.sasl.oauthbearer.allow.unsigned.tokens=true",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:admin;User:ANONYMOUS",
        "auto.create.topics.enable=true",
        "group.initial.rebalance.delay.ms=0",
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "share.coordinator.state.topic.num.partitions=1",
    ]
    for listener in ("sasl", "tls", "unsigned"):
        prefix = f"listener.name.{listener}"
        lines.append(f"{prefix}.plain.sasl.jaas.config={plain}")
        lines += [f"{prefix}.{each.lower()}.sasl.jaas.config={scram}" for each in SCRAM]
        lines.append(f"{prefix}.oauthbearer.sasl.jaas.config={bearer}")
        if listener != "unsigned":
            own = f"{prefix}.oauthbearer.sasl"
            lines += [
                f"{own}.server.callback.handler.class={handler}",
                f"{own}.oauthbearer.jwks.endpoint.url={files['keys'].as_uri()}",
                f"{own}.oauthbearer.expected.audience=mqd",
            ]
    return lines


def _listeners(node: Any, ports: Mapping[str, int]) -> str:
    others = (f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    return ",".join((f"PLAINTEXT://127.0.0.1:{node.port}", *others))


@contextmanager
def secured_cluster(kind: str, directory: Path, users: list[str]) -> Iterator[SecuredCluster]:
    """Running nodes. `users`: users of PLAIN besides admin, who may do everything, and alice, who
    also has credentials for SCRAM.
    """
    files = write_texts(directory)
    files["keys"] = directory / "keys.json"
    row = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(_KEY.public_key()))
    keys = {"keys": [{**row, "kid": "k1", "use": "sig", "alg": "RS256"}]}
    files["keys"].write_text(json.dumps(keys))
    files["token"] = directory / "token"
    files["token"].write_text(token(seconds=3_600))
    options = _listener_options(files, users)
    nodes = ensemble(
        kind, directory / kind, 3, options=tuple(options if kind == "mqd" else ()), session_ms=9_000
    )
    free = iter(free_ports(3 * len(PROTOCOLS)))
    ports = {node_id: {name: next(free) for name in PROTOCOLS} for node_id in nodes.nodes}
    for node_id, node in nodes.nodes.items():
        listeners = _listeners(node, ports[node_id])
        if isinstance(node, Node):
            node.options = (*node.options, f"listeners={listeners}")
        else:
            controller = f",CONTROLLER://127.0.0.1:{node.port + 1}"
            own = [f"listeners={listeners}{controller}", f"advertised.listeners={listeners}"]
            own += ["inter.broker.listener.name=PLAINTEXT", *options]
            with (node.directory / "server.properties").open("a") as file:
                file.writelines(line.replace("\\", "\\\\") + "\n" for line in own)
    try:
        with _allowed_url(files["keys"].as_uri()):
            nodes.start()
        made = SecuredCluster(nodes, ports, files)
        _create_users(made)
        yield made
        nodes.stop()
    finally:
        nodes.kill()


@contextmanager
def _allowed_url(url: str) -> Iterator[None]:
    """Apache Kafka reads key sets only from URLs that a system property names."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = allowed
    try:
        yield
    finally:
        del os.environ["JAVA_TOOL_OPTIONS"]
        if before is not None:
            os.environ["JAVA_TOOL_OPTIONS"] = before


def _create_users(cluster: SecuredCluster) -> None:
    for mechanism in SCRAM:
        create_user(cluster, mechanism, USER)


def create_user(cluster: SecuredCluster, mechanism: str, user: str, *node_ids: int) -> None:
    """A SCRAM credential, by librdkafka's admin client, through these nodes."""
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient(
        {
            "bootstrap.servers": cluster.address("SASL", *node_ids),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }
    )
    info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)
    upsertion = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(20)
