"""Bootstrap addresses: parses and checks what the user gives. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mqd.client.arguments import shown
from mqd.client.errors import (
    invalid_type,
    invalid_value,
)

DEFAULT_PORT = 9092


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """`"host:port,host,[::1]:port"` as addresses. Raises ValueError with the bad part."""
    addresses = []
    remedy = "write host:port, for example 127.0.0.1:9092"
    for part in filter(None, (each.strip() for each in text.split(","))):
        host, separator, port = part.rpartition(":")
        if not separator or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise invalid_value(f"{part!r} is not an address", remedy)
        addresses.append((host, int(port)))
    if not addresses:
        raise invalid_value("no bootstrap address is given", remedy)
    return addresses


def addresses_of(bootstrap: object) -> list[tuple[str, int]]:
    """The addresses in text or in a list. Raises ValueError or TypeError."""
    if isinstance(bootstrap, str):
        return parse_bootstrap(bootstrap)
    remedy = "give 'host:port' or a list of (host, port), for example [('127.0.0.1', 9092)]"
    if not isinstance(bootstrap, Sequence) or isinstance(bootstrap, bytes):
        raise invalid_type(f"bootstrap is {shown(bootstrap)}", remedy)
    if not bootstrap:
        raise invalid_value("bootstrap is empty", remedy)
    for address in bootstrap:
        match address:
            case (str(host), int(port)):
                if not host or not 0 < port < 65536:
                    raise invalid_value(f"a bootstrap address is {shown(address)}", remedy)
            case _:
                raise invalid_type(f"a bootstrap address is {shown(address)}", remedy)
    return list(bootstrap)
