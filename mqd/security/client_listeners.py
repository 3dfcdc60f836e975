"""The listeners for clients, as `listeners`, `advertised.listeners` and
`listener.security.protocol.map` describe them. A core.

Without `listeners`, the client address of the peers file is the one listener, PLAINTEXT. The peers
file defines the peer listener.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mqd.config import (
    DEFAULT_LISTENER,
    PEER_LISTENER_NAME,
    ConfigError,
    NodeConfig,
    PeerNode,
    Source,
)

PEER_LISTENER: Final = PEER_LISTENER_NAME.upper()
"""The name of the peer listener in `listener.name.peer.*`. No client listener may have it."""
_WILDCARDS = ("", "0.0.0.0", "::")


class SecurityProtocol(Enum):
    """Kafka's names. The value is (TLS, SASL)."""

    PLAINTEXT = (False, False)
    SSL = (True, False)
    SASL_PLAINTEXT = (False, True)
    SASL_SSL = (True, True)

    @property
    def has_tls(self) -> bool:
        return self.value[0]

    @property
    def has_sasl(self) -> bool:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class ClientListener:
    """One listener for clients."""

    name: str
    """As in `listeners`, in upper case: SASL_SSL, EXTERNAL."""
    protocol: SecurityProtocol
    host: str
    """Empty: all addresses of the machine."""
    port: int
    advertised_host: str
    advertised_port: int


def client_listeners(config: NodeConfig, me: PeerNode) -> tuple[ClientListener, ...]:
    """The listeners of the node `me`, in the order of `listeners`. Raises ConfigError."""
    if config.source("listeners") in (Source.DEFAULT, Source.PEERS):
        if config.source("advertised.listeners") not in (Source.DEFAULT, Source.PEERS):
            raise ConfigError(
                "advertised.listeners is set, and listeners is not: set both, or advertised_host "
                "and advertised_port in the peers file"
            )
        plain = SecurityProtocol.PLAINTEXT
        advertised = (me.advertised_host, me.advertised_port)
        return (ClientListener(DEFAULT_LISTENER, plain, me.host, me.port, *advertised),)
    protocols = _protocols(config.text("listener.security.protocol.map"))
    of_controllers = {name.upper() for name in config.strings("controller.listener.names")}
    addresses = _addresses("listeners", config.strings("listeners"), of_controllers)
    set_by_user = config.source("advertised.listeners") not in (Source.DEFAULT, Source.PEERS)
    advertised_addresses = (
        _addresses("advertised.listeners", config.strings("advertised.listeners"), of_controllers)
        if set_by_user
        else {}
    )
    for name in advertised_addresses.keys() - addresses.keys():
        raise ConfigError(
            f"advertised.listeners names {name}, which listeners does not have: add it to listeners"
        )
    if not addresses:
        raise ConfigError("listeners has no listener for clients: add one, as PLAINTEXT://:9092")
    found = []
    for name, (host, port) in addresses.items():
        if name == PEER_LISTENER:
            raise ConfigError(
                "listeners names PEER, the listener for other nodes: the peers file has its "
                "address; use another name"
            )
        advertised_host, advertised_port = advertised_addresses.get(name, (host, port))
        if advertised_host in _WILDCARDS:
            if set_by_user and name in advertised_addresses:
                raise ConfigError(
                    f"advertised.listeners: clients cannot connect to '{advertised_host}' of "
                    f"{name}; use a name or address that clients can reach"
                )
            advertised_host = me.advertised_host
        found.append(
            ClientListener(
                name,
                _protocol_of(name, protocols),
                host,
                port,
                advertised_host,
                advertised_port,
            )
        )
    _check_ports(found)
    return tuple(found)


def _protocols(text: str) -> dict[str, SecurityProtocol]:
    """`INTERNAL:SSL,EXTERNAL:SASL_SSL` by name. Raises ConfigError."""
    found: dict[str, SecurityProtocol] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, colon, protocol = (each.strip().upper() for each in part.rpartition(":"))
        if not colon or not name or protocol not in SecurityProtocol.__members__:
            raise ConfigError(
                f"listener.security.protocol.map: '{part}' is not NAME:PROTOCOL; the protocols "
                f"are {', '.join(SecurityProtocol.__members__)}"
            )
        if name in found:
            raise ConfigError(f"listener.security.protocol.map names {name} twice: remove one")
        found[name] = SecurityProtocol[protocol]
    return found


def _protocol_of(name: str, protocols: dict[str, SecurityProtocol]) -> SecurityProtocol:
    """The protocol of the map; else of the name, if it is that of a protocol."""
    if name in protocols:
        return protocols[name]
    if name in SecurityProtocol.__members__:
        return SecurityProtocol[name]
    raise ConfigError(
        f"No security protocol defined for listener {name}: add {name}:PLAINTEXT, or another "
        "protocol, to listener.security.protocol.map"
    )


def _addresses(key: str, entries: tuple[str, ...], ignored: set[str]) -> dict[str, tuple[str, int]]:
    """`NAME://host:port` by name. Raises ConfigError."""
    found: dict[str, tuple[str, int]] = {}
    for entry in entries:
        name, separator, rest = entry.partition("://")
        host, colon, port = rest.rpartition(":")
        name = name.strip().upper()
        if not separator or not name or not colon or not (port.isascii() and port.isdigit()):
            raise ConfigError(
                f"{key}: '{entry}' is not NAME://host:port, as in SSL://10.0.0.1:9093 or "
                "PLAINTEXT://:9092"
            )
        if not 0 <= int(port) <= 65535:
            raise ConfigError(f"{key}: the port of '{entry}' is not between 0 and 65535")
        if name in found:
            raise ConfigError(
                f"{key}: Each listener must have a different name, and '{name}' appears twice"
            )
        if name not in ignored:
            found[name] = (host.removeprefix("[").removesuffix("]"), int(port))
    return found


def _check_ports(found: list[ClientListener]) -> None:
    by_port: dict[tuple[str, int], str] = {}
    for listener in found:
        address = (listener.host, listener.port)
        other = by_port.setdefault(address, listener.name)
        if other != listener.name and listener.port:
            raise ConfigError(
                f"listeners: {listener.name} and {other} have the same port {listener.port}: "
                "Each listener must have a different port"
            )
