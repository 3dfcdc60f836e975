"""Kafka's client properties as `Security`: `security.protocol`, `sasl.*` and `ssl.*`, as Kafka's
tools read them with --command-config, and the names of librdkafka.

Messages name keys and never values of secret ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqd.client.errors import invalid_value
from mqd.client.security import Security
from mqd.client.token_sources import (
    TOKEN_TIMEOUT_SECONDS,
    ClientCredentials,
    TokenFile,
    unsigned_token,
)
from mqd.config_file import parse_properties
from mqd.options import ConfigError, java_trim
from mqd.security.jaas import parse_login_module

logger = logging.getLogger(__name__)

PREFIXES: Final = ("sasl.", "ssl.", "security.protocol", "enable.sasl.", "enable.ssl.")
"""Keys that this file reads begin with one of these."""
SECRET_KEYS: Final = frozenset(
    {
        *("sasl.jaas.config", "sasl.password", "sasl.oauthbearer.client.secret"),
        *("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.config"),
        "sasl.oauthbearer.assertion.private.key.passphrase",
        *("ssl.key.password", "ssl.keystore.password", "ssl.truststore.password"),
        *("ssl.keystore.key", "ssl.key.pem"),
    }
)
FILE_KEYS: Final = frozenset(
    {
        *("ssl.truststore.location", "ssl.ca.location", "ssl.crl.location"),
        *("ssl.keystore.location", "ssl.certificate.location", "ssl.key.location"),
    }
)
"""Keys whose values are paths of files."""
_BEARER: Final = "sasl.oauthbearer."
_IGNORED: Final = frozenset(
    {
        *("sasl.client.callback.handler.class", "sasl.login.callback.handler.class"),
        *("sasl.login.class", "sasl.oauthbearer.method", "security.providers", "ssl.protocol"),
        *("sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds"),
        *("sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter"),
        *("sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms"),
        *("ssl.provider", "ssl.secure.random.implementation", "ssl.keymanager.algorithm"),
        *("ssl.trustmanager.algorithm", "ssl.engine.factory.class"),
        *(f"{_BEARER}assertion.{key}" for key in ("algorithm", "claim.aud", "claim.exp.seconds")),
        *(f"{_BEARER}assertion.claim.{key}" for key in ("iss", "jti.include", "nbf.seconds")),
        *(f"{_BEARER}assertion.{key}" for key in ("claim.sub", "file", "private.key.file")),
        *(f"{_BEARER}assertion.{key}" for key in ("private.key.passphrase", "template.file")),
        *(f"{_BEARER}{key}" for key in ("clock.skew.seconds", "expected.audience")),
        *(f"{_BEARER}{key}" for key in ("expected.issuer", "jwks.endpoint.url")),
        *(f"{_BEARER}jwks.endpoint.{key}" for key in ("refresh.ms", "retry.backoff.ms")),
        *(
            f"{_BEARER}{key}"
            for key in ("jwks.endpoint.retry.backoff.max.ms", "jwt.validator.class")
        ),
        *(f"{_BEARER}{key}" for key in ("scope.claim.name", "sub.claim.name")),
    }
)
"""Keys of Java, and those that only change how a client of Java inspects its own token. They change
nothing here; nor do those with the prefix below.
"""
_IGNORED_PREFIXES: Final = ("sasl.kerberos.",)
_UNSUPPORTED: Final = {
    "ssl.curves.list": "remove it, or set Groups in the file that OPENSSL_CONF names",
    "ssl.sigalgs.list": "remove it, or set SignatureAlgorithms in the file that OPENSSL_CONF names",
    "ssl.engine.location": "use a key in a file: ssl.key.location",
    "ssl.engine.id": "use a key in a file: ssl.key.location",
    "ssl.providers": "remove it, or set providers in the file that OPENSSL_CONF names",
    "ssl.ca.certificate.stores": "export the certificates of the CA, and set ssl.ca.location",
}
"""Keys of librdkafka that Python's ssl cannot honour -> what to do."""
_ASSERTION_RETRIEVER: Final = "JwtBearerJwtRetriever"
_NOT_TRIMMED: Final = frozenset({"sasl.username", "sasl.password"})
"""Keys of librdkafka with any text. Kafka trims the values of all its keys."""
_STORE_TYPES: Final = ("PEM", "PKCS12")


