"""A certificate authority (CA) in a directory, for clusters without another one: `mqctl cert` and
`mqd dev --secure`.

    ca.key       the private key of the CA (mode 0600). No node needs it: keep it offline
    ca.pem       its certificate, which nodes and clients trust
    NAME.pem     private key and certificate of one node or client (mode 0600)

A certificate of a node names the cluster and the node in a URI, which other nodes check
(security/node_certificate.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mqd.peers import PeerNode, is_loopback
from mqd.security.node_certificate import node_uri

_WILDCARDS = ("0.0.0.0", "::")
CA_KEY, CA_CERTIFICATE = "ca.key", "ca.pem"
CA_DAYS = 3650
NODE_DAYS = 365
_CLOCK_SKEW = timedelta(hours=1)
"""A new certificate is valid for machines whose clock is slow."""


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """What `mqctl cert show` prints."""

    path: Path
    subject: str
    issuer: str
    not_before: datetime
    not_after: datetime
    names: tuple[str, ...]
    """Host names, addresses and URIs."""
    serial: int


class Authority:
    """The key and the certificate of a CA."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate

    @classmethod
    def create(cls, name: str, *, now: datetime, days: int = CA_DAYS) -> Authority:
        """Create a CA."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name([("CN", name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Load the CA of a directory. Raises OSError and ValueError."""
        key = serialization.load_pem_private_key((directory / CA_KEY).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{directory / CA_KEY} is not a key of `mqctl cert init`")
        return cls(key, x509.load_pem_x509_certificate((directory / CA_CERTIFICATE).read_bytes()))

    def save(self, directory: Path) -> None:
        """Raises OSError, and FileExistsError if there is one."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(directory / CA_KEY, _key_pem(self._key), replace=False)
        certificate = directory / CA_CERTIFICATE
        certificate.write_bytes(self.pem)
        certificate.chmod(0o644)  # whatever the umask is: who changes it decides who is trusted

    @property
    def pem(self) -> bytes:
        return _pem(self.certificate)

    def issue(
        self,
        name: str,
        *,
        organization: str = "",
        hosts: Iterable[str] = (),
        uris: Iterable[str] = (),
        now: datetime,
        days: int = NODE_DAYS,
    ) -> bytes:
        """A private key and its certificate, in one PEM text. `hosts`: names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [_general_name(host) for host in dict.fromkeys(hosts)]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        parts = [("O", organization)] if organization else []
        authority_key = self.certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name([*parts, ("CN", name)]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now - _CLOCK_SKEW, now + timedelta(days=days) - _CLOCK_SKEW))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_key.value),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _key_pem(key) + _pem(builder.sign(self._key, hashes.SHA256()))

    def refusal_to_reissue(self, old: bytes) -> str | None:
        """Why the certificate of this file is not one that `issue` wrote. None: it is."""
        try:
            found = x509.load_pem_x509_certificates(old)[0]
        except ValueError:
            return "it has no certificate"
        try:
            found.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return "another CA issued its certificate"
        if found.public_bytes(Encoding.DER) == self.certificate.public_bytes(Encoding.DER):
            return "it is the certificate of the CA"
        if b"PRIVATE KEY-----" not in old:
            return "it has no private key"
        return None

    def reissue(self, old: bytes, *, now: datetime, days: int = NODE_DAYS) -> bytes:
        """A new key and certificate with the names of an old one. Raises ValueError."""
        found = x509.load_pem_x509_certificates(old)[0]
        hosts: list[str] = []
        uris: list[str] = []
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            hosts += names.get_values_for_type(x509.DNSName)
            hosts += map(str, names.get_values_for_type(x509.IPAddress))
            uris += names.get_values_for_type(x509.UniformResourceIdentifier)
        except x509.ExtensionNotFound:
            pass
        return self.issue(
            _text_of(found.subject, NameOID.COMMON_NAME),
            organization=_text_of(found.subject, NameOID.ORGANIZATION_NAME),
            hosts=hosts,
            uris=uris,
            now=now,
            days=days,
        )


def issue_node(
    authority: Authority,
    cluster_id: str,
    node_id: int,
    hosts: Iterable[str],
    *,
    now: datetime,
    days: int = NODE_DAYS,
) -> bytes:
    """The key and the certificate of a node, for its listeners and for mutual TLS."""
    return authority.issue(
        f"node-{node_id}",
        organization=cluster_id,
        hosts=hosts,
        uris=[node_uri(cluster_id, node_id)],
        now=now,
        days=days,
    )


def hosts_of(node: PeerNode) -> list[str]:
    """The names of a node that clients and other nodes connect to."""
    hosts = [host for host in (node.host, node.advertised_host) if host not in _WILDCARDS]
    return [*hosts, "localhost"] if any(map(is_loopback, hosts)) else hosts


def node_file(node_id: int) -> str:
    return f"node-{node_id}.pem"


def write_private(path: Path, data: bytes, *, replace: bool) -> None:
    """Write a file with mode 0600 atomically. Raises OSError."""
    if not replace and path.exists():
        raise FileExistsError(f"{path} exists")
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def read_info(path: Path) -> CertificateInfo:
    """The first certificate of a file in PEM. Raises OSError and ValueError."""
    found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    names: tuple[str, ...] = ()
    try:
        extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = tuple(str(each.value) for each in extension.value)
    except x509.ExtensionNotFound:
        pass
    return CertificateInfo(
        path,
        found.subject.rfc4514_string(),
        found.issuer.rfc4514_string(),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        names,
        found.serial_number,
    )


def _text_of(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    return next((str(each.value) for each in name.get_attributes_for_oid(oid)), "")


def _name(parts: list[tuple[str, str]]) -> x509.Name:
    oids = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME}
    return x509.Name([x509.NameAttribute(oids[key], value) for key, value in parts])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
