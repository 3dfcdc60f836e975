"""TLS of requests for key sets and tokens: the `ssl.*` options in a JAAS string of OAUTHBEARER, as
in Kafka. A core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mqd.config import NODE_OPTIONS, ConfigError, Status, Value
from mqd.security.tls_settings import TlsSettings, tls_settings

_NAMES_CHECKED: Final = "ssl.endpoint.identification.algorithm"
_OF_LISTENERS: Final = frozenset({"ssl.client.auth", "ssl.principal.mapping.rules"})


@dataclass(frozen=True, slots=True)
class RequestTls:
    """TLS of a client of a web server."""

    settings: TlsSettings
    check_host_name: bool


def request_tls(options: Mapping[str, str], *, where: str) -> RequestTls | None:
    """None without `ssl.*` options. Raises ConfigError, which `where` begins."""
    used = {key: text for key, text in options.items() if is_tls_option(key)}
    if not used:
        return None
    values: dict[str, Value] = {
        key: option.default for key, option in NODE_OPTIONS.items() if key.startswith("ssl.")
    }
    for key, text in used.items():
        option = NODE_OPTIONS[key]
        try:
            values[key] = option.parse(text)
        except ValueError as error:
            raise ConfigError(f"{where}{key}: {option.problem(error)}") from None
    check_host_name = str(used.get(_NAMES_CHECKED, "https")).strip().lower() not in ("", "none")
    return RequestTls(tls_settings(values, where=where), check_host_name)


def is_tls_option(key: str) -> bool:
    """Whether `request_tls` reads this option, or Java's classes would and OpenSSL need not."""
    option = NODE_OPTIONS.get(key)
    return (
        option is not None
        and key.startswith("ssl.")
        and key not in _OF_LISTENERS
        and option.status is not Status.REFUSED
    )
