"""Which connection is closed for a new one: compared with a search of all connections, and its cost
in a flood.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from mqd.server import addresses as addresses_module
from mqd.server.addresses import Addresses


@dataclass(eq=False)
class Connection:
    address: str
    last_active: float
    open: bool = True


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_idle_of_the_busiest_address_is_closed(seed: int) -> None:
    chance = random.Random(seed)
    addresses: Addresses[Connection] = Addresses()
    connections: list[Connection] = []
    for now in range(1500):
        what = chance.random()
        if what < 0.45 or not connections:
            connections.append(Connection(chance.choice("aaaabbbcd"), now))
            addresses.add(connections[-1], connections[-1].address)
        elif what < 0.6:
            chance.choice(connections).last_active = now
        elif what < 0.9:
            closed = connections.pop(chance.randrange(len(connections)))
            closed.open = False
            addresses.discard(closed.address)
        sizes = Counter(connection.address for connection in connections)
        new_one = chance.choice("abcde")
        assert addresses[new_one] == sizes[new_one]
        victim = addresses.to_evict_for(new_one)
        most = max(sizes.values(), default=0)
        if most < sizes[new_one] + 2:
            assert victim is None
            continue
        assert victim is not None and victim.open and sizes[victim.address] == most
        assert victim.last_active == min(
            one.last_active for one in connections if one.address == victim.address
        )


def test_a_new_connection_in_a_flood_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: entries pushed back into a heap, and heaps that are rebuilt."""
    steps = Counter[str]()

    def counted(name: str) -> None:
        original = getattr(addresses_module, name)

        def call(heap: list[object], *rest: object) -> object:
            steps[name] += len(heap) if name == "heapify" else 1
            return original(heap, *rest)

        monkeypatch.setattr(addresses_module, name, call)

    for name in ("heapify", "heappop", "heapreplace"):
        counted(name)
    addresses: Addresses[Connection] = Addresses()
    for now in range(10_000):
        addresses.add(Connection("flood", now), "flood")
    for number in range(4_000):
        victim = addresses.to_evict_for(f"new_one {number}")
        assert victim is not None and victim.last_active == number
        victim.open = False
        addresses.discard(victim.address)
        addresses.add(Connection(f"new_one {number}", 10_000 + number), f"new_one {number}")
    assert steps.total() < 3 * 4_000