def read_client_properties(path: Path) -> dict[str, str]:
    """The properties of a file. Raises InvalidValue."""
    try:
        text = path.read_text(encoding="utf-8")
        settings = parse_properties(text, str(path))
    except OSError as error:
        raise invalid_value(
            f"{path} cannot be read ({error.strerror})", "specify a readable file"
        ) from None
    except (UnicodeDecodeError, ConfigError) as error:
        raise invalid_value(f"{path} is no properties file: {error}", "write key=value") from None
    return {setting.key: setting.value for setting in settings}


def is_security_key(key: str) -> bool:
    """Whether a client property belongs to the security of connections."""
    return key.startswith(PREFIXES)


def security_of(properties: Mapping[str, str]) -> Security:
    """The security that these properties describe. Other properties are ignored, those of SASL
    also if `security.protocol` is one without SASL. Raises InvalidValue, also for an unknown
    security property.
    """
    reader = _Reader(properties)
    given = reader.take("security.protocol")
    protocol = given.upper() or "PLAINTEXT"
    sasl = _sasl(reader)
    if given and sasl and not protocol.startswith("SASL_"):
        logger.debug("sasl.* has no effect security.protocol=%s", protocol)
        sasl = {}
    options: dict[str, Any] = {"protocol": protocol, **sasl, **_tls(reader)}
    for key, remedy in _UNSUPPORTED.items():
        if reader.take(key):
            raise invalid_value(f"client property {key!r} is not supported", remedy)
    unknown = [
        key for key in reader.left if key not in _IGNORED and not key.startswith(_IGNORED_PREFIXES)
    ]
    for key in sorted(reader.left.keys() - set(unknown)):
        logger.debug("client property without effect key=%s", key)
    if unknown:
        from mqd.options import nearest

        close = nearest(unknown[0], reader.known)
        remedy = "remove it, or see docs/CLIENT.md, TLS and login"
        raise invalid_value(
            f"unknown client property {unknown[0]!r}",
            remedy if close is None else f"did you mean {close!r}?",
        )
    return Security(**options)


