"""Client connections by address, and the connection to close when the limit is reached. Pure.

One address must not lock out all others. At the limit, a new connection replaces one of the address
with the most connections: the longest idle one. It is refused if its own address has about as many.
So a flood from one address takes places only from that address.

A new connection costs O(log n): a flood does not cause walks over all connections. Each address has
a heap of its connections, by `last_active` at the time of the entry. A connection that was active
since then returns to the heap, at most once for each request or response.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, Protocol, TypeVar

_MARGIN = 2
"""An address must have this many connections more than the one that gets its place."""
_CLOSED_ENTRIES_MAX = 64
"""Entries of closed connections in a heap, beyond one for each open connection."""


class Active(Protocol):
    open: bool
    last_active: float
    """Monotonic seconds of the last request or response. It never decreases."""


ActiveT = TypeVar("ActiveT", bound=Active)


class Addresses(Generic[ActiveT]):
    """The open connections of each address."""

    def __init__(self) -> None:
        self._by_address: dict[str, _Address[ActiveT]] = {}
        self._by_size: defaultdict[int, dict[str, None]] = defaultdict(dict)
        """Number of connections -> the addresses that have so many."""
        self._most = 0
        self._arrivals = count()

    def __getitem__(self, address: str) -> int:
        """The number of connections of an address."""
        found = self._by_address.get(address)
        return 0 if found is None else found.size

    def add(self, connection: ActiveT, address: str) -> None:
        entry = self._by_address.get(address)
        if entry is None:
            entry = self._by_address[address] = _Address()
        heappush(entry.heap, (connection.last_active, next(self._arrivals), connection))
        self._resize(address, entry, entry.size + 1)

    def discard(self, address: str) -> None:
        """One connection of this address was closed."""
        entry = self._by_address[address]
        self._resize(address, entry, entry.size - 1)
        if not entry.size:
            del self._by_address[address]
        elif len(entry.heap) > 2 * entry.size + _CLOSED_ENTRIES_MAX:
            entry.heap = [one for one in entry.heap if one[2].open]
            heapify(entry.heap)

    def to_evict_for(self, address: str) -> ActiveT | None:
        """The connection to close for a new one from `address`. None if that has its share."""
        if self._most < self[address] + _MARGIN:
            return None
        return self._by_address[next(iter(self._by_size[self._most]))].longest_idle()

    def _resize(self, address: str, entry: _Address[ActiveT], size: int) -> None:
        former = self._by_size[entry.size]
        former.pop(address, None)
        if not former:
            del self._by_size[entry.size]
        if size:
            self._by_size[size][address] = None
        if size > self._most or (entry.size == self._most and not former):
            self._most = size
        entry.size = size


class _Address(Generic[ActiveT]):
    """The connections of one address."""

    def __init__(self) -> None:
        self.size = 0
        self.heap: list[tuple[float, int, ActiveT]] = []
        """(an earlier last_active, order of arrival, connection), closed connections included."""

    def longest_idle(self) -> ActiveT:
        heap = self.heap
        while True:
            since, arrival, connection = heap[0]
            if not connection.open:
                heappop(heap)
            elif connection.last_active > since:
                heapreplace(heap, (connection.last_active, arrival, connection))
            else:
                return connection
