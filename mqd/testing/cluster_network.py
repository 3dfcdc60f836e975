"""The links between nodes and clients, as tests control them: partitions, delays, resets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mqd.testing.fabric import Fabric, Host
from mqd.testing.world import World

Place = int | str
"""The id of a node, or the name of a client ("c1")."""


class ClusterNetwork:
    """Controls the links between nodes (by id) and clients (by name: "c1", "c2" in the order of
    their creation).
    """

    def __init__(
        self, world: World, fabric: Fabric, hosts: Mapping[Place, Host], nodes: Collection[int]
    ) -> None:
        """`hosts`: the hosts of nodes and clients. `nodes`: the ids of all nodes."""
        self._trace = world.trace
        self._fabric = fabric
        self._hosts = hosts
        self._nodes = nodes
        self._random = world.random("partitions")

    def _host(self, place: Place) -> Host:
        return self._hosts[place]

    def partition(self, *groups: Collection[Place], breaks: bool | None = None) -> None:
        """Hold all bytes between the groups until `heal`. Places outside of all groups reach all
        places. Pieces in flight are held, and connections stay open silently. With `breaks`,
        connections are reset at once, as some routers do. By default this is random.
        """
        self._trace.add(
            "-", f"partition {' | '.join(' '.join(map(str, _ordered(group))) for group in groups)}"
        )
        breaks = self._random.random() < 0.3 if breaks is None else breaks
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                for a in _ordered(group):
                    for b in _ordered(other):
                        self._fabric.hold(self._host(a), self._host(b))
                        self._fabric.hold(self._host(b), self._host(a))
                        if breaks:
                            self._fabric.break_connections(self._host(a), self._host(b))

    def isolate(self, node_id: Place, *, breaks: bool | None = None) -> None:
        """Partition one node from all other nodes. Clients still reach it."""
        self.partition(
            [node_id], [other for other in self._nodes if other != node_id], breaks=breaks
        )

    def stall(self, source: Place, target: Place) -> None:
        """Hold all bytes from `source` to `target` until `heal`. The other direction stays open."""
        self._trace.add("-", f"stall {source} {target}")
        self._fabric.hold(self._host(source), self._host(target))

    def slow(self, source: Place, target: Place, seconds: float) -> None:
        """Delay all bytes in both directions by this many additional seconds. 0.0 or `heal` ends
        it.
        """
        self._trace.add("-", f"slow {source} {target} {seconds:.6f}")
        for one, other in ((source, target), (target, source)):
            self._fabric.link(self._host(one), self._host(other)).delay = seconds

    def break_connections(self, source: Place, target: Place) -> int:
        """Reset every connection between the two; returns their number."""
        self._trace.add("-", f"break {source} {target}")
        return self._fabric.break_connections(self._host(source), self._host(target))

    def heal(self) -> None:
        """Open all links without additional delay. Held pieces arrive soon."""
        self._trace.add("-", "heal")
        self._fabric.heal()


def _ordered(places: Collection[Place]) -> list[Place]:
    return sorted(places, key=str)
