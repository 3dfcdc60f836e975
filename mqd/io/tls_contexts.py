"""Builds `ssl.SSLContext` objects from key stores and trust stores (PEM, PKCS12).

Python reads a private key only from a file. Text from the configuration and from PKCS12 goes
through a file in memory, which no other process can open.

`cryptography` reads PKCS12. It is imported only then: it takes 40 ms.
"""

from __future__ import annotations

import os
import ssl
from contextvars import ContextVar
from pathlib import Path

from mqd.config import ConfigError
from mqd.security.tls_settings import (
    ClientAuth,
    KeyStore,
    TlsSettings,
    TrustStore,
    open_ssl_suites,
)

session_tickets: ContextVar[int | None] = ContextVar("session_tickets", default=None)
"""How many session tickets of TLS 1.3 a listener sends; None: OpenSSL's number. A simulation has
none, because their sizes are random.
"""

_PKCS12_START = b"\x30"
_JKS_START = bytes.fromhex("feedfeed")
_STORE_BYTES_MAX = 4 << 20
_KEY_END = b"PRIVATE KEY-----"
_NO_KEY = "no private key; use the file of a node, such as node-1.pem"
_PEM_START = b"-----BEGIN "
_CERTIFICATE_START = b"-----BEGIN CERTIFICATE-----"


def server_context(settings: TlsSettings, *, where: str) -> ssl.SSLContext:
    """The context of a listener. Raises ConfigError."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings, where)
    assert settings.key_store is not None
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if (tickets := session_tickets.get()) is not None:
        context.num_tickets = tickets
    if settings.client_auth is not ClientAuth.NONE:
        assert settings.trust_store is not None
        _trust(context, settings.trust_store, where)
        context.verify_mode = (
            ssl.CERT_REQUIRED if settings.client_auth is ClientAuth.REQUIRED else ssl.CERT_OPTIONAL
        )
    return context


def client_context(
    settings: TlsSettings, *, check_host_name: bool = True, where: str = ""
) -> ssl.SSLContext:
    """The context of a client. Raises ConfigError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings, where)
    context.check_hostname = check_host_name
    if settings.trust_store is not None:
        _trust(context, settings.trust_store, where)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def refuse_revoked(context: ssl.SSLContext, location: str) -> None:
    """Refuse certificates that a list in this file revokes, and those of a CA without a list.
    Raises ConfigError.
    """
    try:
        context.load_verify_locations(cafile=location)
    except OSError as error:  # an SSLError is one
        raise ConfigError(
            f"ssl.crl.location: {location} cannot be read ({error.strerror}); use a certificate "
            "revocation list in PEM"
        ) from None
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def own_certificate(settings: TlsSettings, *, where: str) -> bytes:
    """The first certificate of the key store, in DER. Raises ConfigError."""
    assert settings.key_store is not None
    chain, _, _ = _key_of(settings.key_store, where)
    start = chain.find(_CERTIFICATE_START)
    return ssl.PEM_cert_to_DER_cert(chain[start:].decode("ascii", "replace"))


