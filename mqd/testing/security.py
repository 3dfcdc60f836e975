"""TLS and logins of a simulated cluster: `Cluster(security="SASL_SSL")`.

TLS draws random bytes that no seed determines. They change the content of encrypted bytes, never
their number. Keys and certificates are always the same ones, signatures of Ed25519 have one size,
and nodes send no session tickets (world.py). So a seed gives the same trace on every machine with
the same version of OpenSSL.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mqd.client.security import Security
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.node_certificate import node_uri

USER, PASSWORD = "simulated", "what only simulated clients know"
_AUTHORITY = "simulated authority"
_VALID_FROM, _VALID_UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
"""OpenSSL compares them with the clock of this machine, not with virtual time."""


def node_options(
    protocol: SecurityProtocol, port: int, cluster_id: str, node_id: int, host: str
) -> dict[str, str]:
    """The options of a node whose clients use this protocol. With TLS, nodes use mutual TLS."""
    if protocol is SecurityProtocol.PLAINTEXT:
        return {}
    options = {"listeners": f"{protocol.name}://:{port}"}
    if protocol.has_tls:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _certificate(
                f"node-{node_id}", node_uri(cluster_id, node_id), host
            ),
            "ssl.keystore.key": _key_text(f"node-{node_id}"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _certificate(_AUTHORITY),
            "peer.ssl": "required",
        }
    if protocol.has_sasl:
        options |= {
            "sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{protocol.name.lower()}.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'user_{USER}="{PASSWORD}";'
            ),
        }
    return options


def client_security(protocol: SecurityProtocol) -> Security | None:
    """The security of clients; None for PLAINTEXT."""
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    ca = _certificate(_AUTHORITY) if protocol.has_tls else None
    if not protocol.has_sasl:
        return Security(protocol=protocol.name, ca=ca)
    return Security(
        protocol=protocol.name, ca=ca, mechanism="PLAIN", username=USER, password=PASSWORD
    )


def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest())


def _key_text(name: str) -> str:
    return (
        _key(name)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


@cache
def _certificate(name: str, uri: str = "", host: str = "") -> str:
    """The certificate of the authority, or with `uri` and `host` that of a node, in PEM."""
    is_authority = name == _AUTHORITY
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    authority_key = _key(_AUTHORITY)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(_AUTHORITY))
        .public_key(_key(name).public_key())
        .serial_number(1 + int.from_bytes(sha256(name.encode()).digest()[:2], "big"))
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(_key(name).public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    if not is_authority:
        names = [x509.UniformResourceIdentifier(uri), x509.IPAddress(ip_address(host))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    signed = builder.sign(authority_key, None)
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
