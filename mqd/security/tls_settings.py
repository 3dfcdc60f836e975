"""What one side of a TLS connection needs: its certificate, whom it trusts, protocols and suites.
A core.

Kafka's `ssl.*` keys of a broker or client, per listener. Values are names of files, or text in PEM
(KIP-651); mqd/io/tls_contexts.py reads the files.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from mqd.config import ConfigError, NodeConfig, Value

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
"""Hosts whose connections need no TLS."""
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")
_SUITES_OF_1_3: Final = frozenset(
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
)


class ClientAuth(Enum):
    """Whether clients present a certificate, `ssl.client.auth`."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key with its certificate chain: a file, or both as text."""

    type: str
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate_chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    name: str = ""
    """The key of `location`, and where it is set, for messages."""


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Trusted certificates: a file, or text."""

    type: str
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)
    name: str = ""
    """The key of `location`, and where it is set, for messages."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of one side. `key_store` is None for a client without a certificate;
    `trust_store` None means the certificates that the system trusts.
    """

    key_store: KeyStore | None = None
    trust_store: TrustStore | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    protocols: tuple[str, ...] = TLS_VERSIONS
    cipher_suites: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it names."""
        stores = (self.key_store, self.trust_store)
        return tuple(store.location for store in stores if store and store.location is not None)


def tls_settings(values: Mapping[str, Value], *, where: str) -> TlsSettings:
    """The settings of `ssl.*` keys. `where` precedes messages: "listener SSL: ". Raises
    ConfigError.
    """
    settings = TlsSettings(
        key_store=_key_store(values, where),
        trust_store=_trust_store(values, where),
        client_auth=ClientAuth(_text(values, "ssl.client.auth") or "none"),
        protocols=_list(values, "ssl.enabled.protocols") or TLS_VERSIONS,
        cipher_suites=_list(values, "ssl.cipher.suites"),
    )
    for version in settings.protocols:
        if version not in TLS_VERSIONS:
            raise ConfigError(
                f"{where}ssl.enabled.protocols: '{version}' is not supported; use TLSv1.2 or "
                "TLSv1.3"
            )
    open_ssl_suites(settings, where=where)
    return settings


def server_settings(values: Mapping[str, Value], *, where: str) -> TlsSettings:
    """The same for a listener, which needs a key. Raises ConfigError."""
    settings = tls_settings(values, where=where)
    if settings.key_store is None:
        raise ConfigError(
            f"{where}has no certificate: set ssl.keystore.location to a PEM or PKCS12 file, or "
            "ssl.keystore.certificate.chain and ssl.keystore.key; `mqctl cert init` creates them"
        )
    if settings.client_auth is not ClientAuth.NONE and settings.trust_store is None:
        raise ConfigError(
            f"{where}ssl.client.auth={settings.client_auth.value} needs the certificates that "
            "sign those of clients: set ssl.truststore.location or ssl.truststore.certificates"
        )
    return settings


def open_ssl_suites(settings: TlsSettings, *, where: str = "") -> tuple[str, bool]:
    """(The suites of TLS 1.2 by OpenSSL's names, empty for its default; whether TLS 1.3 is
    permitted). Raises ConfigError for an unknown suite.

    Python cannot choose the suites of TLS 1.3: naming one of them permits all three.
    """
    named = settings.cipher_suites
    allows_1_3 = "TLSv1.3" in settings.protocols
    if not named:
        return "", allows_1_3
    of_1_2 = [_open_ssl_name(name, where) for name in named if name not in _SUITES_OF_1_3]
    return ":".join(of_1_2), allows_1_3 and len(of_1_2) < len(named)


def _open_ssl_name(name: str, where: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is ECDHE-RSA-AES256-GCM-SHA384."""
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not name.startswith("TLS_") or not separator:
        raise ConfigError(
            f"{where}ssl.cipher.suites: '{name}' is not a cipher suite; write it as "
            "TLS_AES_256_GCM_SHA384 or TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        )
    cipher = cipher.replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    cipher = cipher.replace("_CBC_", "_")
    parts = [cipher] if exchange == "RSA" else [exchange, cipher]
    return "-".join(parts).replace("_", "-")


def _key_store(values: Mapping[str, Value], where: str) -> KeyStore | None:
    location = _text(values, "ssl.keystore.location")
    chain, key = _pem(values, "ssl.keystore.certificate.chain"), _pem(values, "ssl.keystore.key")
    if location is None and chain is None and key is None:
        return None
    type_ = _store_type(values, "ssl.keystore.type", where)
    if location is None:
        if chain is None or key is None:
            missing = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
            raise ConfigError(f"{where}{missing} is not set: a certificate needs its private key")
        if type_ != "PEM":
            raise ConfigError(
                f"{where}ssl.keystore.key is set, and ssl.keystore.type is {type_}: set it to PEM"
            )
    elif chain is not None or key is not None:
        raise ConfigError(
            f"{where}ssl.keystore.location and ssl.keystore.key or ssl.keystore.certificate.chain "
            "are set: remove one of them"
        )
    return KeyStore(
        type_,
        location,
        _text(values, "ssl.keystore.password"),
        chain,
        key,
        _text(values, "ssl.key.password"),
        name=_named(values, "ssl.keystore.location"),
    )


def _trust_store(values: Mapping[str, Value], where: str) -> TrustStore | None:
    location = _text(values, "ssl.truststore.location")
    certificates = _pem(values, "ssl.truststore.certificates")
    if location is None and certificates is None:
        return None
    type_ = _store_type(values, "ssl.truststore.type", where)
    if certificates is not None and (location is not None or type_ != "PEM"):
        raise ConfigError(
            f"{where}ssl.truststore.certificates needs ssl.truststore.type=PEM and no "
            "ssl.truststore.location"
        )
    return TrustStore(
        type_,
        location,
        _text(values, "ssl.truststore.password"),
        certificates,
        name=_named(values, "ssl.truststore.location"),
    )


def _named(values: Mapping[str, Value], key: str) -> str:
    return values.named(key) if isinstance(values, NodeConfig) else key


def _store_type(values: Mapping[str, Value], key: str, where: str) -> str:
    type_ = _text(values, key) or "JKS"
    if type_.upper() not in _STORE_TYPES:
        raise ConfigError(f"{where}{key}: '{type_}' is not one of {', '.join(_STORE_TYPES)}")
    return type_.upper()


def _pem(values: Mapping[str, Value], key: str) -> str | None:
    text = _text(values, key)
    return None if text is None else normal_pem(text)


def normal_pem(text: str) -> str:
    """PEM with line ends, which a properties file may have replaced by blanks (KIP-651)."""

    def block(found: re.Match[str]) -> str:
        label, body = found.groups()
        if ":" in body:  # headers of the traditional format
            return found[0]
        lines = textwrap.wrap("".join(body.split()), 64)
        return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----\n"))

    return _PEM_BLOCK.sub(block, text)


def _text(values: Mapping[str, Value], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None


def _list(values: Mapping[str, Value], key: str) -> tuple[str, ...]:
    value = values.get(key)
    return value if isinstance(value, tuple) else ()