def _context(protocol: int, settings: TlsSettings, where: str) -> ssl.SSLContext:
    suites, allows_1_3 = open_ssl_suites(settings, where=where)
    context = ssl.SSLContext(protocol)
    has_1_2 = "TLSv1.2" in settings.protocols and (not settings.cipher_suites or bool(suites))
    if not has_1_2 and not allows_1_3:
        raise ConfigError(
            f"{where}ssl.cipher.suites and ssl.enabled.protocols exclude each other: name a suite "
            "of an enabled protocol"
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if has_1_2 else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if allows_1_3 else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if suites:
        try:
            context.set_ciphers(suites)
        except ssl.SSLError:
            raise ConfigError(
                f"{where}ssl.cipher.suites: OpenSSL has none of {', '.join(settings.cipher_suites)}"
            ) from None
    if settings.key_store is not None:
        _load_key(context, settings.key_store, where)
    return context


def _key_of(store: KeyStore, where: str) -> tuple[bytes, bytes, str | None]:
    """(certificate chain, key, password of the key), in PEM."""
    if store.location is None:
        assert store.certificate_chain is not None
        assert store.key is not None
        return store.certificate_chain.encode(), store.key.encode(), store.key_password
    source = _source(store, where)
    data = _read(store.location, source)
    if data.startswith(_PKCS12_START):
        return *_pkcs12_key(data, store.password, source), None
    text = _pem(data, store.type, source, store.location)
    return text, text, store.key_password


def _load_key(context: ssl.SSLContext, store: KeyStore, where: str) -> None:
    source = _source(store, where) if store.location else f"{where}ssl.keystore.key"
    chain, key, password = _key_of(store, where)
    password_requests: list[bool] = []

    def give_password() -> str:
        password_requests.append(True)
        return password or ""

    chain_file, key_file = _memory_file(chain), _memory_file(key)
    try:
        context.load_cert_chain(
            f"/proc/self/fd/{chain_file}", f"/proc/self/fd/{key_file}", give_password
        )
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{source}: the private key does not belong to the first certificate; put the "
                "certificate of the key first"
            ) from None
        if password_requests:
            problem = "is wrong" if password else "is not set, and the key is encrypted"
            raise ConfigError(f"{source}: ssl.key.password {problem}") from None
        if _KEY_END not in key:
            raise ConfigError(f"{source} has {_NO_KEY}") from None
        raise ConfigError(
            f"{source}: not a private key and its certificate chain in PEM "
            f"({error.reason or 'no certificate or key found'})"
        ) from None
    finally:
        os.close(chain_file)
        os.close(key_file)


def _trust(context: ssl.SSLContext, store: TrustStore, where: str) -> None:
    if store.location is None:
        assert store.certificates is not None
        data, source = store.certificates.encode(), f"{where}ssl.truststore.certificates"
    else:
        source = _source(store, where)
        data = _read(store.location, source)
        if data.startswith(_PKCS12_START):
            data = _pkcs12_certificates(data, store.password, source)
        else:
            data = _pem(data, store.type, source, store.location)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{source} has no certificate in PEM") from None


def _source(store: KeyStore | TrustStore, where: str) -> str:
    """The file of a store, with its key and the place where this is set."""
    return (
        f"{where}{store.name}: '{store.location}'" if store.name else f"{where}'{store.location}'"
    )


def _read(location: str, source: str) -> bytes:
    path = Path(location)
    try:
        with path.open("rb") as file:
            return file.read(_STORE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"{source} cannot be read ({error.strerror}); check the path, and that this "
            "user may read it"
        ) from None


def _pem(data: bytes, type_: str, source: str, location: str) -> bytes:
    if data.startswith(_JKS_START):
        raise ConfigError(
            f"{source} is a Java key store (JKS), which needs Java. Convert it: keytool "
            f"-importkeystore -srckeystore {location} -destkeystore store.p12 "
            "-deststoretype PKCS12"
        )
    if _PEM_START not in data:
        raise ConfigError(
            f"{source} is neither PEM nor PKCS12 (the type is set to {type_}); replace the file; "
            "`mqctl cert init` creates PEM files"
        )
    return data


def _pkcs12(data: bytes, password: str | None, source: str) -> tuple[bytes, bytes, bytes]:
    """(key, its certificate chain, all certificates) in PEM."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise ConfigError(
            f"{source} is no PKCS12 store, or its password is wrong; set ssl.keystore.password "
            "or ssl.truststore.password"
        ) from None
    key = (
        b""
        if store.key is None
        else store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    own = [] if store.cert is None else [store.cert]
    pem = [each.certificate.public_bytes(Encoding.PEM) for each in [*own, *store.additional_certs]]
    return key, b"".join(pem), b"".join(pem)


def _pkcs12_key(data: bytes, password: str | None, source: str) -> tuple[bytes, bytes]:
    key, chain, _ = _pkcs12(data, password, source)
    if not key:
        raise ConfigError(f"{source} has {_NO_KEY}")
    return chain, key


def _pkcs12_certificates(data: bytes, password: str | None, source: str) -> bytes:
    certificates = _pkcs12(data, password, source)[2]
    if not certificates:
        raise ConfigError(f"{source} has no certificate")
    return certificates


def _memory_file(data: bytes) -> int:
    """A descriptor of a file in memory with this content."""
    descriptor = os.memfd_create("mqd-key", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor
