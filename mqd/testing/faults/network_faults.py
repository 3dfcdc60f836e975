"""Faults of the network: partitions, stalled and slow links, broken connections."""

from __future__ import annotations

import random

from mqd.testing.faults.faulted_cluster import FaultedCluster


class NetworkFaults:
    """Each method injects one fault, and heals the network after a random time."""

    def __init__(self, cluster: FaultedCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance

    async def partition(self) -> None:
        """Partition the nodes into halves, isolate one, or leave one as a bridge between halves."""
        self._cluster.counts["partition"] += 1
        ids = self._cluster.ids[:]
        self._chance.shuffle(ids)
        target = self._cluster.target()
        kind = self._chance.choice(["halves", "one", "target", "bridge"])
        network = self._cluster.network
        if kind == "one" or (kind == "target" and target is None):
            network.partition({ids[0]}, set(ids[1:]))
        elif kind == "target":
            assert target is not None
            network.partition({target}, set(ids) - {target})
        else:
            middle = len(ids) // 2
            bridge = {ids[middle]} if kind == "bridge" else set()
            network.partition(set(ids[:middle]) - bridge, set(ids[middle:]) - bridge)
        self._cluster.later(self._cluster.duration(), self._heal_network)

    async def _heal_network(self) -> None:
        self._cluster.network.heal()

    async def stall(self) -> None:
        """Hold the bytes of one direction of one link, or all bytes that a node sends."""
        self._cluster.counts["stall"] += 1
        source = self._cluster.target() or self._cluster.ids[0]
        others = [node_id for node_id in self._cluster.ids if node_id != source]
        for other in others if self._chance.random() < 0.4 else [self._chance.choice(others)]:
            self._cluster.network.stall(source, other)
        self._cluster.later(self._cluster.duration(), self._heal_network)

    async def slow(self) -> None:
        self._cluster.counts["slow"] += 1
        a, b = self._chance.sample(self._cluster.ids, 2)
        self._cluster.network.slow(a, b, self._chance.choice([0.01, 0.05, 0.3]))
        self._cluster.later(self._cluster.duration(), self._heal_network)

    async def break_connections(self) -> None:
        self._cluster.counts["break"] += 1
        a, b = self._chance.sample(self._cluster.ids, 2)
        self._cluster.network.break_connections(a, b)
