"""How a client proves who it is, and which brokers it trusts. Pure.

The names are those of Kafka's client properties: `security.protocol`, `ssl.truststore.*`,
`ssl.keystore.*`, `ssl.endpoint.identification.algorithm`, `sasl.*` (client_properties.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mqd.client.errors import InvalidValue, invalid_value
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.mechanism import MECHANISMS, OAUTHBEARER

Token = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A token, or a function that returns one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security of each connection of a client. The default is none: PLAINTEXT.

    Certificates and keys are files, or text in PEM.
    """

    protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ca: Path | str | None = None
    """Trusted certificates. None: those of the system."""
    ca_password: str | None = field(default=None, repr=False)
    """The password of a PKCS12 file."""
    crl: Path | str | None = None
    """A file in PEM with the certificates that the CA has revoked (CRL)."""
    certificate: Path | str | None = field(default=None, repr=False)
    """The certificate chain of this client. With a PKCS12 file, or a file that has both, `key` is
    None.
    """
    key: Path | str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_host_name: bool = True
    """Whether a broker's certificate must name the host that the client connects to."""
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    """Java's names; empty: those of the system."""
    mechanism: str | None = None
    """With SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    """The password of PLAIN and SCRAM."""
    token: Token | None = field(default=None, repr=False)
    """The token of OAUTHBEARER, or a function that returns one for each login."""
    sasl_extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further names and values of OAUTHBEARER for the broker."""

    def __post_init__(self) -> None:
        if self.protocol not in SecurityProtocol.__members__:
            raise _unknown("security.protocol", self.protocol, SecurityProtocol.__members__)
        if self.key is not None and self.certificate is None:
            raise invalid_value("key is set, and certificate is not", "set both")
        if self.has_sasl:
            self._check_login()
        elif self.mechanism is not None:
            raise invalid_value(
                f"mechanism is {self.mechanism!r}, and protocol is {self.protocol}, without SASL",
                "use the protocol SASL_SSL, or SASL_PLAINTEXT on a trusted network",
            )

    def _check_login(self) -> None:
        """Raises InvalidValue unless the login is complete."""
        if self.mechanism is None:
            raise invalid_value("sasl.mechanism is not set", f"use one of {', '.join(MECHANISMS)}")
        if self.mechanism not in MECHANISMS:
            raise _unknown("sasl.mechanism", self.mechanism, MECHANISMS)
        if self.mechanism == OAUTHBEARER:
            if self.token is None:
                raise invalid_value(
                    "OAUTHBEARER has no token",
                    "set token, or sasl.oauthbearer.token.endpoint.url",
                )
        elif not self.username or not self.password:
            missing = "password" if self.username else "username"
            raise invalid_value(
                f"{self.mechanism} has no {missing}",
                "set username and password, or sasl.jaas.config",
            )

    @property
    def has_tls(self) -> bool:
        return SecurityProtocol[self.protocol].has_tls

    @property
    def has_sasl(self) -> bool:
        return SecurityProtocol[self.protocol].has_sasl


def _unknown(key: str, value: str, known: Iterable[str]) -> InvalidValue:
    """The error for a value that is none of `known`; suggests the most similar one."""
    from mqd.options import nearest

    listed = f"use one of {', '.join(known)}"
    close = nearest(value.upper(), known)
    return invalid_value(
        f"unknown {key} {value!r}",
        listed if close is None else f"did you mean {close!r}? U{listed[1:]}",
    )