class _Reader:
    """Takes properties one by one, so that unknown ones are left."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.left = {
            key: text if key in _NOT_TRIMMED else java_trim(text)
            for key, text in properties.items()
            if is_security_key(key)
        }
        self.known: list[str] = []
        """All keys that were taken, whether they are set or not."""

    def take(self, key: str, default: str = "") -> str:
        self.known.append(key)
        return self.left.pop(key, default)

    def first(self, *keys: str) -> str:
        """The first of several names that is set; all are taken."""
        found = [self.take(key) for key in keys]
        return next(filter(None, found), "")


def _sasl(reader: _Reader) -> dict[str, Any]:
    mechanism = reader.first("sasl.mechanism", "sasl.mechanisms")
    username, password = reader.take("sasl.username"), reader.take("sasl.password")
    jaas = reader.take("sasl.jaas.config")
    options: Mapping[str, str] = {}
    if jaas:
        try:
            options = parse_login_module(jaas).options
        except ValueError as error:
            raise invalid_value(
                f"sasl.jaas.config: {error}",
                'write it as CLASS required username="..." password="...";',
            ) from None
    token = _token_source(reader, options)
    found: dict[str, Any] = {
        "mechanism": mechanism.upper() or None,
        "username": options.get("username", username) or None,
        "password": options.get("password", password) or None,
        "token": token,
        "sasl_extensions": {
            name.removeprefix("extension_"): value
            for name, value in options.items()
            if name.startswith("extension_")
        },
    }
    return {name: value for name, value in found.items() if value}


def _token_source(reader: _Reader, options: Mapping[str, str]) -> Any:
    """Where tokens of OAUTHBEARER come from; None without such a property."""
    url = reader.first("sasl.oauthbearer.token.endpoint.url")
    identity = reader.first(
        "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"
    )
    secret = reader.first(
        "sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"
    )
    scope = reader.take("sasl.oauthbearer.scope") or options.get("scope", "")
    retriever = reader.take(f"{_BEARER}jwt.retriever.class")
    if retriever.rpartition(".")[2] == _ASSERTION_RETRIEVER:
        raise invalid_value(
            f"{_BEARER}jwt.retriever.class is {_ASSERTION_RETRIEVER}, which is not supported",
            "use a client id and secret, or a token in a file",
        )
    encodes_header = reader.take(f"{_BEARER}header.urlencode").lower() == "true"
    timeout_ms = reader.first("sasl.login.read.timeout.ms", "sasl.login.connect.timeout.ms")
    if url.startswith("file:"):
        return TokenFile(url)
    if url:
        return ClientCredentials(
            url,
            identity or options.get("clientId", ""),
            secret or options.get("clientSecret", ""),
            scope,
            encodes_header=encodes_header,
            timeout_seconds=_seconds(timeout_ms),
            tls=_request_tls(options),
        )
    subject = options.get("unsecuredLoginStringClaim_sub")
    if subject is not None:
        seconds = options.get("unsecuredLoginLifetimeSeconds", "3600")
        return unsigned_token(subject, int(seconds) if seconds.isdigit() else 3600)
    return None


def _seconds(timeout_ms: str) -> float:
    if not timeout_ms:
        return TOKEN_TIMEOUT_SECONDS
    if not timeout_ms.isdecimal() or not int(timeout_ms):
        raise invalid_value(
            f"sasl.login.*.timeout.ms: {timeout_ms!r} is not a number of milliseconds",
            "set it to 1 or more",
        )
    return int(timeout_ms) / 1000


def _request_tls(options: Mapping[str, str]) -> Any:
    """TLS of the token endpoint, from `ssl.*` in the JAAS string, as in Kafka."""
    if not any(key.startswith("ssl.") for key in options):
        return None
    from mqd.security.jaas_tls import request_tls

    try:
        return request_tls(options, where="sasl.jaas.config: ")
    except ConfigError as error:
        raise invalid_value(str(error), "check the ssl.* options of sasl.jaas.config") from None


def _tls(reader: _Reader) -> dict[str, Any]:
    for side in ("truststore", "keystore"):
        kind = reader.take(f"ssl.{side}.type", "PEM").upper()
        if kind not in _STORE_TYPES:
            raise invalid_value(
                f"ssl.{side}.type is {kind}, which needs Java",
                "convert it: keytool -importkeystore -srckeystore OLD -destkeystore NEW.p12 "
                f"-deststoretype PKCS12, and set ssl.{side}.type=PKCS12",
            )
    algorithm = reader.take("ssl.endpoint.identification.algorithm", "https")
    found: dict[str, Any] = {
        "ca": _file_or_pem(
            reader,
            ("ssl.truststore.location", "ssl.ca.location"),
            ("ssl.truststore.certificates", "ssl.ca.pem"),
        ),
        "crl": _file_or_pem(reader, ("ssl.crl.location",), ()),
        "ca_password": reader.take("ssl.truststore.password"),
        "certificate": _file_or_pem(
            reader,
            ("ssl.keystore.location", "ssl.certificate.location"),
            ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
        ),
        "key": _file_or_pem(reader, ("ssl.key.location",), ("ssl.keystore.key", "ssl.key.pem")),
        "key_password": reader.first("ssl.key.password", "ssl.keystore.password"),
        "protocols": _list(reader.take("ssl.enabled.protocols")),
        "cipher_suites": _list(reader.take("ssl.cipher.suites")),
    }
    kept = {name: value for name, value in found.items() if value}
    is_checked = algorithm.strip().lower() not in ("", "none")
    if reader.take("enable.ssl.certificate.verification", "true").lower() == "false":
        raise invalid_value(
            "enable.ssl.certificate.verification is false: anyone could pretend to be the broker",
            "set ssl.ca.location to the certificate of your CA",
        )
    return kept if is_checked else {**kept, "check_host_name": False}


def _list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _file_or_pem(
    reader: _Reader, files: tuple[str, ...], texts: tuple[str, ...]
) -> Path | str | None:
    """A file, or its content in PEM. Both at once are an error, as in Apache Kafka."""
    file, text = reader.first(*files), reader.first(*texts)
    if file and text:
        raise invalid_value(
            f"{' or '.join(files)} and {' or '.join(texts)} are both set",
            "remove one of them: a file or its content",
        )
    return Path(file).expanduser() if file else text
