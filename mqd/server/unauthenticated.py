"""Connections of the peer listener before the end of their handshake, and the limits on them. Pure.

Two pools, so that a flood does not lock out nodes. One is for addresses of the cluster. These are
in the peers file, or a node has completed a handshake from them since this process started. If it
is full, a new connection replaces the oldest once that had `HANDSHAKE_SECONDS_MIN` for its
handshake; until then the new one waits.

The other pool is for all other addresses. No address has more than
`UNAUTHENTICATED_PER_ADDRESS_MAX` places there. If it is full, a new connection replaces the oldest
in the same way. But a new connection does not wait: it is closed, because a connection of a node
may be behind it in the backlog.

A host name of the peers file counts after its first handshake, an IP address at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from mqd.limits import (
    HANDSHAKE_SECONDS_MIN,
    UNAUTHENTICATED_CLUSTER_MAX,
    UNAUTHENTICATED_OTHER_MAX,
    UNAUTHENTICATED_PER_ADDRESS_MAX,
)


class Accepted(Protocol):
    since: float
    """Monotonic seconds of its accept."""


AcceptedT = TypeVar("AcceptedT", bound=Accepted)


class Full(Exception):
    """There is no place for this address. The message has the reason."""


class UnauthenticatedConnections(Generic[AcceptedT]):
    """The two pools, oldest first."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts`: of the other nodes, by the peers file."""
        self._known = {_plain(host) for host in hosts}
        """Addresses of the cluster."""
        self._of_cluster: dict[AcceptedT, str] = {}
        self._others: dict[AcceptedT, str] = {}
        self._others_by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._of_cluster) + len(self._others)

    def __iter__(self) -> Iterator[AcceptedT]:
        yield from self._of_cluster
        yield from self._others

    def is_known(self, address: str) -> bool:
        """Whether it is an address of the cluster."""
        return _plain(address) in self._known

    def oldest_if_full(self, address: str) -> AcceptedT | None:
        """The oldest connection, if the pool of `address` is full. None if there is a place.

        Raises Full if the address itself has too many.
        """
        address = _plain(address)
        if address in self._known:
            is_full = len(self._of_cluster) >= UNAUTHENTICATED_CLUSTER_MAX
            return next(iter(self._of_cluster)) if is_full else None
        if self._others_by_address[address] >= UNAUTHENTICATED_PER_ADDRESS_MAX:
            raise Full(
                f"{UNAUTHENTICATED_PER_ADDRESS_MAX} connections from this address have not "
                "completed the handshake"
            )
        return next(iter(self._others)) if len(self._others) >= UNAUTHENTICATED_OTHER_MAX else None

    def may_be_closed(self, connection: AcceptedT, now: float) -> bool:
        """Whether it had enough time for a handshake."""
        return now - connection.since >= HANDSHAKE_SECONDS_MIN

    def add(self, connection: AcceptedT, address: str) -> None:
        address = _plain(address)
        if address in self._known:
            self._of_cluster[connection] = address
        else:
            self._others[connection] = address
            self._others_by_address[address] += 1

    def authenticated(self, connection: AcceptedT, address: str) -> None:
        """It is a node: its address is one of the cluster."""
        self.discard(connection)
        self._known.add(_plain(address))

    def discard(self, connection: AcceptedT) -> None:
        self._of_cluster.pop(connection, None)
        if (address := self._others.pop(connection, None)) is not None:
            self._others_by_address[address] -= 1
            if not self._others_by_address[address]:
                del self._others_by_address[address]


def _plain(address: str) -> str:
    """One text for each address: all of the loopback network is one machine."""
    address = address.lower().removeprefix("[").removesuffix("]").removeprefix("::ffff:")
    return "localhost" if address.startswith("127.") or address == "::1" else address
