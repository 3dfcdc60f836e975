"""The network of a client with TLS: each connection that it opens is encrypted."""

from __future__ import annotations

from pathlib import Path

from mqd.client.errors import invalid_value
from mqd.client.security import Security
from mqd.config import ConfigError
from mqd.io.net import Network
from mqd.io.tls_contexts import client_context, refuse_revoked
from mqd.io.tls_stream import TlsNetwork
from mqd.security.tls_settings import KeyStore, TlsSettings, TrustStore

_PEM_START = "-----BEGIN "


def secured(network: Network, security: Security | None) -> Network:
    """`network` itself without TLS. Reads certificates and keys. Raises InvalidValue."""
    if security is None or not security.has_tls:
        return network
    settings = TlsSettings(
        key_store=_key_store(security),
        trust_store=_trust_store(security),
        protocols=security.protocols,
        cipher_suites=security.cipher_suites,
    )
    try:
        context = client_context(settings, check_host_name=security.check_host_name)
        if security.crl is not None:
            refuse_revoked(context, str(security.crl))
    except ConfigError as error:
        problem, _, remedy = str(error).partition("; ")
        raise invalid_value(problem, remedy or "check the ssl.* properties") from None
    return TlsNetwork(network, context)


def _trust_store(security: Security) -> TrustStore | None:
    if security.ca is None:
        return None
    text, location = _text_or_location(security.ca)
    return TrustStore("PEM", location, security.ca_password, text)


def _key_store(security: Security) -> KeyStore | None:
    if security.certificate is None:
        return None
    chain, location = _text_or_location(security.certificate)
    if security.key is None:
        password = security.key_password
        if chain is not None:
            return KeyStore("PEM", certificate_chain=chain, key=chain, key_password=password)
        return KeyStore("PEM", location, password, key_password=password)
    key, key_location = _text_or_location(security.key)
    return KeyStore(
        "PEM",
        certificate_chain=chain if chain is not None else _read(location),
        key=key if key is not None else _read(key_location),
        key_password=security.key_password,
    )


def _text_or_location(value: Path | str) -> tuple[str | None, str | None]:
    if isinstance(value, str) and _PEM_START in value:
        return value, None
    return None, str(value)


def _read(location: str | None) -> str:
    assert location is not None
    try:
        return Path(location).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise invalid_value(
            f"{location} cannot be read ({error.strerror})",
            "check the path, and that you may read it",
        ) from None
