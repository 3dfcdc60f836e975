"""Connections of the peer listener before their introduction, and the limits on them. Pure.

Two pools, so that a flood does not lock out nodes. One is for addresses of the cluster: those of
the peers file, and any from which a node has introduced itself since this process started. If it is
full, the newest connection replaces the oldest once that had `STRANGER_SECONDS_MIN` for its
introduction; until then the newest waits. The other pool is for all other addresses. No address has
more than `STRANGERS_PER_ADDRESS_MAX` places there. If it is full, the newest replaces the oldest in
the same way. But the newest does not wait: it is closed, because a connection of a node may be
behind it in the backlog.

A host name of the peers file counts after the first introduction, an IP address at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from mqd.limits import (
    STRANGER_SECONDS_MIN,
    STRANGERS_ELSEWHERE_MAX,
    STRANGERS_MAX,
    STRANGERS_PER_ADDRESS_MAX,
)


class Stranger(Protocol):
    since: float
    """Monotonic seconds of its accept."""


StrangerT = TypeVar("StrangerT", bound=Stranger)


class Full(Exception):
    """There is no place for this address: why."""


class Strangers(Generic[StrangerT]):
    """The two pools, oldest first."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts`: of the other nodes, by the peers file."""
        self._known = {_plain(host) for host in hosts}
        self._near: dict[StrangerT, str] = {}
        self._far: dict[StrangerT, str] = {}
        self._far_by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._near) + len(self._far)

    def __iter__(self) -> Iterator[StrangerT]:
        yield from self._near
        yield from self._far

    def is_known(self, address: str) -> bool:
        return _plain(address) in self._known

    def place_taken_by(self, address: str) -> StrangerT | None:
        """The oldest connection, where the pool of `address` is full; None where it has a place.

        Raises Full.
        """
        address = _plain(address)
        if address in self._known:
            return next(iter(self._near)) if len(self._near) >= STRANGERS_MAX else None
        if self._far_by_address[address] >= STRANGERS_PER_ADDRESS_MAX:
            raise Full(
                f"{STRANGERS_PER_ADDRESS_MAX} connections from this address have not "
                "introduced themselves"
            )
        return next(iter(self._far)) if len(self._far) >= STRANGERS_ELSEWHERE_MAX else None

    def may_go(self, stranger: StrangerT, now: float) -> bool:
        """Whether it had its time."""
        return now - stranger.since >= STRANGER_SECONDS_MIN

    def add(self, stranger: StrangerT, address: str) -> None:
        address = _plain(address)
        if address in self._known:
            self._near[stranger] = address
        else:
            self._far[stranger] = address
            self._far_by_address[address] += 1

    def introduced(self, stranger: StrangerT, address: str) -> None:
        """It is a node: its address is one of the cluster."""
        self.discard(stranger)
        self._known.add(_plain(address))

    def discard(self, stranger: StrangerT) -> None:
        self._near.pop(stranger, None)
        if (address := self._far.pop(stranger, None)) is not None:
            self._far_by_address[address] -= 1
            if not self._far_by_address[address]:
                del self._far_by_address[address]


def _plain(address: str) -> str:
    """One text for each address: all of the loopback network is one machine."""
    address = address.lower().removeprefix("[").removesuffix("]").removeprefix("::ffff:")
    return "localhost" if address.startswith("127.") or address == "::1" else address
