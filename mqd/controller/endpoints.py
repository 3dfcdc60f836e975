"""Where clients reach a broker: one address for each listener. A core.

A broker with one listener PLAINTEXT, the default, has no endpoints in the metadata: `host` and
`port` of its registration are its address. Other endpoints need metadata version 3: before that,
the first listener is the only one that other nodes know.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_DEFAULT_NAME: Final = "PLAINTEXT"
_PLAINTEXT: Final = 0


class BrokerEndpoint(NamedTuple):
    """One listener, as clients see it."""

    name: str
    security_protocol: int
    """Kafka's number: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""
    host: str
    port: int


Endpoints = tuple[BrokerEndpoint, ...]


def stored_endpoints(endpoints: Endpoints) -> Endpoints:
    """What the metadata keeps: nothing for the default listener alone."""
    is_default = len(endpoints) == 1 and endpoints[0][:2] == (_DEFAULT_NAME, _PLAINTEXT)
    return () if is_default else endpoints


def address_on(
    listener: str | None, endpoints: Endpoints, default: tuple[str, int], *, has_endpoints: bool
) -> tuple[str, int] | None:
    """The address of a broker for a client of this listener; None if it has no such listener.

    `default`: host and port of the registration. `has_endpoints`: whether the finalized metadata
    version has endpoints. `listener` None: of no client, but of a node.
    """
    if listener is None or not has_endpoints:
        return default
    if not endpoints:
        return default if listener == _DEFAULT_NAME else None
    for endpoint in endpoints:
        if endpoint.name == listener:
            return endpoint.host, endpoint.port
    return None
